"""Files copied or moved into other folders: all of them or none, and never over a file that is there.

To move, each file first gets its second name, or a copy on another file system; only when all are there are the first
names removed. So whatever happens in between, no file is lost, and what was begun is taken back.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .files import written_whole


class Placement(NamedTuple):
    """A file and where it shall be."""

    source: Path
    target: Path


class Placed(NamedTuple):
    """What became of files."""

    done: list[Placement]
    """Copied or moved."""
    there: list[Placement]
    """Not copied, or moved no further, as the very same bytes were at the target before."""


def place_files(
    placements: Sequence[Placement], *, is_move: bool, on_progress: Callable[[int], None] | None = None
) -> Placed:
    """Copy or move files, and make the folders for them.

    A target that is there is never replaced. If it holds the same bytes, the source stays where it is. If it is a
    second name of the source, as a move that was killed leaves it, the move is finished.

    Args:
        placements: Sources and targets, no target twice. Of a link what it leads to is copied, and the link removed.
        is_move: Whether sources are removed once all targets are there.
        on_progress: Called with the number of files that have reached their targets. What it raises takes back all of
            them. Once sources are removed it is not called any more.

    Returns:
        What was done. Both lists are in the order given.

    Raises:
        ValueError: If a target is another file or the source itself; nothing was done then. Or if sources cannot be
            removed: these are left, and their targets taken back.
        OSError: If a target cannot be written. Nothing was moved or copied then.
    """
    new, second_names, same = _divided(placements)
    made: list[Placement] = []
    folders: list[Path] = []
    try:
        for folder in dict.fromkeys(one.target.parent for one in new):
            _make(folder, folders)
        for number, one in enumerate(new, 1):
            _put(one, is_move=is_move)
            made.append(one)
            if on_progress is not None:
                on_progress(number)
    except BaseException:
        for _, target in made:
            target.unlink(missing_ok=True)
        for folder in reversed(folders):
            with suppress(OSError):
                folder.rmdir()
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
    """What is to be done, what has its second name already, and what has the same bytes at its target."""
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
        elif source.parent.samefile(target.parent):
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


def _make(folder: Path, made: list[Path]) -> None:
    """Make a folder and those that it is in, and note which are new."""
    missing: list[Path] = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    for path in reversed(missing):
        path.mkdir()
        made.append(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file, and no folder; nothing was done")


def _put(one: Placement, *, is_move: bool) -> None:
    """Have a file at its target, too."""
    source, target = one
    if is_move and not source.is_symlink():
        try:
            os.link(source, target)
            return
        except FileExistsError:
            raise ValueError(f"{target} exists by now and is not overwritten; nothing was done") from None
        except OSError:
            pass  # another file system, or one without second names
    with written_whole(target, may_replace=False) as place:
        shutil.copyfile(source, place)
    try:
        shutil.copystat(source, target)
    except BaseException:
        target.unlink()
        raise


def _removed(placements: Iterable[Placement], made: Sequence[Placement]) -> list[str]:
    """Remove sources, and say of which that failed; targets made for these are removed instead."""
    left: list[str] = []
    own = set(made)
    for one in placements:
        try:
            one.source.unlink()
        except OSError as error:
            left.append(f"{one.source}: {error.strerror or error}")
            if one in own:
                one.target.unlink()
    return left
