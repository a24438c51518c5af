"""Opening untrusted files: those that would block or waste memory are refused, and refusals are remembered.

safetensors checks the header itself. It does not check that the path is a file (opening a pipe waits for a writer), and
it reads any header up to 100 MB, which takes a gigabyte of memory.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from safetensors import SafetensorError, safe_open

from ..quoting import quote
from ..regular_file import open_regular
from .kinds import NUM_FIRST_BYTES, kind_of

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Supported data types, as named in files."""


class RefusedFile(SafetensorError):
    """Raised for a file that is not read, although it may be intact; the message says why."""


def why_unread(error: Exception) -> str:
    """Reason why a file could not be opened or read, to follow its name."""
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror or error}"
    if isinstance(error, RefusedFile):
        return f"it is not read: {error}"
    return f"not a readable safetensors file, perhaps cut off in download ({quote(str(error), 300)})"


@contextmanager
def opened(path: Path, max_header_bytes: int) -> Generator[Any]:
    """Open a safetensors file on the CPU for the duration of the context.

    Args:
        path: The file.
        max_header_bytes: Maximum size of the header of keys, shapes and metadata.

    Yields:
        The open file.

    Raises:
        OSError: If it is missing or cannot be read, or the system cannot map it.
        NoRegularFile: If it is not a file.
        RefusedFile: If it is of another kind by its first bytes, or its header is too long.
        SafetensorError: If it is not a safetensors file, or incomplete.
    """
    with open_regular(path) as file:
        start, num_bytes = file.read(NUM_FIRST_BYTES), os.fstat(file.fileno()).st_size
    size = int.from_bytes(start[:8], "little")
    if kind := "" if start[8:9] == b"{" else kind_of(start):
        raise RefusedFile(f"it is {kind}")
    if size > num_bytes:
        raise SafetensorError(f"its header should have {size:,} bytes, and the file has {num_bytes:,}")
    if size > max_header_bytes:
        raise RefusedFile(f"its header has {size:,} bytes, at most {max_header_bytes:,} are read")
    try:
        handle = safe_open(path, framework="pt")
    except RuntimeError as error:  # PyTorch's, for a file larger than the system can map
        raise OSError(f"the system cannot map it into memory: {error}") from error
    with handle as file:
        yield file


class Shards:
    """Open safetensors files that hold one model together, with the methods of one file."""

    def __init__(self, files: Iterable[Any]) -> None:
        """Join files; RefusedFile if two of them have the same key."""
        self._of: dict[str, Any] = {}
        self._metadata: dict[str, str] = {}
        for file in files:
            self._metadata |= file.metadata() or {}
            for key in file.keys():  # noqa: SIM118
                if key in self._of:
                    raise RefusedFile(f"two of its files have the key {quote(key, 200)}")
                self._of[key] = file

    def keys(self) -> list[str]:
        """All keys."""
        return [*self._of]

    def metadata(self) -> dict[str, str]:
        """Metadata of all of them."""
        return self._metadata

    def get_slice(self, key: str) -> Any:
        """Shape, type and parts of a tensor."""
        return self._of[key].get_slice(key)

    def get_tensor(self, key: str) -> Any:
        """A tensor."""
        return self._of[key].get_tensor(key)


MAX_REFUSALS = 256
"""Maximum number of refusals; the least recently used is dropped first."""
SETTLED_NANOSECONDS = 2_000_000_000
"""Changes of a file within this time may have the same timestamp: FAT counts in steps of two seconds."""


class Refusals:
    """Recent refusals of a file reader. Thread-safe.

    A file is identified by its path, size and modification time. Only problems with a file itself are stored: after a
    system error it is tried again, as it is shortly after a change.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Path, int, int], ValueError] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def remembered(self, path: Path) -> Generator[os.stat_result]:
        """Raise the stored refusal of a file, or else store one raised within the context."""
        state = path.stat()
        key = (path, state.st_size, state.st_mtime_ns)
        with self._lock:
            refusal = self._found.get(key)
            if refusal is not None:
                self._found.move_to_end(key)
        if refusal is not None:
            raise type(refusal)(*refusal.args)
        try:
            yield state
        except ValueError as error:
            is_settled = abs(time.time_ns() - state.st_mtime_ns) > SETTLED_NANOSECONDS
            if is_settled and not isinstance(error.__cause__, OSError):
                with self._lock:
                    self._found[key] = type(error)(*error.args)  # a new one, as a raised error keeps its frames alive
                    if len(self._found) > MAX_REFUSALS:
                        self._found.popitem(last=False)
            raise
