"""The parity command: a difference above its limit is a problem."""

from __future__ import annotations

import math

import torch
from weighted_clip.workshop.parity import command
from weighted_clip.workshop.parity.report import Absence, Result, problems


def _result(difference: float, limit: float | None = 1e-5) -> Result:
    return Result("Forge 2", "Original | x", "a1111", "native", 40, limit, difference, "a cat")


def test_a_difference_above_its_limit_is_a_problem() -> None:
    assert problems([_result(0.0), _result(1e-5), _result(3.0, None), Absence("compel", "not installed")]) == []
    for difference in (2e-5, math.inf, math.nan):
        (problem,) = problems([_result(difference)])
        assert "Original" in problem and "'a cat'" in problem
    assert problems([Absence("Forge", "boom", is_failure=True)]) == ["Forge did not run:\nboom"]


def test_shapes_that_differ_are_infinitely_far_apart() -> None:
    assert command.largest_difference(torch.zeros(1, 77, 4), torch.zeros(1, 154, 4)) == math.inf
