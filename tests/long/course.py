"""Resources of a running process: memory at points of the run, and whether it grows."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

MEBIBYTE = 2**20
PROC = Path("/proc")
NO_PROC = "resident memory is read from /proc, which only Linux has"


class Point(NamedTuple):
    """A process at one point of a run."""

    step: int
    """Number of steps done."""
    value: float
    """Observed value."""


class Growth(NamedTuple):
    """Growth between the steady parts of a run."""

    early: float
    """Median over its second fifth; the first one is warming up."""
    late: float
    """Median over its last fifth."""
    slope: float
    """Slope per step of the straight line nearest to all points except those of the first fifth."""

    @property
    def total(self) -> float:
        """From the second fifth to the last."""
        return self.late - self.early


def resident_bytes(process_id: int | str = "self") -> int:
    """Resident memory of a process, without file pages, which the system takes and gives at will."""
    for line in (PROC / str(process_id) / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    raise AssertionError(f"process {process_id} is gone")


def growth(points: Sequence[Point]) -> Growth:
    """Growth of the values; needs at least five evenly spread points.

    >>> growth([Point(step, 7.0 + 2 * step) for step in range(10)])
    Growth(early=12.0, late=24.0, slope=2.0)
    """
    fifth = len(points) // 5
    steady = points[fifth:]
    mean_step = statistics.fmean(point.step for point in steady)
    mean_value = statistics.fmean(point.value for point in steady)
    spread = sum((point.step - mean_step) ** 2 for point in steady)
    together = sum((point.step - mean_step) * (point.value - mean_value) for point in steady)
    return Growth(
        statistics.median(point.value for point in points[fifth : 2 * fifth]),
        statistics.median(point.value for point in points[-fifth:]),
        together / spread,
    )


def tenths(points: Sequence[Point]) -> list[Point]:
    """Ten of the points, the last of each tenth of the run."""
    return [points[(index + 1) * len(points) // 10 - 1] for index in range(10)]
