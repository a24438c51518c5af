"""Rows of a ``metadata.jsonl`` or ``metadata.csv``: an image's name and its captions, or what is wrong with the row.

A broken row does not end the table: those behind it are read as if it were not there.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ..encoder.foreign_text import parse_json
from ..encoder.quoting import quote

FILE_COLUMN, TEXT_COLUMN = "file_name", "text"
MAX_ROW_CHARACTERS = 1024 * 1024
"""Maximum length of a line."""

_LONG_FIELD = f"it cannot be read: a field in it has more than {csv.field_size_limit():,} characters"


class Row(NamedTuple):
    """A row of a table."""

    line: int
    """Its first line, counted from 1."""
    name: str
    """Name of the image, as it is written."""
    texts: list[str]
    """Its captions, possibly blank ones."""
    problem: str = ""
    """Brief reason for leaving it out; empty for a good row."""


def rows(table: Path) -> Iterator[Row]:
    """Read a table row by row."""
    # bytes that are not UTF-8 become surrogates, so that they are found where they are
    with table.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = _Lines(file)
        read = _csv_reader(lines) if table.suffix == ".csv" else lambda: _json_row(next(lines))
        while True:
            line = lines.number + 1
            try:
                columns = read()
                if columns is not None:
                    yield Row(line, *_pair(columns))
            except StopIteration:
                return
            except (ValueError, csv.Error) as error:
                reason = _LONG_FIELD if isinstance(error, csv.Error) else str(error)
                more = f"; all up to line {lines.number:,} is left out with it" if lines.number > line else ""
                yield Row(line, "", [], reason + more)


class _Lines:
    """Lines of a file. One that is too long or not UTF-8 raises an error, and the next one is read behind it."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self.number = 0
        """Number of the last line, counted from 1."""
        self.is_over = False
        """Whether a line was asked for behind the last one."""

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


def _json_row(line: str) -> Mapping[str, object] | None:
    """The columns of a line of JSON, None if it is blank."""
    if not line.strip():
        return None
    try:
        row = parse_json(line, object_pairs_hook=_unique)
    except ValueError as error:
        raise ValueError(f"it cannot be read: {error}") from error
    return row if isinstance(row, dict) else {}


def _csv_reader(lines: _Lines) -> Callable[[], Mapping[str, object] | None]:
    """Function for the columns of the next row, None if it is blank."""
    reader = csv.reader(lines)
    header: list[str] = []

    def read() -> Mapping[str, object] | None:
        fields = next(reader)
        if lines.is_over:  # the reader wanted more than there is
            raise ValueError("it cannot be read: a quote in it is not closed")
        if not header or not fields:
            header.extend(fields)
            return None
        if any(field.strip() for field in fields[len(header) :]):
            raise ValueError("it has more fields than columns: put quotes around a text with commas in it")
        return _unique(zip(header, fields, strict=False))

    return read


def _unique(columns: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Columns by name; of the two that are read there may be only one each."""
    found: dict[str, object] = {}
    for name, value in columns:
        if name in found and name in (FILE_COLUMN, TEXT_COLUMN):
            raise ValueError(f"it has {quote(name)} twice")
        found[name] = value
    return found


def _pair(columns: Mapping[str, object]) -> tuple[str, list[str]]:
    """Name and texts of a row."""
    name, given = columns.get(FILE_COLUMN), columns.get(TEXT_COLUMN)
    texts: list[Any] = given if isinstance(given, list) else [given]
    if not isinstance(name, str) or not all(isinstance(text, str) for text in texts):
        found = quote([*columns], 200) if columns else "none"
        raise ValueError(f"each row needs {FILE_COLUMN!r} and {TEXT_COLUMN!r}, texts both; its columns are {found}")
    if not name.strip():
        raise ValueError(f"its {FILE_COLUMN!r} is empty")
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
