"""Atomic files, written next to their destination and moved there once they are on disk; and locks against other runs.

So a full disk, a kill or an error leaves an existing file as it was, and of two processes that write the same file at
once each puts its own there, whole. A temporary folder has a name that no reader takes for a result. In it each writer
has a folder of its own, which it locks while it lives; what is not locked was left by a kill, and the next writer of
the same file removes it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from secrets import token_hex

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

TEMPORARY_SUFFIX = ".weighted-clip.tmp"
"""Suffix of the folder that a file is written in, and of a run's lock. No other program uses this name."""
LOCK_SUFFIX = ".lock"
"""Suffix of the lock file next to a writer's folder."""
RUN_LOCK_NAME = f"run{TEMPORARY_SUFFIX}"
"""Name of a run's lock in its folder."""
MAX_NAME = 64
"""Characters of a file's name at the beginning of the folder's name; a longer name is replaced by a number."""
_NUM_TRIES = 100
"""Attempts to create a writer's own folder: each fails only if another writer cleans up at that very moment."""


class WriteError(OSError):
    """Raised for a file that cannot be written; the message names it."""


class LockedError(OSError):
    """Raised for a file that another process, or another thread, has locked."""


@contextmanager
def written_whole(path: Path, *, may_replace: bool = True) -> Iterator[Path]:
    """Yield a path to write a file at; when the block ends without an error, the file is moved to its destination.

    Args:
        path: The file, in an existing folder. An existing file is replaced and keeps its permissions; for a link, this
            applies to its target.
        may_replace: Whether an existing file may be replaced; otherwise it is an error, also if it comes meanwhile.
            Without hard links (FAT, some network disks; not on Windows) only one that comes from this program, or
            before the last moment, is noticed.

    Yields:
        Temporary path in a separate folder, with the file's suffix.

    Raises:
        WriteError: If it cannot be written. No part of it remains, and an existing file is left as it was.
        OSError: Raised by the block for another file.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(_beginning(target.name) + TEMPORARY_SUFFIX)
    try:
        with _own_folder(temporary) as folder:
            written = folder / f"whole{target.suffix}"
            yield written
            with written.open("rb+") as file:
                os.fsync(file.fileno())
            _put(written, target, may_replace=may_replace)
    except WriteError:
        raise
    except OSError as error:
        failed_paths = [Path(name) for name in (error.filename, error.filename2) if isinstance(name, (str, Path))]
        if failed_paths and not any(
            failed_path == target or failed_path.is_relative_to(temporary) for failed_path in failed_paths
        ):
            raise
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file whole, in UTF-8."""
    with written_whole(path) as place:
        place.write_text(text, encoding="utf-8")


@contextmanager
def folder_written_whole(folder: Path, *, may_replace: bool = False) -> Iterator[Path]:
    """Yield a folder to fill; when the block ends without an error, it is moved to its destination.

    Args:
        folder: The folder, empty or not existing yet; its parents are created.
        may_replace: Whether a folder with contents may be replaced. A kill at that very moment leaves one of both;
            where the system cannot exchange folders, as Linux can, it can leave none.

    Raises:
        WriteError: If it cannot be written, or others have put something there meanwhile.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _own_folder(folder.with_name(_beginning(folder.name) + TEMPORARY_SUFFIX)) as temporary:
            whole = temporary / "whole"
            whole.mkdir()
            yield whole
            if may_replace and _exchange(whole, folder):
                return
            with suppress(FileNotFoundError):
                if may_replace:
                    folder.rename(temporary / "before")
                else:
                    folder.rmdir()
            whole.rename(folder)
    except WriteError:
        raise
    except OSError as error:
        raise WriteError(f"{folder} cannot be written: {error.strerror or error}") from error


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where this is not possible."""
    call = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None  # glibc 2.28 or newer
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return call is not None and call(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


@contextmanager
def alone_in(folder: Path, *, is_first: bool = True) -> Iterator[None]:
    """Create a folder, and keep other runs out of it while the context lasts; all of this program must ask for it.

    What killed writers left in it is removed. In the end a folder that was created and is still empty goes again.

    Args:
        folder: The folder.
        is_first: False for all but one of several processes that write there together; only that one locks it.

    Raises:
        ValueError: If another run writes there, or it is a file.
        OSError: If no file can be written there.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise ValueError(f"{folder} is a file, and no folder; nothing was done") from None
    try:
        with ExitStack() as stack:
            if is_first:
                _lock_run(folder, stack)
            yield
    finally:
        with suppress(OSError):
            for path in created:
                path.rmdir()


def _lock_run(folder: Path, stack: ExitStack) -> None:
    """Lock a folder for a run, and remove remains of killed writers."""
    try:
        stack.enter_context(_locked(folder / RUN_LOCK_NAME))
    except LockedError:
        raise ValueError(
            f"{folder}: another run is writing there; wait until it has ended, or choose another folder. Nothing was "
            "done"
        ) from None
    except OSError as error:
        raise WriteError(f"{folder}: no file can be written there ({error.strerror}); choose another folder") from error
    for temporary in folder.glob(f"*{TEMPORARY_SUFFIX}"):
        _remove_remains(temporary)
        with suppress(OSError):
            temporary.rmdir()


@contextmanager
def _locked(path: Path, *, must_hold: bool = False) -> Iterator[None]:
    """Lock a file, created if missing, and remove it at the end.

    The system releases the lock when the process ends, however it ends. It keeps out other processes of the machine
    and, on a network disk that passes locks on, of other machines. A file system without locks keeps nobody out.
    """
    descriptor, is_held = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), False
    try:
        try:
            _lock(descriptor)
        except OSError as error:
            if must_hold or isinstance(error, (BlockingIOError, PermissionError)):
                raise LockedError(errno.EBUSY, os.strerror(errno.EBUSY), str(path)) from error
        # between opening and locking, who held it before may have removed it; Windows removes no open file
        if os.name == "posix" and not _is_at(path, descriptor):
            raise LockedError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))
        is_held = True
        yield
    finally:
        if is_held and os.name == "posix":  # before another can lock it
            path.unlink(missing_ok=True)
        os.close(descriptor)
        if is_held and os.name != "posix":
            with suppress(OSError):  # another has opened it by now
                path.unlink()


def _lock(descriptor: int) -> None:
    """Lock an open file; BlockingIOError or PermissionError if another holds it."""
    if sys.platform == "win32":
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def _own_folder(parent: Path) -> Iterator[Path]:
    """Create a folder for one writer, and remove it in the end; remains of killed writers are removed first.

    Its name is random, so that no other writer has its files, even where there are no locks.
    """
    _remove_remains(parent)
    with ExitStack() as stack:
        stack.callback(_remove_empty, parent)
        failed = 0
        while True:
            folder = parent / token_hex(8)
            with suppress(FileExistsError):
                parent.mkdir()
                with suppress(OSError):  # so that whoever may write the file may write here
                    shutil.copymode(parent.parent, parent)
            try:
                stack.enter_context(_locked(folder.with_suffix(LOCK_SUFFIX)))
                break
            except (FileNotFoundError, LockedError):  # another writer is removing the empty folder, or the new lock
                failed += 1
                if failed == _NUM_TRIES:
                    raise
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.mkdir()
        yield folder


def _remove_remains(temporary: Path) -> None:
    """Remove what nobody has locked from a temporary folder, if it is there."""
    with suppress(OSError):
        for name in {entry.name.removesuffix(LOCK_SUFFIX) for entry in temporary.iterdir()}:
            left = temporary / name
            with suppress(OSError), _locked(left.with_name(name + LOCK_SUFFIX), must_hold=True):
                shutil.rmtree(left, ignore_errors=True)
                left.unlink(missing_ok=True)  # a file that version 0.2.0 left


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def _put(written: Path, target: Path, *, may_replace: bool) -> None:
    """Move a file to its destination."""
    if may_replace:
        with suppress(FileNotFoundError):
            shutil.copymode(target, written)
        written.replace(target)
        return
    if os.name == "nt":
        written.rename(target)  # which replaces nothing there
        return
    try:
        os.link(written, target)
    except FileExistsError:
        raise
    except OSError:  # no hard links there
        with _locked(written.parent.with_name(f"put{LOCK_SUFFIX}")):
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
            written.rename(target)


def _beginning(name: str) -> str:
    """Beginning of the temporary folder's name, which must not be too long."""
    if len(name) <= MAX_NAME:
        return name
    return blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
