"""Parts shared by pictures of texts and images: thumbnails, and texts of a few lines."""

from __future__ import annotations

from PIL import Image

from .canvas import shorten, wrap
from .style import Theme

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


def put_thumbnail(picture: Image.Image, image: Image.Image, left: float, top: float, side: int, colors: Theme) -> None:
    """Paste an image of any size and mode into the middle of a square of a picture, as large as fits.

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
    picture.paste(square, (round(left), round(top)))
