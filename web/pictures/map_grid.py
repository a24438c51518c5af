"""Word maps: where in a picture each word was read, as a grid of tiles with titles, and over the picture."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from PIL import Image

from .canvas import Canvas, shorten
from .style import DARK, FONT_SIZE, MARGIN, SMALL_SIZE

SIDE, GAP, TITLE_ROOM = 160, 10, 26
"""Longer side of a tile, space between two, and room for a title, in pixels."""
MAX_COLUMNS = 6
HEAT = (
    (0.0, (8, 10, 28)),
    (0.35, (96, 30, 120)),
    (0.65, (222, 86, 70)),
    (0.85, (252, 176, 74)),
    (1.0, (252, 246, 200)),
)
"""Colours of a map, dark to light, by its value."""
GREY = 0.35
"""Brightness of a picture where a map over it is 0."""


def draw_heat(values: np.ndarray, picture: Image.Image | None = None) -> Image.Image:
    """Draw a map, alone or over its picture.

    Args:
        values: ``[height, width]``, 0 to 1.
        picture: Picture of any size, which is seen in grey where the map is low and in colour where it is high.

    Returns:
        RGB, of the size of the map.
    """
    values = np.clip(np.nan_to_num(values), 0, 1)
    if picture is not None:
        colors = np.asarray(picture.convert("RGB").resize(values.shape[::-1]), dtype=np.float32)
        grey = np.asarray(picture.convert("L").resize(values.shape[::-1]), dtype=np.float32)[..., None] * GREY
        return Image.fromarray((grey + (colors - grey) * values[..., None]).round().astype(np.uint8))
    stops = [stop for stop, _ in HEAT]
    parts = [np.interp(values, stops, [color[part] for _, color in HEAT]) for part in range(3)]
    return Image.fromarray(np.stack(parts, -1).round().astype(np.uint8))


def tile_size(height: int, width: int) -> tuple[int, int]:
    """Height and width of a map of some size in the grid."""
    scale = SIDE / max(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def draw_word_maps(
    maps: Iterable[tuple[str, np.ndarray]], note: str, picture: Image.Image | None = None
) -> Image.Image:
    """Draw the maps of words, each with its title.

    Args:
        maps: Words and values, ``[height, width]`` from 0 to 1, all of one size.
        note: Line below, such as what the scale is.
        picture: The picture itself, drawn first.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there is no map.
    """
    tiles: list[tuple[str, Image.Image]] = []
    size = 1, 1
    for title, values in maps:  # one at a time, as they may be large
        height, width = tile_size(*values.shape)
        size = width, height
        tiles.append((title, draw_heat(values).resize(size)))
    if not tiles:
        raise ValueError("there must be a map to draw")
    if picture is not None:
        tiles.insert(0, ("the picture", picture.convert("RGB").resize(size)))
    columns = min(len(tiles), max(3, min(MAX_COLUMNS, math.ceil(math.sqrt(len(tiles))))))
    step = size[0] + GAP, size[1] + TITLE_ROOM + GAP
    rows = math.ceil(len(tiles) / columns)
    canvas = Canvas(
        max(2 * MARGIN + columns * step[0] - GAP, 420), 2 * MARGIN + rows * step[1] + SMALL_SIZE * 2, DARK.background
    )
    for number, (title, tile) in enumerate(tiles):
        left, top = MARGIN + number % columns * step[0], MARGIN + number // columns * step[1]
        label = shorten(" ".join(title.split()), size[0], FONT_SIZE)
        canvas.text(left, top + TITLE_ROOM / 2, label, DARK.text, size=FONT_SIZE)
        canvas.paste(tile, left, top + TITLE_ROOM)
    canvas.text(MARGIN, MARGIN + rows * step[1] + SMALL_SIZE, note, DARK.muted, size=SMALL_SIZE)
    return canvas.image()
