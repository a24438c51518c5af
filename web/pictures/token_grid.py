"""An image with the grid of its tokens and their numbers.

``studio/dalle/`` makes the tokens.
"""

from __future__ import annotations

import colorsys
from collections.abc import Collection, Sequence

from PIL import Image

from .canvas import Canvas
from .style import LIGHT, Color, Theme, readable

MAX_NUMBERED = 64
"""Maximum number of tokens along a side that are numbered."""
GRID_SIDE = 768
"""Approximate minimum length of the longer side of a small grid, in pixels."""
MIN_CELL, MAX_CELL = 38, 72
"""Side of a cell with a number, in pixels."""
MAX_PLAIN_SIDE = 2048
"""Approximate length of the longer side of a grid without numbers, in pixels; a cell has at least 4."""
LEFT, TOP, BORDER = 34, 24, 8
LABEL_SIZE = 12.0


def cell_side(rows: int, columns: int) -> int:
    """Side of one cell of a grid, in pixels."""
    longer = max(rows, columns)
    if longer > MAX_NUMBERED:
        return max(4, MAX_PLAIN_SIDE // longer)
    return min(MAX_CELL, max(MIN_CELL, GRID_SIDE // longer))


def cell_at(x: float, y: float, rows: int, columns: int) -> tuple[int, int] | None:
    """Row and column, from 1, of the cell at a pixel of the picture; None outside the grid."""
    side = cell_side(rows, columns)
    row, column = int((y - TOP) // side) + 1, int((x - LEFT) // side) + 1
    return (row, column) if 1 <= row <= rows and 1 <= column <= columns else None


def draw_token_grid(
    image: Image.Image,
    ids: Sequence[Sequence[int]],
    *,
    marked: Collection[tuple[int, int]] = (),
) -> Image.Image:
    """Draw an image divided into its tokens. Each has its number below, on its own colour.

    The same number always has the same colour; up to 64 tokens along a side are numbered. Rows and columns are numbered
    at the edges.

    Args:
        image: Image of the tokens, stretched over the grid.
        ids: Numbers of the tokens, row by row.
        marked: Rows and columns, from 1, of tokens with a frame.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If the grid is empty, or its rows have different lengths.
    """
    colors = LIGHT
    rows, columns = len(ids), len(ids[0]) if ids else 0
    if not columns or any(len(row) != columns for row in ids):
        raise ValueError(f"a grid has rows of one length, got {[len(row) for row in ids][:10]}")
    side, is_numbered = cell_side(rows, columns), max(rows, columns) <= MAX_NUMBERED
    plate = round(0.2 * side) + 7 if is_numbered else 0
    canvas = Canvas(LEFT + columns * side + BORDER, TOP + rows * side + BORDER, colors.background)
    step = 1 if side >= 24 else 10
    for column in range(step, columns + 1, step):
        canvas.text(LEFT + (column - 0.5) * side, TOP / 2, str(column), colors.muted, size=LABEL_SIZE, align="center")
    for row in range(step, rows + 1, step):
        canvas.text(LEFT - 6, TOP + (row - 0.5) * side, str(row), colors.muted, size=LABEL_SIZE, align="right")
    picture = canvas.image()
    stretched = image.convert("RGB").resize((columns * side, rows * side), Image.Resampling.BICUBIC)
    line = 1 if side >= 8 else 0
    plates: dict[int, Image.Image] = {}
    for top, numbers in enumerate(ids):
        for left, number in enumerate(numbers):
            x, y = left * side, top * side
            part = stretched.crop((x, y, x + side - line, y + side - line - plate))
            picture.paste(part, (LEFT + x, TOP + y))
            if is_numbered:
                if number not in plates:
                    plates[number] = _plate(number, side - line, plate, colors)
                picture.paste(plates[number], (LEFT + x, TOP + y + side - line - plate))
    for row, column in marked:
        _frame(picture, LEFT + (column - 1) * side, TOP + (row - 1) * side, side, colors.wave)
    return picture


def token_color(number: int) -> Color:
    """Light colour for a token number; neighbouring numbers have very different colours."""
    red, green, blue = colorsys.hls_to_rgb(number * 0.618034 % 1, 0.76, 0.65)
    return round(255 * red), round(255 * green), round(255 * blue)


def _plate(number: int, width: int, height: int, colors: Theme) -> Image.Image:
    color = token_color(number)
    canvas = Canvas(width, height, color)
    size = min(14.0, 0.3 * width)
    canvas.text(width / 2, height / 2, str(number), readable(color, colors.text), size=size, align="center")
    return canvas.image()


def _frame(picture: Image.Image, x: int, y: int, side: int, color: Color) -> None:
    width = max(2, side // 12)
    for box in (
        (x - width, y - width, x + side + width - 1, y),
        (x - width, y + side - 1, x + side + width - 1, y + side + width - 1),
        (x - width, y, x, y + side),
        (x + side - 1, y, x + side + width - 1, y + side),
    ):
        picture.paste(color, box)
