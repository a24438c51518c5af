"""Opening safetensors files that somebody else made: what would block or take memory for nothing is refused.

safetensors checks the header itself. It does not ask whether the path is a file (opening a pipe waits for a writer),
and it reads any header up to 100 MB, of which it makes a gigabyte.
"""

from __future__ import annotations

import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Types of numbers that are read, as files name them."""


class RefusedFile(SafetensorError):
    """A file that is not read, although it may be whole; the message says why."""


def why_unread(error: Exception) -> str:
    """What to say of a file that could not be opened or read, behind its name."""
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror or error}"
    if isinstance(error, RefusedFile):
        return f"it is not read: {error}"
    return f"not a readable safetensors file, perhaps cut off in download ({error})"


@contextmanager
def opened(path: Path, max_header_bytes: int) -> Generator[Any]:
    """What safetensors gives the tensors from, on the CPU, as long as the context lasts.

    Args:
        path: The file.
        max_header_bytes: Longest header of keys, shapes and metadata that is read.

    Yields:
        The open file.

    Raises:
        OSError: If it is missing or cannot be read, or the system cannot map it.
        RefusedFile: If it is no file, or its header is too long.
        SafetensorError: If it is no safetensors file, or not whole.
    """
    try:
        about = path.stat()
    except ValueError as error:  # a name that no file can have
        raise FileNotFoundError(f"{path}: {error}") from error
    if not stat.S_ISREG(about.st_mode):
        raise RefusedFile("this is a folder, a pipe or a device, and not a file")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > about.st_size:
        raise SafetensorError(f"its header should have {size:,} bytes, and the file has {about.st_size:,}")
    if size > max_header_bytes:
        raise RefusedFile(f"its header has {size:,} bytes, at most {max_header_bytes:,} are read")
    try:
        handle = safe_open(path, framework="pt")
    except RuntimeError as error:  # PyTorch's, for a file that is larger than what the system can promise
        raise OSError(f"the system cannot map it into memory: {error}") from error
    with handle as file:
        yield file
