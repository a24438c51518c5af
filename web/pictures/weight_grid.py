"""Grid of pictures of one prompt: a column for each weight, a row for each seed, a block of rows for each scheme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from PIL import Image

from ...weighting.reading.sweep import Swept
from ...weighting.text.prompt import shortened
from .canvas import Canvas
from .fonts import text_width
from .sheets import few_lines
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
    """Draw a grid of pictures of one size.

    Args:
        title: Title above it, such as the prompt.
        weights: Names of the columns.
        blocks: Rows of pictures, one for each column, by scheme.
        side: Width of a picture, in pixels; its height follows the first picture's.
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
    high = max(1, round(side * rows[0][0].height / rows[0][0].width))
    left = MARGIN + max(text_width(name, FONT_SIZE, bold=True) for name in blocks) + 2 * GAP
    width = left + len(weights) * (side + GAP) - GAP + MARGIN
    lines = few_lines(title, width - 2 * MARGIN, TITLE_SIZE, 3)
    top = MARGIN + TITLE_SIZE * (0.6 + 1.4 * len(lines)) + SMALL_SIZE * 2
    height = top + len(rows) * (high + GAP) + (len(blocks) - 1) * _BLOCK_GAP - GAP + MARGIN
    canvas = Canvas(width, height, colors.background)
    for number, line in enumerate(lines):
        canvas.text(MARGIN, MARGIN + TITLE_SIZE * (0.5 + 1.4 * number), line, colors.text, size=TITLE_SIZE)
    for column, weight in enumerate(weights):
        canvas.text(left + column * (side + GAP) + side / 2, top - SMALL_SIZE, weight, colors.muted, align="center")
    y = top
    for name, block in blocks.items():
        canvas.text(MARGIN, y + (len(block) * (high + GAP) - GAP) / 2, name, colors.text, bold=True)
        for row in block:
            for column, image in enumerate(row):
                way = Image.Resampling.NEAREST if image.width <= side else Image.Resampling.LANCZOS
                canvas.paste(image.convert("RGB").resize((side, high), way), left + column * (side + GAP), y)
            y += high + GAP
        y += _BLOCK_GAP
    return canvas.image()


def draw_sweep(
    swept: Swept, pictures: Sequence[Sequence[Image.Image]], *, side: int = SIDE, theme: ThemeName = "light"
) -> Image.Image:
    """Draw the pictures of a prompt at all values: the first words' go across, others' and those of a batch down.

    Args:
        swept: The prompt.
        pictures: As many for each of its texts.
        side: Width of a picture, in pixels.
        theme: ``light`` or ``dark``.
    """
    first, *others = swept.sweeps
    labels = others[0].labels if others else (shortened(first.words, 24),)
    blocks = {label: list(zip(*pictures[row :: len(labels)], strict=True)) for row, label in enumerate(labels)}
    ways = f" — across: {first.words}, down: {others[0].words}" if others else ""
    return draw_weight_grid(f"{swept.source}{ways}", first.values, blocks, side=side, theme=theme)
