"""Thumbnails, texts of a few lines beside them, and captions with images drawn for each."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from .canvas import Canvas, shorten, wrap
from .style import MARGIN, SMALL_SIZE, Theme, ThemeName, theme_named

NO_TEXT = "(empty text)"
TEXT_SIZE = 14.0
"""Size of texts and headings."""
NOTE_SIZE = 13.0
"""Size of explanations."""


def few_lines(text: str, width: float, size: float, max_lines: int) -> list[str]:
    """A text in a limited number of lines of a width in pixels, with an ellipsis if it was cut; never empty."""
    text = " ".join(text.split())
    if not text:
        return [NO_TEXT]
    limit = 200 * max_lines  # no line holds more characters
    lines = wrap(text[:limit], width, size)
    is_cut = len(lines) > max_lines or len(text) > limit
    lines = lines[:max_lines]
    if is_cut and not lines[-1].endswith("…"):
        lines[-1] = shorten(f"{lines[-1]} …", width, size)
    return lines


def put_thumbnail(canvas: Canvas, image: Image.Image, left: float, top: float, side: int, colors: Theme) -> None:
    """Paste an image of any size and mode into the middle of a square of a canvas, as large as fits.

    Transparent parts show the surface.
    """
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    has_alpha = image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info
    small = image.convert("RGBA" if has_alpha else "RGB")
    small = small.reduce(max(1, int(0.4 / scale))) if scale < 0.4 else small
    small = small.resize(size, Image.Resampling.BICUBIC)
    square = Image.new("RGB", (side, side), colors.surface)
    place = ((side - size[0]) // 2, (side - size[1]) // 2)
    square.paste(small, place, small if has_alpha else None)
    canvas.paste(square, left, top)


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
    for number, (caption, images) in enumerate(rows):
        top = MARGIN + number * (CAPTION + SIDE + 2 * GAP) + CAPTION
        text = shorten(caption, canvas.width - 2 * MARGIN - (0 if chosen is None else SIDE), SMALL_SIZE)
        canvas.text(MARGIN, top - CAPTION / 2, text, colors.text, size=SMALL_SIZE)
        for column, image in enumerate(images[:MAX_IMAGES]):
            put_thumbnail(canvas, image, MARGIN + column * (SIDE + GAP), top, SIDE, colors)
        if chosen is not None:
            left = MARGIN + inner + 3 * GAP
            canvas.text(left, top - CAPTION / 2, "best", colors.muted, size=SMALL_SIZE)
            put_thumbnail(canvas, chosen[number], left, top, SIDE, colors)
    return canvas.image()
