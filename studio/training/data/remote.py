"""Shards at an address that fsspec reads, such as ``s3://`` or ``https://``: copied to this machine once, whole.

Source: the documentation of fsspec 2026.9, its file systems and their ``get_file``.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar, cast

from ...output.files import written_whole
from .examples import DataProblem

PAUSES = (1.0, 4.0)
"""Seconds before each further try."""
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")


def is_remote(source: str) -> bool:
    """Whether a source is an address; ``C:/`` is none.

    >>> is_remote("s3://bucket/{000..010}.tar"), is_remote("C:/shards"), is_remote("shards/a.tar")
    (True, False, False)
    """
    return bool(_ADDRESS.match(source))


def fetched(address: str, cache: Path) -> Iterator[Path | DataProblem]:
    """Copy remote shards to a folder, unless they are in it; yield the copies in order, or the problems.

    An address may be of several shards: with braces, ``{000..010}``, or an asterisk, or a folder of them. ValueError if
    fsspec does not know such an address, or there is no shard.
    """
    try:
        import fsspec
        from braceexpand import braceexpand
    except ModuleNotFoundError as error:
        raise ValueError(f"{address}: an address needs {error.name}, which python run.py train installs") from error

    is_empty = True
    for pattern in braceexpand(address):
        try:
            system, start = fsspec.core.url_to_fs(pattern)
        except (ValueError, ImportError) as error:
            raise ValueError(f"{pattern}: {error}") from error
        try:
            paths = _tried(_shards, system, start)
        except OSError as error:
            is_empty = False
            yield _failed(pattern, error)
            continue
        for path in paths:
            is_empty = False
            digest = blake2b(system.unstrip_protocol(path).encode(), digest_size=8).hexdigest()
            name = f"{path.rpartition('/')[2].removesuffix('.tar')}-{digest}.tar"
            try:
                yield _tried(_copied, system, path, cache / name)
            except OSError as error:
                yield _failed(path, error)
    if is_empty:
        raise ValueError(f"{address}: there is no .tar file")


def _shards(system: Any, path: str) -> list[str]:
    """Paths of the shards that match a pattern or are in a folder; otherwise the path itself."""
    if any(character in path for character in "*?["):
        paths: list[str] = system.glob(path)
        return sorted(paths)
    if system.isdir(path):
        return sorted(shard for shard in system.ls(path, detail=False) if shard.lower().endswith(".tar"))
    return [path]


def _copied(system: Any, path: str, place: Path) -> Path:
    """Copy a file, unless a copy of the same size is there."""
    size = system.info(path)["size"]
    if place.is_file() and size in (None, place.stat().st_size):
        return place
    free = shutil.disk_usage(place.parent).free if place.parent.is_dir() else None
    if None not in (size, free) and size > free:
        raise OSError(f"it has {size:,} bytes, and the disk of {place.parent} has {free:,} left")
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with written_whole(place) as part:
            try:
                system.get_file(path, str(part))
            except OSError as error:  # of the other end: the file that is written is not at fault
                raise _NotFetched from error
            if size not in (None, part.stat().st_size):
                raise _NotFetched from OSError(f"{part.stat().st_size:,} of its {size:,} bytes came")
    except _NotFetched as error:
        raise cast("OSError", error.__cause__) from None
    return place


class _NotFetched(Exception):
    pass


_Result = TypeVar("_Result")


def _tried(act: Callable[..., _Result], *arguments: Any) -> _Result:
    """Call a function, and again after a pause if the network fails."""
    for pause in PAUSES:
        try:
            return act(*arguments)
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            time.sleep(pause)
    return act(*arguments)


def _failed(name: str, error: OSError) -> DataProblem:
    tries = "" if isinstance(error, (FileNotFoundError, PermissionError)) else f" in {len(PAUSES) + 1} tries"
    reason = error.strerror or str(error) or type(error).__name__
    return DataProblem(name, f"it could not be fetched{tries}: {reason}; what is in it is left out", is_damage=True)
