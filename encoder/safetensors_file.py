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

MAX_HEADER_BYTES = 16 * 2**20
"""Longest header of keys, shapes and metadata that is read; that of an SDXL checkpoint has a third of a million."""

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")
"""Types of numbers that are read, as files name them."""


@contextmanager
def opened(path: Path, max_header_bytes: int = MAX_HEADER_BYTES) -> Generator[Any]:
    """What safetensors gives the tensors from, on the CPU, as long as the context lasts.

    Args:
        path: The file.
        max_header_bytes: Longest header that is read.

    Yields:
        The open file.

    Raises:
        OSError: If it is missing or cannot be read.
        SafetensorError: If it is no file, its header is too long or wrong, or the system cannot map it.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a name that no file can have
        raise FileNotFoundError(f"{path}: {error}") from error
    if not stat.S_ISREG(mode):
        raise SafetensorError("this is a folder, a pipe or a device, and not a file")
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > max_header_bytes:
        raise SafetensorError(f"its header has {size:,} bytes, at most {max_header_bytes:,} are read")
    try:
        handle = safe_open(path, framework="pt")
    except RuntimeError as error:  # PyTorch's, for a file that is larger than what the system can promise
        raise SafetensorError(f"the system cannot map it into memory: {error}") from error
    with handle as file:
        yield file
