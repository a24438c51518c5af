"""Result of parsing in every prompt syntax: fragments of text with a weight each, breaks, syntax marks and issues.

The pieces of a prompt always refer to the text they came from. Offsets count code points; ``view.py`` converts them for
front ends that count UTF-16 units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import Any, Generic, NamedTuple, TypeVar

Part = TypeVar("Part")

MOST_CHARACTERS = 65_536
"""Longest prompt, as in the ruler and the lab."""


class Span(NamedTuple):
    """A stretch of the prompt text, end exclusive, in code points."""

    start: int
    """First code point."""
    end: int
    """One past the last code point."""


class Piece(NamedTuple):
    """Text as written in the prompt, ``prompt[span.start:span.end]``; or text inserted at an empty span, e.g. " "."""

    text: str
    """The characters."""
    span: Span
    """Their position."""


def pieces_of(text: str, positions: Sequence[int]) -> list[Piece]:
    """Split text into pieces, given the position of each character in the prompt.

    >>> pieces_of("a cat", [0, 1, 9, 10, 11])
    [Piece(text='a ', span=Span(start=0, end=2)), Piece(text='cat', span=Span(start=9, end=12))]
    """
    borders = [i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1]
    return [
        Piece(text[start:end], Span(positions[start], positions[end - 1] + 1))
        for start, end in pairwise([0, *borders, len(positions)])
        if end > start
    ]


@dataclass(frozen=True)
class Fragment:
    """A run of text with one weight, made of one or more pieces of the prompt."""

    pieces: tuple[Piece, ...]
    """The pieces in reading order. Between two of them the prompt holds syntax: brackets, numbers, backslashes."""
    weight: float = 1.0
    """1.0 is neutral."""

    @cached_property
    def text(self) -> str:
        """Text to tokenize."""
        return "".join(piece.text for piece in self.pieces)

    @cached_property
    def positions(self) -> list[int]:
        """Position in the prompt of each code point of ``text``."""
        return [
            position
            for text, span in self.pieces
            for position in (range(*span) if span.end > span.start else [span.start] * len(text))
        ]

    @property
    def span(self) -> Span:
        """Span from its first piece to its last, including syntax between them."""
        return Span(self.pieces[0].span.start, self.pieces[-1].span.end) if self.pieces else Span(0, 0)

    def span_of(self, span: Span) -> Span:
        """Span in the prompt of a stretch of ``text``; gaps between pieces are included.

        >>> Fragment((Piece("a ", Span(0, 2)), Piece("cat", Span(9, 12)))).span_of(Span(1, 3))
        Span(start=1, end=10)
        """
        positions = self.positions
        start = positions[span.start] if span.start < len(positions) else self.span.end
        return Span(start, positions[span.end - 1] + 1 if span.end > span.start else start)

    def part(self, inner: Fragment) -> Fragment:
        """Convert a fragment of ``text`` to a fragment of the prompt.

        >>> outer = Fragment((Piece("a ", Span(0, 2)), Piece("cat", Span(9, 12))))
        >>> outer.part(Fragment((Piece(" c", Span(1, 3)),))).pieces
        (Piece(text=' ', span=Span(start=1, end=2)), Piece(text='c', span=Span(start=9, end=10)))
        """
        pieces: list[Piece] = []
        for text, span in inner.pieces:
            if span.end > span.start:
                pieces += pieces_of(text, self.positions[slice(*span)])
            else:
                pieces.append(Piece(text, self.span_of(span)))
        return Fragment(tuple(pieces), inner.weight)


@dataclass(frozen=True)
class Break:
    """A forced end of chunk (the word BREAK)."""

    span: Span
    """Position of the word."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Something the author of a prompt should know. Every front end shows it at its position in the text."""

    code: str
    """Short permanent name, e.g. ``unclosed-bracket``."""
    message: str
    """One sentence: what was found and how it was read."""
    span: Span
    """Position in the text; empty if it concerns the whole text."""
    written_in: str = ""
    """For a form of another syntax, the name of that syntax, from which the prompt can be converted."""
    fix: str = ""
    """For a form that is probably meant otherwise, the text to write at its position."""

    @property
    def line(self) -> str:
        """The message with its position, counted from 0, as shown in reports and front ends.

        >>> Issue("unclosed-bracket", "“(” is never closed.", Span(2, 3)).line
        'at 2: “(” is never closed.'
        """
        return f"at {self.span.start}: {self.message}" if self.span.end > self.span.start else self.message


class LateIssues(Sequence[Issue]):
    """Issues that take a number of a GPU, which is waited for when they are read first.

    >>> list(() + LateIssues(lambda: [Issue("late", "Found late.", Span(0, 0))]))[0].message
    'Found late.'
    """

    def __init__(self, find: Callable[[], Iterable[Issue]]) -> None:
        self._find = find

    @cached_property
    def _issues(self) -> tuple[Issue, ...]:
        return tuple(self._find())

    def __getitem__(self, index: Any) -> Any:
        return self._issues[index]

    def __len__(self) -> int:
        return len(self._issues)

    def __add__(self, others: Issues) -> LateIssues:
        return LateIssues(lambda: (*self, *others))

    def __radd__(self, others: Issues) -> LateIssues:
        return LateIssues(lambda: (*others, *self))

    def __eq__(self, other: object) -> bool:
        return self._issues == (other._issues if isinstance(other, LateIssues) else other)

    def __hash__(self) -> int:
        return hash(self._issues)


Issues = tuple[Issue, ...] | LateIssues


@dataclass(frozen=True)
class Swap:
    """compel's ``.swap``: an instruction to the sampler. An encoder reads the original."""

    original: tuple[Fragment | Swap, ...]
    """Text in the prompt."""
    edited: tuple[Fragment | Swap, ...]
    """Text that the sampler's attention would be directed to show."""
    settings: tuple[tuple[str, float], ...]
    """``s_start``, ``s_end``, ``t_start``, ``t_end``: parts of the sampling, 0 to 1."""


def encoded_fragments(parts: Iterable[Fragment | Swap]) -> tuple[Fragment, ...]:
    """Fragments that an encoder reads: the original of each swap, recursively."""
    return tuple(
        chain.from_iterable(encoded_fragments(part.original) if isinstance(part, Swap) else (part,) for part in parts)
    )


@dataclass(frozen=True)
class Section(Generic[Part]):
    """A part of a prompt that is conditioned separately and appended to the previous part (compel's ``.and``)."""

    prompts: tuple[tuple[Part, ...], ...]
    """One prompt, or several to be mixed (compel's ``.blend``), each as fragments or chunks."""
    shares: tuple[float, ...] = ()
    """Shares of the prompts in the mixture; empty for a single prompt without ``.blend``."""
    normalize: bool = True
    """Whether the shares are divided by their sum."""
    weight: float = 1.0
    """Weight of the section as a whole."""


class Lora(NamedTuple):
    """A LoRA named in the prompt."""

    name: str
    """Its name."""
    weight: float
    """Its strength."""


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt.

    The spans of all pieces, breaks and marks tile ``source``: each character belongs to exactly one of them.
    """

    source: str
    """The text as typed."""
    syntax: str
    """Name of the syntax it was read as."""
    parts: tuple[Fragment | Break, ...]
    """Fragments and breaks in reading order."""
    marks: tuple[Span, ...] = ()
    """Characters that are syntax: brackets, weights, backslashes of escapes, whitespace around BREAK."""
    issues: tuple[Issue, ...] = ()
    """Problems found while reading."""
    sections: tuple[Section[Fragment | Swap], ...] = ()
    """Grouping of the fragments, for a syntax with sections; empty for a single prompt."""
    loras: tuple[Lora, ...] = ()
    """LoRAs named in the text."""

    @classmethod
    def of(
        cls, source: str, syntax: str, parts: Sequence[Fragment | Break], issues: Iterable[Issue], **more: Any
    ) -> Prompt:
        """A prompt whose marks are all characters that no part has, with its issues in the order of the text."""
        covered = (piece.span for part in parts for piece in (part.pieces if isinstance(part, Fragment) else [part]))
        in_order = tuple(sorted(issues, key=lambda issue: issue.span))
        return cls(source, syntax, tuple(parts), unmarked(len(source), sorted(covered)), in_order, **more)

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """The parts without the breaks."""
        return tuple(part for part in self.parts if isinstance(part, Fragment))


class PromptError(ValueError):
    """Raised in strict mode for a prompt that the program of its syntax would refuse."""

    def __init__(self, message: str, source: str, span: Span) -> None:
        """Quote the prompt with carets under the span; the message says what is wrong and how to mend it."""
        line_start = source.rfind("\n", 0, span.start) + 1
        line_end = source.find("\n", span.start)
        line = source[line_start : line_end if line_end >= 0 else len(source)]
        # of a long line, show only the part around the span
        left = max(0, span.start - line_start - 40)
        carets = "^" * max(1, min(span.end, line_start + len(line)) - span.start)
        super().__init__(
            f"{message}\n  {line[left : left + 80]}\n  {' ' * (span.start - line_start - left)}{carets[:80]}"
        )
        self.span = span


def shortened(text: str, length: int = 80) -> str:
    """Shorten a text for a message, which must not grow with the prompt.

    >>> shortened("a red cat", 5)
    'a red…'
    """
    return text if len(text) <= length else f"{text[:length]}…"


def quoted(source: str, span: Span, length: int = 80) -> str:
    """Quote a stretch of a prompt for a message, copying only the part shown.

    >>> quoted("a red cat", Span(2, 9), 3)
    'red…'
    """
    return shortened(source[span.start : min(span.end, span.start + length + 1)], length)


def unmarked(length: int, covered: Iterable[Span]) -> tuple[Span, ...]:
    """Stretches of a text not covered by any of the given spans, in order.

    >>> unmarked(5, [Span(1, 2), Span(3, 4)])
    (Span(start=0, end=1), Span(start=2, end=3), Span(start=4, end=5))
    """
    gaps: list[Span] = []
    position = 0
    for start, end in covered:
        if start > position:
            gaps.append(Span(position, start))
        if end > position:
            position = end
    if position < length:
        gaps.append(Span(position, length))
    return tuple(gaps)
