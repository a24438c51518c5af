"""Grid of pictures of one prompt: a column for each weight, a row for each seed, a block of rows for each scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PIL import Image

from .canvas import Canvas
from .fonts import text_width
from .style import FONT_SIZE, MARGIN, SMALL_SIZE, TITLE_SIZE, ThemeName, theme_named

SIDE, GAP = 64, 4
"""Usual side of a picture and space between two, in pixels."""
_BLOCK_GAP = 14


def draw_weight_grid(
    title: str,
    weights: Sequence[str],
    blocks: Mapping[str, Sequence[Sequence[Image.Image]]],
    *,
    side: int = SIDE,
    theme: ThemeName = "light",
) -> Image.Image:
    """Draw a grid of square pictures.

    Args:
        title: Title above it, such as the prompt.
        weights: Names of the columns.
        blocks: Rows of pictures, one for each column, by scheme.
        side: Side of a picture, in pixels.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there is no row, or one has not a picture for each column.
    """
    rows = [row for block in blocks.values() for row in block]
    if not rows or any(len(row) != len(weights) for row in rows):
        raise ValueError(f"each row must have {len(weights)} pictures, got {[len(row) for row in rows]}")
    colors = theme_named(theme)
    left = MARGIN + max(text_width(name, FONT_SIZE, bold=True) for name in blocks) + 2 * GAP
    top = MARGIN + TITLE_SIZE * 2 + SMALL_SIZE * 2
    step = side + GAP
    canvas = Canvas(
        left + len(weights) * step - GAP + MARGIN,
        top + len(rows) * step + (len(blocks) - 1) * _BLOCK_GAP - GAP + MARGIN,
        colors.background,
    )
    canvas.text(MARGIN, MARGIN + TITLE_SIZE / 2, title, colors.text, size=TITLE_SIZE)
    for column, weight in enumerate(weights):
        canvas.text(left + column * step + side / 2, top - SMALL_SIZE, weight, colors.muted, align="center")
    y = top
    for name, block in blocks.items():
        canvas.text(MARGIN, y + (len(block) * step - GAP) / 2, name, colors.text, bold=True)
        for row in block:
            for column, image in enumerate(row):
                way = Image.Resampling.NEAREST if image.width <= side else Image.Resampling.LANCZOS
                canvas.paste(image.convert("RGB").resize((side, side), way), left + column * step, y)
            y += step
        y += _BLOCK_GAP
    return canvas.image()
