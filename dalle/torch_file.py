"""Opening untrusted files of ``torch.save``: nothing in them runs, and none takes much more memory than its own size.

PyTorch's ``weights_only`` unpickler refuses code, but believes what a file says of its sizes. So the zip and the pickle
in it are looked at first, and the tensors before their values are read. PyTorch stores entries as they are; where one
is compressed, mapping the file would take the compressed bytes for numbers.

No host imports this module (a contract in ``pyproject.toml`` enforces that).
"""

from __future__ import annotations

import pickle
import pickletools
import stat
import struct
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..encoder.quoting import quote
from .files import DVAEFileError

MAX_DIRECTORY_BYTES = 4 * 2**20
"""Maximum size of a zip's directory; that of the largest published model has some 0.1 MiB."""
MAX_PICKLE_BYTES = 2 * 2**20
"""Maximum size of the pickle, which holds names and shapes. Unpickled, it can take a hundred times as much."""

_START = b"PK\x03\x04"
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_LOCAL = struct.Struct("<26s2H")
_PICKLE = "data.pkl"
_TORCHSCRIPT = "constants.pkl"
_NO_ZIP = "no zip file, as PyTorch has written since 1.6; older files are not read"
_GLOBALS = frozenset(
    {
        "collections.OrderedDict",
        "torch._utils._rebuild_parameter",
        "torch._utils._rebuild_tensor_v2",
        *(
            f"torch.{kind}Storage"
            for kind in ("Double", "Float", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
        ),
    }
)
"""Globals of plain tensors. PyTorch allows more, such as sparse tensors and functions that make any number of bytes."""


def load(path: Path, max_bytes: int, origin: str, refusal: str, classes: Mapping[str, Any] | None = None) -> Any:
    """Read what ``torch.save`` wrote, without the values of its tensors: those are in the mapped file.

    Args:
        path: The file.
        max_bytes: Maximum size of the file.
        origin: Writer of such files, as a possessive.
        refusal: Reason given for a file that names another global.
        classes: Globals allowed besides those of tensors, by their names in the file.

    Returns:
        The object. Its tensors are to be checked by `check_tensors`.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    try:
        about = path.stat()
    except (OSError, ValueError) as error:
        raise DVAEFileError(f"{path}: there is no such file") from error
    if not stat.S_ISREG(about.st_mode) or about.st_size > max_bytes:
        raise DVAEFileError(f"{path}: this is no file of at most {max_bytes:,} bytes")
    classes = classes or {}
    try:
        with path.open("rb") as file:
            unknown = _unknown(_pickle_in(file, about.st_size), _GLOBALS.union(classes))
        if unknown:
            raise pickle.UnpicklingError(f"Unsupported global: {unknown:.200}")
        with torch.serialization.safe_globals(list(classes.values())) if classes else nullcontext():
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise DVAEFileError(f"{path}: refused, because {refusal} ({_reason(error)})") from error
    except DVAEFileError as error:
        raise DVAEFileError(f"{path}: {error}") from error
    except Exception as error:  # a broken file fails in many ways
        raise DVAEFileError(f"{path}: no whole file of {origin}: {_reason(error)}") from error


def check_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Check tensors of a file before their values are read."""
    total, size = 0, path.stat().st_size
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu":
            raise DVAEFileError(f"{path}: {quote(name, 200)} is no plain tensor")
        stored = tensor.untyped_storage().nbytes() // tensor.element_size()
        if tensor.numel() > stored:
            raise DVAEFileError(
                f"{path}: {quote(name, 200)} has {tensor.numel():,} elements, and {stored:,} are stored"
            )
        total += tensor.numel() * tensor.element_size()
        if total > size:
            raise DVAEFileError(
                f"{path}: its tensors up to {quote(name, 200)} take {total:,} bytes, and the file has {size:,}"
            )


def check_shapes(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor], what: str) -> None:
    """Check names and shapes."""
    if missing := [name for name in expected if name not in tensors]:
        raise ValueError(
            f"there is nothing for {quote(missing[0], 200)}; the file looks incomplete, or is not of {what}"
        )
    for name, tensor in tensors.items():
        if name not in expected:
            raise ValueError(f"it has something for {quote(name, 200)}, which is no part of {what} with these layers")
        if tensor.shape != expected[name].shape:
            shape = quote(list(tensor.shape))
            raise ValueError(f"for {quote(name, 200)} it has shape {shape}, expected {list(expected[name].shape)}")


def _pickle_in(file: BinaryIO, size: int) -> bytes:
    """The pickle of a zip whose entries are uncompressed and together no larger than the file."""
    if file.read(len(_START)) != _START:
        raise DVAEFileError(_NO_ZIP)
    _check_end(file, size)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise DVAEFileError(f"its entry {quote(entry.filename, 200)} is compressed, and PyTorch compresses none")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise DVAEFileError(f"its entries would have {total:,} bytes, and the file has {size:,}")
    names = {entry.filename.lower() for entry in entries}  # PyTorch finds entries by names of either case
    if len(names) < len(entries):
        raise DVAEFileError("two of its entries have the same name")
    named = {name.rpartition("/")[2] for name in names}
    if _TORCHSCRIPT in named:
        raise DVAEFileError("it is a TorchScript archive, which holds a program")
    pickles = [entry for entry in entries if entry.filename.lower().rpartition("/")[2] == _PICKLE]
    if len(pickles) != 1:
        raise ValueError(f"it has {len(pickles)} entries {_PICKLE}, expected one")
    if pickles[0].file_size > MAX_PICKLE_BYTES:
        raise DVAEFileError(
            f"its pickle of names and shapes has {pickles[0].file_size:,} bytes, at most {MAX_PICKLE_BYTES:,} are read"
        )
    file.seek(pickles[0].header_offset)
    _, name_length, extra_length = _LOCAL.unpack(file.read(_LOCAL.size))
    file.seek(name_length + extra_length, 1)
    return file.read(pickles[0].file_size)


def _check_end(file: BinaryIO, size: int) -> None:
    """Refuse a zip whose directory is large, or not where every reader finds the same one: right before its end."""
    last = size - _END.size
    if last < 0:
        raise ValueError("it is cut off")
    file.seek(last)
    mark, *_, length, offset, comment = _END.unpack(file.read(_END.size))
    if mark != b"PK\x05\x06" or comment:
        raise ValueError("it does not end in the directory of a zip")
    first = last - _LOCATOR_64.size - _END_64.size
    if first > 0:
        file.seek(first)
        end = _END_64.unpack(file.read(_END_64.size))
        locator = _LOCATOR_64.unpack(file.read(_LOCATOR_64.size))
        if locator[0] == b"PK\x06\x07":
            if end[0] != b"PK\x06\x06" or locator[2] != first:
                raise ValueError("its directory is not where it says")
            last, length, offset = first, end[-2], end[-1]
    if offset + length != last:
        raise ValueError("its directory is not where it says")
    if length > MAX_DIRECTORY_BYTES:
        raise DVAEFileError(f"its directory has {length:,} bytes, at most {MAX_DIRECTORY_BYTES:,} are read")


def _unknown(data: bytes, allowed: Iterable[str]) -> str:
    """The first global in a pickle that is not allowed, or an empty string."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name == "PROTO" and argument != 2:
            raise ValueError(f"its pickle has protocol {argument}, expected 2")
        name = str(argument).replace(" ", ".", 1)
        if opcode.name == "GLOBAL" and name not in allowed:
            return name
    return ""


def _reason(error: Exception) -> str:
    """PyTorch's message without its advice, which is to trust the file."""
    told = str(error).partition("WeightsUnpickler error:")[2] or str(error) or type(error).__name__
    return told.partition("Please use")[0].strip().partition("\n")[0][:300]
