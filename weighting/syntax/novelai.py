r"""Weight syntax of NovelAI's image prompts.

The text is read left to right; at each position the first matching row applies:

    NUMBER::      sets the weight to NUMBER from here on, until the next :: or NUMBER::
    ::            ends that, and every brace and square bracket that is open
    {  }          1.05 times the weight, inside
    [  ]          1/1.05 times the weight, inside
    other text    text; there is no escape

Braces and brackets multiply the number that they stand in. What is never closed reaches to the end of the text. A
closing bracket with nothing to close is text. NUMBER is digits with or without a point, and perhaps a minus; no letter,
digit, point or colon stands before it.

Source: docs/reference/syntaxes.md, "NovelAI syntax"; NovelAI's documentation of strengthening and weakening (2025).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..text.prompt import Fragment, Issue, Piece, Prompt, Span
from .record import (
    COMMA_BEFORE_COLONS,
    NUMBER_IN_BRACKETS,
    OF_A1111,
    OF_COMPEL,
    OF_EXTENSIONS,
    OF_SWARM,
    Syntax,
    decimal,
)

FACTOR = 1.05
"""Factor of a pair of braces."""

_MARK = re.compile(r"(?<![\w.:])-?(?:\d+(?:\.\d*)?|\.\d+)::|::|[{}\[\]]")
_NUMBER_AT_END = re.compile(r"[\d.:]$")
_CLOSING = {"}": "{", "]": "["}


class _Scan:
    """State of a scan: fragments so far, the number in force and the brackets that are open."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.fragments: list[Fragment] = []
        self.issues: list[Issue] = []
        self.number = 1.0
        self.numbered_from: Span | None = None
        """Position of the number in force; None outside of numbers."""
        self.open: dict[str, list[int]] = {"{": [], "[": []}
        """Positions of open brackets, by kind."""
        self.text_start = 0

    def read(self) -> None:
        for mark in _MARK.finditer(self.source):
            form = mark[0]
            if form in _CLOSING and not self.open[_CLOSING[form]]:
                self.issue("unopened-bracket", f"“{form}” closes nothing: it is text.", mark.start(), mark.end())
                continue
            self.text(mark.start())
            self.text_start = mark.end()
            if form in self.open:
                self.open[form].append(mark.start())
            elif form in _CLOSING:
                self.open[_CLOSING[form]].pop()
            elif form == "::":
                self.end_number(mark)
            else:
                self.begin_number(mark)
        self.text(len(self.source))
        for bracket, positions in self.open.items():
            factor = FACTOR if bracket == "{" else 1 / FACTOR
            message = f"“{bracket}” is never closed: all that follows weighs {factor:.4g} times as much."
            for position in positions:
                self.issue("unclosed-bracket", message, position, position + 1)
        if self.numbered_from is not None:
            message = f"“{self.source[slice(*self.numbered_from)]}” is never ended by “::”: it reaches to the end."
            self.issue("unclosed-number", message, *self.numbered_from)

    def text(self, end: int) -> None:
        """Add the text up to a mark at the weight in force; neighbours of equal weight stay apart."""
        if self.text_start < end:
            span = Span(self.text_start, end)
            self.fragments.append(Fragment((Piece(self.source[slice(*span)], span),), self.weight))

    @property
    def weight(self) -> float:
        depth = len(self.open["{"]) - len(self.open["["])
        try:
            factor = FACTOR ** abs(depth)
        except OverflowError:
            factor = math.inf
        return self.number and (self.number * factor if depth >= 0 else self.number / factor)

    def begin_number(self, mark: re.Match[str]) -> None:
        self.number = float(mark[0][:-2])
        self.numbered_from = Span(*mark.span())
        if not math.isfinite(self.number):
            message = f"The weight “{mark[0][:40]}” is not finite."
            self.issue("infinite-weight", message, mark.start(), mark.end())

    def end_number(self, mark: re.Match[str]) -> None:
        if self.numbered_from is None and not any(self.open.values()):
            message = "“::” ends nothing and is dropped; a weight is a number before it, as in 1.5::word::."
            self.issue("unopened-number", message, mark.start(), mark.end())
        self.number, self.numbered_from = 1.0, None
        self.open = {"{": [], "[": []}

    def issue(self, code: str, message: str, start: int, end: int) -> None:
        self.issues.append(Issue(code, message, Span(start, end)))


def parse(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as NovelAI does.

    Args:
        source: Any string.
        strict: Accepted for symmetry; NovelAI refuses no prompt.

    Returns:
        The prompt, without fragments for an empty text.

    >>> [(f.text, f.weight) for f in parse("a {red} 1.5::cat::, [dog").fragments]
    [('a ', 1.0), ('red', 1.05), (' ', 1.0), ('cat', 1.5), (', ', 1.0), ('dog', 0.9523809523809523)]
    """
    del strict
    scan = _Scan(source)
    scan.read()
    return Prompt.of(source, "novelai", scan.fragments, scan.issues)


def write(text: str, weight: float) -> Iterator[str]:
    """Write text with a weight. Braces, square brackets and double colons cannot be written as text.

    >>> list(write("red cat", 1.2)), list(write("level 5", 0.8))
    (['1.2::red cat::'], ['0.8::level 5 ::'])
    """
    if weight == 1.0:
        yield text
    elif math.isfinite(weight):
        space = " " if _NUMBER_AT_END.search(text) else ""
        yield f"{decimal(weight)}::{text}{space}::"


SYNTAX = Syntax(
    parse,
    "1.5::word:: sets, braces are 1.05, [word] is 1/1.05.",
    chunking="comfy segment",
    write=write,
    has_leading_weights=True,
    foreign=(COMMA_BEFORE_COLONS, NUMBER_IN_BRACKETS, *OF_A1111[1:], *OF_COMPEL, *OF_EXTENSIONS, OF_SWARM),
)
