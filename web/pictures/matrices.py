"""Matrices as pictures: the similarity of texts and images, and the confusion of labels.

Draw given numbers; ``encoder/similarity.py`` and ``weighting/reading/features.py`` compute them.

Source: docs/lecture.md Figure 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from ...encoder.quoting import checked
from ...encoder.similarity import Over
from .canvas import Canvas
from .fonts import text_width
from .sheets import NOTE_SIZE, TEXT_SIZE, few_lines, put_thumbnail
from .style import LIGHT, LINE_HEIGHT, MARGIN, SMALL_SIZE, Color, Theme, mix, readable

MAX_TEXTS = MAX_IMAGES = 32
"""Maximum numbers of rows and columns; further ones are counted."""
CELLS = ((8, 76), (16, 64), (MAX_IMAGES, 52))
"""Cell sizes in pixels, each up to a number of images."""
TEXT_WIDTH = 250
"""Width for a text next to its row, in pixels."""
AXIS_ROOM = 22
"""Space for the word "text" or "image" at an axis."""
LEGEND_WIDTH = 180
SCALE_STEP = 0.05
"""The ends of the scale of cosines are multiples of this, and at least two of it apart."""
UNITS: dict[str, str] = {
    "none": "cosine, from −1 to 1",
    "images": "probability of each image for a text; rows add up to 100 %",
    "texts": "probability of each text for an image; columns add up to 100 %",
}


@dataclass(frozen=True)
class ColorScale:
    """Colour and text of a value."""

    low: float
    """Value of the palest colour."""
    high: float
    is_percent: bool
    """Whether values are probabilities."""

    def color(self, value: float, colors: Theme) -> Color:
        """Colour of a cell: equal steps of a value are almost equal steps of lightness."""
        share = (value - self.low) / (self.high - self.low) if math.isfinite(value) else 0.0
        return mix(colors.surface, colors.visible, max(0.0, min(1.0, share)))

    def text(self, value: float, digits: int = 3) -> str:
        """Format the value briefly.

        >>> share = ColorScale(0, 1, True)
        >>> share.text(0.9731), share.text(0.0123), ColorScale(0, 0.5, False).text(0.25, 2)
        ('97 %', '1.2 %', '0.25')
        """
        if not math.isfinite(value):
            return str(value)
        if not self.is_percent:
            return f"{value:.{digits}f}".replace("-", "−")
        if 0 < value < 0.0005:
            return "<0.1 %"
        return f"{100 * value:.0f} %" if value == 0 or value >= 0.0995 else f"{100 * value:.1f} %"


def scale_of(values: Sequence[Sequence[float]], over: Over) -> ColorScale:
    """Scale of a matrix: 0 to 100 % for probabilities, about the range of values for cosines.

    >>> scale_of([[0.21, 0.33]], "none")
    ColorScale(low=0.2, high=0.35, is_percent=False)
    """
    if over != "none":
        return ColorScale(0.0, 1.0, True)
    finite = [value for row in values for value in row if math.isfinite(value)] or [0.0]
    low, high = math.floor(min(finite) / SCALE_STEP + 1e-9), math.ceil(max(finite) / SCALE_STEP - 1e-9)
    while high - low < 2:
        low, high = low - (high - low == 1), high + 1
    return ColorScale(round(low * SCALE_STEP, 6), round(high * SCALE_STEP, 6), False)


def draw_similarity(
    values: Any,
    texts: Sequence[str],
    images: Sequence[Image.Image],
    *,
    over: Over = "none",
) -> Image.Image:
    """Draw a matrix of texts and images: one row per text, one column per image, a number in each cell.

    The largest value of each row is framed; for probabilities over texts, of each column. Texts are wrapped, and
    cut with an ellipsis. Up to 32 of each are drawn; the others are counted, and a maximum among them is mentioned.

    Args:
        values: ``[texts, images]``, as a tensor, an array or nested lists: cosines from -1 to 1, or probabilities from
            0 to 1. NaN is written as such.
        texts: One text per row, in any script.
        images: One image per column, of any size and mode.
        over: ``none``: the values are cosines. ``images`` or ``texts``: probabilities over these, in percent.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If the numbers of values, texts and images do not fit, there are none, or ``over`` is unknown.
    """
    checked("over", over, UNITS)
    rows: list[list[float]] = values.tolist() if hasattr(values, "tolist") else [list(row) for row in values]
    widths = sorted({len(row) for row in rows})
    if not texts or not images or len(rows) != len(texts) or widths != [len(images)]:
        raise ValueError(
            f"{len(texts)} texts and {len(images)} images need as many rows and columns of values, at least 1 of each; "
            f"got {len(rows)} rows of {' or '.join(map(str, widths)) or 'no'} values"
        )
    return _Matrix(rows, texts, len(images), over).draw(images)


class _Matrix:
    """A measured similarity matrix, ready to be drawn."""

    def __init__(self, rows: list[list[float]], texts: Sequence[str], num_images: int, over: Over) -> None:
        self.rows, self.texts, self.over, self.colors = rows, texts, over, LIGHT
        self.num_rows, self.num_columns = min(len(rows), MAX_TEXTS), min(num_images, MAX_IMAGES)
        self.more_rows, self.more_columns = len(rows) - self.num_rows, num_images - self.num_columns
        self.cell = next(size for limit, size in CELLS if self.num_columns <= limit)
        self.digits = 3 if self.cell >= 60 else 2
        self.scale = scale_of(rows, over)
        max_lines = round(self.cell / (TEXT_SIZE * LINE_HEIGHT) - 0.3)
        self.labels = [few_lines(text, TEXT_WIDTH, TEXT_SIZE, max_lines) for text in texts[: self.num_rows]]
        widest = max(text_width(line, TEXT_SIZE) for lines in self.labels for line in lines)
        self.left = MARGIN + AXIS_ROOM + widest + 10
        self.top = MARGIN + AXIS_ROOM + 18 + self.cell + 2
        self.right = self.left + self.cell * (self.num_columns + bool(self.more_columns))
        self.bottom = self.top + self.cell * (self.num_rows + bool(self.more_rows))

    def draw(self, images: Sequence[Image.Image]) -> Image.Image:
        """Draw everything."""
        notes = self._notes()
        legend = LEGEND_WIDTH + 30 + max(text_width(note, NOTE_SIZE) for note in notes)
        width = max(self.right, MARGIN + legend) + MARGIN
        below = 22 + max(46.0, 20 * len(notes))
        canvas = Canvas(width, self.bottom + below + MARGIN - 6, self.colors.background)
        self._draw_axes(canvas, images)
        for row in range(self.num_rows):
            for column in range(self.num_columns):
                self._draw_cell(canvas, row, column)
        self._draw_dots(canvas)
        self._draw_legend(canvas, notes)
        return canvas.image()

    def _best(self, row: int, column: int) -> bool:
        line = [values[column] for values in self.rows] if self.over == "texts" else self.rows[row]
        return self.rows[row][column] == max((value for value in line if not math.isnan(value)), default=None)

    def _draw_axes(self, canvas: Canvas, images: Sequence[Image.Image]) -> None:
        colors, cell = self.colors, self.cell
        above = self.top - cell - 2 - 18 - AXIS_ROOM
        middle = self.left + self.num_columns * cell / 2
        canvas.text(middle, above + AXIS_ROOM / 2 - 2, "image", colors.muted, size=SMALL_SIZE, align="center")
        middle = self.top + self.num_rows * cell / 2
        canvas.upright_text(MARGIN + 8, middle, "text", colors.muted, size=SMALL_SIZE, align="center")
        for column in range(self.num_columns):
            x = self.left + (column + 0.5) * cell
            canvas.text(x, above + AXIS_ROOM + 8, str(column + 1), colors.text, size=SMALL_SIZE, align="center")
            left, top = self.left + column * cell, self.top - cell - 2
            put_thumbnail(canvas, images[column], left + 3, top + 3, cell - 6, colors)
        step = TEXT_SIZE * LINE_HEIGHT
        for row, lines in enumerate(self.labels):
            color = colors.text if self.texts[row].strip() else colors.muted
            y = self.top + (row + 0.5) * cell - (len(lines) - 1) * step / 2
            canvas.lines(self.left - 10, y, lines, color, step=step, size=TEXT_SIZE, align="right")

    def _draw_cell(self, canvas: Canvas, row: int, column: int) -> None:
        value, cell = self.rows[row][column], self.cell
        x, y = self.left + column * cell, self.top + row * cell
        is_best = self._best(row, column)
        fill = self.scale.color(value, self.colors)
        outline = self.colors.text if is_best else None
        canvas.box(x + 1, y + 1, x + cell - 1, y + cell - 1, fill=fill, outline=outline, line_width=2.5, radius=5)
        ink, text = readable(fill, self.colors.text), self.scale.text(value, self.digits)
        canvas.text(x + cell / 2, y + cell / 2, text, ink, size=cell / 8 + 5.5, bold=is_best, align="center")

    def _draw_dots(self, canvas: Canvas) -> None:
        """Draw dots to the right of and below the cells if there are more, with the largest value if it is there."""
        for row in range(self.num_rows if self.more_columns else 0):
            hidden = range(self.num_columns, len(self.rows[row])) if self.over != "texts" else ()
            best = next(((f"image {c + 1}", self.rows[row][c]) for c in hidden if self._best(row, c)), None)
            self._draw_more(canvas, self.right - self.cell / 2, self.top + (row + 0.5) * self.cell, best)
        for column in range(self.num_columns if self.more_rows else 0):
            hidden = range(self.num_rows, len(self.rows)) if self.over == "texts" else ()
            best = next(((f"text {r + 1}", self.rows[r][column]) for r in hidden if self._best(r, column)), None)
            self._draw_more(canvas, self.left + (column + 0.5) * self.cell, self.bottom - self.cell / 2, best)

    def _draw_more(self, canvas: Canvas, x: float, y: float, best: tuple[str, float] | None) -> None:
        if best is None:
            canvas.text(x, y, "…", self.colors.muted, size=TEXT_SIZE, align="center")
            return
        number, value = best
        size = min(SMALL_SIZE - 1, 10 * self.cell / max(1.0, text_width(number, 11)))
        canvas.text(x, y - 9, number, self.colors.muted, size=size, align="center")
        text = self.scale.text(value, self.digits)
        canvas.text(x, y + 8, text, self.colors.text, size=size, bold=True, align="center")

    def _notes(self) -> list[str]:
        notes = [UNITS[self.over], f"framed: largest of its {'column' if self.over == 'texts' else 'row'}"]
        more = [
            f"{count:,} more {kind}{'s' if count > 1 else ''}"
            for count, kind in ((self.more_rows, "text"), (self.more_columns, "image"))
            if count
        ]
        return [*notes, f"not drawn: {' and '.join(more)}"] if more else notes

    def _draw_legend(self, canvas: Canvas, notes: Sequence[str]) -> None:
        colors, scale, y = self.colors, self.scale, self.bottom + 30
        steps = 60
        for step in range(steps):
            fill = scale.color(scale.low + (scale.high - scale.low) * (step + 0.5) / steps, colors)
            x = MARGIN + LEGEND_WIDTH * step / steps
            canvas.box(x, y - 8, x + LEGEND_WIDTH / steps, y + 8, fill=fill)
        canvas.box(MARGIN, y - 8, MARGIN + LEGEND_WIDTH, y + 8, outline=colors.line)
        for share, align in ((0.0, "left"), (0.5, "center"), (1.0, "right")):
            text = scale.text(scale.low + (scale.high - scale.low) * share, 3 if share == 0.5 else 2)
            x = MARGIN + LEGEND_WIDTH * share
            canvas.text(x, y + 21, text, colors.muted, size=SMALL_SIZE, align=align)
        canvas.lines(MARGIN + LEGEND_WIDTH + 24, y, notes, colors.muted, step=20, size=NOTE_SIZE)
