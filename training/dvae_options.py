"""Options for training a discrete VAE, with two recipes: the paper's, and one for coloured shapes on a laptop.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, appendix A.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from ..dalle.config import PUBLISHED, SMALL, DVAEConfig
from .options import Precision

MAX_HELD_OUT = 256
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


@dataclass(frozen=True)
class DVAEOptions:
    """Options that determine the result of a run. The defaults are the paper's.

    Raises:
        ValueError: If a number is out of range.
    """

    config: DVAEConfig = PUBLISHED
    size: int = 256
    """Side of a picture, in pixels."""
    batch: int = 8
    """Pictures in one part of a batch, which has to fit into memory."""
    accumulate: int = 64
    """Parts in a batch; the paper had as many GPUs."""
    steps: int = NUM_STEPS
    seed: int = 0
    precision: Precision = "fp32"
    step_size: Schedule = STEP_SIZE
    warmup: int = 0
    """Updates in which the step size rises from 0, on top of its schedule."""
    kl_weight: Schedule = KL_WEIGHT
    temperature: Schedule = TEMPERATURE
    noiseless: int = 0
    """Updates at the beginning with plain softmax instead of samples."""
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-4
    clip: float | None = None
    """Maximum norm of all gradients; None for no limit."""
    ema: float = 0.999
    """Decay of the moving average of the weights, which is written instead of them; 0 for none."""
    laplace_scale: float = 1 / 3
    """b of the likelihood, if the decoder does not predict it."""
    is_augmented: bool = True
    """Whether pictures are randomly cropped, scaled and mirrored."""
    held_out: int | None = None
    """Pictures held out of training for evaluation. None: a tenth, at most 256."""

    def __post_init__(self) -> None:
        for name in ("batch", "accumulate", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        f = self.config.downsampling
        if self.size < f or self.size % f:
            raise ValueError(f"the size of pictures must be a multiple of {f}, got {self.size}")
        if self.held_out is not None and self.held_out < 1:
            raise ValueError(f"at least 1 picture must be held out, got {self.held_out}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"the decay of the average must be from 0 to below 1, got {self.ema}")
        if not 0 <= self.weight_decay < math.inf or not 0 < self.laplace_scale < math.inf:
            raise ValueError(f"weight decay and scale must be numbers from 0, got {self.weight_decay}")
        if not self.step_size.first > 0 or not self.temperature.last > 0 or not self.temperature.first > 0:
            raise ValueError("step size and temperature must be above 0")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"the norm to clip at must be above 0, got {self.clip}")

    def num_held_out(self, count: int) -> int:
        """Number of pictures held out, given their total."""
        return max(1, min(MAX_HELD_OUT, count // 10)) if self.held_out is None else self.held_out

    def rate(self, step: int) -> float:
        """Learning rate of an update, counted from 0."""
        return self.step_size(step) * min(1.0, (step + 1) / max(1, self.warmup))

    def as_dict(self) -> dict[str, Any]:
        """The options as a dict, for a record."""
        return asdict(self)


def paper(steps: int | None = None) -> DVAEOptions:
    """The paper's recipe. Its schedules keep their lengths in a shorter run."""
    return DVAEOptions(steps=steps or NUM_STEPS)


def small(steps: int | None = None) -> DVAEOptions:
    """Recipe for a few thousand pictures of coloured shapes, 48 pixels wide. Its schedules are shares of the run.

    Normalised logits (`LogitNorm`), token vectors that start far apart and a start without noise keep many tokens in
    use (docs/dalle.md).
    """
    steps = steps or 1_800
    noiseless = round(0.08 * steps)
    return DVAEOptions(
        config=SMALL,
        size=48,
        batch=32,
        accumulate=1,
        steps=steps,
        step_size=Schedule(2e-3, 1e-4, steps),
        warmup=30,
        kl_weight=Schedule(0.0, 0.2, max(1, round(0.2 * steps)), noiseless, "linear"),
        temperature=Schedule(1.0, 1 / 8, max(1, round(0.62 * steps)), noiseless, "geometric"),
        noiseless=noiseless,
        betas=(0.9, 0.99),
        weight_decay=0.0,
        clip=1.0,
        ema=0.0,
        is_augmented=False,
    )


RECIPES: dict[str, Callable[[int | None], DVAEOptions]] = {"paper": paper, "small": small}
"""Recipes by name, default first."""
