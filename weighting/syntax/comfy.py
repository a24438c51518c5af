r"""Weight syntax of ComfyUI's text encoders.

Only round brackets have a meaning, and ``\(`` and ``\)`` are those characters:

    (text)         1.1 times the weight outside
    (text:NUMBER)  NUMBER, whatever the weight outside; NUMBER is anything Python's float() reads

A bracket that closes nothing is text, and from there on brackets only count until they are even again. A bracket that
is never closed is text to the end, unless the text ends in ``)``: then the two are taken off as if they were a pair,
and the inside is read afresh.

Source: docs/weighting.md, "ComfyUI syntax"; behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left

from ..prompt import Fragment, Issue, Piece, Prompt, Span, unmarked

FACTOR = 1.1

_ESCAPE = re.compile(r"\\[()]")
_BRACKET = re.compile(r"\\[()]|([()])")


def parse(source: str, *, strict: bool = False) -> Prompt:
    r"""Read a prompt as ComfyUI does.

    Args:
        source: Any string.
        strict: Accepted for symmetry; ComfyUI refuses no prompt.

    Returns:
        The prompt; without any fragment for an empty text.

    >>> [(f.text, f.weight) for f in parse("a ((red:1.4)) \\(cat\\)").fragments]
    [('a ', 1.0), ('red', 1.4), (' (cat)', 1.0)]
    """
    del strict
    reader = _Reader(source)
    reader.read()
    covered = (piece.span for fragment in reader.fragments for piece in fragment.pieces)
    return Prompt(
        source=source,
        syntax="comfy",
        parts=tuple(reader.fragments),
        marks=unmarked(len(source), covered),
        issues=tuple(sorted(reader.issues, key=lambda issue: issue.span)),
    )


class _Reader:
    """Splits ranges of the source into text and groups. Each bracket is looked at once, whatever the nesting."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.brackets = [match.start(1) for match in _BRACKET.finditer(source) if match[1]]
        self.partner = _partners(source, self.brackets)
        self.fragments: list[Fragment] = []
        self.issues: list[Issue] = []

    def read(self) -> None:
        # a stack of (start, end, weight, is_text), the next one last; groups are split when their turn comes
        todo = [(0, len(self.source), 1.0, False)]
        while todo:
            start, end, weight, is_text = todo.pop()
            if is_text:
                self.fragments.append(Fragment(_pieces(self.source, start, end), weight))
            else:
                todo.extend(reversed(self.split(start, end, weight)))

    def split(self, start: int, end: int, weight: float) -> list[tuple[int, int, float, bool]]:
        """One level of a range: text at the given weight, groups with theirs."""
        items: list[tuple[int, int, float, bool]] = []
        index, stop = bisect_left(self.brackets, start), bisect_left(self.brackets, end)
        depth = 0  # never above 0 here: a group is taken in one step
        while index < stop:
            place = self.brackets[index]
            if self.source[place] == ")":
                depth -= 1
                self.issue("unopened-bracket", "“)” closes nothing: it is text.", place)
            elif depth < 0:
                depth += 1
                self.issue("unclosed-bracket", "“(” stands behind a stray “)”: it is text.", place)
            else:
                if place > start:
                    items.append((start, place, weight, True))
                partner = self.partner[index]
                if partner is None or partner >= stop:
                    items.append(self.unclosed(place, end, weight))
                    return items
                start = self.brackets[partner] + 1
                items.append(self.group(place, start, weight))
                index = partner
            index += 1
        if end > start:
            items.append((start, end, weight, True))
        return items

    def group(self, start: int, end: int, weight: float) -> tuple[int, int, float, bool]:
        """``(…)`` or ``(…:number)`` from its opening bracket to one past its closing one."""
        inside, last = start + 1, end - 1
        # a number holds no bracket, so the search for its colon ends at the last one
        before = bisect_left(self.brackets, last) - 1
        colon = self.source.rfind(":", max(inside, self.brackets[before]), last)
        if colon > inside:
            number = self.source[colon + 1 : last]
            try:
                value = float(number)
            except ValueError:
                pass
            else:
                if not math.isfinite(value):
                    self.issue("infinite-weight", f"The weight “{number.strip()}” is not finite.", colon, last)
                return inside, colon, value, False
        return inside, last, weight * FACTOR, False

    def unclosed(self, start: int, end: int, weight: float) -> tuple[int, int, float, bool]:
        """The rest of a range from a bracket that is never closed in it."""
        if end - start >= 2 and self.source[end - 1] == ")" and self.source[end - 2] != "\\":
            return self.group(start, end, weight)
        self.issue("unclosed-bracket", "“(” is never closed: it and what follows is text.", start)
        return start, end, weight, True

    def issue(self, code: str, message: str, start: int, end: int | None = None) -> None:
        self.issues.append(Issue(code, message, Span(start, start + 1 if end is None else end)))


def _partners(source: str, brackets: list[int]) -> list[int | None]:
    """For each bracket that opens, the index of the one that closes it."""
    partner: list[int | None] = [None] * len(brackets)
    stack: list[int] = []
    for index, place in enumerate(brackets):
        if source[place] == "(":
            stack.append(index)
        elif stack:
            partner[stack.pop()] = index
    return partner


def _pieces(source: str, start: int, end: int) -> tuple[Piece, ...]:
    """A range of text without the backslashes of its escapes."""
    pieces: list[Piece] = []
    position = start
    for match in _ESCAPE.finditer(source, start, end):
        if match.start() > position:
            pieces.append(Piece(source[position : match.start()], Span(position, match.start())))
        position = match.start() + 1  # the bracket without its backslash
    if end > position:
        pieces.append(Piece(source[position:end], Span(position, end)))
    return tuple(pieces)
