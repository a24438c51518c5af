"""Lines through figures measured for several numbers of prompts, and their continuation to a million."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

PREDICTED = 1_000_000
"""Number of prompts for which figures are predicted."""
HEAD = ("Figure", "Line, N prompts", "Measured at", "Largest error", f"Predicted for {PREDICTED:,} prompts")
SECONDS, MEMORY, DISK = "whole command, s", "peak memory, MiB", "on disk, MiB"
SHOWN = {SECONDS: (3600, "h"), MEMORY: (1, "MiB"), DISK: (1024, "GiB")}
"""Unit of a predicted figure, by the name of the figure: its size in that of the measured one, and its name."""


class Line(NamedTuple):
    """Straight line through measured figures."""

    start: float
    """Figure for no prompts."""
    slope: float
    """Growth with each prompt, at least 0."""

    def at(self, number: float) -> float:
        """Figure for a number of prompts."""
        return self.start + self.slope * number

    def error(self, figures: Mapping[int, float]) -> float:
        """Largest difference from measured figures, as a share of the figure."""
        return max(abs(self.at(number) - figure) / abs(figure or 1.0) for number, figure in figures.items())

    def __str__(self) -> str:
        return f"{self.start:.3g} + {self.slope:.3g} N"


def fitted(figures: Mapping[int, float]) -> Line:
    """Fit a line by least squares.

    Args:
        figures: Figures by number of prompts, at least two.

    Returns:
        The line; if the figures fall, the level line at their mean, as nothing here becomes less with more prompts.

    >>> str(fitted({1: 3.0, 2: 5.0, 3: 7.0})), str(fitted({1: 3.0, 2: 1.0}))
    ('1 + 2 N', '2 + 0 N')
    """
    slope, start = statistics.linear_regression(list(figures), list(figures.values()))
    return Line(start, slope) if slope >= 0 else Line(statistics.mean(figures.values()), 0.0)


def growth_rows(figures: Mapping[str, Mapping[int, float]]) -> list[list[str]]:
    """Cells of `HEAD` for each figure that was measured for at least two numbers of prompts.

    Args:
        figures: Figures by name, one of `SHOWN`, and by number of prompts.
    """
    rows: list[list[str]] = []
    for name, by_number in figures.items():
        if len(by_number) < 2:
            continue
        line, (size, unit) = fitted(by_number), SHOWN[name]
        measured_at = ", ".join(f"{number:,}" for number in by_number)
        error = f"{line.error(by_number):.1%}" if len(by_number) > 2 else "-"  # two points are always on a line
        rows.append([name, str(line), measured_at, error, f"{line.at(PREDICTED) / size:.3g} {unit}"])
    return rows
