"""Chart of the effects of weighting schemes on the rows of a prompt: change of length and direction, a line per scheme.

Draws given numbers; ``web/lab/tabs/comparison.py`` computes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image

from ...weighting.reading.view import weight_text
from .canvas import Canvas, shorten, wrap
from .fonts import text_width
from .style import LIGHT, MARGIN, TITLE_SIZE, mix

LENGTH_TOPS = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Possible ends of the axis of lengths, as ratios; beyond the last, bars are cut."""
ANGLE_TOPS = (1.0, 2.0, 5.0, 10.0, 20.0, 45.0, 90.0, 180.0)
"""Possible ends of the axis of angles, in degrees."""
SMALLEST_RATIO, SMALLEST_ANGLE = 0.005, 0.05
"""Minimum changes that are drawn, relative and in degrees."""
TOLERANCE = 1.02
"""Factor by which a bar may exceed its axis before a longer axis is used."""


class RowChange(NamedTuple):
    """Difference of one row from another."""

    ratio: float
    """Ratio of the lengths; 1.0 = equal."""
    angle: float | None
    """Angle between them, in degrees from 0 to 180; None if one of them is zero or not finite."""


class SchemeRow(NamedTuple):
    """One line of the chart."""

    name: str
    """Name of the scheme."""
    changes: Sequence[RowChange | None]
    """One change for each label, None for a missing row; or no changes at all."""
    notes: Sequence[str] = ()
    """Small lines below the name."""
    message: str = ""
    """Text below the bars, or instead of them."""


@dataclass(frozen=True)
class Axes:
    """Ends of the two axes; the same for all schemes, so that they can be compared."""

    length_top: float
    """As a ratio; the lower end is its inverse."""
    angle_top: float
    """In degrees."""

    def length_share(self, ratio: float) -> float:
        """Share of its half axis that a bar takes, -1 to 1; NaN counts as no bar."""
        if math.isnan(ratio):
            return 0.0
        octaves = math.log(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1)
        return max(-1.0, min(1.0, octaves / math.log(self.length_top)))

    def cuts(self, ratio: float) -> bool:
        """Whether a bar of a length does not end where its number is: it is too long for its axis, or no number.

        >>> [Axes(10.0, 45.0).cuts(ratio) for ratio in (10.1, 12.0, 0.05, 0.0, float("nan"))]
        [False, True, True, True, True]
        """
        longest = self.length_top * TOLERANCE
        return not 1 / longest <= ratio <= longest

    def angle_share(self, angle: float) -> float:
        """Share of its axis that a bar takes, 0 to 1."""
        return min(1.0, angle / self.angle_top)


def axes_of(rows: Sequence[SchemeRow]) -> Axes:
    """Smallest axes that hold all changes of a chart, as far as possible."""
    changes = [change for row in rows for change in row.changes if change is not None]
    ratios = [change.ratio for change in changes if 0 < change.ratio < math.inf]
    longest = max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
    widest = max((change.angle for change in changes if change.angle is not None), default=0.0)
    return Axes(
        next((top for top in LENGTH_TOPS if longest <= top * TOLERANCE), LENGTH_TOPS[-1]),
        next((top for top in ANGLE_TOPS if widest <= top * TOLERANCE), ANGLE_TOPS[-1]),
    )


def ratio_text(ratio: float) -> str:
    """Format a ratio with as few digits as needed; empty if nothing changed.

    >>> [ratio_text(ratio) for ratio in (1.4, 1.001, 0.913, 0.0, 12.31, 2000.0, float("inf"))]
    ['×1.40', '', '×0.91', '×0', '×12', '×2e3', '×∞']
    """
    if abs(ratio - 1) < SMALLEST_RATIO:
        return ""
    if not math.isfinite(ratio):
        return "NaN" if math.isnan(ratio) else "×∞"
    if 0.01 <= ratio < 1000:
        return f"×{ratio:.2f}" if ratio < 9.995 else f"×{ratio:.0f}"
    return f"×{weight_text(ratio)}" if ratio == 0 or ratio > 1e-9 else "≈0"


def angle_text(angle: float | None) -> str:
    """Format an angle with as few digits as needed; empty if it is negligible.

    >>> [angle_text(angle) for angle in (0.01, 0.34, 12.3, None)]
    ['', '0.3°', '12°', 'none']
    """
    if angle is None:
        return "none"
    if angle < SMALLEST_ANGLE:
        return ""
    return f"{angle:.1f}°" if angle < 9.95 else f"{angle:.0f}°"


MAX_COLUMNS = 18
"""Maximum number of tokens side by side; more go into further blocks below."""
MAX_COLUMN_WIDTH = 84
GUTTER = 212
"""Width for the schemes' names and the axes, in pixels."""
AXIS_WIDTH = 66
"""Part of it for the axes."""
LABEL_SIZE = 14.0
NAME_SIZE = 15.0
VALUE_SIZE = 11.5
NOTE_SIZE = 12.0
MAX_LABEL_HEIGHT = 110
"""Maximum height of upright labels, in pixels; longer ones are cut with an ellipsis."""
LENGTH_HEIGHT = 84
"""Height of the panel of lengths; its zero line is in the middle."""
ANGLE_HEIGHT = 60
"""Height of the panel of angles; its zero line is at the bottom."""
VALUE_ROOM = 16
"""Free space for a number at the end of a bar."""
HALF_LENGTH = LENGTH_HEIGHT / 2 - VALUE_ROOM
FULL_ANGLE = ANGLE_HEIGHT - VALUE_ROOM - 6
"""Height of the longest bars."""
SCHEME_GAP = 20
"""Gap between schemes, with a line in it."""
MESSAGE_LINE = 17
TEXT_HEIGHT = 58
"""Minimum height of name and notes."""

CUT_LEGEND = "A bar with a gap is cut: it would be longer than its axis."
UNCHANGED = "No row changes."
CUT_PLACE, CUT_HEIGHT, CUT_SLANT = 7, 3, 4
"""Distance of the gap in a cut bar from its end, its height and its slant, in pixels."""


def draw_changes(
    rows: Sequence[SchemeRow],
    labels: Sequence[str],
    *,
    heading: str,
    legend: str,
    title: str = "",
    width: int = 1100,
) -> Image.Image:
    """Draw the chart.

    Args:
        rows: Its lines, at least one.
        labels: Labels of the tokens.
        heading: Meaning of the numbers.
        legend: Meaning of the bars.
        title: Part of the prompt shown, after the heading.
        width: Width of the picture, in pixels.

    Returns:
        The picture, RGB, of any height.

    Raises:
        ValueError: If there are no rows, or the numbers of labels and changes differ.
    """
    if not rows or any(len(row.changes) not in (0, len(labels)) for row in rows):
        raise ValueError("there must be rows, and as many changes in each as labels")
    rows = [in_words(row) for row in rows]
    sheet = _Sheet(labels, width, axes_of(rows))
    is_cut = any(c and not math.isnan(c.ratio) and sheet.axes.cuts(c.ratio) for row in rows for c in row.changes)
    legend_lines = wrap(f"{legend} {CUT_LEGEND}" if is_cut else legend, width - 2 * MARGIN, NOTE_SIZE)
    header = TITLE_SIZE + 10
    heights = [sheet.label_height(block) + sum(map(sheet.row_height, rows)) for block in sheet.blocks]
    canvas = Canvas(width, header + sum(heights) + len(legend_lines) * 18 + 2 * MARGIN + 4, LIGHT.background)
    end = canvas.text(MARGIN, MARGIN + TITLE_SIZE / 2, heading, LIGHT.text, size=TITLE_SIZE - 2, bold=True)
    if title:
        canvas.text(MARGIN + end + 14, MARGIN + TITLE_SIZE / 2 + 1, title, LIGHT.muted, size=LABEL_SIZE)
    top = MARGIN + header
    for block, height in zip(sheet.blocks, heights, strict=True):
        sheet.draw_labels(canvas, block, top)
        y = top + sheet.label_height(block)
        for row in rows:
            sheet.draw_row(canvas, row, block, y)
            y += sheet.row_height(row)
        top += height
    canvas.lines(MARGIN, top + 12, legend_lines, LIGHT.muted, step=18, size=NOTE_SIZE)
    return canvas.image()


def in_words(row: SchemeRow) -> SchemeRow:
    """The row, described in words instead of bars if nothing in it changes."""
    if not row.changes or not all(c and not ratio_text(c.ratio) and not angle_text(c.angle) for c in row.changes):
        return row
    return row._replace(changes=(), message=f"{UNCHANGED} {row.message}".strip())


def _blocks(count: int) -> list[range]:
    """Divide columns into blocks of nearly equal size.

    >>> _blocks(20)
    [range(0, 10), range(10, 20)]
    """
    number = max(1, -(-count // MAX_COLUMNS))
    size = -(-count // number)
    return [range(start, min(start + size, count)) for start in range(0, max(1, count), max(1, size))]


class _Sheet:
    """Positions of columns and lines, and drawing at them."""

    def __init__(self, labels: Sequence[str], width: int, axes: Axes) -> None:
        self.labels, self.width, self.axes, self.colors = labels, width, axes, LIGHT
        self.blocks = _blocks(len(labels))
        self.left = MARGIN + GUTTER
        self.column = min(MAX_COLUMN_WIDTH, (width - MARGIN - self.left) / max(1, max(map(len, self.blocks))))
        self.half_bar = min(15.0, self.column * 0.3)
        self.is_upright = any(text_width(label, LABEL_SIZE) > self.column - 6 for label in labels)

    def label_height(self, block: range) -> float:
        """Height of the tokens' texts above a block."""
        if not self.is_upright:
            return 66
        texts = (shorten(self.labels[place], MAX_LABEL_HEIGHT, LABEL_SIZE) for place in block)
        return 54 + max((text_width(text, LABEL_SIZE) for text in texts), default=0)

    def row_height(self, row: SchemeRow) -> float:
        """Height of a scheme with its bars and message, and the gap below."""
        bars = LENGTH_HEIGHT + ANGLE_HEIGHT if row.changes else 0
        return max(TEXT_HEIGHT, bars + len(self.message_lines(row)) * MESSAGE_LINE) + SCHEME_GAP

    def message_lines(self, row: SchemeRow) -> list[str]:
        """Its message, wrapped to fit next to its name."""
        return wrap(row.message, self.width - MARGIN - self.left, NOTE_SIZE) if row.message else []

    def centre(self, block: range, place: int) -> float:
        """Centre of a token's column."""
        return self.left + (place - block.start + 0.5) * self.column

    def draw_labels(self, canvas: Canvas, block: range, top: float) -> None:
        """Draw texts of a block's tokens."""
        colors, bottom = self.colors, top + self.label_height(block) - 20
        for place in block:
            x, label = self.centre(block, place), self.labels[place]
            if self.is_upright:
                label = shorten(label, MAX_LABEL_HEIGHT, LABEL_SIZE)
                canvas.upright_text(x, bottom - 24, label, colors.text, size=LABEL_SIZE)
            else:
                canvas.text(x, bottom - 32, label, colors.text, size=LABEL_SIZE, align="center")

    def draw_row(self, canvas: Canvas, row: SchemeRow, block: range, top: float) -> None:
        """Draw one scheme's part of a block."""
        colors = self.colors
        canvas.box(MARGIN, top - 11, self.width - MARGIN, top - 10, fill=colors.line)
        name = shorten(row.name, GUTTER - AXIS_WIDTH, NAME_SIZE, bold=True)
        canvas.text(MARGIN, top + 8, name, colors.text, size=NAME_SIZE, bold=True)
        canvas.lines(MARGIN, top + 29, row.notes, colors.muted, step=17, size=NOTE_SIZE)
        zero, floor = top + LENGTH_HEIGHT / 2, top + LENGTH_HEIGHT + ANGLE_HEIGHT
        if row.changes:
            self._draw_axes(canvas, block, zero, floor)
        for place in block if row.changes else ():
            x, change = self.centre(block, place), row.changes[place]
            if change is None:
                self._draw_value(canvas, x, zero, "left out")
            else:
                self._draw_length(canvas, x, zero, change.ratio)
                self._draw_angle(canvas, x, floor, change.angle)
        y = floor + 16 if row.changes else top + 8
        canvas.lines(self.left, y, self.message_lines(row), colors.muted, step=MESSAGE_LINE, size=NOTE_SIZE)

    def _draw_axes(self, canvas: Canvas, block: range, zero: float, floor: float) -> None:
        axes, colors = self.axes, self.colors
        right = self.left + self.column * len(block)
        pale = mix(colors.background, colors.line, 0.6)
        for y, text, fill in (
            (zero - HALF_LENGTH, f"×{axes.length_top:g}", pale),
            (zero, "×1", colors.line),
            (zero + HALF_LENGTH, f"×{1 / axes.length_top:.2g}", pale),
            (floor - FULL_ANGLE, f"{axes.angle_top:g}°", pale),
            (floor, "0°", colors.line),
        ):
            canvas.box(self.left, y - 0.5, right, y + 0.5, fill=fill)
            canvas.text(self.left - 6, y, text, colors.muted, size=VALUE_SIZE, align="right")
        for text, middle in (("length", zero), ("angle", floor - FULL_ANGLE / 2)):
            canvas.upright_text(self.left - 56, middle, text, colors.muted, size=VALUE_SIZE, align="center")

    def _draw_length(self, canvas: Canvas, x: float, zero: float, ratio: float) -> None:
        if text := ratio_text(ratio):
            share = self.axes.length_share(ratio)
            end = zero - share * HALF_LENGTH
            fill = self.colors.up if share > 0 else self.colors.down
            canvas.box(x - self.half_bar, min(zero, end), x + self.half_bar, max(zero, end), fill=fill)
            if share and self.axes.cuts(ratio):
                self._draw_gap(canvas, x, end + math.copysign(CUT_PLACE, share))
            self._draw_value(canvas, x, end - 8.5 if share > 0 else end + 8.5, text)

    def _draw_gap(self, canvas: Canvas, x: float, y: float) -> None:
        """A slanted gap in a bar that is cut."""
        left, right = (x - self.half_bar - 1, y + CUT_SLANT / 2), (x + self.half_bar + 1, y - CUT_SLANT / 2)
        canvas.line((left, right), self.colors.background, width=CUT_HEIGHT)

    def _draw_angle(self, canvas: Canvas, x: float, floor: float, angle: float | None) -> None:
        if text := angle_text(angle):
            end = floor - self.axes.angle_share(angle or 0.0) * FULL_ANGLE
            canvas.box(x - self.half_bar, end, x + self.half_bar, floor, fill=self.colors.accent)
            self._draw_value(canvas, x, end - 8.5, text)

    def _draw_value(self, canvas: Canvas, x: float, y: float, text: str) -> None:
        """Draw a number that covers the lines under it."""
        half = text_width(text, VALUE_SIZE) / 2 + 2
        canvas.box(x - half, y - 6, x + half, y + 6, fill=self.colors.background)
        canvas.text(x, y, text, self.colors.text, size=VALUE_SIZE, align="center")
