"""Atomic files: written in a temporary folder next to their destination and, once they are on disk, moved there.

So a full disk, a kill or an error leaves an existing file as it was. A killed process leaves behind a folder with a
name that no reader takes for a result; the next writer of the same file removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path

TEMPORARY_SUFFIX = ".weighted-clip.tmp"
"""Suffix of the folder that a file is written in. No other program uses this name."""
MAX_NAME = 64
"""Characters of a file's name at the beginning of the folder's name; a longer name is replaced by a number."""


class WriteError(OSError):
    """Raised for a file that cannot be written; the message names it."""


@contextmanager
def written_whole(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """Yield a path to write a file at; when the block ends without an error, the file is moved to its destination.

    Args:
        path: The file, in an existing folder. An existing file is replaced and keeps its permissions; for a link, this
            applies to its target.
        may_replace: Whether an existing file may be replaced; otherwise it is an error.

    Yields:
        Temporary path in a separate folder, with the file's suffix.

    Raises:
        WriteError: If it cannot be written. No part of it remains, and an existing file is left as it was.
        OSError: Raised by the block for another file.
    """
    target = Path(os.path.realpath(path))
    # a folder, because safetensors makes its own temporary files, which remain after a kill
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
    """Move a file to its destination."""
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
    """Beginning of the temporary folder's name, which must not be too long."""
    if len(name) <= MAX_NAME:
        return name
    return blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
