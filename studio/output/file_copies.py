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


class Placement(NamedTuple):
    """A file and its destination."""

    source: Path
    target: Path


class Placed(NamedTuple):
    """Result of placing files."""

    done: list[Placement]
    """Copied."""
    there: list[Placement]
    """Not copied, because the destination already had the same bytes."""


def place_files(placements: Sequence[Placement], *, on_progress: Callable[[int], None] | None = None) -> Placed:
    """Copy files, and create their folders. An existing target is never replaced.

    Args:
        placements: Sources and targets, no target twice. For a link, its target is copied.
        on_progress: Called with the number of files that have reached their targets. An exception it raises undoes all
            of them.

    Returns:
        The result. Both lists are in the given order.

    Raises:
        ValueError: If a target is another file or the source itself, or another run writes into its folder; nothing is
            done then.
        OSError: If a target cannot be written. Nothing is copied then.
    """
    with ExitStack() as stack:
        # by their real paths, of which no two are the same folder
        for folder in dict.fromkeys(Path(os.path.realpath(one.target.parent)) for one in placements):
            stack.enter_context(alone_in(folder))
        new, same = _divided(placements)
        made: list[Placement] = []
        try:
            for number, one in enumerate(new, 1):
                _copy(one)
                made.append(one)
                if on_progress is not None:
                    on_progress(number)
        except BaseException:
            for source, target in made:
                if os.path.lexists(source):  # not the last name of a file, whatever others do
                    target.unlink(missing_ok=True)
            raise
        return Placed(made, same)


def _divided(placements: Iterable[Placement]) -> tuple[list[Placement], list[Placement]]:
    """Separate placements to be made, and those with the same bytes at the target."""
    new: list[Placement] = []
    same: list[Placement] = []
    seen: set[Path] = set()
    for one in placements:
        source, target = one
        if target in seen:
            raise ValueError(f"{target} would come twice; nothing was done")
        seen.add(target)
        if not os.path.lexists(target):
            new.append(one)
        elif source.name == target.name and source.parent.samefile(target.parent):
            raise ValueError(f"{source} is in {target.parent} already; nothing was done")
        elif target.is_symlink() or not target.is_file() or not filecmp.cmp(source, target, shallow=False):
            raise ValueError(f"{target} exists and is not overwritten; nothing was done")
        else:
            same.append(one)
    return new, same


def _copy(one: Placement) -> None:
    source, target = one
    with written_whole(target, may_replace=False) as place:
        shutil.copyfile(source, place)
    try:
        shutil.copystat(source, target)
    except BaseException:
        target.unlink()
        raise
