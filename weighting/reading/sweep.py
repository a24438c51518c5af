"""Prompts in which a weight is tried at several values: ``(dog:0..1:5)`` is a prompt for each of five weights."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import NamedTuple

from ..syntax.record import decimal
from ..text.prompt import MOST_CHARACTERS, Span, shortened
from ..text.tags import comment_spans

MOST_WORDS, MOST_VALUES, MOST_TEXTS = 2, 32, 64
"""Most weights that change in a prompt, values of each, and prompts in all."""

_NUMBER = r"[+-]?(?:\d{1,4}(?:\.\d{1,6})?|\.\d{1,6})"
_RANGE = re.compile(rf":\s*({_NUMBER})\s*\.\.\s*({_NUMBER})\s*:\s*(\d{{1,4}})\s*(?=\))", re.ASCII)


class Sweep(NamedTuple):
    """Weights that words get in turn."""

    words: str
    """Text in the brackets."""
    values: tuple[str, ...]
    """At least two weights, as they are written."""
    span: Span
    """Position of the range in the prompt, with its first colon."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Words and weight of each value."""
        return tuple(f"{shortened(self.words, 24)} {value}" for value in self.values)


class Swept(NamedTuple):
    """A prompt at all values."""

    source: str
    """The text as typed."""
    sweeps: tuple[Sweep, ...]
    """One or two, in the order of the text."""

    @property
    def texts(self) -> tuple[str, ...]:
        """A prompt for each value of the first, and of those for each value of the second."""
        return tuple(map(self._at, product(*(sweep.values for sweep in self.sweeps))))

    @property
    def labels(self) -> tuple[str, ...]:
        """Words and weights of each text."""
        return tuple(map(", ".join, product(*(sweep.labels for sweep in self.sweeps))))

    def _at(self, values: tuple[str, ...]) -> str:
        text = self.source
        for sweep, value in reversed(list(zip(self.sweeps, values, strict=True))):
            text = f"{text[: sweep.span.start]}:{value}{text[sweep.span.end :]}"
        return text


def read_sweep(source: str, marks: tuple[str, ...] = ()) -> Swept:
    """Read a prompt with one or two ranges of weights.

    Args:
        source: The prompt, in which ``(words:first..last:number)`` stands for weights spread evenly.
        marks: Marks of its comments, in which nothing is a range, as of `comment_spans`.

    Raises:
        ValueError: If there is no range or are too many, or one has no bracket, too few or too many values.

    >>> read_sweep("a (dog:0..1:3)").texts
    ('a (dog:0)', 'a (dog:0.5)', 'a (dog:1)')
    >>> read_sweep("a (dog:0..1:2) # (cat:0..1:9)", ("#",)).texts
    ('a (dog:0) # (cat:0..1:9)', 'a (dog:1) # (cat:0..1:9)')
    """
    if len(source) > MOST_CHARACTERS:
        raise ValueError(f"the prompt has {len(source):,} characters; at most {MOST_CHARACTERS:,} are read")
    characters = list(source)
    for start, end in comment_spans(source, marks):
        characters[start:end] = " " * (end - start)
    uncommented = "".join(characters)
    ranges = list(_RANGE.finditer(uncommented))
    if not 1 <= len(ranges) <= MOST_WORDS:
        raise ValueError(
            f"write one or two weights as a range, such as (dog:0..1:5), which is five weights from 0 to 1; got "
            f"{len(ranges)} in “{shortened(source, 80)}”"
        )
    sweeps = tuple(_sweep(uncommented, match) for match in ranges)
    number = math.prod(len(sweep.values) for sweep in sweeps)
    if number > MOST_TEXTS:
        raise ValueError(f"these are {number} prompts; at most {MOST_TEXTS} are encoded: give the ranges fewer values")
    return Swept(source, sweeps)


def _sweep(source: str, match: re.Match[str]) -> Sweep:
    """Read a range, and the words in front of it back to their bracket."""
    first, last, number = float(match[1]), float(match[2]), int(match[3])
    written = shortened(match[0], 40)
    if not 2 <= number <= MOST_VALUES:
        raise ValueError(f"the number of weights in “{written}” must be from 2 to {MOST_VALUES}; got {number}")
    start = match.start()
    depth = 1
    while depth and start:
        start -= 1
        if source[start] in "()" and (start == 0 or source[start - 1] != "\\"):
            depth += 1 if source[start] == ")" else -1
    if depth:
        raise ValueError(f"the range “{written}” has no bracket in front of its words: write (dog{written})")
    evenly = (first + (last - first) * i / (number - 1) for i in range(number))
    values = tuple(decimal(round(value, 4) + 0) for value in evenly)
    if len(set(values)) < number:
        raise ValueError(f"“{written}” gives one weight twice: weights have four decimals; give its ends more distance")
    return Sweep(source[start + 1 : match.start()], values, Span(match.start(), match.end()))
