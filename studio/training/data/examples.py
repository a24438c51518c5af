"""Examples of a data set, kept in a temporary file: each takes only a few bytes of memory."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ....encoder.image_file import MAX_BYTES, open_image

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Example:
    """One image and its captions."""

    name: str
    """Path in the data, used in messages."""
    path: Path
    """The image's file, or the ``.tar`` that contains it."""
    captions: tuple[str, ...]
    """At least one caption, none of them blank; empty if only images are read."""
    repeats: float = 1
    """Number of repeats in an epoch; of those with a fraction, some come once more."""
    place: tuple[int, int] | None = None
    """Offset and size of its bytes in the ``.tar``."""
    number: int = field(default=0, compare=False)
    """Its place among all examples of the data, counted from 0."""

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
class DataProblem:
    """Part of the data that is left out."""

    name: str
    """Name of the image or file."""
    reason: str
    """Brief reason; equal ones are counted together."""
    is_damage: bool = False
    """Whether it is a whole file or the rest of one, with an unknown number of pairs; each is named."""


_COLUMNS = "name, path, captions, repeats, start, size"


class Examples(Sequence[Example]):
    """Examples in the order of their names, in a temporary file that is gone with the process.

    Examples of one name are merged: the first one, with the captions of all.
    """

    def __init__(self, examples: Iterable[Example]) -> None:
        """Write examples to a file, one by one."""
        self._rows = sqlite3.connect("", check_same_thread=False)  # a file of no name
        self._lock = threading.Lock()
        weakref.finalize(self._lock, self._rows.close)  # when no examples share it any more
        try:
            self._rows.execute(f"create table found ({_COLUMNS})")
            self._rows.executemany("insert into found values (?, ?, ?, ?, ?, ?)", map(_row, examples))
            self._rows.execute("create index by_name on found (name)")
        except sqlite3.OperationalError as error:
            raise OSError(f"the list of examples does not fit into a temporary file: {error}") from error
        self.repeats = array("d")
        """Number of repeats of each in an epoch."""
        self._first = array("q")  # number of the first row of each
        for first, repeats in self._rows.execute("select min(rowid), repeats from found group by name order by name"):
            self._first.append(first)
            self.repeats.append(repeats)
        self._numbers = array("q", range(len(self._first)))

    def __len__(self) -> int:
        return len(self._first)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> list[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | list[Example]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        name, path, captions, repeats, place = self._row(index)
        return Example(name, Path(path), tuple(json.loads(captions)), repeats, place, self._numbers[index])

    def _row(self, index: int) -> tuple[str, str, str, float, tuple[int, int] | None]:
        """Name, path, captions as JSON, repeats and place of an example."""
        same = "select * from found where name = (select name from found where rowid = ?) order by rowid"
        with self._lock:
            rows = self._rows.execute(same, [self._first[index]]).fetchall()
        name, path, _, repeats, start, size = rows[0]
        captions = ", ".join(row[2][1:-1] for row in rows if row[2] != "[]")
        return name, os.fsdecode(path), f"[{captions}]", repeats, None if start is None else (start, size)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(len(self)))

    def digest(self) -> str:
        """Digest of all names, captions, repeats and places."""
        digest = blake2b(b"[", digest_size=16)
        for index in range(len(self)):
            name, _, captions, repeats, place = self._row(index)
            listed = f"[{json.dumps(name)}, {captions}, {repeats}, {(place and [*place]) or 'null'}]"
            digest.update(f"{', ' if index else ''}{listed}".encode())
        digest.update(b"]")
        return digest.hexdigest()

    def blank(self) -> list[str]:
        """Names of examples without a caption."""
        query = "select name from found group by name having max(length(captions)) = 2"  # that of []
        return [name for (name,) in self._rows.execute(query)]

    def common(self, other_examples: Examples) -> list[str]:
        """Names of examples whose image is also in another data set."""
        query = "select name, path, start from found order by name"

        def places(of: Examples) -> Iterator[tuple[str, tuple[Path, int | None]]]:
            for name, path, start in of._rows.execute(query):
                yield name, (Path(os.fsdecode(path)).absolute(), start)

        own_places = {place for _, place in places(self)}
        shared = {place for _, place in places(other_examples) if place in own_places}
        return [name for name, place in places(self) if place in shared]

    def chosen(self, indices: Iterable[int]) -> Examples:
        """The examples at some indices, in that order; their file is shared."""
        chosen = object.__new__(Examples)
        chosen._rows, chosen._lock = self._rows, self._lock
        indices = array("q", indices)
        chosen._first = array("q", (self._first[index] for index in indices))
        chosen._numbers = array("q", (self._numbers[index] for index in indices))
        chosen.repeats = array("d", (self.repeats[index] for index in indices))
        return chosen

    def without(self, names: Iterable[str]) -> Examples:
        """Copy without the examples of some names."""
        query = "select min(rowid) from found where name = ?"
        with self._lock:
            left_out = {self._rows.execute(query, [name]).fetchone()[0] for name in names}
        return self.chosen(index for index, first in enumerate(self._first) if first not in left_out)


def _row(example: Example) -> tuple[Any, ...]:
    place = example.place or (None, None)
    captions = json.dumps(example.captions)  # in ASCII, so of any characters
    return example.name, os.fsencode(example.path), captions, example.repeats, *place
