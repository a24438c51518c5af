"""Memory of a running process, its growth, and docs/evidence/long-life.md, written one run at a time."""

from __future__ import annotations

import os
import platform
import statistics
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from weighted_clip.workshop.bench.timing import load, processor, with_torch

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


PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "long-life.md"
VARIABLE = "WEIGHTED_CLIP_WRITE_LONG"

HEAD = """\
# Long life

Each part was written by a test of `tests/long`, with `WEIGHTED_CLIP_WRITE_LONG=1` in the environment. *ComfyUI*
and *The lab* are history: their tests are gone.

    python run.py test --long -m long --hosts DIR        # DIR: for the parts in ComfyUI

Memory is what a process has in physical memory, without pages of files (`RssAnon`). A run is divided into fifths, of
which the first is warming up. *Slope* is the straight line nearest to all points of the others.
"""

SECTIONS = ("Encodings", "Encodings, full size", "ComfyUI", "Samplings in ComfyUI", "The lab")
"""In the order of the page; a title may continue after these words."""


def write_part(title: str, parts: Sequence[str]) -> None:
    """Put what a run found into the page, if that was asked for.

    Args:
        title: Begins as one of `SECTIONS`; a part of the same title is replaced.
        parts: Paragraphs, lists and tables in Markdown.
    """
    if os.environ.get(VARIABLE) != "1":
        return
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    written = dict(one.split("\n", 1) for one in text.split("\n## ")[1:])
    written[title] = "\n" + "\n\n".join(map(_wrapped, parts)) + "\n"
    ordered = sorted(written, key=_place)
    page = "\n".join([HEAD, *(f"## {one}\n{written[one].rstrip()}\n" for one in ordered)])
    PAGE.write_text(page, encoding="utf-8")


def _wrapped(part: str) -> str:
    """A paragraph in lines; lists and tables as they are."""
    part = part.strip("\n")
    if part.startswith(("- ", "|")):
        return part
    return textwrap.fill(part, 120, break_long_words=False, break_on_hyphens=False)


def _place(title: str) -> tuple[int, str]:
    fitting = [index for index, start in enumerate(SECTIONS) if title.startswith(start)]
    return max(fitting, default=len(SECTIONS)), title


def about(**versions: str) -> str:
    """The machine and versions, in a sentence."""
    parts = [f"On {processor()}", f"Python {platform.python_version()}", with_torch(), *load("the minute before")]
    return ", ".join([*parts, *(f"{name} {version}" for name, version in versions.items())]) + "."


def resident_growth(points: Sequence[Point], unit: str) -> str:
    """Growth of memory, in a sentence."""
    grown = growth(points)
    return (
        f"Memory: {grown.early / MEBIBYTE:,.0f} MiB in the second fifth, {grown.late / MEBIBYTE:,.0f} MiB in the last: "
        f"growth {grown.total / MEBIBYTE:+.1f} MiB, slope {grown.slope / 1024:+.2f} KiB for each {unit}."
    )


def counted_growth(name: str, grown: Growth) -> str:
    """Growth of a number, in a sentence."""
    return f"{name}: {grown.early:,.0f} in the second fifth, {grown.late:,.0f} in the last."
