"""Chart of curves: numbers that change with steps, such as a loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from PIL import Image

from .canvas import Canvas, shorten
from .fonts import text_width
from .style import MARGIN, SMALL_SIZE, THEMES, TITLE_SIZE, ThemeName

WIDTH, HEIGHT = 720, 360
MAX_POINTS = 2000
"""Maximum number of points in a curve; more are averaged with their neighbours."""
_LEFT, _TOP, _BOTTOM = 74, 98, 48
_NUM_LINES = 4
_COLUMNS = 3  # of names


def draw_curves(
    title: str,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    across: str = "step",
    top: float | None = None,
    theme: ThemeName = "dark",
) -> Image.Image:
    """Draw curves in one chart: from 0 to ``top`` if it is given, else over what the numbers span.

    Args:
        title: Title above it.
        curves: Points of each curve by name, in the order of x; points that are not finite are left out.
        across: Meaning of x.
        top: Upper end of the chart, whose lower end is 0; None for the lowest and highest number.
        theme: Colours.

    Returns:
        The picture, RGB.

    Raises:
        ValueError: If there is no point to draw.
    """
    colors = THEMES[theme]
    hues = (colors.accent, colors.up, colors.down, colors.problem, colors.muted, colors.text)
    finite = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)] for name, points in curves.items()
    }
    drawn = {name: _thinned(points) for name, points in finite.items() if points}
    if not drawn:
        raise ValueError(f"{title}: there is nothing to draw")
    xs = [x for points in drawn.values() for x, _ in points]
    low, high = min(xs), max(xs)
    ys = [y for points in drawn.values() for _, y in points]
    floor, ceiling = _ends(min(ys), max(ys)) if top is None else (0.0, top)
    canvas = Canvas(WIDTH, HEIGHT, colors.background)
    canvas.text(MARGIN, MARGIN + 8, shorten(title, WIDTH - 2 * MARGIN, TITLE_SIZE), colors.text, size=TITLE_SIZE)
    column = (WIDTH - 2 * MARGIN) / _COLUMNS
    for number, (name, hue) in enumerate(zip(drawn, hues, strict=False)):
        x, y = MARGIN + number % _COLUMNS * column, 56 + number // _COLUMNS * 20
        canvas.line([(x, y), (x + 18, y)], hue, width=3)
        canvas.text(x + 24, y, shorten(name, column - 30, SMALL_SIZE), colors.muted, size=SMALL_SIZE)
    right, bottom = WIDTH - MARGIN, HEIGHT - _BOTTOM
    for number in range(_NUM_LINES + 1):
        y = bottom - (bottom - _TOP) * number / _NUM_LINES
        canvas.line([(_LEFT, y), (right, y)], colors.line, width=1)
        value = floor + (ceiling - floor) * number / _NUM_LINES
        label = f"{round(value, 3 - math.floor(math.log10(ceiling - floor))):.10g}"
        canvas.text(_LEFT - 8, y, label, colors.muted, size=SMALL_SIZE, align="right")
    canvas.text(_LEFT, bottom + 18, f"{low:,.6g}", colors.muted, size=SMALL_SIZE)
    last = f"{across} {high:,.6g}"
    canvas.text(right - text_width(last, SMALL_SIZE), bottom + 18, last, colors.muted, size=SMALL_SIZE)

    def at(point: tuple[float, float]) -> tuple[float, float]:
        share = (point[0] - low) / (high - low) if high > low else 0.5
        height = min(1.0, max(0.0, (point[1] - floor) / (ceiling - floor)))
        return _LEFT + share * (right - _LEFT), bottom - height * (bottom - _TOP)

    for points, hue in zip(drawn.values(), hues, strict=False):
        places = [at(point) for point in points]
        if len(places) > 1:
            canvas.line(places, hue, width=2)
        if len(places) <= 30:
            for place in places:
                canvas.dot(*place, 2.5, hue)
    return canvas.image()


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most `MAX_POINTS` points, each the mean of its neighbours."""
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.5)
"""Distances of two lines across a chart, times a power of ten."""


def _ends(lowest: float, highest: float) -> tuple[float, float]:
    """Ends of an axis, round numbers close around all values; 0 is one of them if it is near.

    >>> _ends(0.0, 3.4), _ends(3.11, 3.47), _ends(-1.0, 1.0), _ends(2.0, 2.0), _ends(0.0, 0.0)
    ((0.0, 4.0), (3.1, 3.5), (-1.0, 1.0), (0.0, 2.0), (0.0, 1.0))
    """
    is_level = highest - lowest <= 1e-9 * max(abs(lowest), abs(highest))
    if lowest >= 0 and (lowest <= highest / 2 or is_level):
        lowest = 0.0
    elif highest <= 0 and (highest >= lowest / 2 or is_level):
        highest = 0.0
    span = highest - lowest or 1.0
    power = 10.0 ** math.floor(math.log10(span / _NUM_LINES))
    for step in (power * larger * step for larger in (1, 10) for step in _STEPS):
        floor = math.floor(lowest / step + 1e-6) * step
        ceiling = floor + _NUM_LINES * step
        if ceiling >= lowest + span - 1e-6 * step:
            digits = 2 - math.floor(math.log10(step))
            return round(floor, digits), round(ceiling, digits)
    raise AssertionError
