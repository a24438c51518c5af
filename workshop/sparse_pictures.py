"""Pictures of DALL·E's masks: each over the whole sequence, and below it the view of one token on the image.

The masks are made in ``encoder/sparse_masks.py``.

Source: docs/reference/masks.md; A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, Figure 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from PIL import Image
from weighted_clip.encoder.sparse_masks import (
    column_mask,
    convolutional_mask,
    row_mask,
    transposed_column_mask,
    transposed_order,
)
from weighted_clip.web.pictures.canvas import Canvas, wrap
from weighted_clip.web.pictures.fonts import text_width
from weighted_clip.web.pictures.masks import AXIS_ROOM, CAPTION_SIZE, LABEL_SIZE, draw_cells, draw_legend, legend_width
from weighted_clip.web.pictures.style import MARGIN, SMALL_SIZE, TITLE_SIZE, Theme, ThemeName, readable, theme_named

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


def sparse_panels(text_length: int, grid: tuple[int, int], kernel_size: int) -> list[Panel]:
    """The four masks of the figure: row, column, transposed column, convolutional; as in `draw_sparse_masks`."""
    rows, columns = grid
    raster = tuple(range(rows * columns))
    transposed = tuple(transposed_order(0, grid).tolist())
    square = f"{kernel_size} × {kernel_size}"
    above = "itself and the tokens before it, back to the one above"
    same = "the same as in (b), but its keys stand side by side"
    around = f"the part of the {square} square around it that came before, wrapped around at the edges"
    convolutional = convolutional_mask(text_length, grid, kernel_size=kernel_size)
    named = (
        ("(a) row", above, row_mask(text_length, grid), raster, columns),
        ("(b) column", "itself and the tokens above it", column_mask(text_length, grid), raster, columns),
        ("(c) column, image transposed", same, transposed_column_mask(text_length, grid), transposed, rows),
        (f"(d) convolutional, {square}", around, convolutional, raster, columns),
    )
    return [
        Panel(title, caption, tuple(map(tuple, mask[0].tolist())), order, part)
        for title, caption, mask, order, part in named
    ]


def draw_sparse_masks(
    text_length: int = 6,
    grid: tuple[int, int] = (4, 4),
    *,
    kernel_size: int = 3,
    token: int | None = None,
    cell: int = 18,
    theme: ThemeName = "light",
) -> Image.Image:
    """Draw the four masks of DALL·E, by default with the sizes of the paper's Figure 11.

    Args:
        text_length: Text positions, at least 0.
        grid: ``(rows, columns)`` of the image.
        kernel_size: Odd kernel size of the convolutional mask.
        token: The image token whose view is shown on the image itself, counted from 1 in raster order; None for the
            first of a middle row, where the convolution wraps around.
        cell: Size of a cell in pixels.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB: two masks above two masks.

    Raises:
        ValueError: If `encoder.sparse_masks` does not allow the sizes, the token does not exist, ``cell`` is below 1 or
            the theme unknown.
    """
    colors = theme_named(theme)
    panels = sparse_panels(text_length, grid, kernel_size)
    rows, columns = grid
    shown = (rows // 2) * columns if token is None else token - 1
    if not 0 <= shown < rows * columns:
        raise ValueError(f"token must be from 1 to {rows * columns}, got {token}")
    if cell < 1:
        raise ValueError(f"cell must be at least 1 pixel, got {cell}")
    drawings = [Drawing(panel, text_length, grid, shown, cell, colors) for panel in panels]
    places = origins(drawings)
    right, bottom = places[-1][0] + max(d.width for d in drawings), places[-1][1] + max(d.height for d in drawings)
    canvas = Canvas(max(right, MARGIN + legend_width(LEGEND)) + MARGIN, bottom + PANEL_GAP + MARGIN, colors.background)
    for drawing, (left, top) in zip(drawings, places, strict=True):
        drawing.draw(canvas, left, top)
    draw_legend(canvas, LEGEND, (colors.down, colors.visible, colors.hidden), colors)
    return canvas.image()


class Drawing:
    """One panel, measured and ready to be drawn."""

    def __init__(
        self, panel: Panel, text_length: int, grid: tuple[int, int], token: int, cell: int, colors: Theme
    ) -> None:
        """Measure the panel; ``token`` is the image token whose view is shown, counted from 0."""
        self.panel, self.grid, self.token, self.cell, self.colors = panel, grid, token, cell, colors
        self.text_length = text_length
        self.labels = [f"t{i + 1}" for i in range(text_length)] + [str(i + 1) for i in panel.order]
        self.label_size = min(LABEL_SIZE - 1, cell * 0.72)
        labels_width = max(text_width(label, self.label_size, bold=True) for label in self.labels)
        self.left = self.top = AXIS_ROOM + 6 + labels_width
        self.top += TITLE_SIZE + 14
        self.side = self.place(len(self.labels)) - PART_GAP
        self.view_cell = max(12, min(26, 3 * cell // 2))
        beside = grid[1] * self.view_cell + 18
        self.width = self.left + max(self.side, beside + MIN_WORDS_WIDTH)
        read = [number + 1 for number in sorted(self._seen())]
        room = self.width - self.left - beside
        text = " and the text" if text_length else ""
        self.reads = wrap(f"Token {token + 1} reads {_listed(read)}{text}:", room, CAPTION_SIZE)
        self.words = [*self.reads, *wrap(f"{panel.caption}.", room, CAPTION_SIZE)]
        self.height = self.top + self.side + VIEW_GAP + max(grid[0] * self.view_cell, len(self.words) * LINE)

    def place(self, position: int) -> float:
        """Distance in pixels from the first cell to a position's."""
        image = position - self.text_length
        gaps = 0.0 if image < 0 else (TEXT_GAP if self.text_length else 0) + image // self.panel.part * PART_GAP
        return position * self.cell + gaps

    def draw(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw the panel at the position of its top left corner."""
        x0, y0, colors = left + self.left, top + self.top, self.colors
        half = text_width(self.panel.title, TITLE_SIZE - 3, bold=True) / 2
        x = max(left, x0 + self.side / 2 - half)
        canvas.text(x, top + TITLE_SIZE / 2, self.panel.title, colors.text, size=TITLE_SIZE - 3, bold=True)
        above = top + TITLE_SIZE + 14 + AXIS_ROOM / 2 - 4
        canvas.text(x0 + self.side / 2, above, "key", colors.muted, size=SMALL_SIZE, align="center")
        bottom = y0 + (self.side + text_width("query", SMALL_SIZE)) / 2
        canvas.upright_text(left + AXIS_ROOM / 2 - 4, bottom, "query", colors.muted, size=SMALL_SIZE)
        self._draw_labels(canvas, x0, y0)
        self._draw_mask(canvas, x0, y0)
        self._draw_view(canvas, x0, y0 + self.side + VIEW_GAP)

    def _draw_labels(self, canvas: Canvas, x0: float, y0: float) -> None:
        for position, label in enumerate(self.labels):
            middle = self.place(position) + self.cell / 2
            is_shown = position == self._query
            color = self.colors.text if is_shown or position < self.text_length else self.colors.muted
            canvas.text(x0 - 6, y0 + middle, label, color, size=self.label_size, bold=is_shown, align="right")
            color = self.colors.text if position < self.text_length else self.colors.muted
            canvas.upright_text(x0 + middle, y0 - 6, label, color, size=self.label_size)

    def _draw_mask(self, canvas: Canvas, x0: float, y0: float) -> None:
        text_colors = replace(self.colors, visible=self.colors.down)
        starts = [*([0] if self.text_length else []), *range(self.text_length, len(self.labels), self.panel.part)]
        ends = [*starts[1:], len(self.labels)]
        for key_start, key_end in zip(starts, ends, strict=True):
            colors = text_colors if key_start < self.text_length else self.colors
            for start, end in zip(starts, ends, strict=True):
                block = [row[key_start:key_end] for row in self.panel.rows[start:end]]
                x, y = x0 + self.place(key_start), y0 + self.place(start)
                draw_cells(canvas, block, x, y, self.cell, colors, gap=0.5 if self.cell < 16 else 1)
        y = y0 + self.place(self._query)
        canvas.box(x0 - 1, y - 1, x0 + self.side + 1, y + self.cell + 1, outline=self.colors.text, radius=3)

    def _draw_view(self, canvas: Canvas, left: float, top: float) -> None:
        """Draw the image as seen by the shown token, with text next to it."""
        seen = self._seen()
        (rows, columns), cell = self.grid, self.view_cell
        cells = [[row * columns + column in seen for column in range(columns)] for row in range(rows)]
        draw_cells(canvas, cells, left, top, cell, self.colors)
        for token in range(rows * columns):
            x, y = left + (token % columns + 0.5) * cell, top + (token // columns + 0.5) * cell
            fill = self.colors.visible if token in seen else self.colors.hidden
            color = readable(fill, self.colors.text if token in seen else self.colors.muted)
            canvas.text(x, y, str(token + 1), color, size=cell * 0.5, bold=token == self.token, align="center")
        x, y = left + self.token % columns * cell, top + self.token // columns * cell
        canvas.box(x, y, x + cell, y + cell, outline=self.colors.text, radius=3, line_width=1.5)
        y = top + max(0, rows * cell - len(self.words) * LINE) / 2 + LINE / 2
        for number, line in enumerate(self.words):
            color = self.colors.text if number < len(self.reads) else self.colors.muted
            canvas.text(left + columns * cell + 18, y + number * LINE, line, color, size=CAPTION_SIZE)

    @property
    def _query(self) -> int:
        return self.text_length + self.panel.order.index(self.token)

    def _seen(self) -> set[int]:
        keys = self.panel.rows[self._query][self.text_length :]
        return {token for token, keep in zip(self.panel.order, keys, strict=True) if keep}


def origins(drawings: Sequence[Drawing]) -> list[tuple[float, float]]:
    """Left and top of each panel in the picture, two per row, in pixels."""
    across = max(drawing.width for drawing in drawings) + PANEL_GAP
    down = max(drawing.height for drawing in drawings) + PANEL_GAP
    return [(MARGIN + number % 2 * across, MARGIN + number // 2 * down) for number in range(len(drawings))]


def _listed(numbers: Sequence[int]) -> str:
    """Numbers in words, at most six of them.

    >>> _listed([4, 5, 9])
    '4, 5, 9'
    """
    shown = ", ".join(map(str, numbers[:6]))
    return shown if len(numbers) <= 6 else f"{shown}, …"
