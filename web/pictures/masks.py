"""Attention masks as pictures, one cell for each query and key, labelled with the tokens.

True means "may be attended" and has the strong colour. Rows are queries, columns keys. The masks are made in
``encoder/masks.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from PIL import Image

from ...weighting.plan import Variant, variant_mask, versions_of_first
from ...weighting.reading.prompt_reader import ReadPrompt
from ...weighting.text.chunks import TokenChunk
from .canvas import Canvas, shorten
from .fonts import text_width
from .style import LIGHT, MARGIN, SMALL_SIZE, TITLE_SIZE, Color, Theme

LABEL_SIZE = 14.0
CAPTION_SIZE = 14
MAX_LABEL_WIDTH = 120
"""Maximum width in pixels; longer labels are cut with an ellipsis."""
AXIS_ROOM = 24
"""Space for the word "query" or "key" at an axis, in pixels."""


@dataclass(frozen=True)
class Grid:
    """A mask ready to be drawn, and the positions of its cells."""

    rows: tuple[tuple[bool, ...], ...]
    """Visible part of the mask, True = may be attended."""
    row_labels: tuple[str, ...]
    """Labels of the queries."""
    column_labels: tuple[str, ...]
    """Labels of the keys."""
    cell: int
    """Width and height of a cell, in pixels."""
    label_size: float
    more_rows: bool
    """Whether further rows are not drawn."""
    more_columns: bool

    @property
    def left(self) -> float:
        """Distance from the picture's left end to its first column."""
        return AXIS_ROOM + 6 + max(text_width(label, self.label_size) for label in self.row_labels)

    @property
    def top(self) -> float:
        """Distance from its highest label to its first row."""
        return AXIS_ROOM + 6 + max(text_width(label, self.label_size) for label in self.column_labels)

    @property
    def width(self) -> float:
        """Width of row labels and cells."""
        return self.left + self.cell * (len(self.column_labels) + self.more_columns)

    @property
    def height(self) -> float:
        """Height of column labels and cells."""
        return self.top + self.cell * (len(self.row_labels) + self.more_rows)


def make_grid(mask: Any, labels: Sequence[str], *, visible: int | None = None, cell: int | None = None) -> Grid:
    """Read a mask for `masks.draw_mask_rows`, with the same arguments.

    A mask with one query applies to every query. Queries have the labels of keys.
    """
    values = torch.as_tensor(mask, dtype=torch.bool)
    while values.ndim > 2 and len(values) == 1:
        values = values[0]
    if values.ndim != 2 or not values.numel():
        raise ValueError(f"a mask to draw has the axes query and key, or a leading 1; got shape {list(values.shape)}")
    num_rows, num_columns = values.shape
    if len(labels) != num_columns:
        raise ValueError(f"a mask with {num_columns} keys needs as many labels, got {len(labels)}")
    if (visible is not None and visible < 1) or (cell is not None and cell < 1):
        raise ValueError(f"visible positions and cell size must be at least 1, got {visible} and {cell}")
    num_rows = num_columns if num_rows == 1 else num_rows
    rows = tuple(map(tuple, values.expand(num_rows, -1)[:visible, :visible].tolist()))
    shown_rows, shown_columns = len(rows), len(rows[0])
    cell = cell or cell_size(shown_columns)
    label_size = min(LABEL_SIZE, cell * 0.78)
    names = tuple(shorten(label, MAX_LABEL_WIDTH, label_size) for label in labels[: max(shown_columns, shown_rows)])
    return Grid(
        rows,
        names[:shown_rows],
        names[:shown_columns],
        cell,
        label_size,
        shown_rows < num_rows,
        shown_columns < num_columns,
    )


def cell_size(num_shown: int) -> int:
    """Width and height of a cell, in pixels, by the number of positions shown."""
    return 13 if num_shown > 40 else 20 if num_shown > 16 else 28


def draw_grid(canvas: Canvas, grid: Grid, left: float, top: float, colors: Theme) -> None:
    """Draw a grid including its labels, with the top left corner at a point."""
    x0, y0, cell = left + grid.left, top + grid.top, grid.cell
    x1, y1 = left + grid.width, top + grid.height
    gap = 0.5 if cell < 16 else 1
    draw_cells(canvas, grid.rows, x0, y0, cell, colors, gap=gap)
    for row, label in enumerate(grid.row_labels):
        canvas.text(x0 - 6, y0 + (row + 0.5) * cell, label, colors.text, size=grid.label_size, align="right")
    for column, label in enumerate(grid.column_labels):
        canvas.upright_text(x0 + (column + 0.5) * cell, y0 - 6, label, colors.text, size=grid.label_size)
    if grid.more_columns:
        for row in range(len(grid.row_labels)):
            _dots(canvas, x1 - cell / 2, y0 + (row + 0.5) * cell, (cell / 4.5, 0), colors)
    if grid.more_rows:
        for column in range(len(grid.column_labels)):
            _dots(canvas, x0 + (column + 0.5) * cell, y1 - cell / 2, (0, cell / 4.5), colors)
    if grid.more_rows and grid.more_columns:
        _dots(canvas, x1 - cell / 2, y1 - cell / 2, (cell / 5, cell / 5), colors)
    canvas.text((x0 + x1) / 2, top + AXIS_ROOM / 2 - 4, "key", colors.muted, size=SMALL_SIZE, align="center")
    canvas.upright_text(left + AXIS_ROOM / 2 - 4, (y0 + y1) / 2, "query", colors.muted, size=SMALL_SIZE, align="center")


def draw_cells(
    canvas: Canvas,
    rows: Sequence[Sequence[bool]],
    left: float,
    top: float,
    cell: float,
    colors: Theme,
    *,
    gap: float = 1,
) -> None:
    """Draw the bare cells of a mask, True in a strong colour and False in a pale one."""
    for row, values in enumerate(rows):
        for column, keep in enumerate(values):
            x, y = left + column * cell, top + row * cell
            fill = colors.visible if keep else colors.hidden
            canvas.box(x + gap, y + gap, x + cell - gap, y + cell - gap, fill=fill, radius=cell / 9)


def draw_legend(canvas: Canvas, texts: Sequence[str], fills: Sequence[Color], colors: Theme) -> None:
    """Draw the legend of the cells' colours at the bottom of a canvas."""
    x, y = float(MARGIN), canvas.height - MARGIN - 7
    for text, fill in zip(texts, fills, strict=True):
        canvas.box(x, y - 7, x + 14, y + 7, fill=fill, outline=colors.line, radius=2)
        x += 22
        x += canvas.text(x, y, text, colors.muted, size=CAPTION_SIZE) + 24


def _dots(canvas: Canvas, x: float, y: float, step: tuple[float, float], colors: Theme) -> None:
    for number in (-1, 0, 1):
        canvas.dot(x + number * step[0], y + number * step[1], 1.4, colors.muted)


_LEGEND = ("may be attended", "hidden")
GAP = 56
"""Space between grids, in pixels."""


def draw_masks(
    masks: Sequence[tuple[str, Any]],
    labels: Sequence[str],
    *,
    visible: int | None = None,
) -> Image.Image:
    """Draw masks side by side; arguments, result and errors as in `draw_mask_rows`."""
    return draw_mask_rows([("", masks)], labels, visible=visible)


def draw_mask_rows(
    rows: Sequence[tuple[str, Sequence[tuple[str, Any]]]],
    labels: Sequence[str],
    *,
    visible: int | None = None,
    cell: int | None = None,
) -> Image.Image:
    """Draw rows of masks, each with a caption below.

    Args:
        rows: Caption of each row, and title and mask of each of its grids. A mask is bool ``[query or 1, key]``, True =
            may be attended, as a tensor, an array or nested lists; leading axes of size 1 are dropped.
        labels: One label per key, the same for all; for example from `figures.mask_labels`.
        visible: Number of first positions to draw; the rest is indicated by a row and a column of dots.
        cell: Size of a cell in pixels; None to choose by their number.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If masks, labels and numbers do not fit, or there are no masks.
    """
    colors = LIGHT
    if not rows or not all(masks for _, masks in rows):
        raise ValueError("there must be at least one mask in each row")
    grids = [[make_grid(mask, labels, visible=visible, cell=cell) for _, mask in masks] for _, masks in rows]
    heights = [_row_height(row, caption, masks) for row, (caption, masks) in zip(grids, rows, strict=True)]
    row_gap = MARGIN * 1.5
    content = max(sum(grid.width for grid in row) + GAP * (len(row) - 1) for row in grids)
    captions = max(text_width(caption, CAPTION_SIZE) for caption, _ in rows)
    width = max(content, captions, sum(46 + text_width(text, CAPTION_SIZE) for text in _LEGEND)) + 2 * MARGIN
    canvas = Canvas(width, sum(heights) + row_gap * (len(rows) - 1) + 2 * MARGIN + 34, colors.background)
    top = float(MARGIN)
    for row, height, (caption, masks) in zip(grids, heights, rows, strict=True):
        _draw_row(canvas, row, [title for title, _ in masks], top, colors)
        if caption:
            canvas.text(MARGIN, top + height - 10, caption, colors.muted, size=CAPTION_SIZE)
        top += height + row_gap
    draw_legend(canvas, _LEGEND, (colors.visible, colors.hidden), colors)
    return canvas.image()


def _row_height(grids: Sequence[Grid], caption: str, masks: Sequence[tuple[str, Any]]) -> float:
    titles = TITLE_SIZE + 14 if any(title for title, _ in masks) else 0
    return titles + max(grid.height for grid in grids) + (CAPTION_SIZE + 20 if caption else 0)


def _draw_row(canvas: Canvas, grids: Sequence[Grid], titles: Sequence[str], top: float, colors: Theme) -> None:
    left = float(MARGIN)
    grid_top = top + (TITLE_SIZE + 14 if any(titles) else 0)
    for grid, title in zip(grids, titles, strict=True):
        room = grid.width - grid.left
        text = shorten(title, grid.width, TITLE_SIZE - 3, bold=True)
        centre = left + grid.left + room / 2
        half = text_width(text, TITLE_SIZE - 3, bold=True) / 2
        centre = max(left + half, min(centre, left + grid.width - half))
        canvas.text(centre, top + TITLE_SIZE / 2, text, colors.text, size=TITLE_SIZE - 3, bold=True, align="center")
        draw_grid(canvas, grid, left, grid_top, colors)
        left += grid.width + GAP


SHOWN_PADDING = 3
"""PAD positions shown in the figure before its dots."""

SHOWN_ENCODINGS = 4
"""Maximum number of masks side by side."""

SHOWN_ROWS = 4
"""Maximum number of rows of masks, if phrases are bound: each has its own pass."""

SHOWN_POSITIONS = 150
"""Maximum number of positions drawn; dots stand for the others."""

MAX_CELLS = 8_000_000
"""Maximum area of all cells in a picture of encodings, in pixels: with more positions, they are smaller."""


def mask_labels(chunk: TokenChunk, text: str) -> list[str]:
    """Labels for the positions of a chunk. Tokens that share one text, such as the bytes of an emoji, are numbered.

    >>> from ...encoder.tokenizer import default_tokenizer
    >>> from ...weighting.options import EncodeOptions
    >>> from ...weighting.reading.prompt_reader import read_prompt
    >>> chunk = read_prompt("a (red:1.2) cat", EncodeOptions(), default_tokenizer()).chunks[0]
    >>> mask_labels(chunk, "a (red:1.2) cat")[:7]
    ['BOS', 'a', 'red', 'cat', 'EOS', 'PAD', 'PAD']
    """
    spans = [(token.span.start, token.span.end) if token.span else (0, 0) for token in chunk.content]
    return _labels(spans, text, len(chunk.tokens))


def draw_encoding_masks(parsed: ReadPrompt, variants: Iterable[Variant]) -> Image.Image:
    """Draw the attention masks of a prompt's first chunk in each of its encodings.

    Up to `SHOWN_ENCODINGS` are side by side; up to `SHOWN_ROWS` such rows if phrases are bound. Of each, at most
    `SHOWN_POSITIONS` rows and columns are drawn.
    """
    chunk, length = parsed.chunks[0], parsed.layout.length
    versions = versions_of_first(variants)
    limit = SHOWN_ENCODINGS * (SHOWN_ROWS if parsed.options.binds else 1)
    masks = [(version.title, variant_mask(version, length)[0]) for version in versions[:limit]]
    num_more = len(versions) - len(masks)
    caption = f"{num_more} more versions are not shown." if num_more else ""
    labels = mask_labels(chunk, parsed.prompt.source)
    visible = min(len(labels), chunk.num_content + 2 + SHOWN_PADDING, SHOWN_POSITIONS)
    side = math.isqrt(MAX_CELLS // len(masks)) // visible  # of a cell
    rows = [masks[first : first + SHOWN_ENCODINGS] for first in range(0, len(masks), SHOWN_ENCODINGS)]
    captioned = [(caption if row is rows[-1] else "", row) for row in rows]
    return draw_mask_rows(captioned, labels, visible=visible, cell=min(side, cell_size(visible)))


def _labels(spans: Sequence[tuple[int, int]], text: str, length: int) -> list[str]:
    """Labels: BOS, the text of each span, EOS, and PAD up to ``length``."""
    labels = ["BOS"]
    for (start, end), group in groupby(spans):
        count = len(list(group))
        name = " ".join(text[start:end].split()) or "?"
        labels += [name] if count == 1 else [f"{name} {number}/{count}" for number in range(1, count + 1)]
    labels.append("EOS")
    return labels + ["PAD"] * (length - len(labels))
