"""Copying or moving files into other folders: all of them or none, and never over an existing file.

To move files, each first gets a second hard link, or a copy on another file system; only when all exist are the first
names removed. So whatever happens in between, no file is lost, and incomplete work is undone. A kill undoes nothing: it
leaves some of the targets, each whole, and the next run takes those for done.
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
    """Copied or moved."""
    there: list[Placement]
    """Not copied, or not removed, because the destination already had the same bytes."""


def place_files(
    placements: Sequence[Placement], *, is_move: bool, on_progress: Callable[[int], None] | None = None
) -> Placed:
    """Copy or move files, and create their folders.

    An existing target is never replaced. If it holds the same bytes, the source stays where it is. If it is a second
    hard link to the source, as a killed move leaves it, the move is finished.

    Args:
        placements: Sources and targets, no target twice. For a link, its target is copied, and the link removed.
        is_move: Whether sources are removed once all targets are there.
        on_progress: Called with the number of files that have reached their targets. An exception it raises undoes all
            of them. It is no longer called once sources are removed.

    Returns:
        The result. Both lists are in the given order.

    Raises:
        ValueError: If a target is another file or the source itself, or another run writes into its folder; nothing is
            done then. Or if sources cannot be removed: these remain, and their targets are removed again.
        OSError: If a target cannot be written. Nothing is moved or copied then.
    """
    with ExitStack() as stack:
        # by their real paths, of which no two are the same folder
        for folder in dict.fromkeys(Path(os.path.realpath(one.target.parent)) for one in placements):
            stack.enter_context(alone_in(folder))
        return _placed(placements, is_move=is_move, on_progress=on_progress)


def _placed(placements: Sequence[Placement], *, is_move: bool, on_progress: Callable[[int], None] | None) -> Placed:
    """Copy or move files into existing folders."""
    new, second_names, same = _divided(placements)
    made: list[Placement] = []
    try:
        for number, one in enumerate(new, 1):
            _put(one, is_move=is_move)
            made.append(one)
            if on_progress is not None:
                on_progress(number)
    except BaseException:
        for source, target in made:
            if os.path.lexists(source):  # not the last name of a file, whatever others do
                target.unlink(missing_ok=True)
        raise
    if not is_move:
        return Placed(made, second_names + same)
    left = _removed([*made, *second_names], made)
    if left:
        raise ValueError(
            f"{len(left)} of {len(made) + len(second_names)} files cannot be removed from where they are, so they stay "
            f"there and are not moved; the first is {left[0]}"
        )
    return Placed([one for one in placements if one not in same], same)


def _divided(placements: Iterable[Placement]) -> tuple[list[Placement], list[Placement], list[Placement]]:
    """Separate placements to be made, those already linked, and those with the same bytes at the target."""
    new: list[Placement] = []
    second_names: list[Placement] = []
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
        elif target.is_symlink() or not target.is_file() or source.stat().st_size != target.stat().st_size:
            raise ValueError(f"{target} exists and is not overwritten; nothing was done")
        elif not source.is_symlink() and source.samefile(target):
            second_names.append(one)
        elif filecmp.cmp(source, target, shallow=False):
            same.append(one)
        else:
            raise ValueError(f"{target} exists and is not overwritten; nothing was done")
    return new, second_names, same


def _put(one: Placement, *, is_move: bool) -> None:
    """Create a file's target by a hard link or a copy."""
    source, target = one
    if is_move and not source.is_symlink():
        try:
            os.link(source, target)
            return
        except FileExistsError:
            raise ValueError(f"{target} exists by now and is not overwritten; nothing was done") from None
        except OSError:
            pass  # another file system, or one without hard links
    with written_whole(target, may_replace=False) as place:
        shutil.copyfile(source, place)
    try:
        shutil.copystat(source, target)
    except BaseException:
        target.unlink()
        raise


def _removed(placements: Iterable[Placement], made: Sequence[Placement]) -> list[str]:
    """Remove sources, and report failures; targets made for these are removed instead."""
    left: list[str] = []
    own = set(made)
    for one in placements:
        try:
            one.source.unlink(missing_ok=True)
        except OSError as error:
            left.append(f"{one.source}: {error.strerror or error}")
            if one in own:
                one.target.unlink()
    return left
