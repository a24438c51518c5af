"""Rows of a ``.jsonl`` or ``.csv`` table, or of kohya's ``meta_cap.json``.

A row is an image's name with its captions, or a problem. A broken row does not end the table: the rows
after it are read as if it were not there.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO, cast

from ....encoder.foreign_text import parse_json
from ....encoder.quoting import quote
from ....encoder.regular_file import read_regular


class Columns(NamedTuple):
    """Names of the columns to read, and the separator between columns."""

    image: tuple[str, ...] = ("file_name", "filepath", "image", "path")
    """Possible names of the column of image files; the first one present is read."""
    caption: tuple[str, ...] = ("text", "title", "caption")
    """Possible names of the caption column, in the same way."""
    separator: str = ""
    """Character between columns of a CSV file; empty for one of `SEPARATORS`, by its first line."""


COLUMNS = Columns()
"""Column names of Hugging Face's imagefolder, open_clip, and other common ones."""
SEPARATORS = (",", "\t", ";", "|")
MAX_JSON_BYTES = 2**28
"""Maximum size of a file that is read whole."""
MAX_ROW_CHARACTERS = 1024 * 1024
"""Maximum length of a line."""

_LONG_FIELD = f"it cannot be read: a field in it has more than {csv.field_size_limit():,} characters"


class TableRow(NamedTuple):
    """A row of a table."""

    line: int
    """Its first line, counted from 1."""
    name: str
    """Name of the image, as it is written."""
    texts: list[str]
    """Its captions, possibly blank ones."""
    problem: str = ""
    """Brief reason for leaving it out; empty for a good row."""


def rows(table: Path, columns: Columns = COLUMNS) -> Iterator[TableRow]:
    """Read a table row by row."""
    # bytes that are not UTF-8 become surrogates, so that they are found where they are
    with table.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        if table.suffix.lower() == ".jsonl":
            next_row = lambda: _json_row(next(lines), columns)  # noqa: E731
        else:
            first = file.readline(MAX_ROW_CHARACTERS)
            file.seek(0)
            next_row = _csv_reader(lines, columns, columns.separator or _separator_of(first, columns))
        while True:
            line = lines.number + 1
            try:
                fields = next_row()
                if fields is not None:
                    yield TableRow(line, *_pair(fields, columns))
            except StopIteration:
                return
            except (ValueError, csv.Error) as error:
                reason = _LONG_FIELD if isinstance(error, csv.Error) else str(error)
                more = f"; all up to line {lines.number:,} is left out with it" if lines.number > line else ""
                yield TableRow(line, "", [], reason + more)


class _Lines:
    """Lines of a file. A line that is too long or not UTF-8 raises an error; reading can go on after it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.number = 0
        """Number of the last line, counted from 1."""
        self.is_over = False
        """Whether a line was requested after the last one."""

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = part = self._file.readline(MAX_ROW_CHARACTERS)
        if not line:
            self.is_over = True
            raise StopIteration
        self.number += 1
        while part and not part.endswith(("\n", "\r")):
            part = self._file.readline(MAX_ROW_CHARACTERS)
            if part:
                line = ""
        if not line:
            raise ValueError(f"it cannot be read: it is longer than {MAX_ROW_CHARACTERS:,} characters")
        if not is_unicode(line):
            raise ValueError("it cannot be read: it is not UTF-8")
        return line


def kohya_rows(table: Path) -> Iterator[TableRow]:
    """Entries of a ``meta_cap.json``: each image's caption, and its tags if any; ValueError if it is no such table."""
    try:
        content = read_regular(table, MAX_JSON_BYTES)
        entries: Any = parse_json(content.decode("utf-8-sig"), object_pairs_hook=dict)
    except (OSError, ValueError) as error:
        raise ValueError(f"{table}: it cannot be read: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{table}: it is no table of captions by image, as kohya's meta_cap.json")
    for number, (name, entry) in enumerate(cast("dict[str, Any]", entries).items(), 1):
        fields: Any = entry if isinstance(entry, dict) else {"caption": 0}
        texts = [fields[key] for key in ("caption", "tags") if fields.get(key) not in (None, "")]
        if all(isinstance(text, str) and is_unicode(text) for text in (name, *texts)):
            yield TableRow(number, name, [", ".join(texts)])
        else:
            yield TableRow(number, "", [], "each image needs an object with the text 'caption', 'tags', or both")


def _separator_of(header: str, columns: Columns) -> str:
    """Separator by which the header has the columns to read."""
    for separator in SEPARATORS:
        names = next(csv.reader([header], delimiter=separator), [])
        if {*names} & {*columns.image} and {*names} & {*columns.caption}:
            return separator
    return SEPARATORS[0]


def _json_row(line: str, columns: Columns) -> Mapping[str, object] | None:
    """Fields of a JSON line, or None if it is blank."""
    if not line.strip():
        return None
    try:
        row = parse_json(line, object_pairs_hook=partial(_unique, columns))
    except ValueError as error:
        raise ValueError(f"it cannot be read: {error}") from error
    return row if isinstance(row, dict) else {}


def _csv_reader(lines: _Lines, columns: Columns, separator: str) -> Callable[[], Mapping[str, object] | None]:
    """Function that returns the fields of the next row, or None if it is blank."""
    reader = csv.reader(lines, delimiter=separator)
    header: list[str] = []

    def read() -> Mapping[str, object] | None:
        fields = next(reader)
        if lines.is_over:  # the reader wanted more than there is
            raise ValueError("it cannot be read: a quote in it is not closed")
        if not header or not fields:
            header.extend(fields)
            return None
        if any(field.strip() for field in fields[len(header) :]):
            raise ValueError(f"it has more fields than columns: put quotes around a text with {separator!r} in it")
        return _unique(columns, zip(header, fields, strict=False))

    return read


def _unique(columns: Columns, pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Fields by column name; columns to read may occur only once."""
    row: dict[str, object] = {}
    for name, value in pairs:
        if name in row and name in (*columns.image, *columns.caption):
            raise ValueError(f"it has {quote(name)} twice")
        row[name] = value
    return row


def _pair(fields: Mapping[str, object], columns: Columns) -> tuple[str, list[str]]:
    """Name and texts of a row."""
    image, caption = (next((name for name in names if name in fields), names[0]) for names in columns[:2])
    name, value = fields.get(image), fields.get(caption)
    texts: list[Any] = value if isinstance(value, list) else [value]
    if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
        names = quote([*fields], 200) if fields else "none"
        raise ValueError(f"each row needs {image!r} and {caption!r}, texts both; its columns are {names}")
    if not name.strip():
        raise ValueError(f"its {image!r} is empty")
    if not all(map(is_unicode, (name, *texts))):
        raise ValueError("it holds half a character, a lone surrogate")
    return name, texts


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogates, and so can be written."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
