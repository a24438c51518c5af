"""Pairs of image and captions on disk, in the three common layouts, and problems with them.

- A folder of images, each with a ``.txt`` of the same name, one caption per line. Images in a folder named ``3_name``
  count three times in an epoch, as in kohya's scripts, which read any number in front of a ``_`` so: ``2024_holiday``
  asks for more than `MAX_REPEATS`, and is refused.
- A ``metadata.jsonl`` or ``metadata.csv`` with the columns ``file_name`` and ``text``, as in Hugging Face's
  imagefolder.
- WebDataset shards: ``.tar`` files in which the members of a pair share the name up to its first dot.

Images are opened only on request.

Source: the layouts as described by kohya-ss/sd-scripts, Hugging Face datasets 4 and webdataset 1.0.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from ..encoder.image_file import MAX_BYTES, SUFFIXES, open_image
from .table import is_unicode, rows
from .tar_file import FOLDER, DamageError, members

if TYPE_CHECKING:
    from PIL import Image

METADATA = ("metadata.jsonl", "metadata.csv")
MAX_CAPTION_BYTES = 1024 * 1024
"""Maximum size of a caption file."""
MAX_REPEATS = 1000
"""Maximum number of repeats that a folder's name may ask for."""
MAX_NAME = 200
"""Maximum length of a name in a summary."""
NO_FILE = "it is a link to nothing, a pipe or a device, or may not be read"

_REPEATS = re.compile(r"(\d+)_")


@dataclass(frozen=True)
class Example:
    """One image and its captions."""

    name: str
    """Path in the data, used in messages."""
    path: Path
    """The image's file, or the ``.tar`` that contains it."""
    captions: tuple[str, ...]
    """At least one caption, none of them blank; empty if only images are read."""
    repeats: int = 1
    """Number of repeats in an epoch."""
    place: tuple[int, int] | None = None
    """Offset and size of its bytes in the ``.tar``."""

    def image(self) -> Image.Image:
        """Read the image."""
        if self.place is None:
            return open_image(self.path)
        start, size = self.place
        if size > MAX_BYTES:
            raise ValueError(f"{self.name}: it has {size:,} bytes, at most {MAX_BYTES:,} are read")
        with self.path.open("rb") as file:
            file.seek(start)
            return open_image(Path(self.name), file.read(size))


@dataclass(frozen=True)
class Problem:
    """Part of the data that is left out."""

    name: str
    """Name of the image or file."""
    reason: str
    """Brief reason; equal ones are counted together."""
    is_damage: bool = False
    """Whether it is a whole file or the rest of one, with an unknown number of pairs; each is named."""


@dataclass(frozen=True)
class Data:
    """All pairs of a folder or of shards."""

    examples: tuple[Example, ...]
    """Examples in the order of their names."""
    problems: tuple[Problem, ...]
    """Data left out."""

    @property
    def digest(self) -> str:
        """Digest of all names, captions and repeats."""
        listed = [(example.name, example.captions, example.repeats, example.place) for example in self.examples]
        return blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()

    def without(self, problems: Iterable[Problem]) -> Data:
        """Copy without the images that turned out to be unreadable."""
        problems = tuple(problems)
        names = {problem.name for problem in problems}
        kept = tuple(example for example in self.examples if example.name not in names)
        return Data(kept, (*self.problems, *problems))


def read_data(path: Path, *, is_captioned: bool = True) -> Data:
    """Find the pairs in a folder or a shard.

    Args:
        path: A folder with images and captions or with ``.tar`` files, or one ``.tar`` file.
        is_captioned: Whether to read captions, and leave out images without one. A table always has captions.

    Returns:
        The pairs, possibly none, and the problems.

    Raises:
        ValueError: If there is nothing at the path, or it holds no image, no shard and no metadata; if no pair of
            damaged shards, or no row of a table, can be used.
    """
    if path.is_file() and path.suffix.lower() == ".tar":
        return _of_shards([path], path.parent, is_captioned=is_captioned)
    if not path.is_dir():
        kind = "no folder and no .tar file" if path.exists() else "not there"
        raise ValueError(f"{path}: it is {kind}; give a folder of images with captions, or WebDataset shards")
    for name in METADATA:
        if (path / name).is_file():
            return _collected(_listed(path, path / name))
    shards = _in_order(one for one in path.iterdir() if one.suffix.lower() == ".tar" and not _holds(one.is_dir))
    if shards:
        return _of_shards(shards, path, is_captioned=is_captioned)
    data = _collected(_beside(path, is_captioned=is_captioned))
    if not data.examples and not data.problems:
        raise ValueError(
            f"{path}: no image in it ({', '.join(SUFFIXES)}), no {' or '.join(METADATA)} and no .tar file; give a "
            "folder of images, each with a .txt of the same name beside it that holds its caption"
        )
    return data


def read_captions(path: Path) -> Data:
    """Find captions, with or without images.

    Args:
        path: Anything `read_data` reads, without opening the images; or a ``.txt`` file with a caption per line, or a
            folder of such files without images.

    Returns:
        The captions, possibly none, and the problems.

    Raises:
        ValueError: As in `read_data`.
    """
    if path.is_file() and path.suffix.lower() == ".txt":
        return _collected(_lines([path], path.parent))
    if not path.is_dir():
        return read_data(path)
    files, problems = _files_below(path)
    texts = [one for one in files if one.suffix.lower() == ".txt"]
    has_more = any(one.suffix.lower() in (*SUFFIXES, ".tar") for one in files)
    if has_more or not texts or any((path / name).is_file() for name in METADATA):
        return read_data(path)
    return _collected(chain(problems, _lines(texts, path)))


def summary(problems: Iterable[Problem], most: int = 3) -> list[str]:
    """Summarise problems: name every damaged file, count equal problems and name some.

    >>> summary([Problem("a.png", "no caption"), Problem("b.png", "no caption")], most=1)
    ['2 left out: no caption (a.png, ...)']
    """
    damaged: list[str] = []
    by_reason: dict[str, list[str]] = {}
    for problem in problems:
        name = problem.name if len(problem.name) <= MAX_NAME else f"{problem.name[:MAX_NAME]}..."
        if problem.is_damage:
            damaged.append(f"{name}: {problem.reason}")
        else:
            by_reason.setdefault(problem.reason, []).append(name)
    return damaged + [
        f"{len(names)} left out: {reason} ({', '.join(names[:most])}{', ...' if len(names) > most else ''})"
        for reason, names in by_reason.items()
    ]


def _collected(found: Iterable[Example | Problem]) -> Data:
    """Separate examples from problems. A name that is not UTF-8 is one: it cannot be written to logs and reports."""
    examples: list[Example] = []
    problems: list[Problem] = []
    for one in found:
        name = one.name.encode(errors="backslashreplace").decode()
        if isinstance(one, Problem):
            problems.append(replace(one, name=name))
        elif not is_unicode(one.name):
            problems.append(Problem(name, "its name is not UTF-8"))
        else:
            examples.append(one)
    return Data(tuple(sorted(examples, key=lambda example: example.name)), tuple(problems))


def _pair(name: str, path: Path, captions: Iterable[str], **more: object) -> Example | Problem:
    """An example, or the problem that it has no caption."""
    given = tuple(line.strip() for line in captions if line.strip())
    return Example(name, path, given, **more) if given else Problem(name, "its caption is empty")  # pyright: ignore[reportArgumentType]


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort paths by name, capitals first: Windows alone would not tell capitals from small letters.

    So a seed draws the same from the data on every system.
    """
    return sorted(paths, key=lambda path: path.parts)


def _holds(check: Callable[[], bool]) -> bool:
    """Whether a check such as `Path.is_file` holds, for what may be looked at and is no link to itself."""
    try:
        return check()
    except OSError:
        return False


def _files_below(folder: Path) -> tuple[list[Path], list[Problem]]:
    """All files below a folder, also links, pipes and devices, in order; and the folders that are not looked into."""
    files: list[Path] = []
    problems: list[Problem] = []
    left = [folder]
    while left:  # no recursion: folders may be nested deeper than Python's limit
        here = left.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        left.append(path)
                    elif entry.is_symlink() and _holds(path.is_dir):
                        name = path.relative_to(folder).as_posix()
                        problems.append(Problem(name, "links to folders are not followed"))
                    else:
                        files.append(path)
        except OSError as error:
            problems.append(_unread(here.relative_to(folder).as_posix(), error))
    return _in_order(files), problems


def _unread(name: str, error: OSError) -> Problem:
    """A shard or a folder that cannot be read at all."""
    return Problem(name, f"it cannot be read: {error.strerror or error}; what is in it is left out", is_damage=True)


def _captioned(name: str, path: Path, given: Path | bytes, **more: object) -> Example | Problem:
    """An example with the captions of a file or of its first bytes, or the problem with them."""
    try:
        return _pair(name, path, _decoded(given), **more)
    except (OSError, ValueError) as error:
        return Problem(name, f"its .txt cannot be read: {error}")


# ---- images with a .txt each


def _beside(folder: Path, *, is_captioned: bool) -> Iterator[Example | Problem]:
    """Each image of a folder and its subfolders."""
    files, problems = _files_below(folder)
    yield from problems
    for path in files:
        if path.suffix.lower() not in SUFFIXES:
            continue
        name, parent = path.relative_to(folder).as_posix(), path.parent.name
        repeats = _REPEATS.match(parent) if path.parent != folder else None
        number = int(repeats[1]) if repeats else 1
        text = path.with_suffix(".txt")
        if not _holds(path.is_file):
            yield Problem(name, NO_FILE)
        elif not 1 <= number <= MAX_REPEATS:
            asked = f"its folder's name, {parent}, begins with a number of repeats, as in kohya's scripts"
            yield Problem(name, f"{asked}; 1 to {MAX_REPEATS:,} are allowed: rename it, as to 1_{parent}")
        elif not is_captioned:
            yield Example(name, path, (), repeats=number)
        elif not _holds(text.is_file):
            yield Problem(name, "no .txt beside it")
        else:
            yield _captioned(name, path, text, repeats=number)


def _lines(files: Iterable[Path], root: Path) -> Iterator[Example | Problem]:
    """Each line of some files, as a caption without an image."""
    for path in files:
        name = path.relative_to(root).as_posix()
        if not _holds(path.is_file):
            yield Problem(name, NO_FILE)
            continue
        try:
            lines = _decoded(path)
        except (OSError, ValueError) as error:
            yield Problem(name, f"it cannot be read: {error}")
            continue
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Example(f"{name}:{number}", path, (line.strip(),))


def _decoded(given: Path | bytes) -> list[str]:
    """Decode the lines of a caption file, or of its first bytes."""
    if isinstance(given, Path):
        with given.open("rb") as file:
            given = file.read(MAX_CAPTION_BYTES + 1)
    if len(given) > MAX_CAPTION_BYTES:
        raise ValueError(f"it is longer than {MAX_CAPTION_BYTES:,} bytes")
    try:
        return given.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


# ---- metadata.jsonl, metadata.csv


def _listed(folder: Path, metadata: Path) -> Iterator[Example | Problem]:
    """Each image named in a table; several rows about one image are several captions of it."""
    captions: dict[str, list[str]] = {}
    places: dict[str, str] = {}  # of each name's first row
    problems: list[Problem] = []
    for row in rows(metadata):
        place = f"{metadata.name}:{row.line}"
        if row.problem:
            problems.append(Problem(place, row.problem))
        else:
            captions.setdefault(row.name, []).extend(row.texts)
            places.setdefault(row.name, place)
    if problems and not captions:
        raise ValueError(f"{folder / problems[0].name}: {problems[0].reason}")
    yield from problems
    root = os.path.realpath(folder)
    for name, texts in captions.items():
        try:
            is_inside = Path(os.path.realpath(folder / name)).is_relative_to(root)
            is_file = (folder / name).is_file()
        except (OSError, ValueError) as error:  # too long, or with a NUL
            yield Problem(places[name], f"its file cannot be looked for: {getattr(error, 'strerror', None) or error}")
            continue
        if not is_inside:
            yield Problem(name, "outside the folder")
        elif not is_file:
            yield Problem(name, "no such file")
        else:
            yield _pair(name, folder / name, texts)


# ---- shards


def _of_shards(shards: Iterable[Path], root: Path, *, is_captioned: bool) -> Data:
    """All pairs of some shards; those of good ones, if others are damaged."""
    data = _collected(found for shard in shards for found in _in_shard(shard, root, is_captioned=is_captioned))
    damaged = [problem for problem in data.problems if problem.is_damage]
    if damaged and not data.examples:
        more = f"; and {len(damaged) - 1:,} more damaged ones" if len(damaged) > 1 else ""
        first = f"{root / damaged[0].name}: no whole, uncompressed .tar file: {damaged[0].reason}"
        raise ValueError(first + more)
    return data


def _in_shard(shard: Path, root: Path, *, is_captioned: bool) -> Iterator[Example | Problem]:
    """Each image of a ``.tar``, with the position of its bytes."""
    images: dict[str, tuple[int, int]] = {}
    texts: dict[str, bytes] = {}
    others: set[str] = set()
    prefix = shard.relative_to(root).as_posix()
    if not _holds(shard.is_file):
        yield Problem(prefix, NO_FILE, is_damage=True)
        return
    try:
        with shard.open("rb") as file:
            for member in members(file):
                folder, slash, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key, name = f"{prefix}/{folder}{slash}{stem}", f"{prefix}/{member.name}"
                is_image = f".{suffix.lower()}" in SUFFIXES
                if member.kind == FOLDER or not (is_image or suffix.lower() == "txt"):
                    continue
                if member.kind:
                    others.add(key)
                    yield Problem(name, f"it is {member.kind}, and not an ordinary file")
                    continue
                if key in (images if is_image else texts):
                    yield Problem(name, "another one of its name comes before it, and is left out")
                if is_image:
                    images[key] = member.start, member.size
                else:
                    file.seek(member.start)
                    texts[key] = file.read(min(member.size, MAX_CAPTION_BYTES + 1))
    except DamageError as error:
        yield Problem(prefix, str(error), is_damage=True)
    except OSError as error:
        yield _unread(prefix, error)
    else:
        if not images and not texts and not others:
            yield Problem(prefix, "there is no image in it")
    for key, place in images.items():
        if not is_captioned:
            yield Example(key, shard, (), place=place)
        elif key in texts:
            yield _captioned(key, shard, texts[key], place=place)
        elif key not in others:
            yield Problem(key, "no .txt of its name in the shard")
    if is_captioned:
        alone = [key for key in texts if key not in images and key not in others]
        yield from (Problem(key, f"no image of its name in the shard ({', '.join(SUFFIXES)})") for key in alone)
