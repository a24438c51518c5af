r"""Weight syntax of ComfyUI's text encoders.

Only round brackets have a meaning, and ``\(`` and ``\)`` are those characters:

    (text)         1.1 times the weight outside
    (text:NUMBER)  NUMBER, whatever the weight outside; NUMBER is anything Python's float() reads

An unmatched closing bracket is text, and from there on brackets only count until they are balanced again. An unclosed
bracket makes the rest text, unless that ends in ``)``: then the two are removed as if they were a pair, and the inside
is read anew.

Source: docs/reference/syntaxes.md, "ComfyUI syntax"; behaviour of ComfyUI 0.29.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from ..text.prompt import Fragment, Issue, Piece, Prompt, Span, shortened
from .record import DECIMAL_COMMA, OF_A1111, OF_COMPEL, OF_EXTENSIONS, OF_SWARM, Syntax

FACTOR = 1.1

_ESCAPE = re.compile(r"\\[()]")
_BRACKET = re.compile(r"(?<!\\)[()]")


def parse(source: str, *, strict: bool = False) -> Prompt:
    r"""Read a prompt as ComfyUI does.

    Args:
        source: Any string.
        strict: Accepted for symmetry; ComfyUI refuses no prompt.

    Returns:
        The prompt, without fragments for an empty text.

    >>> [(f.text, f.weight) for f in parse("a ((red:1.4)) \\(cat\\)").fragments]
    [('a ', 1.0), ('red', 1.4), (' (cat)', 1.0)]
    """
    del strict
    reader = _GroupSplitter(source)
    reader.read()
    return Prompt.of(source, "comfy", reader.fragments, reader.issues)


_Range = tuple[int, int, float, int, int]
"""Pending stretch of the source: its start and end, its weight, its first bracket and one past its last. Without
brackets, or if they are to be ignored, it is text."""


class _GroupSplitter:
    """Splits ranges of the source into text and groups, visiting each bracket once, whatever the nesting."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.brackets = [match.start() for match in _BRACKET.finditer(source)]
        self.partner = _partners(source, self.brackets)
        self.fragments: list[Fragment] = []
        self.issues: list[Issue] = []

    def read(self) -> None:
        # a stack, the next one last; groups are split later
        todo = [(0, len(self.source), 1.0, 0, len(self.brackets))]
        while todo:
            start, end, weight, index, stop = todo.pop()
            if index < stop:
                todo += reversed(self.split(start, end, weight, index, stop))
            elif start < end:
                self.fragments.append(Fragment(_pieces(self.source, start, end), weight))

    def split(self, start: int, end: int, weight: float, index: int, stop: int) -> list[_Range]:
        """Split one level of a range: text at the given weight, groups at theirs."""
        items: list[_Range] = []
        depth = 0  # never above 0 here: a group is taken in one step
        while index < stop:
            position = self.brackets[index]
            if self.source[position] == ")":
                depth -= 1
                self.issue("unopened-bracket", "“)” closes nothing: it is text.", position)
            elif depth < 0:
                depth += 1
                self.issue("unclosed-bracket", "“(” comes after a stray “)”: it is text.", position)
            else:
                if position > start:
                    items.append((start, position, weight, 0, 0))
                partner = self.partner[index]
                if partner is None or partner >= stop:
                    items.append(self.unclosed(position, end, weight, index, stop))
                    return items
                items.append(self.group(weight, index, partner))
                start = self.brackets[partner] + 1
                index = partner
            index += 1
        if end > start:
            items.append((start, end, weight, 0, 0))
        return items

    def group(self, weight: float, opening: int, closing: int) -> _Range:
        """Group ``(…)`` or ``(…:number)`` between two brackets."""
        inside, end = self.brackets[opening] + 1, self.brackets[closing]
        # a number contains no bracket, so the search for its colon ends at the last one
        colon = self.source.rfind(":", max(inside, self.brackets[closing - 1]), end)
        if colon > inside:
            number = self.source[colon + 1 : end]
            try:
                value = float(number)
            except ValueError:
                pass
            else:
                if not math.isfinite(value):
                    message = f"The weight “{shortened(number.strip(), 40)}” is not finite."
                    self.issue("infinite-weight", message, colon, end)
                return inside, colon, value, opening + 1, closing
        return inside, end, weight * FACTOR, opening + 1, closing

    def unclosed(self, start: int, end: int, weight: float, index: int, stop: int) -> _Range:
        """Rest of a range after a bracket that is never closed in it."""
        if self.brackets[stop - 1] == end - 1 and self.source[end - 1] == ")":
            return self.group(weight, index, stop - 1)
        self.issue("unclosed-bracket", "“(” is never closed: it and what follows is text.", start)
        return start, end, weight, 0, 0

    def issue(self, code: str, message: str, start: int, end: int | None = None) -> None:
        self.issues.append(Issue(code, message, Span(start, start + 1 if end is None else end)))


def _partners(source: str, brackets: list[int]) -> list[int | None]:
    """For each opening bracket, the index of the closing one."""
    partner: list[int | None] = [None] * len(brackets)
    stack: list[int] = []
    for index, position in enumerate(brackets):
        if source[position] == "(":
            stack.append(index)
        elif stack:
            partner[stack.pop()] = index
    return partner


def _pieces(source: str, start: int, end: int) -> tuple[Piece, ...]:
    """Pieces of a range of text, without the backslashes of its escapes."""
    pieces: list[Piece] = []
    position = start
    for match in _ESCAPE.finditer(source, start, end):
        if match.start() > position:
            pieces.append(Piece(source[position : match.start()], Span(position, match.start())))
        position = match.start() + 1  # the bracket without its backslash
    if end > position:
        pieces.append(Piece(source[position:end], Span(position, end)))
    return tuple(pieces)


def write(text: str, weight: float) -> Iterator[str]:
    r"""Write text with a weight.

    >>> list(write("a (cat)", 1.2))
    ['(a \\(cat\\):1.2)']
    """
    escaped = re.sub(r"[()]", r"\\\g<0>", text)
    if weight == 1.0:
        yield escaped
    else:
        yield f"({escaped}:{weight:.8g})"


SYNTAX = Syntax(
    parse,
    "(word:1.2) sets, (word) is 1.1.",
    chunking="comfy segment",
    write=write,
    by_comfyui=True,
    has_groups=True,
    foreign=(DECIMAL_COMMA, *OF_A1111, *OF_COMPEL, *OF_EXTENSIONS, OF_SWARM),
)
