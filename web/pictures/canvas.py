"""Drawing surface with smooth edges: everything is drawn at twice its size and then halved.

Pillow does not antialias shapes. Coordinates are in pixels of the finished picture.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from PIL import Image, ImageDraw

from .fonts import draw_run, run_width, runs, text_width
from .style import FONT_SIZE, Color

MAX_SMOOTH_AREA = 12_000_000
"""Area of the finished picture, in pixels, above which it is drawn at its own size, to keep memory below 150 MB."""

_CENTRE = 0.36  # from a line of text's centre to its baseline, in font sizes


class Canvas:
    """An image under construction, with its size in pixels."""

    def __init__(self, width: float, height: float, background: Color) -> None:
        self.width, self.height = math.ceil(width), math.ceil(height)
        self._scale = 2 if self.width * self.height <= MAX_SMOOTH_AREA else 1
        self._image = Image.new("RGB", (self.width * self._scale, self.height * self._scale), background)
        self._draw = ImageDraw.Draw(self._image)
        self._pasted: list[tuple[Image.Image, tuple[int, int]]] = []

    def box(
        self,
        left: float,
        top: float,
        right: float,
        bottom: float,
        *,
        fill: Color | None = None,
        outline: Color | None = None,
        line_width: float = 1,
        radius: float = 0,
        corners: tuple[bool, bool, bool, bool] = (True, True, True, True),
    ) -> None:
        """Draw a rectangle; right and bottom are exclusive, corners are rounded ones clockwise from the top left."""
        x0, y0, x1, y1 = (round(value * self._scale) for value in (left, top, right, bottom))
        if x1 <= x0 or y1 <= y0:
            return
        self._draw.rounded_rectangle(
            (x0, y0, x1 - 1, y1 - 1),
            radius=max(0, min(round(radius * self._scale), (min(x1 - x0, y1 - y0) - 3) // 2)),  # for Pillow 9.5
            fill=fill,
            outline=outline,
            width=max(1, round(line_width * self._scale)) if outline else 0,
            corners=corners,
        )

    def bar(self, left: float, y: float, width: float, share: float, fill: Color, track: Color) -> None:
        """Draw a thin bar around a height, of which a share from 0 to 1 is filled."""
        self.box(left, y - 3, left + width, y + 3, fill=track, radius=3)
        if share > 0:
            self.box(left, y - 3, left + max(6.0, width * share), y + 3, fill=fill, radius=3)

    def line(self, points: Sequence[tuple[float, float]], fill: Color, *, width: float = 1.5) -> None:
        """Draw a line through points."""
        scaled = [(x * self._scale, y * self._scale) for x, y in points]
        self._draw.line(scaled, fill=fill, width=max(1, round(width * self._scale)), joint="curve")

    def dot(self, x: float, y: float, radius: float, fill: Color, *, outline: Color | None = None) -> None:
        """Draw a disc around a point."""
        left, top, right, bottom = (v * self._scale for v in (x - radius, y - radius, x + radius, y + radius))
        width = round(1.5 * self._scale) if outline else 0
        self._draw.ellipse((left, top, right, bottom), fill=fill, outline=outline, width=width)

    def wave(self, left: float, right: float, y: float, fill: Color) -> None:
        """Draw a wavy line, as spelling checkers do."""
        steps = max(2, round((right - left) * 2))
        points = [left + (right - left) * i / steps for i in range(steps + 1)]
        self.line([(x, y + 1.6 * math.sin((x - left) * math.pi / 3)) for x in points], fill, width=1.4)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        fill: Color,
        *,
        size: float = FONT_SIZE,
        bold: bool = False,
        align: str = "left",
    ) -> float:
        """Draw one line of text and return its width.

        ``x`` is its left end, centre or right end, depending on ``align``: ``left``, ``center`` or ``right``. ``y`` is
        the vertical centre of its letters.
        """
        width = text_width(text, size, bold=bold)
        x -= {"left": 0.0, "center": width / 2, "right": width}[align]
        scale, left = self._scale, x
        for run in runs(text, bold=bold):
            draw_run(self._image, run, left * scale, round((y + _CENTRE * size) * scale), size * scale, fill)
            left += run_width(run, size)
        return width

    def lines(
        self,
        x: float,
        y: float,
        lines: Iterable[str],
        fill: Color,
        *,
        step: float,
        size: float,
        bold: bool = False,
        align: str = "left",
    ) -> None:
        """Draw lines of text, each ``step`` below the previous one; otherwise as `text`."""
        for number, line in enumerate(lines):
            self.text(x, y + number * step, line, fill, size=size, bold=bold, align=align)

    def upright_text(
        self, x: float, y: float, text: str, fill: Color, *, size: float = FONT_SIZE, align: str = "left"
    ) -> None:
        """Draw one line of text rotated to read upwards.

        ``x`` is the centre of its letters, ``y`` its start or centre, depending on ``align``: ``left`` or ``center``.
        """
        scale, width = self._scale, text_width(text, size)
        bottom = y + width / 2 if align == "center" else y
        height = round(size * 1.6 * scale)
        stencil = Image.new("L", (max(1, math.ceil(width * scale)), height), 0)
        left, baseline = 0.0, round(height / 2 + _CENTRE * size * scale)
        for run in runs(text):
            draw_run(stencil, run, left, baseline, size * scale, 255)
            left += run_width(run, size) * scale
        stencil = stencil.transpose(Image.Transpose.ROTATE_90)
        self._image.paste(fill, (round(x * scale - height / 2), round(bottom * scale) - stencil.height), stencil)

    def paste(self, image: Image.Image, left: float, top: float) -> None:
        """Put an image of its own size above everything drawn, before or after."""
        self._pasted.append((image, (round(left), round(top))))

    def image(self) -> Image.Image:
        """The finished picture."""
        picture = self._image.reduce(self._scale) if self._scale > 1 else self._image
        for image, place in self._pasted:
            picture.paste(image, place)
        return picture


def shorten(text: str, width: float, size: float, *, bold: bool = False) -> str:
    """The text, or as much of its beginning as fits a width in pixels at a font size, followed by ``…``."""
    text = text if len(text) <= 4096 else text[:4096] + "…"  # measuring takes time
    width += 0.01  # sums of the same widths differ in their last digits
    if text_width(text, size, bold=bold) <= width:
        return text
    fitting = bisect_right(range(1, len(text) + 1), width, key=lambda n: text_width(text[:n] + "…", size, bold=bold))
    return text[:fitting] + "…"


def shorten_start(text: str, width: float, size: float) -> str:
    """Same as `shorten`, for names of generated files, which differ at their ends: keeps the end."""
    return shorten(text[::-1], width, size)[::-1]


def wrap(text: str, width: float, size: float) -> list[str]:
    """Break a text into lines, at least one, that fit a width in pixels at a font size; between words if possible."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if text_width(joined, size) <= width:
            lines[-1] = joined
        else:
            if lines[-1]:
                lines.append("")
            lines[-1] = shorten(word, width, size)
    return lines
