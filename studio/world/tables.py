"""Tables of what was measured: a row for each way of weighting, a column for each weight, means with intervals."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from ..output.files import written_whole
from .measure import Interval, Points, of_point
from .questions import Question

ANSWERS = {
    "present": "Its colour is there",
    "right": "With its kind",
    "others": "All others are right",
    "leaked": "Colour and kind crossed",
    "sureness": "Sureness",
    "moved": "Change elsewhere",
    "area": "Pixels",
    "placed": "Both in their half",
    "kinds": "Kinds right",
    "favoured": "More on its thing",
    "inside": "Of it on its thing",
    "covered": "Its thing covers",
    "distance": "Middle from its thing's",
    "blank": "Of a blank map",
    "read": "Share of the attention",
    "own_half": "Of it in its half",
    "amount": "Amount of its colour",
    "error": "Distance from the weight",
    "near": "Within 0.2 of it",
}
"""Titles of the answers to questions."""
SHARES = (
    *("present", "right", "others", "leaked", "sureness", "moved", "placed", "kinds"),
    *("favoured", "inside", "covered", "distance", "blank", "read", "own_half"),
    *("amount", "error", "near"),
)
"""Answers told in percent."""


Measured = dict[tuple[str, str, float, str], Interval]
"""Means with intervals, by the names of question and way, the weight, and the name of the answer."""
_COLUMNS = ("question", "way", "weight", "answer", *Interval._fields)


def measured(points: Points, questions: Sequence[Question]) -> Measured:
    """Means of all answers to questions."""
    answers = {question.name: question.answers for question in questions}
    return {(*key, answer): of_point(point, answer) for key, point in points.items() for answer in answers[key[0]]}


def write_measured(measured: Measured, path: Path) -> None:
    """Write means into a .csv file."""
    with written_whole(path) as place, place.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(
            (question, way, f"{weight:g}", answer, *(f"{value:.4g}" for value in interval))
            for (question, way, weight, answer), interval in measured.items()
        )


def read_measured(path: Path) -> Measured:
    """Read what `write_measured` wrote, to four digits."""
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["question"], row["way"], float(row["weight"]), row["answer"]): Interval(
                *(float(row[name]) for name in Interval._fields)
            )
            for row in csv.DictReader(file)
        }


class Table(NamedTuple):
    """Cells of a table with its head."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def markdown(self) -> str:
        """The table in Markdown."""
        rule = ("---", *("---:" for _ in self.head[1:]))
        return "".join(f"| {' | '.join(row)} |\n" for row in (self.head, rule, *self.rows))

    def lines(self) -> Iterator[str]:
        """The table in columns of equal width."""
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        for row in (self.head, *self.rows):
            first, *rest = (
                cell.ljust(width) if not index else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            yield "  ".join([first, *rest]).rstrip()


def of_answer(means: Measured, question: Question, answer: str) -> Table:
    """Means of one answer with their intervals, by way and weight."""
    head = (f"{question.title}: {ANSWERS[answer].lower()}", *(f"{weight:g}" for weight in question.weights))
    rows = [
        (
            f"`{way.name}`",
            *(cell(means[question.name, way.name, weight, answer], answer in SHARES) for weight in question.weights),
        )
        for way in question.ways
    ]
    return Table(head, rows)


def beside(means: Measured, question: Question) -> Table:
    """Means of all answers with their intervals, by way, at a question's only weight."""
    [weight] = question.weights
    return picked(means, question, [(answer, weight) for answer in question.answers])


def picked(means: Measured, question: Question, answers: Sequence[tuple[str, float]]) -> Table:
    """Means of some answers with their intervals, each at a weight, by way."""
    is_one = len({weight for _, weight in answers}) == 1
    titles = (ANSWERS[answer].lower() + ("" if is_one else f" at {weight:g}") for answer, weight in answers)
    rows = [
        (
            f"`{way.name}`",
            *(cell(means[question.name, way.name, weight, answer], answer in SHARES) for answer, weight in answers),
        )
        for way in question.ways
    ]
    return Table((question.title, *titles), rows)


def cell(interval: Interval, is_share: bool) -> str:
    """Mean and interval, in percent if it is a share.

    >>> cell(Interval(0.5, 0.412, 0.6), True), cell(Interval(0.031, 0.02, 0.04), True)
    ('50 (41–60)', '3 (2–4)')
    """
    mean, low, high = ((100 if is_share else 1) * value for value in interval)
    return f"{mean:.0f} ({low:.0f}–{high:.0f})" if round(low) < round(high) else f"{mean:.0f}"


def tables_of(means: Measured, question: Question) -> dict[str, Table]:
    """Tables of a question: one for each answer by its name, and the ``summary`` if weight 0 was asked about.

    Of maps at one weight, all answers are in one table, ``beside``.
    """
    if len(question.weights) == 1 and (any(way.maps for way in question.ways) or question.sitting is not None):
        return {"beside": beside(means, question)}
    tables = {answer: of_answer(means, question, answer) for answer in question.answers}
    is_judged = 0.0 in question.weights and "present" in question.answers
    return {"summary": summary(means, question), **tables} if is_judged else tables


def summary(means: Measured, question: Question) -> Table:
    """Answers to the question when it fades, whether it reaches zero, and what breaks first, by way."""
    head = (question.title, "there at 0", "half at", "not there from", "others wrong from", "shapes worse from")
    rows: list[tuple[str, ...]] = []
    for way in question.ways:
        present, others, sureness = (
            {weight: means[question.name, way.name, weight, answer] for weight in question.weights}
            for answer in ("present", "others", "sureness")
        )
        falling = [weight for weight in sorted(question.weights) if weight <= 1]
        rising = [weight for weight in sorted(question.weights) if weight > 1]
        rows.append(
            (
                f"`{way.name}`",
                cell(present[0.0], True),
                _half({weight: present[weight].mean for weight in falling}),
                _first([weight for weight in reversed(falling) if present[weight].high < 0.05]),
                _first([weight for weight in rising if others[weight].high < others[1.0].low]),
                _first([weight for weight in rising if sureness[weight].high < sureness[1.0].low]),
            )
        )
    return Table(head, rows)


def _half(means: dict[float, float]) -> str:
    """Weight below 1 at which half of the pictures have it, between two weights measured.

    >>> _half({0.0: 0.0, 0.5: 0.25, 1.0: 0.75}), _half({0.0: 0.9, 1.0: 1.0})
    ('0.75', '—')
    """
    for (high_weight, high), (low_weight, low) in pairwise(sorted(means.items(), reverse=True)):
        if low <= 0.5 < high:
            return f"{low_weight + (high_weight - low_weight) * (0.5 - low) / (high - low):.2f}"
    return "—"


def _first(weights: Sequence[float]) -> str:
    return f"{weights[0]:g}" if weights else "—"
