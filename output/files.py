"""Files that are there whole or not at all: written beside their place and, once they are on the disk, put there.

So a full disk, a kill or an error leaves a file that was there as it was. What a killed process leaves behind is a
folder with a name that no reader takes for a result; whoever writes the same file next removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

TEMPORARY_SUFFIX = ".weighted-clip.tmp"
"""Behind the name of a file: the folder that it is written in. Nobody else's folder has such a name."""
MAX_NAME = 64
"""Characters of a file's name that the folder's begins with; in the place of a longer one stands a number."""


class WriteError(OSError):
    """A file that cannot be written; the message names it."""


@contextmanager
def written_whole(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """A place to write a file at; when the block has ended without an error, the file is put where it belongs.

    Args:
        path: Of the file, in a folder that is there; one of that name is replaced and its permissions are kept, of a
            link what it leads to.
        may_replace: Whether that is wanted; otherwise it is an error.

    Yields:
        Where to write it, in a folder of its own; the suffix is the file's.

    Raises:
        WriteError: If it cannot be written. Nothing of it is left, and what was there before is.
        OSError: What the block raises of another file.
    """
    target = Path(os.path.realpath(path))
    # a folder, because safetensors makes temporary files of its own, which nothing removes after a kill
    temporary = target.with_name(_beginning(target.name) + TEMPORARY_SUFFIX)
    written = temporary / f"whole{target.suffix}"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield written
        with written.open("rb+") as file:
            os.fsync(file.fileno())
        _put(written, target, may_replace=may_replace)
    except WriteError:
        raise
    except OSError as error:
        others = [name for name in (error.filename, error.filename2) if isinstance(name, (str, Path))]
        if others and not any(Path(name) in (target, temporary, written) for name in others):
            raise
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _put(written: Path, target: Path, *, may_replace: bool) -> None:
    """Put a file where it belongs."""
    if may_replace:
        with suppress(FileNotFoundError):
            shutil.copymode(target, written)
        written.replace(target)
        return
    target.touch(exist_ok=False)
    try:
        written.replace(target)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _beginning(name: str) -> str:
    """What stands for a name in that of a folder, which must not be too long."""
    if len(name) <= MAX_NAME:
        return name
    return blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
