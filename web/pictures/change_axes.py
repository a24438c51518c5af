"""Content of a chart of changes: the numbers of each scheme, the axes for them, and their formatting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...weighting.view import weight_text

LENGTH_TOPS = (1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
"""Possible ends of the axis of lengths, as ratios; beyond the last, bars are cut."""
ANGLE_TOPS = (1.0, 2.0, 5.0, 10.0, 20.0, 45.0, 90.0, 180.0)
"""Possible ends of the axis of angles, in degrees."""
SMALLEST_RATIO, SMALLEST_ANGLE = 0.005, 0.05
"""Minimum changes that are drawn, relative and in degrees."""
TOLERANCE = 1.02
"""Factor by which a bar may exceed its axis before a longer axis is used."""


class RowChange(NamedTuple):
    """Difference of one row from another."""

    ratio: float
    """Ratio of the lengths; 1.0 = equal."""
    angle: float | None
    """Angle between them, in degrees from 0 to 180; None if one of them is zero or not finite."""


class SchemeRow(NamedTuple):
    """One line of the chart."""

    name: str
    """Name of the scheme."""
    changes: Sequence[RowChange | None]
    """One change for each label, None for a missing row; or no changes at all."""
    notes: Sequence[str] = ()
    """Small lines below the name."""
    message: str = ""
    """Text below the bars, or instead of them."""


@dataclass(frozen=True)
class Axes:
    """Ends of the two axes; the same for all schemes, so that they can be compared."""

    length_top: float
    """As a ratio; the lower end is its inverse."""
    angle_top: float
    """In degrees."""

    def length_share(self, ratio: float) -> float:
        """Share of its half axis that a bar takes, -1 to 1; NaN counts as no bar."""
        if math.isnan(ratio):
            return 0.0
        octaves = math.log(ratio) if 0 < ratio < math.inf else math.copysign(math.inf, ratio - 1)
        return max(-1.0, min(1.0, octaves / math.log(self.length_top)))

    def cuts(self, ratio: float) -> bool:
        """Whether a bar of a length does not end where its number is: it is too long for its axis, or no number.

        >>> [Axes(10.0, 45.0).cuts(ratio) for ratio in (10.1, 12.0, 0.05, 0.0, float("nan"))]
        [False, True, True, True, True]
        """
        most = self.length_top * TOLERANCE
        return not 1 / most <= ratio <= most

    def angle_share(self, angle: float) -> float:
        """Share of its axis that a bar takes, 0 to 1."""
        return min(1.0, angle / self.angle_top)


def axes_of(rows: Sequence[SchemeRow]) -> Axes:
    """Smallest axes that hold all changes of a chart, as far as possible."""
    changes = [change for row in rows for change in row.changes if change is not None]
    ratios = [change.ratio for change in changes if 0 < change.ratio < math.inf]
    longest = max((max(ratio, 1 / ratio) for ratio in ratios), default=1.0)
    widest = max((change.angle for change in changes if change.angle is not None), default=0.0)
    return Axes(
        next((top for top in LENGTH_TOPS if longest <= top * TOLERANCE), LENGTH_TOPS[-1]),
        next((top for top in ANGLE_TOPS if widest <= top * TOLERANCE), ANGLE_TOPS[-1]),
    )


def ratio_text(ratio: float) -> str:
    """Format a ratio with as few digits as needed; empty if nothing changed.

    >>> [ratio_text(ratio) for ratio in (1.4, 1.001, 0.913, 0.0, 12.31, 2000.0, float("inf"))]
    ['×1.40', '', '×0.91', '×0', '×12', '×2e3', '×∞']
    """
    if abs(ratio - 1) < SMALLEST_RATIO:
        return ""
    if not math.isfinite(ratio):
        return "NaN" if math.isnan(ratio) else "×∞"
    if 0.01 <= ratio < 1000:
        return f"×{ratio:.2f}" if ratio < 9.995 else f"×{ratio:.0f}"
    return f"×{weight_text(ratio)}" if ratio == 0 or ratio > 1e-9 else "≈0"


def angle_text(angle: float | None) -> str:
    """Format an angle with as few digits as needed; empty if it is negligible.

    >>> [angle_text(angle) for angle in (0.01, 0.34, 12.3, None)]
    ['', '0.3°', '12°', 'none']
    """
    if angle is None:
        return "none"
    if angle < SMALLEST_ANGLE:
        return ""
    return f"{angle:.1f}°" if angle < 9.95 else f"{angle:.0f}°"
