"""Texts of a timed prompt, in positions of the whole prompt: for reports and front ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..prompt import Fragment, Issue
from ..reading import ReadPrompt, placed
from ..view import view
from .schedule import Counter, TimedPrompt, runs


class StandingText(NamedTuple):
    """One text of a timed prompt, not read yet."""

    branch: int
    """Number of the part between ANDs, counted from 0."""
    fragment: Fragment
    """The text, made of pieces of the prompt."""
    steps: tuple[tuple[int, int], ...]
    """First and last step of each period in which it is active, counted from 1."""


class TimedRead(NamedTuple):
    """One text of a timed prompt."""

    branch: int
    """Number of the part between ANDs, counted from 0."""
    weight: float
    """Weight of that part."""
    steps: tuple[tuple[int, int], ...]
    """First and last step of each period in which it is active, counted from 1."""
    text: str
    """The text itself."""
    read: ReadPrompt
    """The text as read, in positions of the whole prompt. A problem of several texts is listed with the first of them
    only."""


def standing_texts(prompt: TimedPrompt, steps: int, counter: Counter) -> list[StandingText]:
    """All texts of a timed prompt in order, branch by branch.

    Args:
        prompt: The prompt.
        steps: Number of steps of the sampler.
        counter: Way of counting them.

    Returns:
        The texts, without duplicates within a branch.
    """
    found: dict[tuple[int, str], tuple[Fragment, list[tuple[int, int]]]] = {}
    for index, branch in enumerate(prompt.branches):
        for run in runs(branch, steps, counter):
            _, times = found.setdefault((index, run.fragment.text), (run.fragment, []))
            times.append((run.first + 1, run.end))
    return [StandingText(index, fragment, tuple(times)) for (index, _), (fragment, times) in found.items()]


def read_standing(
    prompt: TimedPrompt,
    texts: Sequence[StandingText],
    read: Callable[[str], ReadPrompt],
    issues: Sequence[Issue] = (),
) -> list[TimedRead]:
    """Read some texts of a timed prompt.

    Args:
        prompt: The prompt.
        texts: Its first texts, or all of them.
        read: Function that reads one text.
        issues: Further issues for the user.

    Returns:
        The texts as read, in this order. The first has the problems of the whole.
    """
    whole = [*prompt.issues, *issues]
    known = set(whole)
    result: list[TimedRead] = []
    for index, fragment, steps in texts:
        one = placed(read(fragment.text), prompt.source, fragment)
        new = [*([] if result else whole), *(issue for issue in one.issues if issue not in known)]
        known.update(new)
        one = one._replace(issues=tuple(sorted(new, key=lambda issue: issue.span)))
        result.append(TimedRead(index, prompt.branches[index].weight, steps, fragment.text, one))
    return result


def timed_view(timed: TimedRead) -> dict[str, Any]:
    """The JSON view of one text, with ``branch``, ``weight`` and ``steps`` besides."""
    steps = [list(run) for run in timed.steps]
    return {**view(timed.read), "branch": timed.branch, "weight": timed.weight, "steps": steps}
