"""Attention masks as pictures: one cell for each query and key, labelled with the tokens.

True means "may be attended" and has the strong colour. Rows are queries, columns keys. The masks are made in
``encoder/masks.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from .canvas import Canvas, shorten
from .fonts import text_width
from .grid import CAPTION_SIZE, Grid, draw_grid, draw_legend, legend_width, make_grid
from .style import MARGIN, TITLE_SIZE, Theme, ThemeName, theme_named

_LEGEND = ("may be attended", "hidden")
SIGN_WIDTH = 56
"""Space for × and = between grids, in pixels."""


def draw_mask(
    mask: Any,
    labels: Sequence[str],
    *,
    title: str = "",
    caption: str = "",
    visible: int | None = None,
    cell: int | None = None,
    theme: ThemeName = "light",
) -> Image.Image:
    """Draw one attention mask; arguments, result and errors as in `draw_mask_rows`."""
    return draw_masks([(title, mask)], labels, caption=caption, visible=visible, cell=cell, theme=theme)


def draw_masks(
    masks: Sequence[tuple[str, Any]],
    labels: Sequence[str],
    *,
    signs: Sequence[str] = (),
    caption: str = "",
    visible: int | None = None,
    cell: int | None = None,
    theme: ThemeName = "light",
) -> Image.Image:
    """Draw masks side by side; arguments, result and errors as in `draw_mask_rows`."""
    return draw_mask_rows([(caption, masks)], labels, signs=signs, visible=visible, cell=cell, theme=theme)


def draw_mask_rows(
    rows: Sequence[tuple[str, Sequence[tuple[str, Any]]]],
    labels: Sequence[str],
    *,
    signs: Sequence[str] = (),
    visible: int | None = None,
    cell: int | None = None,
    theme: ThemeName = "light",
) -> Image.Image:
    """Draw rows of masks, each with a caption below.

    Args:
        rows: Caption of each row, and title and mask of each of its grids. A mask is bool ``[query or 1, key]``, True =
            may be attended, as a tensor, an array or nested lists; leading axes of size 1 are dropped.
        labels: One label per key, the same for all; for example from `figures.mask_labels`.
        signs: Signs between the masks of a row, such as ``("×", "=")``; missing ones are left empty.
        visible: Number of first positions to draw; the rest is indicated by a row and a column of dots.
        cell: Size of a cell in pixels; None to choose by their number.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If masks, labels and numbers do not fit, there are no masks or too many signs, or the theme is
            unknown.
    """
    colors = theme_named(theme)
    if not rows or any(not masks or len(signs) >= len(masks) for _, masks in rows):
        raise ValueError("there must be at least one mask in each row, and fewer signs than masks")
    grids = [[make_grid(mask, labels, visible=visible, cell=cell) for _, mask in masks] for _, masks in rows]
    heights = [_row_height(row, caption, masks) for row, (caption, masks) in zip(grids, rows, strict=True)]
    gap = MARGIN * 1.5
    content = max(sum(grid.width for grid in row) + SIGN_WIDTH * (len(row) - 1) for row in grids)
    captions = max(text_width(caption, CAPTION_SIZE) for caption, _ in rows)
    width = max(content, captions, legend_width(_LEGEND)) + 2 * MARGIN
    canvas = Canvas(width, sum(heights) + gap * (len(rows) - 1) + 2 * MARGIN + 34, colors.background)
    top = float(MARGIN)
    for row, height, (caption, masks) in zip(grids, heights, rows, strict=True):
        _draw_row(canvas, row, [title for title, _ in masks], signs, top, colors)
        if caption:
            canvas.text(MARGIN, top + height - 10, caption, colors.muted, size=CAPTION_SIZE)
        top += height + gap
    draw_legend(canvas, _LEGEND, (colors.visible, colors.hidden), colors)
    return canvas.image()


def _row_height(grids: Sequence[Grid], caption: str, masks: Sequence[tuple[str, Any]]) -> float:
    titles = TITLE_SIZE + 14 if any(title for title, _ in masks) else 0
    return titles + max(grid.height for grid in grids) + (CAPTION_SIZE + 20 if caption else 0)


def _draw_row(
    canvas: Canvas, grids: Sequence[Grid], titles: Sequence[str], signs: Sequence[str], top: float, colors: Theme
) -> None:
    left = float(MARGIN)
    grid_top = top + (TITLE_SIZE + 14 if any(titles) else 0)
    for number, (grid, title) in enumerate(zip(grids, titles, strict=True)):
        room = grid.width - grid.left
        text = shorten(title, grid.width, TITLE_SIZE - 3, bold=True)
        centre = left + grid.left + room / 2
        half = text_width(text, TITLE_SIZE - 3, bold=True) / 2
        centre = max(left + half, min(centre, left + grid.width - half))
        canvas.text(centre, top + TITLE_SIZE / 2, text, colors.text, size=TITLE_SIZE - 3, bold=True, align="center")
        draw_grid(canvas, grid, left, grid_top, colors)
        left += grid.width
        if number < len(signs):
            middle = grid_top + grid.top + (grid.height - grid.top) / 2
            canvas.text(left + SIGN_WIDTH / 2, middle, signs[number], colors.text, size=26, align="center")
        left += SIGN_WIDTH
