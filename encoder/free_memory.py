"""Memory that this process can still use, by the machine and by the limits of the control groups it runs in.

Source: Linux, Documentation/filesystems/proc.rst (MemAvailable), admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class _Names(NamedTuple):
    """Files of a control group, and fields of its statistics."""

    limit: str
    used: str
    cached: tuple[str, str]
    """Memory of files, which can be dropped."""


_STAT = "memory.stat"
_BY_CONTROLLER = {
    "": _Names("memory.max", "memory.current", ("inactive_file ", "active_file ")),
    "memory": _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file ", "total_active_file ")),
}
"""Names in version 2, whose controllers are not named, and in version 1, where each has its folder."""
_NO_LIMIT = 2**60
"""Version 1 writes a number of this size where there is no limit."""


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory available without swapping, or None if unknown.

    Args:
        proc: Folder in which Linux tells of the machine and of this process.
        groups: Folder in which it tells of control groups, by which containers and services are limited.
    """
    if sys.platform == "linux":
        try:
            lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        found = next((line for line in lines if line.startswith("MemAvailable:")), None)
        return None if found is None else min([int(found.split()[1]) * 1024, *_left_in_groups(proc, groups)])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _left_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield what is left of each limit on the groups of this process and on those around them."""
    try:
        groups_of_process = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in groups_of_process:
        _, controller, path = line.split(":", 2)
        if controller not in _BY_CONTROLLER:
            continue
        names, root = _BY_CONTROLLER[controller], groups / controller
        group = root / path.lstrip("/")
        # in a container the path may be one outside of it: then only the root is there
        for folder in (group, *group.parents):
            with suppress(OSError):  # where no limit can be set, there are no such files
                limit = _text(folder / names.limit)
                if limit.isdecimal() and int(limit) < _NO_LIMIT:
                    lines = _text(folder / _STAT).splitlines()
                    cached = sum(int(line.split()[1]) for line in lines if line.startswith(names.cached))
                    yield int(limit) - int(_text(folder / names.used)) + cached
            if folder == root:
                break


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
