"""Writes docs/evidence/long-life.md, the part of one run at a time, so that runs can be repeated one by one."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from weighted_clip.workshop.bench.machine import machine
from weighted_clip.workshop.bench.page import table

from .course import MEBIBYTE, Growth, Point, growth, tenths

PAGE = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "long-life.md"
VARIABLE = "WEIGHTED_CLIP_WRITE_LONG"

HEAD = """\
# Long life

Memory, results and the users of one lab when it runs for long. Every number was written by the tests in `tests/long`
as they ran:

    python run.py test --long -m long                    # all that needs no host
    python run.py test --long -m long --hosts DIR        # also in each ComfyUI in DIR

Without `--long` short forms of the same runs are part of the tests. With `WEIGHTED_CLIP_WRITE_LONG=1` in the
environment, each run that passes writes its part of this page.

Memory is what the system says a process has in physical memory, without pages of files (`RssAnon`). A run is divided
into fifths; the first one is warming up. *Growth* is the median over the last fifth less that over the second, *slope*
the straight line nearest to all points but those of the first fifth.
"""

SECTIONS = ("Encodings", "Encodings, full size", "ComfyUI", "The lab")
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
    """The machine, and versions of what else ran."""
    more = ", ".join(f"{name} {version}" for name, version in versions.items())
    return machine() + (f"\n- {more}" if more else "")


def course_table(unit: str, courses: Mapping[str, Sequence[Point]], scales: Mapping[str, float]) -> str:
    """Observed values at ten points of the run.

    Args:
        unit: Unit of steps, such as ``encodings``.
        courses: By what is watched; all at the same steps.
        scales: Divisors of values, 1 if not named.
    """
    shown = {name: tenths(points) for name, points in courses.items()}
    steps = [point.step for point in next(iter(shown.values()))]
    rows = [
        [f"{step:,}", *(f"{points[index].value / scales.get(name, 1):,.0f}" for name, points in shown.items())]
        for index, step in enumerate(steps)
    ]
    return table((unit, *shown), rows, num_left=0)


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
