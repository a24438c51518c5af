r"""A1111's prompt editing ``[from:to:when]`` and alternation ``[a|b]``: parsing, and the text at a step.

Inside brackets everything must be well-formed, where text is any characters but ``\ [ ] ( ) : |``, or a backslash and
the character after it::

    ( P )   ( P : P )   [ P ]     brackets of the weight syntax: they stay in the text
    [ P : P : when ]              edit: the first until ``when``, then the second
    [ P : when ]                  edit: nothing until ``when``, then the text
    [ P | P | ... ]               alternation: one after the other, a step each
    [ P : P : ... : steps ]       glide, if these are read; also ``[ P | P | ... : speed ]``
    ( P : points )                bracket with a weight that follows a line, if these are read

P is text and brackets, or nothing. A bracket that does not fit is text, and its content is parsed independently. With a
``|`` outside an alternation, or a backslash at the very end or before a line break, nothing in the prompt is edited.

Source: docs/timed.md; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..text.prompt import Piece, Span
from .glides import GlideEnd, LineEnd, glide_end, line_end, loop_end

MAX_MIXED = 64
"""Maximum number of texts of a prompt that are mixed in one step: each is encoded."""
MAX_GLIDES = 100
"""Maximum number of glides in a part of a prompt, each of which may stand in another."""
SPACE = Piece(" ", Span(0, 0))
"""Border of a glide, which parts words, but writes nothing where they are parted already."""

_LEXEME = re.compile(
    r"""
    (?P<text>(?:[^\\()\[\]:|]+|\\.)+)
    | (?P<stray>\\)
    | (?P<open>[(\[])
    | (?P<close>[)\]])
    | (?P<colon>:)
    | (?P<bar>\|)
    """,
    re.VERBOSE,
)
_WHEN = re.compile(r"[ \t\f\r\n]*(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[ \t\f\r\n]*\]")


class Edit(NamedTuple):
    """``[from:to:when]``."""

    before: tuple[Part, ...]
    """Content before that time."""
    after: tuple[Part, ...]
    """Content from that time on."""
    when: str
    """The number as written: with a point it is a share of the steps, without one a step."""
    span: Span
    """The whole edit, including brackets."""
    border: int
    """Position between the two contents; the bracket's if only the second is written."""


class Alternation(NamedTuple):
    """``[a|b|...]``."""

    options: tuple[tuple[Part, ...], ...]
    """Alternatives; each may be empty."""
    span: Span
    """The whole alternation, including brackets."""
    borders: tuple[int, ...]
    """Positions of the bars between them."""


class Glide(NamedTuple):
    """``[a:b:0.2,0.8]``: texts that are mixed."""

    options: tuple[tuple[Part, ...], ...]
    """The texts; each may be empty."""
    span: Span
    """The whole glide, including brackets."""
    ending: GlideEnd
    """What stands after its texts."""


class Line(NamedTuple):
    """The numbers in ``(text:0.2@0,1.2@0.5)``: a weight that depends on the step."""

    span: Span
    """Position of the numbers."""
    ending: LineEnd
    """The numbers."""


Part = Span | Edit | Alternation | Glide | Line
"""A stretch of text, or something that depends on the step."""


@dataclass
class _OpenGroup:
    """An open bracket, or the prompt as a whole."""

    bracket: str
    start: int
    sections: list[deque[Part]] = field(default_factory=lambda: [deque[Part]()])
    """Content between the borders."""
    borders: list[Span] = field(default_factory=list[Span])
    """Positions of its colons or bars."""
    is_alternation: bool = False

    def add(self, parts: deque[Part]) -> None:
        """Add parts to the last section and empty their queue."""
        self.sections[-1] = _joined(self.sections[-1], parts)

    def border(self, span: Span) -> None:
        """End a section."""
        self.borders.append(span)
        self.sections.append(deque[Part]())

    def as_text(self) -> deque[Part]:
        """Its bracket, its sections and the borders between them; empties the sections."""
        parts = _joined(deque[Part]([Span(self.start, self.start + 1)]), self.sections[0])
        for border, section in zip(self.borders, self.sections[1:], strict=True):
            parts = _joined(_joined(parts, deque[Part]([border])), section)
        return parts


def _joined(left: deque[Part], right: deque[Part]) -> deque[Part]:
    """Concatenate parts, joining adjacent text.

    Both queues are consumed: the shorter goes into the longer, so that many parts in many brackets are not moved many
    times.
    """
    if left and right:
        last, first = left[-1], right[0]
        if isinstance(last, Span) and isinstance(first, Span) and last.end == first.start:
            left[-1] = Span(last.start, first.end)
            right.popleft()
    if len(left) < len(right):
        right.extendleft(reversed(left))
        return right
    left.extend(right)
    return left


class Editing(NamedTuple):
    """Result of `read_editing`."""

    parts: tuple[Part, ...]
    """The prompt in order; a single stretch of text if nothing is edited."""
    turned_off_by: Span | None = None
    """Span that keeps the whole prompt from being edited, if any."""


def read_editing(source: str, *, glides: bool = False) -> Editing:
    """Find the edits and alternations of a prompt, and its glides and lines where these are read.

    Raises:
        ValueError: If there are more than `MAX_GLIDES` glides.

    >>> read_editing("a [b:3]").parts[1]
    Edit(before=(), after=(Span(start=3, end=4),), when='3', span=Span(start=2, end=7), border=2)
    """
    prompt = _OpenGroup("", 0)
    groups = [prompt]  # open groups, outermost first
    position = num_glides = 0

    def close(part: Part) -> None:
        groups.pop()
        groups[-1].add(deque[Part]([part]))

    while position < len(source):
        match = _LEXEME.match(source, position)
        assert match is not None, "every character is one of these"
        group, kind, span = groups[-1], match.lastgroup, Span(*match.span())
        position = span.end
        if kind == "text" or (group is prompt and kind in ("colon", "close")):
            group.add(deque[Part]([span]))
        elif kind == "open":
            groups.append(_OpenGroup(match[0], span.start))
        elif kind == "colon" and glides and (ending := _glide_of(source, position, group)):
            options = tuple(map(tuple, group.sections))
            position = ending.end
            close(Glide(options, Span(group.start, position), ending))
            if (num_glides := num_glides + 1) > MAX_GLIDES:
                raise ValueError(f"a part of a prompt may have {MAX_GLIDES} glides such as [a:b:0.2,0.8] at most")
        elif kind == "colon" and glides and group.bracket == "(" and (line := line_end(source, position)):
            group.add(deque[Part]([span]))
            group.add(deque[Part]([Line(Span(position, line.end), line)]))
            position = line.end
        elif kind == "bar" and group.bracket == "[" and (group.is_alternation or not group.borders):
            group.is_alternation = True
            group.border(span)
        elif kind in ("bar", "stray"):
            return _unedited(source, span)
        elif (
            kind == "colon"
            and group.bracket == "["
            and not group.is_alternation
            and len(group.borders) < 2
            and (when := _WHEN.match(source, position))
        ):
            position = when.end()
            before, after = group.sections if group.borders else ((), group.sections[0])
            border = group.borders[0].start if group.borders else group.start
            close(Edit(tuple(before), tuple(after), when["number"], Span(group.start, position), border))
        elif kind == "colon" and (not group.borders or (glides and group.bracket == "[" and not group.is_alternation)):
            group.border(span)
        elif match[0] == "]" and group.is_alternation:
            bars = tuple(border.start for border in group.borders)
            close(Alternation(tuple(map(tuple, group.sections)), Span(group.start, position), bars))
        elif match[0] == (")" if group.bracket == "(" else "]") and (group.bracket == "(" or not group.borders):
            groups.pop()
            groups[-1].add(_joined(group.as_text(), deque[Part]([span])))
        else:  # an open group does not fit
            if bar := _open_bar(groups):
                return _unedited(source, bar)
            for unfit in groups[1:]:
                prompt.add(unfit.as_text())
            del groups[1:]
            prompt.add(deque[Part]([span]))
    if bar := _open_bar(groups):
        return _unedited(source, bar)
    for unfit in groups[1:]:
        prompt.add(unfit.as_text())
    return Editing(tuple(prompt.sections[0]))


def _unedited(source: str, culprit: Span) -> Editing:
    return Editing((Span(0, len(source)),), culprit)


def _open_bar(groups: Sequence[_OpenGroup]) -> Span | None:
    """The first ``|`` of an alternation that is never closed."""
    return next((group.borders[0] for group in groups if group.is_alternation), None)


def _glide_of(source: str, position: int, group: _OpenGroup) -> GlideEnd | None:
    """The end of an open group that is a glide, from after a colon."""
    if group.bracket != "[":
        return None
    return loop_end(source, position) if group.is_alternation else glide_end(source, position, len(group.sections))


def edits_of(parts: Sequence[Part]) -> list[Edit | Alternation | Glide | Line]:
    """All that depends on the step, including what is nested, in no particular order."""
    edits: list[Edit | Alternation | Glide | Line] = []
    waiting = list(parts)
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Span):
            edits.append(part)
            waiting += [child for section in _sections_of(part) for child in section]
    return edits


def glides_in(source: str) -> bool:
    """Whether a prompt glides, or has a weight on a line.

    >>> glides_in("[cat:dog:0.2,0.8]"), glides_in("[cat:dog:5]")
    (True, False)
    """
    return any(isinstance(edit, Glide | Line) for edit in edits_of(read_editing(source, glides=True).parts))


def _sections_of(part: Edit | Alternation | Glide | Line) -> Sequence[Sequence[Part]]:
    if isinstance(part, Line):
        return ()
    return (part.before, part.after) if isinstance(part, Edit) else part.options


def standing(parts: Sequence[Part], last: int, step_of: Callable[[str], int]) -> dict[Span, tuple[int, int]]:
    """The steps between which each glide and line stands, from 0 to ``last``, less if edits around them say so."""
    steps: dict[Span, tuple[int, int]] = {}
    waiting = [(part, 0, last) for part in parts]
    while waiting:
        part, first, end = waiting.pop()
        if isinstance(part, Edit):
            change = step_of(part.when)
            waiting += [(child, first, change) for child in part.before]
            waiting += [(child, change, end) for child in part.after]
        elif not isinstance(part, Span):
            if isinstance(part, Glide | Line):
                steps[part.span] = first, end
            waiting += [(child, first, end) for section in _sections_of(part) for child in section]
    return steps


Mixture = list[tuple[float, list[Span | Piece]]]
"""Texts that are mixed, each with its share: stretches of the prompt, and what is written in place of others."""


def mixture_at(
    parts: Sequence[Part],
    step: int,
    last_steps: Mapping[Span, int],
    shares: Mapping[Span, Sequence[float]] = {},
    weights: Mapping[Span, str] = {},
) -> Mixture:
    """Stretches of text that make up the prompt at a step, or each of the texts that are mixed in it.

    Args:
        parts: The prompt.
        step: The step, from 1.
        last_steps: Last step before the change of each edit.
        shares: Shares of the texts of each glide in this step.
        weights: Weight of each line in this step.

    Raises:
        ValueError: If more than `MAX_MIXED` texts would be mixed.
    """
    mixed: Mixture = [(1.0, [])]
    waiting = list(reversed(parts))
    while waiting:
        part = waiting.pop()
        if isinstance(part, Edit):
            waiting += reversed(part.before if step <= last_steps[part.span] else part.after)
        elif isinstance(part, Alternation):
            waiting += reversed(part.options[(step - 1) % len(part.options)])
        elif isinstance(part, Glide):
            options = [
                (share * inner_share, [SPACE, *inner, SPACE])
                for share, option in zip(shares[part.span], part.options, strict=True)
                if share
                for inner_share, inner in mixture_at(option, step, last_steps, shares, weights)
            ]
            if len(mixed) * len(options) > MAX_MIXED:
                raise ValueError(f"glides of a prompt may mix {MAX_MIXED} texts in one step at most: use fewer")
            mixed = [(first * share, [*before, *after]) for first, before in mixed for share, after in options]
        else:
            stretch = (
                part if isinstance(part, Span) else Piece(weights[part.span], Span(part.span.start, part.span.start))
            )
            for _, spans in mixed:
                spans.append(stretch)
    return mixed


def choices_at(parts: Sequence[Part], position: int) -> list[tuple[Edit | Alternation, int]]:
    """Edits and alternations around a position between two characters, outermost first, with the content it is in.

    That of an edit is 0 before its change and 1 after it.
    """
    choices: list[tuple[Edit | Alternation, int]] = []
    while True:
        before = bisect_left(parts, position, key=lambda part: (part if isinstance(part, Span) else part.span).start)
        part = parts[before - 1] if before else Span(0, 0)
        if not isinstance(part, Edit | Alternation) or position >= part.span.end:
            return choices
        if isinstance(part, Edit):
            index = int(position > part.border)
            parts = part.after if index else part.before
        else:
            index = bisect_left(part.borders, position)
            parts = part.options[index]
        choices.append((part, index))


def is_chosen(choice: tuple[Edit | Alternation, int], step: int, last_steps: Mapping[Span, int]) -> bool:
    """Whether a content of an edit or alternation stands at a step."""
    part, index = choice
    if isinstance(part, Edit):
        return index == (step > last_steps[part.span])
    return index == (step - 1) % len(part.options)
