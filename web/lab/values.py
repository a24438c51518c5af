"""Values of the page's components, checked, and errors as the page tells them.

Only who calls the page's functions by themselves can send anything but what a component gives.
"""

from __future__ import annotations

import logging
import re

from ...encoder.encoding import EncoderError
from .model import LabError

EXPLAINED = (EncoderError, ValueError)
"""Errors whose message is meant for the user."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_log = logging.getLogger(__name__)


def checked_text(name: str, value: object) -> str:
    """A text without lone surrogates.

    Raises:
        LabError: If the value is something else.
    """
    if not isinstance(value, str):
        raise LabError(f"{name} must be a text, got {value!r:.80}")
    if _SURROGATE.search(value):
        raise LabError("The text holds half of a character (a lone surrogate): delete it and type it again.")
    return value


def checked_number(name: str, value: object) -> float:
    """A number.

    Raises:
        LabError: If the value is something else.
    """
    if not isinstance(value, (int, float)):
        raise LabError(f"{name} must be a number, got {value!r:.80}")
    return value


def whole_number(name: str, value: object, first: int, last: int) -> int:
    """A whole number in a range, both ends included.

    Raises:
        LabError: If the value is something else.

    >>> whole_number("row", 3.0, 1, 8)
    3
    """
    if not isinstance(value, (int, float)) or not first <= value <= last or value != int(value):
        raise LabError(f"{name} must be a whole number, {first} to {last}; got {value!r:.40}")
    return int(value)


def explained(error: Exception) -> str:
    """What the page says of an error; one that nobody foresaw is also written to the program's log."""
    if isinstance(error, EXPLAINED):
        return str(error)
    _log.exception("the lab could not do what was asked")
    return f"That failed, and it is the program's fault or the device's: {type(error).__name__}: {error}"
