"""Peak of a process's resident memory, measured on Linux from within the process."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

MIB = 1024**2
"""Bytes of a mebibyte."""
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class MemoryPeak:
    """Peak of this process's resident memory from now on, minus what is resident now."""

    def __init__(self) -> None:
        _give_back_what_is_free()
        self._before = _resident("VmRSS")
        self._is_new = _forget_the_peak()

    def taken(self) -> int | None:
        """Return the difference in bytes; None if the system does not report it."""
        after = _resident("VmHWM")
        return after - self._before if self._is_new and self._before is not None and after is not None else None


def _resident(name: str) -> int | None:
    """Resident memory in bytes on Linux; None elsewhere."""
    if not _STATUS.is_file():
        return None
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


def _forget_the_peak() -> bool:
    """Reset the peak; return whether that was possible."""
    try:
        _CLEAR_REFS.write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def _give_back_what_is_free() -> None:
    """Return freed memory to the system, as the allocator would hide later use of it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        if trim is not None:
            trim(0)
