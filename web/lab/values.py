"""Validation of the page's component values, and error messages for the page.

Only direct calls of the page's functions can send values other than a component's.
"""

from __future__ import annotations

import logging
import re
from typing import TypeGuard

from ...encoder.encoding import EncoderError
from .model import LabError

EXPLAINED = (EncoderError, ValueError)
"""Errors whose message is meant for the user."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_log = logging.getLogger(__name__)


def checked_text(name: str, value: object) -> str:
    """Check that a value is a text, and replace lone surrogates.

    Raises:
        LabError: If the value is something else.
    """
    if not isinstance(value, str):
        raise LabError(f"{name} must be a text, got {value!r:.80}")
    if _SURROGATE.search(value):
        raise LabError("The text holds half of a character (a lone surrogate): delete it and type it again.")
    return value


def checked_number(name: str, value: object) -> float:
    """Check that a value is a number.

    Raises:
        LabError: If the value is something else.
    """
    if not _is_number(value):
        raise LabError(f"{name} must be a number, got {value!r:.80}")
    return value


def whole_number(name: str, value: object, first: int, last: int) -> int:
    """Check that a value is a whole number in a range, both ends included.

    Raises:
        LabError: If the value is something else.

    >>> whole_number("row", 3.0, 1, 8)
    3
    """
    if not _is_number(value) or not first <= value <= last or value != int(value):
        raise LabError(f"{name} must be a whole number, {first} to {last}; got {value!r:.40}")
    return int(value)


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number; true and false are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def explained(error: Exception) -> str:
    """Message for the page about an error; an unforeseen one is also written to the program's log."""
    if isinstance(error, EXPLAINED):
        return str(error)
    _log.exception("the lab could not do what was asked")
    return f"That failed, and it is the program's fault or the device's: {type(error).__name__}: {error}"
