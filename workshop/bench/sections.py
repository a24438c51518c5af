"""Sections of the page: what each measures, and the goals that its rows must meet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from .page import table, table_rows
from .scale import Scale

HEAD = ("Goal", "Beside", "Asked", "Measured", "", "Found under")
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Request:
    """Scale of a measurement, and what else some sections need."""

    scale: Scale
    hosts: Path | None = None
    """Folder of the hosts."""
    say: Callable[[str], None] = print
    """Called with the reason if something did not run."""
    prompts: Path | None = None
    """File with a prompt in each line; None: they are made."""
    picture: Path | None = None
    """A .png file for a chart, or None."""
    before: str = ""
    """The section as it stands on the page."""


class Goal(NamedTuple):
    """A bound on some rows of a section; the worst of them counts."""

    name: str
    beside: str
    """The peer, in words."""
    where: Mapping[str, tuple[str, ...]]
    """The rows, by allowed values of some columns; ``*`` matches anything."""
    target: float
    """Minimum speed as a multiple of the peer's; or with ``column`` the maximum number of milliseconds."""
    column: str = ""
    """A column with milliseconds."""


class Section(NamedTuple):
    """One section of the page."""

    name: str
    """Name in ``--only`` and in the markers of the page."""
    measure: Callable[[Request], str]
    """From a request to Markdown."""
    title: str = ""
    """Heading on the page, for links from the goals."""
    goals: tuple[Goal, ...] = ()


def rows_of(prompt: str, ours: str, peer: str) -> dict[str, tuple[str, ...]]:
    """Rows of a comparison by prompt, way and peer."""
    return {"Prompt": (prompt,), "Ours": (ours,), "Peer": (peer,)}


def goal_block(sections: Iterable[Section], blocks: Mapping[str, str]) -> str:
    """Table in Markdown with a row for each goal of the sections, judged by their blocks."""
    rows = [_row(goal, one.title, blocks.get(one.name, "")) for one in sections for goal in one.goals]
    return table(HEAD, rows, num_left=6)


def _row(goal: Goal, title: str, block: str) -> list[str]:
    section = f"[{title}](#{title.lower().replace(' ', '-')})"
    asked = f"under {goal.target:g} ms" if goal.column else f"at least {goal.target:g} times as fast"
    found = [
        row
        for row in table_rows(block)
        if all(any(fnmatchcase(row.get(column, ""), one) for one in cells) for column, cells in goal.where.items())
    ]
    figures = [figure for figure in (_figure(goal, row) for row in found) if figure is not None]
    if not figures:
        return [goal.name, goal.beside, asked, NOT_MEASURED, "", section]
    worst = max(figures) if goal.column else min(figures)
    is_met = worst < goal.target if goal.column else worst >= goal.target
    measured = f"{worst:g} ms" if goal.column else f"{worst:.2f} times"
    return [goal.name, goal.beside, asked, measured, "met" if is_met else "missed", section]


def _figure(goal: Goal, row: Mapping[str, str]) -> float | None:
    """Milliseconds, or speed as a multiple of the peer's; None if a time is missing."""
    if goal.column:
        return _number(row.get(goal.column))
    ours, peer = (
        next((_number(cell) for column, cell in row.items() if column.startswith(side)), None)
        for side in ("Ours, ", "Peer, ")
    )
    return None if not ours or peer is None else peer / ours


def _number(cell: str | None) -> float | None:
    try:
        return None if cell is None else float(cell)
    except ValueError:
        return None
