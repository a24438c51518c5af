"""Conversion of a prompt for front ends that offer it at a form of another syntax: plain data in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..encoder.tokenizer import default_tokenizer
from ..weighting.convert import convert
from .inspection import RequestError

KEYS = ("text", "from", "to", "is_cleaned")


def conversion(asked: object) -> dict[str, Any]:
    """Answer a request to convert a prompt.

    Args:
        asked: An object with the strings ``text``, ``from`` and ``to``, the syntaxes, and the boolean ``is_cleaned``:
            whether A1111's comments are removed.

    Returns:
        ``text``, the prompt in the other syntax, and ``issues``, one line for each part that could not be kept.

    Raises:
        RequestError: If the request is malformed, or a syntax is unknown or cannot be written.

    >>> conversion({"text": "a [cat]", "from": "a1111", "to": "comfy", "is_cleaned": True})
    {'text': 'a (cat:0.90909091)', 'issues': []}
    """
    if not isinstance(asked, Mapping) or set(asked) != set(KEYS):
        raise RequestError(f"a request is an object with {', '.join(KEYS)}")
    *texts, is_cleaned = (asked[key] for key in KEYS)
    if not all(isinstance(text, str) for text in texts) or not isinstance(is_cleaned, bool):
        raise RequestError("text, from and to must be strings, and is_cleaned true or false")
    text, source, target = texts
    try:
        text.encode()
        converted = convert(text, source, target, default_tokenizer(), is_cleaned=is_cleaned)
    except UnicodeEncodeError as error:
        raise RequestError("text holds a lone surrogate, which is no character") from error
    except ValueError as error:
        raise RequestError(str(error)) from error
    return {"text": converted.text, "issues": [issue.line for issue in converted.issues]}
