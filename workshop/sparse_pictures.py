"""Picture of DALL·E's masks: each over the whole sequence, and below it the view of one token on the image.

The masks are made in ``encoder/sparse_masks.py``; sizes are those of the paper's Figure 11.

Source: docs/reference/dalle.md; A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, Figure 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from PIL import Image

from ..encoder.sparse_masks import (
    column_mask,
    convolutional_mask,
    row_mask,
    transposed_column_mask,
    transposed_order,
)
from ..web.pictures.canvas import Canvas, wrap
from ..web.pictures.fonts import text_width
from ..web.pictures.masks import AXIS_ROOM, CAPTION_SIZE, LABEL_SIZE, draw_cells, draw_legend, legend_width
from ..web.pictures.style import LIGHT, MARGIN, SMALL_SIZE, TITLE_SIZE, readable

TEXT_LENGTH, GRID, KERNEL_SIZE = 6, (4, 4), 3
"""Text positions, ``(rows, columns)`` of the image, and kernel size of the convolutional mask."""
TOKEN = GRID[0] // 2 * GRID[1]
"""The image token whose view is shown on the image itself: the first of a middle row, where the convolution wraps
around."""
CELL, VIEW_CELL = 18, 26
"""Sizes of the cells of a mask and of the image below, in pixels."""
TEXT_GAP = 7
"""Gap between text and image, in pixels."""
PART_GAP = 2
"""Gap between rows of the image, or columns if it is transposed."""
PANEL_GAP = 44
"""Gap between two masks."""
VIEW_GAP = 20
"""Gap between a mask and the image below."""
LINE = 21
"""Height of a line of text."""
MIN_WORDS_WIDTH = 270
"""Width of the text next to the image."""
LABELS_SIZE = min(LABEL_SIZE - 1, CELL * 0.72)
LEGEND = ("text that may be attended", "image that may be attended", "hidden")


class Panel(NamedTuple):
    """One mask with its text."""

    title: str
    """Text above."""
    caption: str
    """Text below."""
    rows: tuple[tuple[bool, ...], ...]
    """``[query][key]``, True = may be attended."""
    order: tuple[int, ...]
    """Token at each position of the image, by its number in raster order from 0."""
    part: int
    """Image positions in a group: a row of the image, or a column."""


def sparse_panels() -> list[Panel]:
    """The four masks of the figure: row, column, transposed column, convolutional."""
    rows, columns = GRID
    raster = tuple(range(rows * columns))
    transposed = tuple(transposed_order(0, GRID).tolist())
    square = f"{KERNEL_SIZE} × {KERNEL_SIZE}"
    above = "itself and the tokens before it, back to the one above"
    same = "the same as in (b), but its keys stand side by side"
    around = f"the part of the {square} square around it that came before, wrapped around at the edges"
    convolutional = convolutional_mask(TEXT_LENGTH, GRID, kernel_size=KERNEL_SIZE)
    named = (
        ("(a) row", above, row_mask(TEXT_LENGTH, GRID), raster, columns),
        ("(b) column", "itself and the tokens above it", column_mask(TEXT_LENGTH, GRID), raster, columns),
        ("(c) column, image transposed", same, transposed_column_mask(TEXT_LENGTH, GRID), transposed, rows),
        (f"(d) convolutional, {square}", around, convolutional, raster, columns),
    )
    return [
        Panel(title, caption, tuple(map(tuple, mask[0].tolist())), order, part)
        for title, caption, mask, order, part in named
    ]


def draw_sparse_masks() -> Image.Image:
    """Two masks above two masks."""
    drawings = [Drawing(panel) for panel in sparse_panels()]
    places = origins(drawings)
    right, bottom = places[-1][0] + max(d.width for d in drawings), places[-1][1] + max(d.height for d in drawings)
    canvas = Canvas(max(right, MARGIN + legend_width(LEGEND)) + MARGIN, bottom + PANEL_GAP + MARGIN, LIGHT.background)
    for drawing, (left, top) in zip(drawings, places, strict=True):
        drawing.draw(canvas, left, top)
    draw_legend(canvas, LEGEND, (LIGHT.down, LIGHT.visible, LIGHT.hidden), LIGHT)
    return canvas.image()


class Drawing:
    """One panel, measured and ready to be drawn."""

    def __init__(self, panel: Panel) -> None:
        self.panel = panel
        self.labels = [f"t{i + 1}" for i in range(TEXT_LENGTH)] + [str(i + 1) for i in panel.order]
        labels_width = max(text_width(label, LABELS_SIZE, bold=True) for label in self.labels)
        self.left = AXIS_ROOM + 6 + labels_width
        self.top = self.left + TITLE_SIZE + 14
        self.side = self.place(len(self.labels)) - PART_GAP
        self.query = TEXT_LENGTH + panel.order.index(TOKEN)
        keys = panel.rows[self.query][TEXT_LENGTH:]
        self.seen = sorted(token for token, keep in zip(panel.order, keys, strict=True) if keep)
        beside = GRID[1] * VIEW_CELL + 18
        self.width = self.left + max(self.side, beside + MIN_WORDS_WIDTH)
        room = self.width - self.left - beside
        read = ", ".join(str(token + 1) for token in self.seen)
        self.reads = wrap(f"Token {TOKEN + 1} reads {read} and the text:", room, CAPTION_SIZE)
        self.words = [*self.reads, *wrap(f"{panel.caption}.", room, CAPTION_SIZE)]
        self.height = self.top + self.side + VIEW_GAP + max(GRID[0] * VIEW_CELL, len(self.words) * LINE)

    def place(self, position: int) -> float:
        """Distance in pixels from the first cell to a position's."""
        image = position - TEXT_LENGTH
        gaps = 0.0 if image < 0 else TEXT_GAP + image // self.panel.part * PART_GAP
        return position * CELL + gaps

    def draw(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw the panel at the position of its top left corner."""
        x0, y0 = left + self.left, top + self.top
        half = text_width(self.panel.title, TITLE_SIZE - 3, bold=True) / 2
        x = max(left, x0 + self.side / 2 - half)
        canvas.text(x, top + TITLE_SIZE / 2, self.panel.title, LIGHT.text, size=TITLE_SIZE - 3, bold=True)
        above = top + TITLE_SIZE + 14 + AXIS_ROOM / 2 - 4
        canvas.text(x0 + self.side / 2, above, "key", LIGHT.muted, size=SMALL_SIZE, align="center")
        middle = y0 + self.side / 2
        canvas.upright_text(left + AXIS_ROOM / 2 - 4, middle, "query", LIGHT.muted, size=SMALL_SIZE, align="center")
        self._draw_labels(canvas, x0, y0)
        self._draw_mask(canvas, x0, y0)
        self._draw_view(canvas, x0, y0 + self.side + VIEW_GAP)

    def _draw_labels(self, canvas: Canvas, x0: float, y0: float) -> None:
        for position, label in enumerate(self.labels):
            middle = self.place(position) + CELL / 2
            color = LIGHT.text if position < TEXT_LENGTH else LIGHT.muted
            is_shown = position == self.query
            shown = LIGHT.text if is_shown else color
            canvas.text(x0 - 6, y0 + middle, label, shown, size=LABELS_SIZE, bold=is_shown, align="right")
            canvas.upright_text(x0 + middle, y0 - 6, label, color, size=LABELS_SIZE)

    def _draw_mask(self, canvas: Canvas, x0: float, y0: float) -> None:
        starts = [0, *range(TEXT_LENGTH, len(self.labels), self.panel.part)]
        ends = [*starts[1:], len(self.labels)]
        for key_start, key_end in zip(starts, ends, strict=True):
            colors = replace(LIGHT, visible=LIGHT.down) if key_start < TEXT_LENGTH else LIGHT
            for start, end in zip(starts, ends, strict=True):
                block = [row[key_start:key_end] for row in self.panel.rows[start:end]]
                draw_cells(canvas, block, x0 + self.place(key_start), y0 + self.place(start), CELL, colors, gap=1)
        y = y0 + self.place(self.query)
        canvas.box(x0 - 1, y - 1, x0 + self.side + 1, y + CELL + 1, outline=LIGHT.text, radius=3)

    def _draw_view(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw the image as seen by the shown token, with text next to it."""
        (rows, columns), cell = GRID, VIEW_CELL
        cells = [[row * columns + column in self.seen for column in range(columns)] for row in range(rows)]
        draw_cells(canvas, cells, left, top, cell, LIGHT)
        for token in range(rows * columns):
            x, y = left + (token % columns + 0.5) * cell, top + (token // columns + 0.5) * cell
            is_seen = token in self.seen
            fill = LIGHT.visible if is_seen else LIGHT.hidden
            color = readable(fill, LIGHT.text if is_seen else LIGHT.muted)
            canvas.text(x, y, str(token + 1), color, size=cell * 0.5, bold=token == TOKEN, align="center")
        x, y = left + TOKEN % columns * cell, top + TOKEN // columns * cell
        canvas.box(x, y, x + cell, y + cell, outline=LIGHT.text, radius=3, line_width=1.5)
        y = top + max(0, rows * cell - len(self.words) * LINE) / 2 + LINE / 2
        for number, line in enumerate(self.words):
            color = LIGHT.text if number < len(self.reads) else LIGHT.muted
            canvas.text(left + columns * cell + 18, y + number * LINE, line, color, size=CAPTION_SIZE)


def origins(drawings: Sequence[Drawing]) -> list[tuple[float, float]]:
    """Left and top of each panel in the picture, two per row, in pixels."""
    across = max(drawing.width for drawing in drawings) + PANEL_GAP
    down = max(drawing.height for drawing in drawings) + PANEL_GAP
    return [(MARGIN + number % 2 * across, MARGIN + number // 2 * down) for number in range(len(drawings))]
