"""Values that change while a discrete VAE is trained: KL weight, temperature, step size.

Source: A. Ramesh et al., 2021, appendix A.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Course = Literal["cosine", "linear", "geometric"]
COURSES: tuple[Course, ...] = get_args(Course)


@dataclass(frozen=True)
class Schedule:
    """A number that moves from one value to another within some updates, then stays.

    >>> weight = Schedule(0.0, 6.6, 5000)
    >>> weight(0), weight(2500), weight(5000), weight(10**6)
    (0.0, 3.3, 6.6, 6.6)
    """

    first: float
    last: float
    steps: int
    """Updates from the first value to the last."""
    begin: int = 0
    """Updates before that, with the first value."""
    course: Course = "cosine"

    def __post_init__(self) -> None:
        if self.course not in COURSES:
            raise ValueError(f"a course is one of {', '.join(COURSES)}, got {self.course!r}")
        least = 0 if self.course != "geometric" else math.ulp(0.0)
        for value in (self.first, self.last):
            if not least <= value < math.inf:
                raise ValueError(f"a schedule goes between numbers from 0, geometric from above 0, got {value}")
        if self.steps < 1 or self.begin < 0:
            raise ValueError(f"a schedule has 1 or more updates, got {self.steps} after {self.begin}")

    def __call__(self, step: int) -> float:
        """Value at an update, counted from 0; exactly the first and last value at the ends."""
        share = min(1.0, max(0.0, (step - self.begin) / self.steps))
        if share in (0.0, 1.0):
            return self.last if share else self.first
        if self.course == "geometric":
            return self.first * (self.last / self.first) ** share
        left = 1 - share if self.course == "linear" else (1 + math.cos(math.pi * share)) / 2
        return left * self.first + (1 - left) * self.last

    def __str__(self) -> str:
        after = f" after {self.begin:,}" if self.begin else ""
        return f"{self.first:g} to {self.last:g} within {self.steps:,} updates{after} ({self.course})"


KL_WEIGHT = Schedule(0.0, 6.6, 5_000)
TEMPERATURE = Schedule(1.0, 1 / 16, 150_000)
STEP_SIZE = Schedule(1e-4, 1.25e-6, 1_200_000)
"""The paper's step size."""
NUM_STEPS = 3_000_000
"""The paper's number of updates."""
