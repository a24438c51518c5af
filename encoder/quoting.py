"""Error messages and foreign values quoted in them: never more text is made than is shown, whatever a value's size."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, cast

_MOST_LEVELS = 3
_MOST_ITEMS = 4
_MOST_BITS = 1024
"""Size of whole numbers that are written out: for more, Python takes the square of their digits in time."""


def quote(value: object, length: int = 80) -> str:
    """Quote a value that came from a file, a request or another program.

    Args:
        value: Anything. Numbers and texts look as in ``repr``; of lists, tuples and mappings the first 4 entries of
            3 levels are shown, of any other object its class alone, as its own ``repr`` may never end.
        length: Most characters of the answer, without the ellipsis that stands for the rest.

    >>> quote("a red cat", 6)
    "'a red…"
    >>> quote([1, (2, [3, [4]]), *range(9)])
    '[1, (2, [3, […]]), 0, 1, …]'
    >>> quote(10**5000)
    'a number of 16,610 bits'
    """
    text = _text_of(value, length, _MOST_LEVELS)
    return text if len(text) <= length else f"{text[:length]}…"


def checked(name: str, value: Any, choices: Collection[str], error: type[Exception] = ValueError) -> Any:
    """A value, refused by its name if it is none of some choices; it may be of any type."""
    if value not in list(choices):
        raise error(f"{name} must be one of: {', '.join(choices)}; got {quote(value)}")
    return value


@contextmanager
def raising(kind: type[Exception]) -> Generator[None]:
    """Turn a ValueError into an error of another kind with the same message for the duration of the context."""
    try:
        yield
    except ValueError as error:
        raise kind(str(error)) from error


def _text_of(value: object, length: int, levels: int) -> str:
    if isinstance(value, (str, bytes)):
        return repr(value[: length + 1])
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length():,} bits"
    if value is None or type(value) in (bool, int, float, complex):
        return repr(value)
    if isinstance(value, (list, tuple)):
        start, end = "[]" if isinstance(value, list) else "()"
        entries = cast("list[Any]", value)
        return start + _joined((_text_of(entry, length, levels - 1) for entry in entries), len(entries), levels) + end
    if isinstance(value, dict):
        pairs = cast("Mapping[Any, Any]", value)
        entries = (f"{_text_of(k, length, levels - 1)}: {_text_of(v, length, levels - 1)}" for k, v in pairs.items())
        return f"{{{_joined(entries, len(pairs), levels)}}}"
    return f"<{type(value).__name__[:60]}>"


def _joined(entries: Iterable[str], count: int, levels: int) -> str:
    """The first entries, which are made one by one; an ellipsis for the others, and for all at the last level."""
    if levels <= 0:
        return "…" if count else ""
    return ", ".join([*islice(entries, _MOST_ITEMS), *(["…"] if count > _MOST_ITEMS else [])])
