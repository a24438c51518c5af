r"""Attention syntax of the A1111 WebUI and its descendants.

The text is read left to right; at each position the first matching row applies:

    \( \) \[ \] \\    that character, literally
    \                 dropped
    (  [              opens a group
    : NUMBER )        closes a round group, times NUMBER        (literal where no round group is open)
    )                 closes a round group, times 1.1           (likewise)
    ]                 closes a square group, times 1/1.1        (literal where no square group is open)
    other characters  text; the word BREAK in it ends the chunk

Unclosed groups extend to the end of the text. Weights multiply, inner groups first. Neighbours of exactly equal weight
are joined without a space.

Source: docs/reference/syntaxes.md, "A1111 syntax"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np

from ..text.prompt import Break, Fragment, Issue, Piece, Prompt, PromptError, Span, quoted, shortened
from ..timed.editing import edits_of, read_editing
from ..timed.schedule import AND_WORD
from .record import DECIMAL_COMMA, OF_COMPEL, OF_EXTENSIONS, OF_GLIDES, Syntax, decimal

TIMED_READER = "Only the A1111/Forge Prompt node reads that"
"""Text in problems with time-dependent forms; front ends that show these elsewhere replace it."""

ROUND_FACTOR = 1.1
SQUARE_FACTOR = 1 / 1.1
BREAK_WORD = "BREAK"
BREAK_WEIGHT = -1.0

_LEXEME = re.compile(r"\\[()\[\]\\]?|[()\[\]]|:(?:\s*[+-]?[.\d]+\s*\))?|[^\\()\[\]:]+")
"""A row of the table, identified by its first and last character."""
_BREAK = re.compile(r"\bBREAK\b\s*")
_KEYWORDS = re.compile(r"\b(?:AND|BREAK)\b")
_TAG_START = re.compile(r"<(?=\w+:)")
_LAST_NUMBER = re.compile(r":(\s*)([+-]?(?:\d+\.?|\d*\.\d+))$")
_CLOSING = {")": ("(", ROUND_FACTOR), "]": ("[", SQUARE_FACTOR)}


class _BracketScan:
    """State of a scan: pieces so far, open brackets, and pending multiplications."""

    def __init__(self, source: str, *, strict: bool) -> None:
        self.source = source
        self.strict = strict
        self.pieces: list[Piece] = []
        self.weights: list[float] = []
        """Weight of each piece."""
        self.open: dict[str, list[tuple[int, int]]] = {"(": [], "[": []}
        """For each kind of bracket, a stack of (index of the next piece, position in the text)."""
        self.products: list[tuple[int, int, float]] = []
        """(first piece, end piece, factor) in the order of multiplication."""
        self.issues: list[Issue] = []

    def scan(self) -> None:
        opened, pieces = self.open, self.pieces
        end = 0
        for lexeme in _LEXEME.findall(self.source):
            start, end = end, end + len(lexeme)
            mark = lexeme[0]
            if mark in "([":
                opened[mark].append((len(pieces), start))
            elif mark == "\\":
                self.backslash(lexeme, start, end)
            elif lexeme[-1] in ")]":
                self.close(lexeme, start, end)
            elif BREAK_WORD in lexeme:
                self.split(lexeme, start, end)
            else:
                self.text(lexeme, start, end)
        for bracket, factor in _CLOSING.values():
            message = f"“{bracket}” is never closed: all that follows weighs {factor:.4g} times as much."
            self.products += [(first, len(pieces), factor) for first, _ in opened[bracket] if first < len(pieces)]
            self.issues += [Issue("unclosed-bracket", message, Span(at, at + 1)) for _, at in opened[bracket]]

    def text(self, text: str, start: int, end: int, weight: float = 1.0) -> None:
        self.pieces.append(Piece(text, Span(start, end)))
        self.weights.append(weight)

    def backslash(self, lexeme: str, start: int, end: int) -> None:
        # a single backslash leaves an empty piece of weight 1, as in the reference: it can separate neighbours
        self.text(lexeme[1:], start + 1, end)
        if end == start + 1:
            message = "The backslash escapes nothing and is dropped; \\\\ is a backslash."
            self.issue("lone-backslash", message, start, end)

    def split(self, text: str, start: int, end: int) -> None:
        """Add text, split at the word BREAK and the whitespace around it.

        Only this run is examined: the word has no neighbour at its ends.
        """
        position = 0
        for match in _BREAK.finditer(text):
            before = text[position : match.start()].rstrip()
            self.text(before, start + position, start + position + len(before))
            word = start + match.start()
            self.text(BREAK_WORD, word, word + len(BREAK_WORD), BREAK_WEIGHT)
            position = match.end()
        self.text(text[position:], start + position, end)

    def close(self, lexeme: str, start: int, end: int) -> None:
        """Close a group, or keep an unmatched bracket as text."""
        bracket, factor = _CLOSING[lexeme[-1]]
        opened = self.open[bracket]
        if opened:
            if lexeme[0] == ":":
                factor = self.factor(lexeme, start)
            first = opened.pop()[0]
            if first < len(self.pieces):
                self.products.append((first, len(self.pieces), factor))
        else:
            self.issue("unopened-bracket", f"“{lexeme[-1]}” closes nothing: it is text.", end - 1, end)
            self.text(lexeme, start, end)

    def factor(self, lexeme: str, start: int) -> float:
        """Factor of ``: NUMBER )``. An invalid number is text, in two pieces, and the bracket counts as bare."""
        number = lexeme[1:-1].strip()
        try:
            return float(number)
        except ValueError:
            position = self.source.index(number, start)
            span = Span(position, position + len(number))
        if self.strict:
            raise PromptError(f"“{shortened(number, 40)}” is not a number; a weight looks like 1.3", self.source, span)
        message = f"“{shortened(number, 40)}” is not a number: it is text, and the bracket weighs 1.1."
        self.issues.append(Issue("unreadable-weight", message, span))
        self.text(":", start, start + 1)
        self.text(lexeme[1:-1], start + 1, start + len(lexeme) - 1)
        return ROUND_FACTOR

    def issue(self, code: str, message: str, start: int, end: int) -> None:
        self.issues.append(Issue(code, message, Span(start, end)))


def parse(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as the A1111 WebUI does.

    Args:
        source: Any string.
        strict: Whether to raise where the reference raises, instead of reporting an issue.

    Returns:
        The prompt, with at least one fragment: an empty text yields one empty fragment.

    Raises:
        PromptError: In strict mode, for a weight of digits and dots that is not a number.

    >>> [(f.text, f.weight) for f in parse("a (red:1.4) [cat]").fragments]
    [('a ', 1.0), ('red', 1.4), (' ', 1.0), ('cat', 0.9090909090909091)]
    """
    reader = _BracketScan(source, strict=strict)
    reader.scan()
    weights = _apply(reader.weights, reader.products)
    parts, issues = _merge(reader.pieces, weights)
    return Prompt.of(source, "a1111", parts, [*reader.issues, *issues, *_timed(source)])


def _timed(source: str) -> Iterator[Issue]:
    """Issues about time-dependent forms, which are read before this syntax, if at all; what remains is text."""
    if "[" in source and (":" in source or "|" in source):
        for edit in edits_of(read_editing(source).parts):
            message = (
                f"“{quoted(source, edit.span)}” changes with the sampling steps in A1111. {TIMED_READER}; "
                "here its brackets are weights and the rest of it is text."
            )
            yield Issue("unread-edit", message, edit.span)
    if "AND" in source:
        for word in AND_WORD.finditer(source):
            message = f"AND combines prompts in A1111. {TIMED_READER}; here it is the word “and”."
            yield Issue("unread-and", message, Span(*word.span()))


def _apply(weights: list[float], products: list[tuple[int, int, float]]) -> list[float]:
    """Multiply ranges of weights in order, as floating point products depend on it."""
    if sum(end - start for start, end, _ in products) < 2000:
        for start, end, factor in products:
            for index in range(start, end):
                weights[index] *= factor
        return weights
    array = np.array(weights, dtype=np.float64)
    with np.errstate(all="ignore"):
        for start, end, factor in products:
            stretch = array[start:end]
            stretch *= factor
    return array.tolist()


def _merge(pieces: list[Piece], weights: list[float]) -> tuple[tuple[Fragment | Break, ...], list[Issue]]:
    """Join neighbours of equal weight and separate breaks from text."""
    if not pieces:
        return (Fragment(()),), []
    parts: list[Fragment | Break] = []
    issues: list[Issue] = []
    borders = [index for index in range(1, len(pieces)) if weights[index] != weights[index - 1]]
    for first, end in pairwise([0, *borders, len(pieces)]):
        run = pieces[first:end]
        if len(run) > 1:
            run = [piece for piece in run if piece.text] or run[:1]
        weight = weights[first]
        is_word = BREAK_WORD.startswith(run[0].text) and "".join([piece.text for piece in run]) == BREAK_WORD
        if is_word and weight == BREAK_WEIGHT:
            parts.append(Break(Span(run[0].span.start, run[-1].span.end)))
            continue
        fragment = Fragment(tuple(run), weight)
        parts.append(fragment)
        if is_word:
            message = (
                "BREAK inside weighted brackets does not end the chunk in A1111: it is read as the word “break” with "
                f"weight {weight:.4g}."
            )
            issues.append(Issue("break-in-brackets", message, fragment.span))
    return tuple(parts), issues


def write(text: str, weight: float) -> Iterator[str]:
    r"""Write text with a weight.

    >>> list(write("[cat] AND <dog:1>", 1.2))
    ['(\\[cat\\] and < dog:1>:1.2)']
    """
    # CLIP ignores letter case, but to A1111 these words are commands
    escaped = _KEYWORDS.sub(lambda match: match[0].lower(), re.sub(r"[()\[\]\\]", r"\\\g<0>", text))
    escaped = _TAG_START.sub("< ", escaped)
    if weight == 1.0:
        yield escaped
    elif math.isfinite(weight):
        yield f"({escaped}:{decimal(weight)})"


SYNTAX = Syntax(
    parse,
    "brackets multiply, [word] is 1/1.1, BREAK ends a chunk.",
    chunking="a1111",
    write=write,
    # a number at the very end is the weight of an AND part, if it has no brackets
    finish=partial(_LAST_NUMBER.sub, r":\1(\2:1)"),
    break_word=BREAK_WORD,
    write_lora=lambda lora: f"<lora:{lora.name}:{decimal(lora.weight)}>",
    by_webui=True,
    has_groups=True,
    has_tags=True,
    foreign=(DECIMAL_COMMA, *OF_COMPEL, *OF_EXTENSIONS, *OF_GLIDES),
    is_cleaned=True,
)
