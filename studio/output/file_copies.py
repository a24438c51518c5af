"""Copying files into other folders: all of them or none, and never over an existing file.

Whatever happens in between, incomplete work is undone. A kill undoes nothing: it leaves some of the targets, each
whole, and the next run takes those for done.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from .files import alone_in, written_whole


class FileCopy(NamedTuple):
    """A file and its destination."""

    source: Path
    target: Path


def place_files(placements: Sequence[FileCopy], *, on_progress: Callable[[int], None] | None = None) -> list[FileCopy]:
    """Copy files, and create their folders. An existing target is never replaced.

    Args:
        placements: Sources and targets, no target twice. For a link, its target is copied.
        on_progress: Called with the number of files that have reached their targets. An exception it raises undoes all
            of them.

    Returns:
        Those that were not copied because the target already had the same bytes, in the given order.

    Raises:
        ValueError: If a target is another file or the source itself, or another run writes into its folder; nothing is
            done then.
        OSError: If a target cannot be written. Nothing is copied then.
    """
    with ExitStack() as stack:
        # by their real paths, of which no two are the same folder
        for folder in dict.fromkeys(Path(os.path.realpath(placement.target.parent)) for placement in placements):
            stack.enter_context(alone_in(folder))
        new, same = _divided(placements)
        copied: list[FileCopy] = []
        try:
            for number, placement in enumerate(new, 1):
                _copy(placement)
                copied.append(placement)
                if on_progress is not None:
                    on_progress(number)
        except BaseException:
            for source, target in copied:
                if os.path.lexists(source):  # not the last name of a file, whatever others do
                    target.unlink(missing_ok=True)
            raise
        return same


def _divided(placements: Iterable[FileCopy]) -> tuple[list[FileCopy], list[FileCopy]]:
    """Separate copies to make from targets that already have the same bytes."""
    new: list[FileCopy] = []
    same: list[FileCopy] = []
    seen: set[Path] = set()
    for placement in placements:
        source, target = placement
        if target in seen:
            raise ValueError(f"{target} would come twice; nothing was done")
        seen.add(target)
        if not os.path.lexists(target):
            new.append(placement)
        elif source.name == target.name and source.parent.samefile(target.parent):
            raise ValueError(f"{source} is in {target.parent} already; nothing was done")
        elif target.is_symlink() or not target.is_file() or not filecmp.cmp(source, target, shallow=False):
            raise ValueError(f"{target} exists and is not overwritten; nothing was done")
        else:
            same.append(placement)
    return new, same


def _copy(placement: FileCopy) -> None:
    source, target = placement
    with written_whole(target, may_replace=False) as place:
        shutil.copyfile(source, place)
    try:
        shutil.copystat(source, target)
    except BaseException:
        target.unlink()
        raise
