"""Layout of the token strip: its chips and chunk borders in order, with their positions.

Reads the JSON view made by ``weighting/view.py``; draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .canvas import shorten
from .fonts import text_width
from .style import CHIP_GAP, CHIP_HEIGHT, CHIP_PADDING, FONT_SIZE, MAX_CHIP_TEXT, ROW_GAP, SEAM_PADDING, SMALL_SIZE

BORDER_LINE = 12
"""Width for the line of a chunk border, in pixels."""
NOTE_GAP = 5
"""Gap between a token's text and the small digits after it, in pixels."""


class Chip(NamedTuple):
    """A chip of the view."""

    text: str
    """Its label, possibly cut."""
    note: str
    """Small text after it."""
    weight: float
    """Weight, for its colour."""
    num_tokens: int
    is_hidden: bool
    has_problem: bool
    joins: bool
    """Whether it follows the previous chip without a gap."""
    is_joined: bool
    """Whether the next chip follows it without a gap."""

    @property
    def paddings(self) -> tuple[float, float]:
        """Free pixels left and right of its text: fewer where the word continues."""
        return SEAM_PADDING if self.joins else CHIP_PADDING, SEAM_PADDING if self.is_joined else CHIP_PADDING

    @property
    def note_width(self) -> float:
        """Width of the note in pixels, including the gap before it."""
        return NOTE_GAP + text_width(self.note, SMALL_SIZE) if self.note else 0

    @property
    def width(self) -> float:
        """Width in pixels."""
        return sum(self.paddings) + text_width(self.text, FONT_SIZE) + self.note_width


class Border(NamedTuple):
    """The end of a chunk."""

    text: str
    """Fill level of the chunk, and BREAK if one ended it."""

    @property
    def width(self) -> float:
        """Width in pixels."""
        return BORDER_LINE + text_width(self.text, SMALL_SIZE) + 8


class Placed(NamedTuple):
    """An item of the strip with its position."""

    item: Chip | Border
    left: float
    """Pixels from the strip's left end."""
    top: float
    """Pixels from the strip's top."""
    width: float
    is_first: bool = True
    """Whether it begins its word or the row."""
    is_last: bool = True
    """Whether it ends its word or the row."""


def strip_items(view: Mapping[str, Any]) -> list[Chip | Border]:
    """Chips and chunk borders of a prompt in reading order; the last chunk has a border only if a BREAK ended it."""
    items: list[Chip | Border] = []
    for number, chunk in enumerate(view["chunks"], 1):
        chips = chunk["chips"]
        items += [
            Chip(
                text=shorten(chip["text"], MAX_CHIP_TEXT, FONT_SIZE),
                note=chip["note"],
                weight=chip["weight"],
                num_tokens=len(chip["ids"]),
                is_hidden=chip["hidden"],
                has_problem=bool(chip["problems"]),
                joins=chip["joins"],
                is_joined=index < len(chips) and chips[index]["joins"],
            )
            for index, chip in enumerate(chips, 1)
        ]
        if chunk["has_break"] or number < len(view["chunks"]):
            items.append(Border(f"{chunk['num_tokens']} / {chunk['capacity']}{'  BREAK' * chunk['has_break']}"))
    return items


def place(items: Sequence[Chip | Border], width: float) -> list[Placed]:
    """Break the strip into rows of a width in pixels. A word that fits a row is not broken."""
    placed: list[Placed] = []
    left, top = 0.0, 0.0
    for word in _words(items):
        widths = [min(item.width, width) for item in word]
        if left + CHIP_GAP + sum(widths) > width and left > 0:
            left, top = 0.0, top + CHIP_HEIGHT + ROW_GAP
        left += CHIP_GAP if left > 0 else 0
        for number, (item, item_width) in enumerate(zip(word, widths, strict=True)):
            if number and left + item_width > width:
                left, top = 0.0, top + CHIP_HEIGHT + ROW_GAP
                placed[-1] = placed[-1]._replace(is_last=True)
            is_first = number == 0 or left == 0
            placed.append(Placed(item, left, top, item_width, is_first, is_last=number == len(word) - 1))
            left += item_width
    return placed


def _words(items: Sequence[Chip | Border]) -> Iterator[list[Chip | Border]]:
    word: list[Chip | Border] = []
    for item in items:
        if word and not (isinstance(item, Chip) and item.joins):
            yield word
            word = []
        word.append(item)
    if word:
        yield word
