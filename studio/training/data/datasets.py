"""Pairs of image and captions on disk, in the layouts that other programs write, and problems with them.

- A folder of images, each with a ``.txt``, ``.caption`` or ``.json`` of the same name; each line of the first two is a
  caption. Images in a folder named ``3_name`` count three times in an epoch, as in kohya's scripts, which read any
  number in front of a ``_`` so: ``2024_holiday`` asks for more than `MAX_REPEATS`, and is refused.
- A table of image files and captions: a ``metadata.jsonl`` or ``.csv`` in a folder, as in Hugging Face's imagefolder,
  or any file of open_clip's ``--train-data``; or a ``meta_cap.json`` of kohya's scripts.
- WebDataset shards: ``.tar`` files in which the members of a pair share the name up to its first dot.

Several of them are one text with ``::`` between, as in open_clip. Images are opened only on request.

Source: the layouts as described by kohya-ss/sd-scripts, Hugging Face datasets 4, open_clip 3.3 and webdataset 1.0.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from ....encoder.foreign_text import parse_json
from ....encoder.image_file import SUFFIXES
from ....encoder.quoting import quote
from .examples import DataProblem, Example, Examples
from .remote import fetched, is_remote
from .table import COLUMNS, Columns, is_unicode, kohya_rows, rows
from .tar_file import FOLDER, DamageError, members

METADATA = ("metadata.jsonl", "metadata.csv", "meta_cap.json")
TABLES = (".csv", ".tsv", ".jsonl", ".json")
"""Suffixes of tables that can be given as data."""
CAPTIONS = (".txt", ".TXT", ".caption", ".json")
"""Suffixes of caption files; the first existing one is read."""
LABEL = ".cls"
"""Suffix of class labels in a shard, as in webdataset; read where captions are not."""
CAPTION_KEYS = ("caption", "text", "title")
"""Keys of the caption in a ``.json``; the first one present is read."""
MAX_CAPTION_BYTES = 1024 * 1024
"""Maximum size of a caption file."""
MAX_REPEATS = 1000
"""Maximum number of repeats that a folder's name may ask for."""
MAX_NAME = 200
"""Maximum length of a name in a summary."""
NO_FILE = "it is a link to nothing, a pipe or a device, or may not be read"
NO_CAPTION = "no .txt, .caption or .json"
MAX_NEAR = 1000
"""Maximum number of files searched for a similar name."""

_REPEATS = re.compile(r"(\d+)_")
_SMALL = 4096  # bytes that are read first, as memory for the maximum would take longer than the file


@dataclass(frozen=True)
class Data:
    """All pairs of a folder or of shards."""

    examples: Examples
    """Examples in the order of their names."""
    problems: tuple[DataProblem, ...]
    """Data left out."""

    @cached_property
    def digest(self) -> str:
        """Digest of all names, captions and repeats."""
        return self.examples.digest()

    def without(self, problems: Iterable[DataProblem]) -> Data:
        """Copy without the images that turned out to be unreadable."""
        problems = tuple(problems)
        names = {problem.name for problem in problems}
        return Data(self.examples.without(names) if names else self.examples, (*self.problems, *problems))


@dataclass(frozen=True)
class ReadingOptions:
    """Options for reading a data set."""

    columns: Columns = COLUMNS
    """Names of a table's columns."""
    factors: str = ""
    """Number of times an epoch repeats each source, separated by ``::``; empty for once each."""
    cache: Path | None = None
    """Folder for copies of remote shards; None to refuse them."""

    def factors_of(self, sources: list[str]) -> list[float]:
        """A factor for each source."""
        if not self.factors:
            return [1.0] * len(sources)
        try:
            factors = [float(factor) for factor in self.factors.split("::")]
        except ValueError:
            factors = []
        if len(factors) != len(sources) or not all(0 < factor <= MAX_REPEATS for factor in factors):
            raise ValueError(
                f"{quote(self.factors)} are no factors of {len(sources)} sources: write a number above 0, and at most "
                f"{MAX_REPEATS:,}, for each, such as {'::'.join(['2', '1', '0.5'][: len(sources)] or '1')}"
            )
        return factors


READING = ReadingOptions()


def read_data(source: Path | str, reading: ReadingOptions = READING, *, is_captioned: bool = True) -> Data:
    """Find the pairs in a folder, a table or shards, or in several of them.

    Args:
        source: A folder with images and captions or with ``.tar`` files, one ``.tar`` file, or a table; or the address
            of shards that fsspec reads; or several of them with ``::`` between.
        reading: Options for reading it.
        is_captioned: Whether to read captions, and leave out images without one. A table always has captions.

    Raises:
        ValueError: If there is nothing at a path, or it holds no image, no shard and no table; if no pair of damaged
            shards, or no row of a table, can be used.
    """
    sources = str(source).split("::")
    names = [re.split(r"[\\/]", part.rstrip("\\/"))[-1] for part in sources]
    if len({*names}) < len(names):
        names = [f"{number}-{name}" for number, name in enumerate(names, 1)]
    parts = zip(sources, names, reading.factors_of(sources), strict=True)

    def entries() -> Iterator[Example | DataProblem]:
        for part, name, factor in parts:
            for entry in _of_source(part, reading, is_captioned=is_captioned):
                renamed = entry if len(sources) == 1 else replace(entry, name=f"{name}/{entry.name}")
                if factor != 1 and isinstance(renamed, Example):
                    renamed = replace(renamed, repeats=renamed.repeats * factor)
                yield renamed

    return _collected(entries(), is_captioned=is_captioned)


def _of_source(source: str, reading: ReadingOptions, *, is_captioned: bool) -> Iterator[Example | DataProblem]:
    """The pairs of one source."""
    if is_remote(source):
        if reading.cache is None:
            raise ValueError(f"{source}: only files of this machine are read here")
        return _of_shards(fetched(source, reading.cache), reading.cache, is_captioned=is_captioned)
    path = Path(source)
    if path.is_file() and path.suffix.lower() == ".tar":
        return _of_shards([path], path.parent, is_captioned=is_captioned)
    if path.is_file() and path.suffix.lower() in TABLES:
        return _listed(path, reading.columns)
    if not path.is_dir():
        kind = "no folder, no .tar file and no table" if path.exists() else "not there"
        raise ValueError(
            f"{path}: it is {kind}; give a folder of images with captions, WebDataset shards, or a table of files and "
            f"captions ({', '.join(TABLES)})"
        )
    for name in METADATA:
        if (path / name).is_file():
            return _listed(path / name, reading.columns, inside=path)
    names = (name for name in os.listdir(path) if name.lower().endswith(".tar"))
    shards = _in_order(shard for shard in map(path.joinpath, names) if not _holds(shard.is_dir))
    if shards:
        return _of_shards(shards, path, is_captioned=is_captioned)
    return _beside(path, is_captioned=is_captioned)


def read_captions(path: Path | str, reading: ReadingOptions = READING) -> Data:
    """Find captions, with or without images.

    They are in anything `read_data` reads, in a ``.txt`` file with a caption per line, or in a folder of such files
    without images.
    """
    place = Path(path)
    if place.is_file() and place.suffix.lower() == ".txt":
        return _collected(_lines([place], place.parent))
    if not place.is_dir() or any((place / name).is_file() for name in METADATA):
        return read_data(path, reading)
    suffixes = {_suffix(file) for file in _below(place) if isinstance(file, str)}
    if ".txt" not in suffixes or suffixes & {*SUFFIXES, ".tar"}:
        return read_data(path, reading)
    files = (file for file in _below(place) if isinstance(file, DataProblem) or _suffix(file) == ".txt")
    return _collected(_lines(files, place))


def summary(problems: Iterable[DataProblem], max_names: int = 3) -> list[str]:
    """Summarise problems: name every damaged file, count equal problems and name some.

    >>> summary([DataProblem("a.png", "no caption"), DataProblem("b.png", "no caption")], max_names=1)
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
        f"{len(names)} left out: {reason} ({', '.join(names[:max_names])}{', ...' if len(names) > max_names else ''})"
        for reason, names in by_reason.items()
    ]


def _collected(entries: Iterable[Example | DataProblem], *, is_captioned: bool = True) -> Data:
    """Separate examples from problems. A name that is not UTF-8 is one: it cannot be written to logs and reports."""
    problems: list[DataProblem] = []

    def examples() -> Iterator[Example]:
        for entry in entries:
            if isinstance(entry, Example) and is_unicode(entry.name):
                yield entry
                continue
            problem = entry if isinstance(entry, DataProblem) else DataProblem(entry.name, "its name is not UTF-8")
            problems.append(replace(problem, name=problem.name.encode(errors="backslashreplace").decode()))

    collected = Examples(examples())
    blank = [DataProblem(name, "its caption is empty") for name in collected.blank()] if is_captioned else []
    problems.sort(key=lambda problem: problem.name)  # folders are walked through in any order
    return Data(collected, tuple(problems)).without(blank)


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """Sort paths by name, capitals first: Windows alone would not tell capitals from small letters.

    So a seed draws the same from the data on every system.
    """
    return sorted(paths, key=lambda path: path.parts)


def _holds(check: Callable[[], bool]) -> bool:
    """Result of a check such as `Path.is_file`; False for paths that may not be examined, or link to themselves."""
    try:
        return check()
    except OSError:
        return False


def _below(folder: Path) -> Iterator[str | DataProblem]:
    """Paths of all files below a folder, of links, pipes and devices, too; and folders that are left out.

    They are texts, which are faster than a `Path`: a data set may have millions of files.
    """
    left = [os.fspath(folder)]
    while left:  # no recursion: folders may be nested deeper than Python's limit
        here = left.pop()
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif entry.is_symlink() and os.path.isdir(entry.path):
                        yield DataProblem(_relative(entry.path, folder), "links to folders are not followed")
                    else:
                        yield entry.path
        except OSError as error:
            yield _unread(_relative(here, folder), error)


def _relative(path: str, folder: Path) -> str:
    """Path below a folder, in POSIX's form."""
    return path[len(os.fspath(folder)) :].lstrip(os.sep).replace(os.sep, "/") or "."


def _suffix(path: str | Path) -> str:
    return os.path.splitext(path)[1].lower()


def _unread(name: str, error: OSError) -> DataProblem:
    """A shard or a folder that cannot be read at all."""
    return DataProblem(name, f"it cannot be read: {error.strerror or error}; what is in it is left out", is_damage=True)


def _captioned(name: str, path: Path, file: str | bytes, suffix: str, **more: object) -> Example | DataProblem:
    """An example with the captions of a file or of its first bytes, or the problem with them."""
    try:
        return Example(name, path, _captions(file, suffix), **more)  # pyright: ignore[reportArgumentType]
    except (OSError, ValueError) as error:
        return DataProblem(name, f"its {suffix} cannot be read: {error}")


def _captions(file: str | bytes, suffix: str) -> tuple[str, ...]:
    """The captions in a file, or in its first bytes: its lines, or what a ``.json`` has under `CAPTION_KEYS`."""
    text = _text(file)
    if suffix != ".json":
        return stripped(text.splitlines())
    content: Any = parse_json(text)
    value: Any = (
        next((content[key] for key in CAPTION_KEYS if content.get(key)), None) if isinstance(content, dict) else None
    )
    captions: list[Any] = value if isinstance(value, list) else [value]
    if not all(isinstance(caption, str) and is_unicode(caption) for caption in captions):
        raise ValueError(f"it has no text under {', '.join(map(repr, CAPTION_KEYS))}")
    return stripped(captions)


def _text(file: str | Path | bytes) -> str:
    """The text of a file of captions, or of its first bytes."""
    if not isinstance(file, bytes):
        with open(file, "rb") as opened:
            file = opened.read(_SMALL)
            if len(file) == _SMALL:
                file += opened.read(MAX_CAPTION_BYTES + 1 - _SMALL)
    if len(file) > MAX_CAPTION_BYTES:
        raise ValueError(f"it is longer than {MAX_CAPTION_BYTES:,} bytes")
    try:
        return file.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def stripped(captions: Iterable[str]) -> tuple[str, ...]:
    """Captions without spaces around them, and without blank ones."""
    return tuple(caption.strip() for caption in captions if caption.strip())


def _nearest(image: Path) -> str:
    """Hint at the file next to an image with the most similar name; empty if there is none."""
    file_names = (path.name for path in image.parent.iterdir() if path.suffix.lower() not in SUFFIXES)
    names = list(islice(file_names, MAX_NEAR))
    same = [name for name in sorted(names) if name.startswith(f"{image.stem}.")]
    near = same or difflib.get_close_matches(image.name, names, 1, 0.4)
    return f"; the nearest file is {quote(near[0])}" if near else ""


# ---- images with a file of captions each


def _beside(folder: Path, *, is_captioned: bool) -> Iterator[Example | DataProblem]:
    """Each image of a folder and its subfolders."""
    alone: Path | None = None  # an image without a caption, as long as none has one
    has_images = has_captions = False
    for file in _below(folder):
        if isinstance(file, DataProblem):
            yield file
            continue
        stem, suffix = os.path.splitext(file)
        if suffix.lower() not in SUFFIXES:
            continue
        has_images = True
        path, name = Path(file), _relative(file, folder)
        parent = name.rpartition("/")[0].rpartition("/")[2]
        repeats = _REPEATS.match(parent)
        number = int(repeats[1]) if repeats else 1
        if not os.path.isfile(file):
            yield DataProblem(name, NO_FILE)
        elif not 1 <= number <= MAX_REPEATS:
            asked = f"its folder's name, {parent}, begins with a number of repeats, as in kohya's scripts"
            yield DataProblem(name, f"{asked}; 1 to {MAX_REPEATS:,} are allowed: rename it, as to 1_{parent}")
        elif not is_captioned:
            yield Example(name, path, (), repeats=number)
        elif kind := next((kind for kind in CAPTIONS if os.path.isfile(stem + kind)), None):
            has_captions = True
            yield _captioned(name, path, stem + kind, kind, repeats=number)
        elif alone or has_captions:
            yield DataProblem(name, f"{NO_CAPTION} beside it")
        else:
            alone = path
    if alone:
        near = "" if has_captions else _nearest(alone)
        yield DataProblem(alone.relative_to(folder).as_posix(), f"{NO_CAPTION} beside it{near}")
    if not has_images:
        raise ValueError(
            f"{folder}: no image in it ({', '.join(SUFFIXES)}), no {', '.join(METADATA)} and no .tar file; give a "
            f"folder of images{', each with a .txt of the same name that holds its caption' if is_captioned else ''}"
        )


def _lines(files: Iterable[str | Path | DataProblem], root: Path) -> Iterator[Example | DataProblem]:
    """Each line of some files, as a caption without an image."""
    for file in files:
        if isinstance(file, DataProblem):
            yield file
            continue
        path = Path(file)
        name = path.relative_to(root).as_posix()
        if not _holds(path.is_file):
            yield DataProblem(name, NO_FILE)
            continue
        try:
            for number, line in enumerate(_text(path).splitlines(), 1):
                if line.strip():
                    yield Example(f"{name}:{number}", path, (line.strip(),))
        except (OSError, ValueError) as error:
            yield DataProblem(name, f"it cannot be read: {error}")


# ---- tables


def _listed(table: Path, columns: Columns, *, inside: Path | None = None) -> Iterator[Example | DataProblem]:
    """Each row of a table, its image in a folder, or else anywhere; rows about one image are captions of it.

    A path that is not absolute begins at the table or, as in open_clip, in the working directory.
    """
    table_rows = kohya_rows(table) if table.suffix.lower() == ".json" else rows(table, columns)
    wrong: set[str] = set()  # names of which it has been said
    first, has_good = "", False
    root = os.path.realpath(table.parent)
    for row in table_rows:
        place = f"{table.name}:{row.line}"
        if row.problem:
            first = first or f"{place}: {row.problem}"
            yield DataProblem(place, row.problem)
        if row.problem or row.name in wrong:
            continue
        has_good = True
        path = table.parent / row.name
        reason = ""
        try:
            if table.suffix.lower() == ".json" and not path.is_file():  # kohya's names have no suffix
                candidates = (path.with_name(path.name + suffix) for suffix in SUFFIXES)
                path = next((candidate for candidate in candidates if candidate.is_file()), path)
            if inside and not Path(os.path.realpath(path)).is_relative_to(root):
                reason = "outside the folder"
            elif not path.is_file() and (inside or not (path := Path(row.name)).is_file()):
                reason = "no such file"
        except (OSError, ValueError) as error:  # too long, or with a NUL
            yield DataProblem(place, f"its file cannot be looked for: {getattr(error, 'strerror', None) or error}")
            continue
        if reason:
            wrong.add(row.name)
            yield DataProblem(row.name, reason)
        else:
            yield Example(row.name, path, stripped(row.texts))
    if first and not has_good:
        raise ValueError(f"{table.parent / first}")


# ---- shards


def _of_shards(
    shards: Iterable[Path | DataProblem], root: Path, *, is_captioned: bool
) -> Iterator[Example | DataProblem]:
    """All pairs of some shards. Damaged shards are skipped, unless all are damaged."""
    damaged: list[DataProblem] = []
    has_pairs = False
    for shard in shards:
        for entry in [shard] if isinstance(shard, DataProblem) else _in_shard(shard, root, is_captioned=is_captioned):
            has_pairs |= isinstance(entry, Example)
            if isinstance(entry, DataProblem) and entry.is_damage:
                damaged.append(entry)
            yield entry
    if damaged and not has_pairs:
        more = f"; and {len(damaged) - 1:,} more damaged ones" if len(damaged) > 1 else ""
        first = f"{root / damaged[0].name}: no whole, uncompressed .tar file: {damaged[0].reason}"
        raise ValueError(first + more)


def _in_shard(shard: Path, root: Path, *, is_captioned: bool) -> Iterator[Example | DataProblem]:
    """Each image of a ``.tar``, with the offset and size of its bytes.

    A member's key is its name up to the first dot, and its kind the last suffix: ``0.image.jpg`` is the image of key 0.
    """
    images: dict[str, tuple[int, int]] = {}
    texts: dict[str, tuple[str, bytes]] = {}
    parts_of: dict[tuple[str, str], str] = {}  # what is behind the first dot, of the members that count
    other_members: dict[str, str] = {}  # a member of another kind, of each name
    reported: set[str] = set()
    prefix = shard.relative_to(root).as_posix()
    if not _holds(shard.is_file):
        yield DataProblem(prefix, NO_FILE, is_damage=True)
        return
    try:
        with shard.open("rb") as file:
            for member in members(file):
                folder, slash, base = member.name.rpartition("/")
                stem, _, parts = base.partition(".")
                suffix = f".{parts.rpartition('.')[2].lower()}"
                key, name = f"{prefix}/{folder}{slash}{stem}", f"{prefix}/{member.name}"
                kind = "image" if suffix in SUFFIXES else suffix
                if member.kind == FOLDER or kind not in ("image", *CAPTIONS, LABEL):
                    other_members.setdefault(key, base)
                    continue
                if member.kind:
                    reported.add(key)
                    yield DataProblem(name, f"it is {member.kind}, and not an ordinary file")
                    continue
                is_whole, before = "." not in parts, parts_of.get((key, kind))
                if before is not None and is_whole == ("." not in before):
                    yield DataProblem(name, "another one of its name comes before it, and is left out")
                elif before is not None and not is_whole:
                    continue  # 0.mask.png is no other 0.png
                parts_of[key, kind] = parts
                if kind == "image":
                    images[key] = member.start, member.size
                elif key not in texts or (*CAPTIONS, LABEL).index(kind) <= (*CAPTIONS, LABEL).index(texts[key][0]):
                    file.seek(member.start)
                    texts[key] = kind, file.read(min(member.size, MAX_CAPTION_BYTES + 1))
    except DamageError as error:
        yield DataProblem(prefix, str(error), is_damage=True)
    except OSError as error:
        yield _unread(prefix, error)
    else:
        if not images and not texts and not reported:
            yield DataProblem(prefix, "there is no image in it")
    for key, place in images.items():
        kind, text = texts.get(key, ("", b""))
        if (kind == LABEL) != is_captioned and kind:
            yield _captioned(key, shard, text, kind, place=place)
        elif not is_captioned:
            yield Example(key, shard, (), place=place)
        elif key not in reported:
            more = "" if texts or key not in other_members else f"; beside it is {quote(other_members[key])}"
            yield DataProblem(key, f"{NO_CAPTION} of its name in the shard{more}")
    if is_captioned:
        alone = [key for key in texts if key not in images and key not in reported]
        yield from (DataProblem(key, f"no image of its name in the shard ({', '.join(SUFFIXES)})") for key in alone)
