"""Textual-inversion embeddings as safetensors files in folders.

Source: docs/reference/chunks.md, "Textual inversion".
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ...encoder.files.safetensors_file import Refusals
from ...encoder.files.textual_inversion import SUFFIX, UNREADABLE_SUFFIXES, EmbeddingFileError, read_embedding_file
from .embeddings import EmbeddingError


class _Listing(NamedTuple):
    """Content of some folders, and the times by which to check that it is up to date."""

    mtimes: dict[Path, int]
    """Modification time of every folder and sub-folder, in nanoseconds; 0 for a missing one."""
    is_settled: bool
    """Whether the newest change is old enough that a later one has another time."""
    names: tuple[str, ...]
    files: dict[str, Path]
    """Files by every name they can be called by."""


class EmbeddingFolder:
    """The embeddings in some folders and their sub-folders, for one text tower.

    A name is a file's path relative to one of the folders, or its bare name, with or without suffix. If several files
    have the same name, the first folder takes precedence, then the file nearest to it. Names are looked up in a list of
    the files found, so none leads out of the folders; links to a file outside are left out, and so are unreadable
    files. Links to folders are not followed, nor folders deeper than `MAX_DEPTH`. The list is refreshed when a folder
    has changed.
    """

    def __init__(self, folders: Iterable[str | Path], tower: str, dim: int) -> None:
        """Choose the folders and the tower."""
        self.folders = tuple(map(_resolved, folders))
        self.tower = tower
        self.dim = dim
        self._listing: _Listing | None = None

    def names(self) -> tuple[str, ...]:
        """Sorted bare names of all files except pictures, including refused files, so that prompts with them say so."""
        return self._listed().names

    def find(self, name: str) -> list[Tensor] | None:
        """Look up a name, as in `Embeddings`; vectors are float32."""
        files = self._listed().files
        path = files.get(name) or files.get(name.replace("\\", "/"))
        if path is None:
            return None
        try:
            with _refusals.remembered(path) as about:
                towers = _read(path, about.st_mtime_ns, about.st_size)
        except (FileNotFoundError, NotADirectoryError):
            return None  # it was removed after it was listed
        except OSError as error:
            raise EmbeddingError(f"The embedding “{name}” cannot be read: {error.strerror or error}.") from error
        except EmbeddingFileError as error:
            raise EmbeddingError(f"The embedding “{name}” cannot be used: {error}.") from error
        vectors = towers.get(self.tower, towers.get(""))
        if vectors is None:
            raise EmbeddingError(
                f"The embedding “{name}” is for another model: it has vectors for {' and '.join(towers)}, this encoder "
                f"is {self.tower}."
            )
        if vectors.shape[1] != self.dim:
            raise EmbeddingError(
                f"The embedding “{name}” is for another model: {vectors.shape[1]} wide, this encoder takes {self.dim}."
            )
        return list(vectors)

    def _listed(self) -> _Listing:
        listing = self._listing
        if (
            listing is None
            or not listing.is_settled
            or any(_mtime(folder) != mtime for folder, mtime in listing.mtimes.items())
        ):
            listing = self._listing = _list(self.folders)
        return listing


MAX_DEPTH = 32
"""Maximum depth of sub-folders."""
SETTLED_SECONDS = 2
"""Changes of a folder within this time may have the same timestamp: FAT counts in steps of two seconds."""


def _list(folders: Sequence[Path]) -> _Listing:
    mtimes = {folder: _mtime(folder) for folder in folders}
    found: list[tuple[Path, Path]] = []  # folder, and the file's path relative to it
    for folder in folders:
        for path in sorted(_walk(folder, mtimes), key=lambda path: len(path.parts)):
            if path.suffix.lower() in (SUFFIX, *UNREADABLE_SUFFIXES) and _is_inside(path, folder):
                found.append((folder, path.relative_to(folder)))
    files: dict[str, Path] = {}
    names: set[str] = set()
    for suffix in (SUFFIX, *UNREADABLE_SUFFIXES):
        some = [(folder, path) for folder, path in found if path.suffix.lower() == suffix]
        for folder, path in some:
            files.setdefault(path.as_posix(), folder / path)
            files.setdefault(path.as_posix().removesuffix(path.suffix), folder / path)  # with_suffix() refuses "..pt"
        for folder, path in some:
            files.setdefault(path.name, folder / path)
            files.setdefault(path.stem, folder / path)
        if suffix != ".png":  # most pictures among embeddings are previews
            names |= {path.stem for _, path in some}
    is_settled = time.time_ns() - max(mtimes.values(), default=0) > SETTLED_SECONDS * 1_000_000_000
    return _Listing(mtimes, is_settled, tuple(sorted(names)), files)


def _walk(folder: Path, mtimes: dict[Path, int]) -> Iterator[Path]:
    """All files below a folder, by name; the times of sub-folders go into ``mtimes``."""
    for path, children, names in os.walk(folder):
        children.sort()
        here = Path(path)
        if not here.resolve().is_relative_to(folder):  # a junction of Windows, which Python does not treat as a link
            children.clear()
            continue
        if len(here.parts) - len(folder.parts) >= MAX_DEPTH:
            children.clear()
        mtimes.update((child, _mtime(child)) for child in (here / name for name in children))
        yield from (here / name for name in sorted(names))


def _resolved(folder: str | Path) -> Path:
    try:
        return Path(folder).resolve()
    except (OSError, RuntimeError):  # a link to itself counts as empty, like a missing folder
        return Path(folder).absolute()


def _is_inside(path: Path, folder: Path) -> bool:
    """Whether this is a file, and if a link, one to a file in the folder."""
    try:
        return path.is_file() and (not path.is_symlink() or path.resolve().is_relative_to(folder))
    except (OSError, RuntimeError):
        return False


def _mtime(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


_refusals = Refusals()


@lru_cache(maxsize=32)
def _read(path: Path, mtime: int, size: int) -> dict[str, Tensor]:
    """Vectors of a file, at most 16 MB per tower, cached until the file changes."""
    del mtime, size
    return read_embedding_file(path)
