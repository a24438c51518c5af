"""Draw the icon and the banner for the page in the Comfy Registry: `docs/images/icon.png` and `docs/images/banner.png`.

    python workshop/make_icon.py

pyproject.toml names their addresses. The registry accepts icons up to 800 × 400 pixels, and banners of 21:9.
"""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
runpy.run_path(str(ROOT / "__main__.py"))["load_package"]()

from weighted_clip.web.pictures.canvas import Canvas  # noqa: E402 - loaded above
from weighted_clip.web.pictures.fonts import text_width  # noqa: E402
from weighted_clip.web.pictures.style import DARK, Color, mix, readable  # noqa: E402

UP, DOWN, GONE = DARK.up, DARK.down, mix(DARK.down, DARK.background, 0.72)
ICON = ((("a", None), ("red", UP)), (("cat", None), ("and", None)), (("a", None), ("dog", DOWN)), (("fence", GONE),))
BANNER = (
    (("a", None), ("red 1.4", UP), ("cat", None), ("and", None), ("a", None), ("dog 0.5", DOWN)),
    (("on", None), ("a", None), ("sofa", None), ("fence 0", GONE)),
)
"""Rows of words with the colours of their chips; None for plain ones."""
Rows = tuple[tuple[tuple[str, Color | None], ...], ...]


def chips(canvas: Canvas, rows: Rows, top: float, size: float) -> None:
    """Draw rows of chips, each centred on the canvas, with letters of that size."""
    pad, gap, height = size * 0.55, size * 0.3, size * 1.9
    for number, row in enumerate(rows):
        widths = [text_width(word, size, bold=True) + 2 * pad for word, _ in row]
        left = (canvas.width - sum(widths) - gap * (len(row) - 1)) / 2
        y = top + number * (height + gap)
        for (word, color), width in zip(row, widths, strict=True):
            fill = color or DARK.surface
            canvas.box(left, y, left + width, y + height, fill=fill, outline=DARK.line, radius=size * 0.4)
            letters = mix(DARK.text, fill, 0.45) if color == GONE else readable(fill, DARK.text)
            canvas.text(left + pad, y + height / 2, word, letters, size=size, bold=True)
            left += width + gap


def icon() -> Canvas:
    """Four rows of words: plain, above 1, below 1, gone."""
    canvas = Canvas(400, 400, DARK.background)
    size = 40
    chips(canvas, ICON, (400 - size * (4 * 1.9 + 3 * 0.3)) / 2, size)
    return canvas


def banner() -> Canvas:
    """The name, and a prompt as in the ruler."""
    canvas = Canvas(1260, 540, DARK.background)
    canvas.text(630, 120, "Weighted CLIP", DARK.text, size=84, bold=True, align="center")
    canvas.text(630, 200, "prompt weights, exact and visible", DARK.muted, size=32, align="center")
    chips(canvas, BANNER, 280, 46)
    return canvas


if __name__ == "__main__":
    for name, canvas in (("icon", icon()), ("banner", banner())):
        canvas.image().quantize(64, kmeans=2).save(ROOT / "docs" / "images" / f"{name}.png", optimize=True)
