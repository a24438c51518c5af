"""Files that are there whole or not at all: written beside their place and, once they are on the disk, put there.

So a full disk, a kill or an error leaves a file that was there as it was. What a killed process leaves behind is a
folder with a name that no reader takes for a result; whoever writes the same file next removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".weighted-clip.tmp"
"""Behind the name of a file: the folder that it is written in. Nobody else's folder has such a name."""


@contextmanager
def written_whole(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """A place to write a file at; when the block has ended without an error, the file is put where it belongs.

    Args:
        path: Of the file, in a folder that is there; one of that name is replaced, of a link what it leads to.
        may_replace: Whether that is wanted; otherwise it is an error.

    Yields:
        Where to write it: the same name, in a folder of its own.

    Raises:
        OSError: If it cannot be written; the message names it. Nothing of it is left, and what was there before is.
    """
    target = Path(os.path.realpath(path))
    # a folder, because safetensors makes temporary files of its own, which nothing removes after a kill
    temporary = target.with_name(target.name + TEMPORARY_SUFFIX)
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        written = temporary / target.name
        yield written
        with written.open("rb+") as file:
            os.fsync(file.fileno())
        if not may_replace:
            target.touch(exist_ok=False)
        written.replace(target)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
