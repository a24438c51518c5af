"""Opening of files that a user or a file of theirs names: regular files alone, and never more bytes than expected.

Opening a pipe waits for a writer, and a device such as ``/dev/zero`` has no end.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_WITHOUT_WAITING = getattr(os, "O_NONBLOCK", 0)  # which Windows lacks, as it does pipes among files


class NoRegularFile(OSError):
    """Raised for a folder, a pipe or a device in the place of a file; ``strerror`` is the reason without its name."""

    def __init__(self, path: str | Path) -> None:
        reason = "it is a folder, a pipe or a device, and not a file"
        super().__init__(f"{path}: {reason}")
        self.strerror = reason


def stat_of(path: str | Path) -> os.stat_result:
    """State of a regular file.

    Raises:
        NoRegularFile: If it is none.
        OSError: If there is nothing, or it may not be looked at.
    """
    try:
        state = Path(path).stat()
    except ValueError as error:  # a name that no file can have
        raise FileNotFoundError(f"{path}: {error}") from error
    if not stat.S_ISREG(state.st_mode):
        raise NoRegularFile(path)
    return state


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file to read its bytes; what becomes of its name meanwhile makes no difference.

    Raises:
        NoRegularFile: If it is none.
        OSError: If it cannot be opened.
    """
    stat_of(path)
    return open(path, "rb", opener=_opened)


def _opened(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _WITHOUT_WAITING)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # another one since it was looked at
        os.close(descriptor)
        raise NoRegularFile(path)
    return descriptor


def read_regular(path: str | Path, max_bytes: int) -> bytes:
    """Read a small regular file whole.

    Raises:
        OSError: If it is none, cannot be read, or has more bytes than ``max_bytes``.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(max_bytes + 1) if size <= max_bytes else b""
    if size > max_bytes or len(content) > max_bytes:
        raise OSError(f"it has {max(size, len(content)):,} bytes, at most {max_bytes:,} are read")
    return content
