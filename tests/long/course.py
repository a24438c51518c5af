"""What a process takes while it works on: memory at points of the run, and whether it grows."""

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
    """How much was done by then."""
    value: float
    """What is watched."""


class Growth(NamedTuple):
    """How something grew between the steady parts of a run."""

    early: float
    """Median over its second fifth; the first one is warming up."""
    late: float
    """Median over its last fifth."""
    slope: float
    """Of the straight line nearest to all points but those of the first fifth, for each step."""

    @property
    def total(self) -> float:
        """From the second fifth to the last."""
        return self.late - self.early


def resident_bytes(process_id: int | str = "self") -> int:
    """What a process has in physical memory now, but for pages of files, which the system takes and gives at will."""
    for line in (PROC / str(process_id) / "status").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "RssAnon":
            return int(value.split()[0]) * 1024
    raise AssertionError(f"process {process_id} is gone")


def growth(points: Sequence[Point]) -> Growth:
    """How the values grew; at least five points, evenly spread.

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
