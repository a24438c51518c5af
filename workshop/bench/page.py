"""Tables, sections with their goals, and docs/benchmarks.md: figures stand between markers, the prose is by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from ...studio.output.files import write_text
from ..job import HostFailed, run_job
from .scale import BenchScale
from .timing import Ratio, Run, compare, times_in_turn

PAGE = Path(__file__).resolve().parents[2] / "docs/benchmarks.md"

NOT_FOUND = "not found"
COMPARISON_HEAD = ("Prompt", "Ours", "Peer", "Ours, ms", "Peer, ms", "Ours / peer", "Middle half", "Difference")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, num_left: int) -> str:
    """Make a Markdown table that is readable as plain text; ``num_left`` columns of words are left-aligned.

    >>> print(table(["Text", "ms"], [["short", "1.5"], ["long", "12.0"]], num_left=1))
    | Text  |   ms |
    | ----- | ---: |
    | short |  1.5 |
    | long  | 12.0 |
    """
    widths = [max(3, *(len(row[column]) for row in (head, *rows))) for column in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if column < num_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rules = ["-" * width if column < num_left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    return "\n".join([line(head), line(rules), *map(line, rows)])


def in_process(
    failed: str,
    function: Callable[[dict[str, Any]], Any],
    job: Mapping[str, Any],
    python: Path | None = None,
    **how: Any,
) -> Any:
    """Result of one of our functions in a new process; ``how`` are arguments of `run_job`.

    It raises ValueError with ``failed`` and the end of what the process said.
    """
    try:
        return run_job(function, job, python or Path(sys.executable), **{"seconds": 7200, **how})
    except HostFailed as error:
        raise ValueError(f"{failed}:\n{str(error)[-3000:]}") from error


def milliseconds(seconds: float) -> str:
    """Format a time with at least two digits.

    >>> milliseconds(0.1234), milliseconds(0.0123), milliseconds(0.0000123)
    ('123', '12.3', '0.012')
    """
    value = seconds * 1000
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def comparison(prompt: str, way: str, peer: str, ratio: Ratio, difference: float | None) -> list[str]:
    """Cells of `COMPARISON_HEAD` for two programs that encoded the same prompt.

    ``difference`` is the largest absolute difference of their hidden states; None if they compute different things.
    """
    return [prompt, way, peer, *times(ratio), "other rule" if difference is None else small(difference)]


def times(ratio: Ratio, to_text: Callable[[float], str] = milliseconds) -> list[str]:
    """Cells about times in a comparison: ours, the peer's, their ratio and its interquartile range."""
    return [to_text(ratio.first), to_text(ratio.peer), f"{ratio.ratio:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}"]


def small(difference: float) -> str:
    """Format a difference with one digit.

    >>> small(0.0), small(0.0000083)
    ('0', '8e-06')
    """
    return "0" if difference == 0 else f"{difference:.0e}"


def missing(prompt: str, way: str, peer: str, why: str = NOT_FOUND) -> list[str]:
    """Row of a peer that was not timed."""
    return [prompt, way, peer, *["-"] * 4, why]


def in_turn(
    prompt: str,
    ways: Mapping[str, Run],
    peers: Mapping[str, Run | None],
    repetitions: int,
    pairs: Iterable[tuple[str, str, bool]] = (),
) -> list[list[str]]:
    """Rows of `COMPARISON_HEAD`: our ways and the peers, all timed in turn; a peer that is not installed is None.

    ``pairs`` are a way, a peer, and whether both compute the same; by default every way and every peer, which do.
    """
    runs = {f"ours {name}": run for name, run in ways.items()}
    runs |= {f"peer {name}": run for name, run in peers.items() if run is not None}
    results = {name: run() for name, run in runs.items()}  # all for the first text of their sequences
    durations = times_in_turn(runs, repetitions=repetitions)
    rows: list[list[str]] = []
    for way, peer, is_same in pairs or ((way, peer, True) for way in ways for peer in peers):
        if peers[peer] is None:
            rows.append(missing(prompt, way, peer))
            continue
        way_key, peer_key = f"ours {way}", f"peer {peer}"
        difference = float((results[way_key] - results[peer_key]).abs().max()) if is_same else None
        rows.append(comparison(prompt, way, peer, compare(durations[way_key], durations[peer_key]), difference))
    return rows


def table_rows(markdown: str) -> Iterator[dict[str, str]]:
    r"""Rows of all tables in a block.

    >>> list(table_rows("| Text | ms |\n| ---- | -: |\n| long | 12 |"))
    [{'Text': 'long', 'ms': '12'}]
    """
    for lines in re.findall(r"(?:^\|.*\n?)+", markdown, re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines.splitlines())
        yield from (dict(zip(head, row, strict=True)) for row in rows)


# ---- sections

GOALS_HEAD = ("Goal", "Beside", "At least", "Measured", "")
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Request:
    """Scale of a measurement, and what else some sections need."""

    scale: BenchScale
    hosts: Path | None = None
    """Folder of the hosts."""
    say: Callable[[str], None] = print
    """Called with the reason if something did not run."""
    before: str = ""
    """The section as it stands on the page."""


class Goal(NamedTuple):
    """A bound on some rows of a section; the worst of them counts."""

    name: str
    peer: str
    """The peer, in words."""
    where: Mapping[str, tuple[str, ...]]
    """The rows, by allowed values of some columns; ``*`` matches anything."""
    target: float
    """Minimum speed as a multiple of the peer's; or with ``column`` the maximum number of milliseconds."""
    column: str = ""
    """A column with milliseconds."""
    is_certain: bool = False
    """Whether the speed at the slow end of the middle half counts."""


class PageSection(NamedTuple):
    """One section of the page."""

    name: str
    """Name in ``--only`` and in the markers of the page."""
    measure: Callable[[Request], str]
    """From a request to Markdown."""
    title: str = ""
    """Heading on the page, for links from the goals."""
    goals: tuple[Goal, ...] = ()


def rows_of(prompt: str, way: str, peer: str) -> dict[str, tuple[str, ...]]:
    """Rows of a comparison by prompt, way and peer."""
    return {"Prompt": (prompt,), "Ours": (way,), "Peer": (peer,)}


def goal_block(sections: Iterable[PageSection], blocks: Mapping[str, str]) -> str:
    """Table in Markdown with a row for each goal of the sections, judged by their blocks."""
    rows = [_row(goal, section.title, blocks.get(section.name, "")) for section in sections for goal in section.goals]
    return table(GOALS_HEAD, rows, num_left=2)


def _row(goal: Goal, title: str, block: str) -> list[str]:
    place = f"(#{title.lower().replace(' ', '-')})"
    asked = f"under {goal.target:g} ms" if goal.column else f"{goal.target:g}"
    matching = [
        row
        for row in table_rows(block)
        if all(
            any(fnmatchcase(row.get(column, ""), pattern) for pattern in cells) for column, cells in goal.where.items()
        )
    ]
    figures = [figure for figure in (_figure(goal, row) for row in matching) if figure is not None]
    if not figures:
        return [goal.name, goal.peer, asked, f"[{NOT_MEASURED}]{place}", ""]
    worst = max(figures) if goal.column else min(figures)
    is_met = worst < goal.target if goal.column else worst >= goal.target
    measured = f"{worst:g} ms" if goal.column else f"{worst:.2f}"
    return [goal.name, goal.peer, asked, f"[{measured}]{place}", "met" if is_met else "missed"]


def _figure(goal: Goal, row: Mapping[str, str]) -> float | None:
    """Milliseconds, or speed as a multiple of the peer's; None if a time is missing."""
    if goal.column:
        return _number(row.get(goal.column))
    if goal.is_certain:
        slow = _number(row.get("Middle half", "").partition(" to ")[2])
        return slow and 1 / slow
    package_time, peer = (
        next((_number(cell) for column, cell in row.items() if column.startswith(side)), None)
        for side in ("Ours, ", "Peer, ")
    )
    return None if not package_time or peer is None else peer / package_time


def _number(cell: str | None) -> float | None:
    try:
        return None if cell is None else float(cell)
    except ValueError:
        return None


# ---- the page


def blocks_of(page: str) -> dict[str, str]:
    r"""Text between the markers of a page, by name.

    >>> blocks_of("A\n<!-- bench x -->\n\nold\n\n<!-- end x -->\nB")
    {'x': 'old'}
    """
    matches = re.finditer(r"<!-- bench (\w+) -->(.*?)<!-- end \1 -->", page, re.DOTALL)
    return {match[1]: match[2].strip() for match in matches}


def fill(page: str, blocks: Mapping[str, str]) -> str:
    r"""Put each block between its markers, ``<!-- bench NAME -->`` and ``<!-- end NAME -->``; both must be there.

    >>> fill("A\n<!-- bench x -->\nold\n<!-- end x -->\nB", {"x": "new"})
    'A\n<!-- bench x -->\n\nnew\n\n<!-- end x -->\nB'
    """
    for name, block in blocks.items():
        start, end = f"<!-- bench {name} -->", f"<!-- end {name} -->"
        before, opening, rest = page.partition(start)
        _, closed, after = rest.partition(end)
        if not (opening and closed):
            raise ValueError(f"the page has no pair of markers {start} and {end}")
        page = f"{before}{start}\n\n{block}\n\n{end}{after}"
    return page


def write(blocks: Mapping[str, str], path: Path = PAGE) -> None:
    """Write the blocks into the page, which must exist."""
    if not path.is_file():
        raise ValueError(f"there is no {path.name} here: --write works in a checkout of the repository")
    write_text(path, fill(path.read_text(encoding="utf-8"), blocks))
