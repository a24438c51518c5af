"""Opening untrusted files of ``torch.save``: nothing in them runs, and none takes much more memory than its own size.

PyTorch's ``weights_only`` unpickler refuses code, but believes what a file says of its sizes. So the zip and the pickle
in it are looked at first (``encoder/files/torch_archive.py``), and the tensors before their values are read.

No host imports this module (a contract in ``pyproject.toml`` enforces that).
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...encoder.files.torch_archive import ArchiveError, check_archive
from ...encoder.quoting import quote
from ...encoder.regular_file import NoRegularFile
from .weight_files import DVAEFileError


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
    classes = classes or {}
    try:
        check_archive(path, max_bytes, classes)
        with torch.serialization.safe_globals(list(classes.values())) if classes else nullcontext():
            return torch.load(str(path), map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise DVAEFileError(f"{path}: refused, because {refusal} ({_reason(error)})") from error
    except FileNotFoundError as error:
        raise DVAEFileError(f"{path}: there is no such file") from error
    except NoRegularFile as error:
        raise DVAEFileError(str(error)) from error
    except ArchiveError as error:
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


def _reason(error: Exception) -> str:
    """PyTorch's message without its advice, which is to trust the file."""
    told = str(error).partition("WeightsUnpickler error:")[2] or str(error) or type(error).__name__
    return told.partition("Please use")[0].strip().partition("\n")[0][:300]
