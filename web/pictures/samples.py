"""Captions with images drawn for each: one row per caption.

``dalle/`` makes the images.
"""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from .canvas import Canvas, shorten
from .style import MARGIN, SMALL_SIZE, ThemeName, theme_named
from .thumbnails import put_thumbnail

SIDE = 72
"""Side of an image, in pixels."""
GAP, CAPTION = 6, 22
MAX_IMAGES, MAX_ROWS = 16, 64


def draw_samples(
    rows: Sequence[tuple[str, Sequence[Image.Image]]],
    chosen: Sequence[Image.Image] | None = None,
    *,
    theme: ThemeName = "light",
) -> Image.Image:
    """Draw captions with their images.

    Args:
        rows: Captions, and up to 16 images of each. Up to 64 rows are drawn.
        chosen: One more image per row, separated at its end under the heading "best", or None.
        theme: ``light`` or ``dark``.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there is no row, or not one chosen image per row.
    """
    colors = theme_named(theme)
    if not rows or (chosen is not None and len(chosen) != len(rows)):
        raise ValueError(f"there must be rows and as many chosen images, got {len(rows)} rows")
    most = min(MAX_IMAGES, max(len(images) for _, images in rows))
    inner = most * (SIDE + GAP) - GAP
    width = 2 * MARGIN + inner + (0 if chosen is None else 3 * GAP + SIDE)
    rows = rows[:MAX_ROWS]
    canvas = Canvas(max(width, 320), 2 * MARGIN + len(rows) * (CAPTION + SIDE + 2 * GAP) - 2 * GAP, colors.background)
    tops = [MARGIN + number * (CAPTION + SIDE + 2 * GAP) + CAPTION for number in range(len(rows))]
    for (caption, _), top in zip(rows, tops, strict=True):
        text = shorten(caption, canvas.width - 2 * MARGIN - (0 if chosen is None else SIDE), SMALL_SIZE)
        canvas.text(MARGIN, top - CAPTION / 2, text, colors.text, size=SMALL_SIZE)
        if chosen is not None:
            canvas.text(MARGIN + inner + 3 * GAP, top - CAPTION / 2, "best", colors.muted, size=SMALL_SIZE)
    picture = canvas.image()
    for number, ((_, images), top) in enumerate(zip(rows, tops, strict=True)):
        for column, image in enumerate(images[:MAX_IMAGES]):
            put_thumbnail(picture, image, MARGIN + column * (SIDE + GAP), top, SIDE, colors)
        if chosen is not None:
            put_thumbnail(picture, chosen[number], MARGIN + inner + 3 * GAP, top, SIDE, colors)
    return picture
