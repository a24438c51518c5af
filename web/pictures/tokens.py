"""The token strip of a prompt as a picture: chips coloured by weight, chunk borders, problems and a footer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from PIL import Image

from .canvas import Canvas, shorten, wrap
from .fonts import text_width
from .style import (
    CHIP_GAP,
    CHIP_HEIGHT,
    CHIP_PADDING,
    CHIP_RADIUS,
    FONT_SIZE,
    LINE_HEIGHT,
    MARGIN,
    MAX_CHIP_TEXT,
    ROW_GAP,
    SEAM_PADDING,
    SMALL_SIZE,
    Theme,
    ThemeName,
    mix,
    readable,
    theme_named,
    weight_color,
)

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


class PlacedItem(NamedTuple):
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


def place(items: Sequence[Chip | Border], width: float) -> list[PlacedItem]:
    """Break the strip into rows of a width in pixels. A word that fits a row is not broken."""
    placed: list[PlacedItem] = []
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
            placed.append(PlacedItem(item, left, top, item_width, is_first, is_last=number == len(word) - 1))
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


MIN_WIDTH = 160
"""Minimum width in pixels; below, nothing is readable."""
MAX_STRIP_HEIGHT = 20_000
"""Maximum height in pixels. Chips below are only counted."""
MAX_MESSAGES = 12
"""Maximum number of problems listed; further ones are only counted."""
FOOTER_SIZE = 14
METER_WIDTH = 120
FOOTER_GAP = 22
BORDER_TEXT_INSET = 13
"""Distance from a chunk border's left end to its text, in pixels."""


@dataclass(frozen=True)
class TokenDrawing:
    """Layout of a token picture before it is drawn. Pixels from the picture's top left corner."""

    height: int
    placed: tuple[PlacedItem, ...]
    """Items of the strip; add `MARGIN` to their positions."""
    note: str
    """Text instead of chips, or the number left out."""
    footer: tuple[tuple[str, float, float], ...]
    """Text, left end and vertical centre. The first one follows the meter."""
    messages: tuple[tuple[str, float], ...]
    """Lines and their vertical centres."""
    fullness: float
    """Fill level of the last chunk, 0 to 1."""


def draw_tokens(view: Mapping[str, Any], *, width: int = 1200, theme: ThemeName = "dark") -> Image.Image:
    """Draw the tokens of a prompt.

    Each token is a chip: blue below weight 1, plain at 1, orange above, violet with a frame below 0, with the weight in
    small digits. Tokens of one word touch; several tokens of one character are one chip with their number. A line ends
    a chunk. Hidden tokens are struck through. Problems are underlined and listed below.

    Args:
        view: View from `weighting.reading.view.view`.
        width: Width of the picture, in pixels, at least 160.
        theme: ``dark`` or ``light``.

    Returns:
        The picture, RGB. Beyond 20,000 pixels of height, remaining tokens are only counted.

    Raises:
        ValueError: If the width is too small or the theme unknown.
    """
    if width < MIN_WIDTH:
        raise ValueError(f"width must be at least {MIN_WIDTH} pixels, got {width}")
    colors = theme_named(theme)
    drawing = lay_out(view, width)
    canvas = Canvas(width, drawing.height, colors.background)
    for item in drawing.placed:
        _draw_item(canvas, item, colors)
    if drawing.note:
        bottom = max((item.top + CHIP_HEIGHT + ROW_GAP for item in drawing.placed), default=0)
        canvas.text(MARGIN, MARGIN + bottom + CHIP_HEIGHT / 2, drawing.note, colors.muted)
    _draw_footer(canvas, drawing, colors)
    for number, (line, y) in enumerate(drawing.messages):
        canvas.text(MARGIN, y, line, colors.problem, size=FOOTER_SIZE, bold=number == 0)
    return canvas.image()


def lay_out(view: Mapping[str, Any], width: int) -> TokenDrawing:
    """Lay out a picture of that width."""
    inner = width - 2 * MARGIN
    all_placed = place(strip_items(view), inner)
    placed = [item for item in all_placed if item.top < MAX_STRIP_HEIGHT]
    left_out = sum(p.item.num_tokens for p in all_placed[len(placed) :] if isinstance(p.item, Chip))
    note = "" if view["num_tokens"] else "This prompt has no tokens."
    note = f"… and {left_out:,} more tokens" if left_out else note
    rows = max((item.top + CHIP_HEIGHT for item in placed), default=0.0)
    bottom = MARGIN + rows + (CHIP_HEIGHT + (ROW_GAP if rows else 0) if note else 0)

    line = FOOTER_SIZE * LINE_HEIGHT + 3
    footer: list[tuple[str, float, float]] = []
    left, y = METER_WIDTH + FOOTER_GAP, bottom + 12 + line / 2
    for text in footer_texts(view):
        text = shorten(text, inner, FOOTER_SIZE)
        text_end = left + text_width(text, FOOTER_SIZE)
        if text_end > inner and left > 0:
            left, y = 0, y + line
            text_end = text_width(text, FOOTER_SIZE)
        footer.append((text, MARGIN + left, y))
        left = text_end + FOOTER_GAP
    bottom = y + line / 2

    messages: list[tuple[str, float]] = []
    if view["issues"]:
        y = bottom + 8 + line / 2
        for text in message_lines(view["issues"], inner):
            messages.append((text, y))
            y += line
        bottom = y - line / 2
    last = view["chunks"][-1]
    fullness = min(1.0, last["num_tokens"] / max(1, last["capacity"]))
    height = round(bottom + MARGIN - 4)
    return TokenDrawing(height, tuple(placed), note, tuple(footer), tuple(messages), fullness)


def footer_texts(view: Mapping[str, Any]) -> list[str]:
    """Texts of the footer: counts, then every option that is not the default."""
    chunks = view["chunks"]
    last = chunks[-1]
    texts = [f"{last['num_tokens']} / {last['capacity']}"]
    if len(chunks) > 1:
        texts = [f"{texts[0]} in chunk {len(chunks)} of {len(chunks)}", f"{view['num_tokens']:,} tokens"]
    hidden = sum(len(chip["ids"]) for chunk in chunks for chip in chunk["chips"] if chip["hidden"])
    texts += [f"{hidden:,} token{'s' if hidden > 1 else ''} hidden"] if hidden else []
    texts += [f"syntax {view['syntax']}", f"scheme {view['scheme']}"]
    for name, default in (("normalization", "none"), ("chunking", "as syntax"), ("padding", "attend")):
        texts += [f"{name} {view[name]}"] if view.get(name, default) != default else []
    return texts


def message_lines(issues: Sequence[Mapping[str, Any]], width: float) -> list[str]:
    """Problems in words, in lines of that width: a heading with their number, then each one."""
    lines = [f"{len(issues):,} problem{'s' if len(issues) > 1 else ''}"]
    for issue in issues[:MAX_MESSAGES]:
        lines += wrap(issue["message"], width, FOOTER_SIZE)
    if len(issues) > MAX_MESSAGES:
        lines.append(f"… and {len(issues) - MAX_MESSAGES:,} more")
    return lines


def _draw_item(canvas: Canvas, placed: PlacedItem, colors: Theme) -> None:
    left, top = MARGIN + placed.left, MARGIN + placed.top
    middle = top + CHIP_HEIGHT / 2
    if isinstance(placed.item, Border):
        canvas.box(left + 4, top + 2, left + 6, top + CHIP_HEIGHT - 2, fill=colors.text)
        text = shorten(placed.item.text, placed.width - BORDER_TEXT_INSET, SMALL_SIZE)
        canvas.text(left + BORDER_TEXT_INSET, middle, text, colors.muted, size=SMALL_SIZE)
        return
    chip = placed.item
    right = left + placed.width
    background = weight_color(chip.weight, colors)
    corners = (placed.is_first, placed.is_last, placed.is_last, placed.is_first)
    is_negative = chip.weight < 0
    canvas.box(
        left,
        top,
        right,
        top + CHIP_HEIGHT,
        fill=background,
        outline=mix(background, readable(background), 0.7) if is_negative else None,
        radius=CHIP_RADIUS,
        corners=corners,
    )
    if not placed.is_first:  # the seam between tokens of one word
        canvas.box(left - 0.5, top, left + 0.5, top + CHIP_HEIGHT, fill=colors.background)
    color = readable(background, colors.muted if chip.is_hidden else colors.text, colors.text)
    text_left = left + chip.paddings[0]
    text = shorten(chip.text, placed.width - sum(chip.paddings) - chip.note_width, FONT_SIZE)
    width = canvas.text(text_left, middle, text, color)
    if chip.note:
        canvas.text(text_left + width + NOTE_GAP, middle + 1.5, chip.note, color, size=SMALL_SIZE)
    if chip.is_hidden:
        canvas.box(text_left - 3, middle - 1, text_left + width + 3, middle + 1, fill=color)
    if chip.has_problem:
        canvas.wave(left + 3, right - 3, top + CHIP_HEIGHT + 2.5, colors.wave)


def _draw_footer(canvas: Canvas, drawing: TokenDrawing, colors: Theme) -> None:
    y = drawing.footer[0][2] if drawing.footer[0][1] > MARGIN else drawing.footer[0][2] - FOOTER_SIZE
    canvas.bar(MARGIN, y, METER_WIDTH, drawing.fullness, colors.accent, colors.line)
    for number, (text, left, middle) in enumerate(drawing.footer):
        canvas.text(left, middle, text, colors.text if number == 0 else colors.muted, size=FOOTER_SIZE)
