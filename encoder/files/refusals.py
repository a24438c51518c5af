"""Files that were refused, and why: what takes long to refuse is not read again as long as it is the same file."""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

MAX_REFUSALS = 256
"""Refusals that a memory holds; the one not met for longest goes first."""
SETTLED_NANOSECONDS = 2_000_000_000
"""Two changes of a file within this time may carry the same time: FAT counts in steps of two seconds."""


class Refusals:
    """The last refusals of some reader of files. Safe between threads.

    A file is the same as long as its path, its size and the time of its last change are. Only what is wrong with a file
    itself is remembered: after an error of the system it is tried again, and so it is right after a change.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[Path, int, int], ValueError] = OrderedDict()
        self._lock = Lock()

    @contextmanager
    def remembered(self, path: Path) -> Generator[os.stat_result]:
        """Refuse a file as it was refused before, or else remember how the lines inside refuse it.

        Args:
            path: The file.

        Yields:
            What the system says of it.

        Raises:
            OSError: If it is missing or cannot be looked at.
            ValueError: Of the kind and with the message that it was refused with.
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
                    self._found[key] = type(error)(*error.args)  # a new one: an error that was raised keeps its frames
                    if len(self._found) > MAX_REFUSALS:
                        self._found.popitem(last=False)
            raise
