"""What became of each text of a timed prompt, in places of the whole prompt: for reports and front ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .prompt import Fragment, Issue
from .reading import ReadPrompt, placed
from .schedule import Counter, TimedPrompt, runs
from .view import view


class TimedRead(NamedTuple):
    """One text of a timed prompt."""

    branch: int
    """Which part between ANDs, from 0."""
    weight: float
    """The weight of that part."""
    steps: tuple[tuple[int, int], ...]
    """First and last step of each time at which it stands, counted from 1."""
    text: str
    """The text itself."""
    read: ReadPrompt
    """What was read, in places of the whole prompt. A problem of several texts stands in the first of them only."""


def timed_reads(
    prompt: TimedPrompt,
    steps: int,
    counter: Counter,
    read: Callable[[str], ReadPrompt],
    issues: Sequence[Issue] = (),
) -> list[TimedRead]:
    """Read every text of a timed prompt.

    Args:
        prompt: The prompt.
        steps: How many steps the sampler takes.
        counter: How they are counted.
        read: Reads one text on its own.
        issues: What else the user should know.

    Returns:
        The texts in the order in which they come, branch by branch. The first has the problems of the whole.
    """
    fragments: dict[tuple[int, str], tuple[Fragment, list[tuple[int, int]]]] = {}
    for index, branch in enumerate(prompt.branches):
        for run in runs(branch, steps, counter):
            _, times = fragments.setdefault((index, run.fragment.text), (run.fragment, []))
            times.append((run.first + 1, run.end))
    known = [*prompt.issues, *issues]
    result: list[TimedRead] = []
    for (index, text), (fragment, times) in fragments.items():
        one = placed(read(text), prompt.source, fragment)
        new = [*([] if result else known), *(issue for issue in one.issues if issue not in known)]
        known += new
        one = one._replace(issues=tuple(sorted(new, key=lambda issue: issue.span)))
        result.append(TimedRead(index, prompt.branches[index].weight, tuple(times), text, one))
    return result


def timed_view(timed: TimedRead) -> dict[str, Any]:
    """The JSON view of one text, with ``branch``, ``weight`` and ``steps`` besides."""
    steps = [list(run) for run in timed.steps]
    return {**view(timed.read), "branch": timed.branch, "weight": timed.weight, "steps": steps}
