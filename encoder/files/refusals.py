"""Refused files with their reasons: a file that takes long to refuse is not read again while it is unchanged."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

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
        """Raise the stored refusal of a file, or else store one raised within the context.

        Args:
            path: The file.

        Yields:
            Its status.

        Raises:
            OSError: If it is missing or cannot be accessed.
            ValueError: The stored error, with its type and message.
        """
        about = path.stat()
        key = (path, about.st_size, about.st_mtime_ns)
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                self._found.move_to_end(key)
        if known is not None:
            raise type(known)(*known.args)
        try:
            yield about
        except ValueError as error:
            is_settled = abs(time.time_ns() - about.st_mtime_ns) > SETTLED_NANOSECONDS
            if is_settled and not isinstance(error.__cause__, OSError):
                with self._lock:
                    self._found[key] = type(error)(*error.args)  # a new one, as a raised error keeps its frames alive
                    if len(self._found) > MAX_REFUSALS:
                        self._found.popitem(last=False)
            raise
