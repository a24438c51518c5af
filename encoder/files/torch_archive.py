"""The look at a file of ``torch.save``, a zip with a pickle in it, before PyTorch reads it: nothing in it is unpickled.

PyTorch believes what a file says of its sizes. It stores entries as they are; where one is compressed, mapping the file
would take the compressed bytes for numbers.
"""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from ..quoting import quote
from ..regular_file import open_regular
from .kinds import NUM_FIRST_BYTES, PICKLES, kind_of
from .pickles import check_pickle

MAX_DIRECTORY_BYTES = 4 * 2**20
"""Maximum size of a zip's directory; the largest published model has some 0.1 MiB."""
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
GLOBALS = frozenset(
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


class ArchiveError(ValueError):
    """Raised for a file that is whole and not read; the message says why."""


def check_archive(
    path: Path, max_bytes: int, classes: Iterable[str] = (), max_pickle_bytes: int = MAX_PICKLE_BYTES
) -> None:
    """Check a file of ``torch.save``, apart from the values of its tensors.

    Args:
        path: The file.
        max_bytes: Maximum size of the file.
        classes: Globals allowed in addition to tensors', by their names in the file.
        max_pickle_bytes: Maximum size of the pickle.

    Raises:
        OSError: If it is no file, or cannot be read.
        UnpicklingError: If it names another global.
        ArchiveError: If it is not read, although it may be whole.
        ValueError: If it is broken.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise ArchiveError(f"this is no file of at most {max_bytes:,} bytes")
        check_pickle(_pickle_in(file, size, max_pickle_bytes), GLOBALS.union(classes), max_pickle_bytes)


def _pickle_in(file: BinaryIO, size: int, max_bytes: int) -> bytes:
    """The pickle of a zip whose entries are uncompressed and together no larger than the file."""
    start = file.read(NUM_FIRST_BYTES)
    if not start.startswith(_START):
        kind = kind_of(start)
        raise ArchiveError(f"it is {kind}" if kind and not start.startswith(PICKLES) else _NO_ZIP)
    _check_end(file, size)
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise ArchiveError(f"its entry {quote(entry.filename, 200)} is compressed, and PyTorch compresses none")
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise ArchiveError(f"its entries would have {total:,} bytes, and the file has {size:,}")
    names = {entry.filename.lower() for entry in entries}  # PyTorch finds entries by names of either case
    if len(names) < len(entries):
        raise ArchiveError("two of its entries have the same name")
    named = {name.rpartition("/")[2] for name in names}
    if _TORCHSCRIPT in named:
        raise ArchiveError("it is a TorchScript archive, which holds a program")
    pickles = [entry for entry in entries if entry.filename.lower().rpartition("/")[2] == _PICKLE]
    if len(pickles) != 1:
        raise ValueError(f"it has {len(pickles)} entries {_PICKLE}, expected one")
    if pickles[0].file_size > max_bytes:
        raise ArchiveError(
            f"its pickle of names and shapes has {pickles[0].file_size:,} bytes, at most {max_bytes:,} are read"
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
        raise ArchiveError(f"its directory has {length:,} bytes, at most {MAX_DIRECTORY_BYTES:,} are read")
