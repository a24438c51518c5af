r"""Attention syntax of the A1111 WebUI and its descendants.

The text is read left to right; at each place the first row that matches is taken:

    \( \) \[ \] \\    that character, literally
    \                 dropped
    (  [              opens a group
    : NUMBER )        closes a round group, times NUMBER        (literal where no round group is open)
    )                 closes a round group, times 1.1           (likewise)
    ]                 closes a square group, times 1/1.1        (literal where no square group is open)
    other characters  text; the word BREAK in it ends the chunk

Groups that are never closed reach to the end of the text. Weights multiply, inner groups first. Neighbours of exactly
equal weight are joined without a space.

Source: docs/weighting.md, "A1111 syntax"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..editing import edits_of, read_editing
from ..prompt import Break, Fragment, Issue, Piece, Prompt, PromptError, Span, unmarked
from ..schedule import AND_WORD

ROUND_FACTOR = 1.1
SQUARE_FACTOR = 1 / 1.1
BREAK_WORD = "BREAK"
BREAK_WEIGHT = -1.0

_LEXEME = re.compile(
    r"""
    (?P<escape>\\[()\[\]\\])
    | (?P<backslash>\\)
    | (?P<open>[(\[])
    | :\s*(?P<number>[+-]?[.\d]+)\s*\)
    | (?P<close>[)\]])
    | (?P<text>[^\\()\[\]:]+)
    | (?P<colon>:)
    """,
    re.VERBOSE,
)


class _Reader:
    """State of one scan: the pieces so far, the open brackets, and the multiplications to be done."""

    def __init__(self, source: str, *, strict: bool) -> None:
        self.source = source
        self.strict = strict
        self.spans: list[Span] = []
        self.weights: list[float] = []
        self.open: dict[str, list[tuple[int, int]]] = {"(": [], "[": []}
        """For each kind of bracket, a stack of (index of the next piece, place in the text)."""
        self.products: list[tuple[int, int, float]] = []
        """(first piece, end piece, factor) in the order they are to be multiplied."""
        self.issues: list[Issue] = []

    def text(self, start: int, end: int) -> None:
        """Add text, split at the word BREAK."""
        for span, is_break in _split_breaks(self.source, start, end):
            self.spans.append(span)
            self.weights.append(BREAK_WEIGHT if is_break else 1.0)

    def multiply(self, start: int, factor: float) -> None:
        self.products.append((start, len(self.spans), factor))

    def scan(self) -> None:
        position = 0
        while position < len(self.source):
            match = _LEXEME.match(self.source, position)
            assert match is not None, "the rows cover every character"
            position = self.lexeme(match)
        for bracket, factor in (("(", ROUND_FACTOR), ("[", SQUARE_FACTOR)):
            for start, place in self.open[bracket]:
                self.multiply(start, factor)
                self.issues.append(
                    Issue(
                        "unclosed-bracket",
                        f"“{bracket}” is never closed: all that follows weighs {factor:.4g} times as much.",
                        Span(place, place + 1),
                    )
                )

    def lexeme(self, match: re.Match[str]) -> int:
        """Act on one row of the table; return where the next one starts."""
        start, end = match.span()
        kind = match.lastgroup
        if kind == "escape":
            self.text(end - 1, end)
        elif kind == "backslash":
            self.text(end, end)  # an empty piece of weight 1, as in the reference: it can keep neighbours apart
            message = "The backslash escapes nothing and is dropped; \\\\ is a backslash."
            self.issues.append(Issue("lone-backslash", message, Span(start, end)))
        elif kind == "open":
            self.open[match[0]].append((len(self.spans), start))
        elif kind == "number" and self.open["("]:
            return self.weighted_close(match)
        elif kind == "close" and self.open["(" if match[0] == ")" else "["]:
            bracket, factor = ("(", ROUND_FACTOR) if match[0] == ")" else ("[", SQUARE_FACTOR)
            self.multiply(self.open[bracket].pop()[0], factor)
        else:
            if kind in ("close", "number"):
                self.issues.append(
                    Issue(
                        "unopened-bracket",
                        f"“{match[0][-1]}” closes nothing: it is text.",
                        Span(end - 1, end),
                    )
                )
            self.text(start, end)
        return end

    def weighted_close(self, match: re.Match[str]) -> int:
        start, end = match.span()
        try:
            factor = float(match["number"])
        except ValueError:
            number, span = match["number"], Span(*match.span("number"))
            if self.strict:
                raise PromptError(f"“{number}” is not a number; a weight looks like 1.3", self.source, span) from None
            self.issues.append(
                Issue("unreadable-weight", f"“{number}” is not a number: it is text, and the bracket weighs 1.1.", span)
            )
            self.text(start, start + 1)  # the colon; what follows is read again as text
            return start + 1
        self.multiply(self.open["("].pop()[0], factor)
        return end


def parse(source: str, *, strict: bool = False) -> Prompt:
    """Read a prompt as the A1111 WebUI does.

    Args:
        source: Any string.
        strict: Raise where the reference raises, instead of reporting an issue.

    Returns:
        The prompt; never without a fragment: an empty text gives one empty fragment.

    Raises:
        PromptError: In strict mode, for a weight made of digits and dots that is no number.

    >>> [(f.text, f.weight) for f in parse("a (red:1.4) [cat]").fragments]
    [('a ', 1.0), ('red', 1.4), (' ', 1.0), ('cat', 0.9090909090909091)]
    """
    reader = _Reader(source, strict=strict)
    reader.scan()
    weights = _apply(reader.weights, reader.products)
    parts, issues = _merge(source, reader.spans, weights)
    covered = (piece.span for part in parts for piece in (part.pieces if isinstance(part, Fragment) else [part]))
    return Prompt(
        source=source,
        syntax="a1111",
        parts=parts,
        marks=unmarked(len(source), covered),
        issues=tuple(sorted([*reader.issues, *issues, *_timed(source)], key=lambda issue: issue.span)),
    )


def _timed(source: str) -> Iterator[Issue]:
    """What changes with the steps is read before this syntax is, if at all; what is left of it is text and brackets."""
    if "[" in source and (":" in source or "|" in source):
        for edit in edits_of(read_editing(source).parts):
            message = (
                f"“{source[slice(*edit.span)]}” changes with the sampling steps in A1111. Only the A1111 Prompt node "
                "reads that; here its brackets are weights and the rest of it is text."
            )
            yield Issue("unread-edit", message, edit.span)
    for word in AND_WORD.finditer(source):
        message = "AND combines prompts in A1111. Only the A1111 Prompt node reads that; here it is the word “and”."
        yield Issue("unread-and", message, Span(*word.span()))


def _split_breaks(source: str, start: int, end: int) -> Iterator[tuple[Span, bool]]:
    """Split a run of text at the word BREAK and the white space round it.

    Only the run counts: at its ends the word has no neighbour.
    """
    position = start
    search = start
    while (word := source.find(BREAK_WORD, search, end)) >= 0:
        word_end = search = word + len(BREAK_WORD)
        if (word > start and _is_word(source[word - 1])) or (word_end < end and _is_word(source[word_end])):
            continue
        left = word
        while left > position and source[left - 1].isspace():
            left -= 1
        right = word_end
        while right < end and source[right].isspace():
            right += 1
        yield Span(position, left), False
        yield Span(word, word_end), True
        position = search = right
    yield Span(position, end), False


def _is_word(character: str) -> bool:
    return character == "_" or character.isalnum()


def _apply(weights: list[float], products: list[tuple[int, int, float]]) -> list[float]:
    """Multiply ranges of weights, in order: floating point products depend on it."""
    if sum(end - start for start, end, _ in products) < 2000:
        for start, end, factor in products:
            for index in range(start, end):
                weights[index] *= factor
        return weights
    array = np.array(weights, dtype=np.float64)
    with np.errstate(all="ignore"):
        for start, end, factor in products:
            array[start:end] *= factor
    return array.tolist()


def _merge(source: str, spans: list[Span], weights: list[float]) -> tuple[tuple[Fragment | Break, ...], list[Issue]]:
    """Join neighbours of equal weight and tell breaks from text."""
    if not spans:
        return (Fragment(()),), []
    parts: list[Fragment | Break] = []
    issues: list[Issue] = []
    first = 0
    for index in range(1, len(spans) + 1):
        if index < len(spans) and weights[index] == weights[first]:
            continue
        pieces = tuple(Piece(source[slice(*span)], span) for span in spans[first:index] if span.end > span.start)
        fragment = Fragment(pieces or (Piece("", spans[first]),), weights[first])
        if fragment.text == BREAK_WORD and fragment.weight == BREAK_WEIGHT:
            parts.append(Break(fragment.span))
        else:
            parts.append(fragment)
            if fragment.text == BREAK_WORD:
                issues.append(
                    Issue(
                        "break-in-brackets",
                        "BREAK inside weighted brackets does not end the chunk in A1111: it is read as the word "
                        f"“break” with weight {fragment.weight:.4g}.",
                        fragment.span,
                    )
                )
        first = index
    return tuple(parts), issues
