"""Colours and sizes of every picture: the one place to change their look.

Independent of fonts and of the content. Sizes are pixels of the finished picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ...encoder.quoting import checked

Color = tuple[int, int, int]
"""Red, green and blue from 0 to 255."""

ThemeName = Literal["dark", "light"]

MIN_CONTRAST = 4.5
"""Contrast ratio that WCAG 2.1 level AA requires for text."""


@dataclass(frozen=True)
class Theme:
    """The colours of one theme. Every text colour has at least `MIN_CONTRAST` on ``background``."""

    background: Color
    """Colour behind everything."""
    surface: Color
    """Boxes and plain chips."""
    line: Color
    """Borders, grid lines, the empty part of the meter."""
    text: Color
    """Important text."""
    muted: Color
    """Explanatory text."""
    up: Color
    """Chips of weights far above 1."""
    down: Color
    """Chips of weights far below 1."""
    negative: Color
    """Chips of weights far below 0."""
    problem: Color
    """Text of problems."""
    wave: Color
    """The wavy line under a problem."""
    accent: Color
    """The filled part of the meter."""
    visible: Color
    """Mask cells that may be attended."""
    hidden: Color
    """Mask cells that may not."""


DARK = Theme(
    background=(42, 44, 49),
    surface=(58, 61, 67),
    line=(80, 84, 92),
    text=(231, 233, 237),
    muted=(172, 176, 185),
    up=(178, 76, 26),
    down=(40, 108, 198),
    negative=(134, 70, 200),
    problem=(255, 148, 148),
    wave=(255, 77, 109),
    accent=(122, 178, 176),
    visible=(86, 168, 166),
    hidden=(56, 59, 66),
)
LIGHT = Theme(
    background=(250, 250, 252),
    surface=(234, 236, 241),
    line=(205, 209, 218),
    text=(35, 38, 43),
    muted=(91, 96, 106),
    up=(240, 130, 76),
    down=(86, 156, 240),
    negative=(182, 134, 236),
    problem=(176, 16, 44),
    wave=(226, 32, 74),
    accent=(42, 122, 120),
    visible=(46, 125, 123),
    hidden=(231, 234, 240),
)
THEMES: dict[str, Theme] = {"dark": DARK, "light": LIGHT}

FONT_SIZE = 17
"""Size of text in chips, boxes and messages."""
SMALL_SIZE = 12.5
"""Size of weights on chips, footers, shapes."""
TITLE_SIZE = 19
"""Size of headings."""
MARGIN = 22
"""Free border of every picture."""
LINE_HEIGHT = 1.45
"""Distance of text lines, in font sizes."""

CHIP_HEIGHT = 34
CHIP_PADDING = 9
"""Distance from a chip's end to its text."""
SEAM_PADDING = 4
"""The same at the seam between tokens of one word."""
CHIP_GAP = 4
"""Gap between words."""
CHIP_RADIUS = 6
ROW_GAP = 8
"""Gap between rows of chips: room for the wavy line."""
MAX_CHIP_TEXT = 300
"""Maximum length of a token's text; longer ones are cut with an ellipsis."""


def theme_named(name: str) -> Theme:
    """Theme of that name; a ValueError if there is none."""
    return THEMES[checked("theme", name, THEMES)]


def mix(first: Color, second: Color, share: float) -> Color:
    """Mix a share, from 0 to 1, of the second color into the first.

    >>> mix((0, 0, 0), (100, 200, 50), 0.5)
    (50, 100, 25)
    """
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(first, second, strict=True))
    return red, green, blue


def contrast(first: Color, second: Color) -> float:
    """Contrast ratio of two colours by WCAG 2.1, from 1 to 21.

    >>> round(contrast((0, 0, 0), (255, 255, 255)), 1)
    21.0
    """
    darker, lighter = sorted((_luminance(first), _luminance(second)))
    return (lighter + 0.05) / (darker + 0.05)


def readable(background: Color, *candidates: Color) -> Color:
    """First wanted colour that is readable on a background, else white or near-black, whichever is better."""
    for color in candidates:
        if contrast(background, color) >= MIN_CONTRAST:
            return color
    return max(((255, 255, 255), (12, 13, 15)), key=lambda color: contrast(background, color))


def weight_color(weight: float, theme: Theme) -> Color:
    """Colour of a chip: plain at 1, warmer above, cooler below, violet below 0.

    The further a weight is from 1 (a negative one: from 0), the closer it is to the theme's full colour.
    """
    if math.isnan(weight) or weight == 1.0:
        return theme.surface
    if weight < 0:
        return mix(theme.surface, theme.negative, 0.45 + 0.55 * _share(abs(weight)))
    return mix(theme.surface, theme.up if weight > 1 else theme.down, _share(abs(weight - 1)))


def _share(distance: float) -> float:
    """Share of the full colour: 0 at distance 0, 0.2 at 0.1, 0.68 at 0.5, 0.9 at 1, approaching 1."""
    return 1 - math.exp(-2.3 * distance)


def _luminance(color: Color) -> float:
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (channel / 255 for channel in color)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
