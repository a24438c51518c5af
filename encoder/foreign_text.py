"""Parsers of foreign JSON and comma-separated lists, with one kind of error that says what is wrong."""

from __future__ import annotations

import csv
import json
from typing import Any

MAX_DIGITS = 4300
"""Maximum length of a whole number, as Python's own."""


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """Parse a text of bounded length, as ``json.loads``.

    Raises:
        ValueError: If it is no JSON, nested too deeply, or has a longer number than `MAX_DIGITS`.
    """
    try:
        return json.loads(text, parse_int=_whole_number, **hooks)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at").removesuffix(" starting")
        raise ValueError(f"no JSON: {what} at line {error.lineno}, column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def comma_separated(text: str) -> list[str]:
    """Parts of a line between commas, without the blanks around them; one in double quotes may have commas in it.

    >>> comma_separated('a, "b, c" ,d')
    ['a', 'b, c', 'd']

    Raises:
        ValueError: If a part is longer than Python's reader of such lines takes.
    """
    line = " ".join(text.split())
    try:
        return [part.strip() for part in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error as error:
        raise ValueError(f"a part between commas has more than {csv.field_size_limit():,} characters") from error


def _whole_number(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"no JSON that is read: a number in it has more than {MAX_DIGITS:,} digits")
    return int(digits)
