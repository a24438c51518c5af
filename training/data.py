"""Pairs of image and captions on disk, in the three common layouts, and problems with them.

- A folder of images, each with a ``.txt`` of the same name, one caption per line. Images in a folder named ``3_name``
  count three times in an epoch, as in kohya's scripts.
- A ``metadata.jsonl`` or ``metadata.csv`` with the columns ``file_name`` and ``text``, as in Hugging Face's
  imagefolder.
- WebDataset shards: ``.tar`` files in which the members of a pair share the name up to its first dot.

Images are opened only on request.

Source: the layouts as described by kohya-ss/sd-scripts, Hugging Face datasets 4 and webdataset 1.0.
"""

from __future__ import annotations

import csv
import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ..encoder.image_file import MAX_BYTES, SUFFIXES, open_image

if TYPE_CHECKING:
    from PIL import Image

METADATA = ("metadata.jsonl", "metadata.csv")
FILE_COLUMN, TEXT_COLUMN = "file_name", "text"
MAX_CAPTION_BYTES = 1024 * 1024
"""Maximum size of a caption file."""

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
        """Read the image.

        Raises:
            ValueError: If it is broken, too large, too thin or of an unsupported format.
        """
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
        ValueError: If there is nothing at the path, or it holds no image, no shard and no metadata; if a shard is
            compressed, or the metadata is not a table with the two columns.
    """
    if path.is_file() and path.suffix.lower() == ".tar":
        return _collected(_in_shard(path, path.parent, is_captioned=is_captioned))
    if not path.is_dir():
        kind = "no folder and no .tar file" if path.exists() else "not there"
        raise ValueError(f"{path}: it is {kind}; give a folder of images with captions, or WebDataset shards")
    for name in METADATA:
        if (path / name).is_file():
            return _collected(_listed(path, path / name))
    shards = _in_order(one for one in path.iterdir() if one.suffix.lower() == ".tar")
    if shards:
        return _collected(found for shard in shards for found in _in_shard(shard, path, is_captioned=is_captioned))
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
    is_text = path.is_file() and path.suffix.lower() == ".txt"
    if not is_text and not path.is_dir():
        return read_data(path)
    files = [path] if is_text else _in_order(one for one in path.rglob("*") if one.suffix.lower() == ".txt")
    has_more = not is_text and (
        any((path / name).is_file() for name in METADATA)
        or any(one.suffix.lower() in (*SUFFIXES, ".tar") for one in path.rglob("*"))
    )
    return read_data(path) if has_more or not files else _collected(_lines(files, path if not is_text else path.parent))


def summary(problems: Iterable[Problem], most: int = 3) -> list[str]:
    """Summarise problems: count equal ones and name some.

    Args:
        problems: The problems.
        most: Number of names per reason.

    Returns:
        One line per reason.

    >>> summary([Problem("a.png", "no caption"), Problem("b.png", "no caption")], most=1)
    ['2 left out: no caption (a.png, ...)']
    """
    by_reason: dict[str, list[str]] = {}
    for problem in problems:
        by_reason.setdefault(problem.reason, []).append(problem.name)
    return [
        f"{len(names)} left out: {reason} ({', '.join(names[:most])}{', ...' if len(names) > most else ''})"
        for reason, names in by_reason.items()
    ]


def _collected(found: Iterable[Example | Problem]) -> Data:
    """Separate examples from problems."""
    examples: list[Example] = []
    problems: list[Problem] = []
    for one in found:
        if isinstance(one, Problem):
            problems.append(one)
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


# ---- images with a .txt each


def _beside(folder: Path, *, is_captioned: bool) -> Iterator[Example | Problem]:
    """Each image of a folder and its subfolders."""
    for path in _in_order(folder.rglob("*")):
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        repeats = _REPEATS.match(path.parent.name)
        number = int(repeats[1]) if repeats and path.parent != folder else 1
        text = path.with_suffix(".txt")
        if number < 1:
            yield Problem(name, "its folder's name asks for no repeats")
        elif not is_captioned:
            yield Example(name, path, (), repeats=number)
        elif not text.is_file():
            yield Problem(name, "no .txt beside it")
        else:
            try:
                captions = _decoded(text.read_bytes())
            except (OSError, ValueError) as error:
                yield Problem(name, f"its .txt cannot be read: {error}")
            else:
                yield _pair(name, path, captions, repeats=number)


def _lines(files: Iterable[Path], root: Path) -> Iterator[Example | Problem]:
    """Each line of some files, as a caption without an image."""
    for path in files:
        name = path.relative_to(root).as_posix()
        try:
            lines = _decoded(path.read_bytes())
        except (OSError, ValueError) as error:
            yield Problem(name, f"it cannot be read: {error}")
            continue
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield Example(f"{name}:{number}", path, (line.strip(),))


def _decoded(given: bytes) -> list[str]:
    """Decode the lines of a caption file."""
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
    for number, row in _rows(metadata):
        name = row.get(FILE_COLUMN)
        given = row.get(TEXT_COLUMN)
        texts = given if isinstance(given, list) else [given]
        if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
            found = ", ".join(map(str, row)) or "none"
            raise ValueError(
                f"{metadata}:{number}: each row needs {FILE_COLUMN!r} and {TEXT_COLUMN!r}, texts both; its columns "
                f"are {found}"
            )
        captions.setdefault(name, []).extend(map(str, texts))
    for name, texts in captions.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            yield Problem(name, "outside the folder")
        elif not path.is_file():
            yield Problem(name, "no such file")
        else:
            yield _pair(name, path, texts)


def _rows(metadata: Path) -> Iterator[tuple[int, dict[str, object]]]:
    """Rows of a table with their line numbers."""
    try:
        with metadata.open(encoding="utf-8-sig", newline="") as file:
            if metadata.suffix == ".csv":
                reader = csv.DictReader(file)
                for row in reader:
                    yield reader.line_num, dict(row)
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line)
                    yield number, row if isinstance(row, dict) else {}
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error, RecursionError) as error:
        raise ValueError(f"{metadata}: it cannot be read: {error}") from error


# ---- shards


def _in_shard(shard: Path, root: Path, *, is_captioned: bool) -> Iterator[Example | Problem]:
    """Each image of a ``.tar``, with the position of its bytes."""
    images: dict[str, tuple[int, int]] = {}
    captions: dict[str, list[str]] = {}
    problems: dict[str, Problem] = {}
    prefix = shard.relative_to(root).as_posix()
    try:
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                folder, slash, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key = f"{prefix}/{folder}{slash}{stem}"
                if not member.isreg():
                    continue
                if f".{suffix.lower()}" in SUFFIXES:
                    images[key] = member.offset_data, member.size
                elif suffix.lower() == "txt":
                    file = archive.extractfile(member)
                    try:
                        captions[key] = _decoded(file.read(MAX_CAPTION_BYTES + 1) if file else b"")
                    except ValueError as error:
                        problems[key] = Problem(key, f"its .txt cannot be read: {error}")
    except tarfile.TarError as error:
        raise ValueError(f"{shard}: no whole, uncompressed .tar file: {error}") from error
    for key, place in images.items():
        if not is_captioned:
            yield Example(key, shard, (), place=place)
        elif key in captions:
            yield _pair(key, shard, captions[key], place=place)
        else:
            yield problems.get(key, Problem(key, "no .txt of its name in the shard"))
