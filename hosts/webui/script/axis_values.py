"""Values of the axes of the X/Y/Z plot as typed, and weights of words written into prompts."""

from __future__ import annotations

import math
import re
from typing import Any

from ....encoder.foreign_text import comma_separated
from ....weighting.options import OPTIONS, PLACE_OPTIONS
from ....weighting.syntax import SYNTAXES
from ....weighting.syntax.record import decimal
from ....weighting.text.prompt import shortened
from ..engines import WebUIError
from ..settings import Settings

WEIGHT = "Weight of a word"
STRENGTH, WEIGHT_STRENGTH = OPTIONS["bind_strength"].label, PLACE_OPTIONS["attention_strength"].label
MAX_WEIGHTS = 100
"""Maximum number of values in a range."""
MAX_VALUES = 1000
"""Maximum number of values of an axis."""
MAX_CHARACTERS = 16 * 1024
"""Maximum length of the values of an axis."""

_NUMBER = r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)"
_SINGLE = re.compile(_NUMBER)
_BRACKETS = re.compile(r"[()\[\]\\<>]")
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER})\s*(?:\(\s*\+?({_NUMBER})\s*\)|\[\s*(\d{{1,12}})\s*\])?")
_BEFORE, _BEHIND = r"(?<!\w)(?<!\w-)", r"(?!\w)(?!-\w)"
_GROUPS = {
    "comfy": rf"(?<!\\)\(\s*(?P<inside>{{word}})\s*(?::\s*{_NUMBER}\s*)?\)",
    "a1111": rf"(?<!\\)(?:\(\s*(?P<inside>{{word}})\s*(?::\s*{_NUMBER}\s*)?\)|\[\s*(?P<square>{{word}})\s*\])",
    "compel": rf"(?<!\\)\(\s*(?P<inside>{{word}})\s*\)(?:\++|-+(?!\d)|{_NUMBER})?",
}
"""Pattern of the word alone in a group with a weight, by syntax."""
_SIGNS = {"compel": r"(?:\++|-+(?!\w))?"}
"""Pattern of signs that weight the word before them, by syntax."""


def weights(text: str) -> list[str]:
    """Values of the axis of weights, each with its word, from the user's input ``word: values``.

    A value is a weight, or a range as on the host's own axes. A word applies until another is named.

    >>> weights("dog: 0-1 [3], red cat: 0.5, 1.2")
    ['dog: 0', 'dog: 0.5', 'dog: 1', 'red cat: 0.5', 'red cat: 1.2']
    """
    values: list[str] = []
    word = ""
    for item in values_of(WEIGHT, text):
        named, colon, written = item.rpartition(":")
        word = named.strip() if colon else word
        if not word or _BRACKETS.search(word):
            raise WebUIError(
                f"{WEIGHT}: expected a word without brackets, a colon and weights, such as dog: 0-1 [5]; got "
                f"“{shortened(item)}”"
            )
        values += [f"{word}: {decimal(weight)}" for weight in _numbers(WEIGHT, written.strip())]
    return _not_too_many(WEIGHT, values)


def strengths(text: str, name: str = "bind_strength") -> list[str]:
    """Values of an axis of strengths, from numbers and ranges; ``name`` is its setting.

    >>> strengths("0-1 [3], 0.2")
    ['0', '0.5', '1', '0.2']
    """
    title = {**OPTIONS, **PLACE_OPTIONS}[name].label
    numbers = [number for item in values_of(title, text) for number in _numbers(title, item)]
    for number in numbers:
        chosen: dict[str, Any] = {name: number}
        Settings(**chosen).options()
    return _not_too_many(title, list(map(decimal, numbers)))


def values_of(title: str, text: str) -> list[str]:
    """Values of an axis that stand in a text with commas between, some of them in quotes; refused if one is empty.

    >>> values_of("Places", 'off, "red cat: left half, 0-0.4"')
    ['off', 'red cat: left half, 0-0.4']
    """
    if len(text) > MAX_CHARACTERS:
        raise WebUIError(f"{title}: the values have {len(text):,} characters, at most {MAX_CHARACTERS:,} are read")
    values = comma_separated(text)
    if any(values) and "" in values:
        raise WebUIError(
            f"{title}: value {values.index('') + 1} of {len(values)} is empty: fill it in, or take out a comma"
        )
    return _not_too_many(title, [value for value in values if value])


def _not_too_many(title: str, values: list[str]) -> list[str]:
    if len(values) > MAX_VALUES:
        raise WebUIError(f"{title}: these are {len(values):,} values, at most {MAX_VALUES:,} are allowed")
    return values


def _numbers(title: str, written: str) -> list[float]:
    """Numbers of one value: itself, or the numbers of a range, both ends included."""
    if _SINGLE.fullmatch(written):
        return [_number(title, written)]
    match = _RANGE.fullmatch(written)
    if match is None:
        raise WebUIError(
            f"{title}: expected a number such as 0.5, or a range such as 0-1 [5] or 0-1 (+0.25); got "
            f"“{shortened(written)}”"
        )
    start, end, step = (_number(title, number) for number in (match[1], match[2], match[3] or "1"))
    if match[4] is not None:
        count = int(match[4])
        step = (end - start) / max(1, count - 1)
    else:
        count = int(min((end - start) / step + 1e-6, 1e12)) + 1 if step and (end - start) * step >= 0 else 0
    if not 1 <= count <= MAX_WEIGHTS:
        raise WebUIError(f"{title}: “{shortened(written)}” has {count:,} values; 1 to {MAX_WEIGHTS} are allowed")
    digits = max(4, *(len(number.partition(".")[2]) for number in match.groups("")[:3]))
    return [round(start + index * step, digits) for index in range(count)]


def _number(title: str, written: str) -> float:
    if not math.isfinite(number := float(written)):
        raise WebUIError(f"{title}: “{shortened(written)}” is too large")
    return number


def with_weight(prompt: str, word: str, weight: float, syntax: str) -> str | None:
    """Give a word a weight wherever it occurs in a prompt; None if it does not.

    A word is one or more words, in any case, without brackets; LoRAs and other tags in angle brackets are none. The
    weight replaces one in the word's own brackets; brackets around it and other words still multiply. Refused if the
    syntax has no weights, or not this one.

    >>> with_weight("a dog, (Dog:1.2), hotdog <lora:dog:1>", "dog", 0.5, "a1111")
    'a (dog:0.5), (Dog:0.5), hotdog <lora:dog:1>'
    >>> with_weight("a dog+ and (a cat)1.2", "a cat", 0.5, "compel")
    'a dog+ and (a cat)0.5'
    """
    write = SYNTAXES[syntax].write if syntax in _GROUPS else None
    if write is None:
        raise WebUIError(f"{WEIGHT}: not with the syntax {syntax}; allowed: {', '.join(_GROUPS)}")
    is_found = False

    def replaced(match: re.Match[str]) -> str:
        nonlocal is_found
        inside = next(filter(None, match.groups()), None)
        if inside is None:
            return match[0]
        is_found = True
        written = next(write(inside, weight), None)
        if written is None:
            raise WebUIError(f"{WEIGHT}: the syntax {syntax} cannot write the weight {weight:g}")
        return written

    form = form_of(word, syntax)
    result = form.sub(replaced, prompt)
    return result if is_found else None


def form_of(word: str, syntax: str) -> re.Pattern[str]:
    """Pattern of a word, alone in a weighted group or bare; it also matches tags, without a group of the pattern."""
    spaced = r"\s+".join(map(re.escape, word.split()))
    group = _GROUPS[syntax].replace("{word}", spaced)
    return re.compile(rf"<[^<>]*>|{group}|{_BEFORE}(?P<word>{spaced}){_BEHIND}{_SIGNS.get(syntax, '')}", re.IGNORECASE)
