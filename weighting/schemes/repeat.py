"""Weights as numbers of repetitions of a row in the conditioning.

A softmax over rows gives a row repeated m times m times the share, as adding ln m to its logits would. So the model can
stay as it is: weights become whole numbers, relative to the repetitions of a row of weight 1.

Source: docs/reference/schemes.md, "repeat".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from ..chunking import ChunkedSection, chunks_of
from ..plan import Plan
from ..text.chunks import Token, TokenChunk
from ..text.prompt import Issue, Span
from .scheme import (
    DEFAULT_OPTIONS,
    SchemeOptions,
    SchemePrompt,
    WeightedRows,
    negative_weight_issues,
    plan_rows,
    weighted_rows,
)

STEPS = (1, 2, 4, 8, 10)
FINEST_STEPS = {
    "auto": "the fewest that fit the weights",
    **{str(steps): f"0, {1 / steps:g}, {2 / steps:g} …" for steps in STEPS},
}
"""Number of steps from weight 0 to 1, default first, with their meaning in menus.

``auto``: the fewest steps by which no weight is off by more than `TOLERANCE`, or else the most."""
TOLERANCE = 0.03
MAX_ROWS = 2048
"""Maximum number of rows after repetition."""
_ROUNDING = 1e-6
"""Errors below this come from the arithmetic on weights, not from the steps."""


class RepeatError(ValueError):
    """Raised for weights that repetition of rows cannot represent; the message says what can be done."""


class Copies(NamedTuple):
    """Numbers of repetitions of the rows of a prompt."""

    rows: tuple[tuple[int, ...], ...]
    """Repetitions for each chunk of the result and each of its positions."""
    steps: int
    """Number of steps from weight 0 to 1."""

    @property
    def unit(self) -> int:
        """Repetitions of a row of weight 1, such as BOS: 1 if all weights are whole numbers."""
        return self.rows[0][0]

    @property
    def is_repeating(self) -> bool:
        """Whether any row does not occur exactly once."""
        return any(count != 1 for row in self.rows for count in row)

    def count(self, row_counts: Sequence[int] | None) -> int:
        """Total number of rows, among those kept of each chunk; None for all."""
        ends = [len(row) for row in self.rows] if row_counts is None else row_counts
        return sum(sum(row[:end]) for row, end in zip(self.rows, ends, strict=True))


def repeat(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """C. `repeated` repeats its rows at the very end, after prompts are joined and padding is handled."""
    return plan_rows(chunks, options, lambda rows: weighted_rows(rows.hidden, rows.pooled[:1]))


def finish_repeated(plan: Plan[WeightedRows], parsed: SchemePrompt, _: SchemeOptions) -> Plan[WeightedRows]:
    """Repeat the rows of a prompt by their weights."""
    return plan.then(lambda weighted: repeated(weighted, copies_of(parsed)))


def repeated(weighted: WeightedRows, copies: Copies) -> WeightedRows:
    """Repeat rows next to each other, and leave out rows of weight 0."""
    if not copies.is_repeating:
        return weighted
    counts = [copies.rows[place.chunk][place.position] for place in weighted.places]
    rows = [row for row, count in enumerate(counts) for _ in range(count)]
    return weighted.of_rows(rows)


def copies_of(parsed: SchemePrompt) -> Copies:
    """Number of repetitions of each row of a prompt.

    With q steps, a row of weight w > 0 occurs ``floor(q w + 1/2)`` times, at least once; of weight 0, never; of w < 0,
    as often as one of weight 1. All numbers are divided by their greatest common divisor. q and the divisor apply to
    the whole prompt.
    """
    weights = _row_weights(parsed.sections)
    different = {weight for row in weights for weight in row}
    steps = _steps_for(different, parsed.options.finest_step)
    counts = {weight: _count(weight, steps) for weight in different}
    divisor = math.gcd(steps, *counts.values())
    return Copies(tuple(tuple(counts[weight] // divisor for weight in row) for row in weights), steps)


def check_rows(towers: Mapping[str, SchemePrompt]) -> None:
    """Check that a prompt can be weighted by repetition."""
    (first, parsed), *rest = towers.items()
    weights = list(chain.from_iterable(_row_weights(parsed.sections)))
    for name, compared in rest:
        its_weights = list(chain.from_iterable(_row_weights(compared.sections)))
        if its_weights == weights or {*weights, *its_weights} == {1.0}:
            continue
        if len(weights) != len(its_weights):
            difference = f"There are {len(weights)} rows in {first} and {len(its_weights)} in {name}"
        else:
            row = next(row for row in range(len(weights)) if weights[row] != its_weights[row])
            difference = f"Row {row} weighs {weights[row]:g} in {first} and {its_weights[row]:g} in {name}"
        raise RepeatError(
            f"The scheme repeat needs the same weights in the same rows of {first} and {name}, which stand side by "
            f"side. {difference}: give both the same text, and no embedding that has more vectors for one than for the "
            "other."
        )
    if problem := _too_many(copies_of(parsed), parsed.kept):
        raise RepeatError(problem)


def repeat_issues(parsed: SchemePrompt) -> list[Issue]:
    """Issues about a prompt's weights for its author; otherwise as `check_rows`, for one tower."""
    try:
        copies = copies_of(parsed)
    except RepeatError as error:
        return [Issue("unlike-rows", str(error), Span(0, 0))]
    issues: list[Issue] = []
    if problem := _too_many(copies, parsed.kept):
        issues.append(Issue("too-many-rows", problem, Span(0, 0)))
    chunks = chunks_of(parsed.sections)
    issues += negative_weight_issues(chunks, "1 here: repeated rows cannot subtract a word")
    first_tokens: dict[tuple[int, float], Token] = {}
    for token in (token for chunk in chunks for token in chunk.content):
        first_tokens.setdefault((token.fragment, token.weight), token)
    for (_, weight), token in first_tokens.items():
        acting = _count(weight, copies.steps) / copies.steps
        if weight >= 0 and abs(acting - weight) > _ROUNDING:
            message = (
                f"The weight {weight:g} acts as {acting:g} here: a row can only be repeated a whole number of times."
            )
            issues.append(Issue("rounded-weight", message, token.at))
    return issues


def _row_weights(sections: Sequence[ChunkedSection]) -> list[tuple[float, ...]]:
    """Weights of the rows of each chunk of the result."""
    result: list[tuple[float, ...]] = []
    for section in sections:
        plain = (1.0,) * len(section.prompts[0][0].tokens)  # of the empty prompt, which pads shorter ones
        for index in range(max(map(len, section.prompts))):
            rows = {prompt[index].weights if index < len(prompt) else plain for prompt in section.prompts}
            if len(rows) > 1:
                raise RepeatError(
                    "The scheme repeat cannot blend prompts with different weights in the same rows: a row of a .blend "
                    "is a mixture of the words at its place in all of them. Leave the weights out, or take another "
                    "scheme."
                )
            result += rows
    return result


def _steps_for(weights: set[float], finest_step: str) -> int:
    """q, the number of steps."""
    if finest_step != "auto":
        return int(finest_step)
    positive = [weight for weight in weights if weight > 0]

    def is_close(steps: int) -> bool:
        return all(abs(_count(weight, steps) / steps - weight) <= TOLERANCE + _ROUNDING for weight in positive)

    return next(filter(is_close, STEPS), STEPS[-1])


def _count(weight: float, steps: int) -> int:
    """Number of repetitions m before division."""
    if weight <= 0:
        return 0 if weight == 0 else steps
    return max(1, math.floor(steps * weight + 0.5))


def _too_many(copies: Copies, row_counts: Sequence[int] | None) -> str:
    """Message about too many rows; a long prompt without weights has as many as under any scheme."""
    count = copies.count(row_counts)
    if count <= MAX_ROWS or not copies.is_repeating:
        return ""
    return (
        f"Repeated by their weights these would be {count:,} rows, and the scheme repeat makes {MAX_ROWS:,} at most. "
        "Take fewer steps, smaller weights, a shorter prompt, or padding drop."
    )
