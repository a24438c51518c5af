"""Options for training a discrete VAE and a prior, each with two recipes: the paper's, and one for coloured shapes.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.2 and appendices A.2 and B.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from ....encoder.models.config import Activation
from ....encoder.quoting import quote
from ...dalle.config import PUBLISHED, SMALL, DVAEConfig
from ...dalle.pieces import NUM_BYTES
from ..options import Precision, check_common

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
            raise ValueError(f"a course is one of {', '.join(COURSES)}, got {quote(self.course)}")
        lowest = 0 if self.course != "geometric" else math.ulp(0.0)
        for value in (self.first, self.last):
            if not lowest <= value < math.inf:
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
    """Options that determine the result of a run. The defaults are the paper's."""

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
        check_common(self, "batch", "accumulate", "steps", least_held_out=1)
        f = self.config.downsampling
        if self.size < f or self.size % f:
            raise ValueError(f"the size of pictures must be a multiple of {f}, got {self.size}")
        if not 0 <= self.weight_decay < math.inf or not 0 < self.laplace_scale < math.inf:
            raise ValueError(f"weight decay and scale must be numbers from 0, got {self.weight_decay}")
        if not self.step_size.first > 0 or not self.temperature.last > 0 or not self.temperature.first > 0:
            raise ValueError("step size and temperature must be above 0")

    def rate(self, step: int) -> float:
        """Learning rate of an update, counted from 0."""
        return self.step_size(step) * min(1.0, (step + 1) / max(1, self.warmup))


def dvae_small(steps: int | None = None) -> DVAEOptions:
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


DVAE_RECIPES: dict[str, Callable[[int | None], DVAEOptions]] = {
    "paper": lambda steps: DVAEOptions(steps=steps or NUM_STEPS),
    "small": dvae_small,
}
"""Recipes by name, default first. The paper's schedules keep their lengths in a shorter run."""


@dataclass(frozen=True)
class PriorOptions:
    """Options that determine the result of a run. The defaults are the paper's."""

    hidden_dim: int = 3968
    num_heads: int = 62
    num_layers: int = 64
    activation: Activation = "quick_gelu"
    text_length: int = 256
    """Text positions; pairs with longer captions are left out."""
    pieces: int = 16384
    """Maximum number of pieces learned from the captions; 0 for CLIP's own."""
    bpe_dropout: float = 0.1
    """Probability of skipping a possible merge."""
    size: int = 256
    """Side of a picture, in pixels."""
    batch: int = 8
    """Pairs in one part of a batch, which has to fit into memory."""
    accumulate: int = 128
    """Parts in a batch; the paper had as many machines."""
    steps: int = 430_000
    seed: int = 0
    precision: Precision = "fp32"
    highest_rate: float = 4.5e-4
    warmup: int = 5_000
    """Updates in which the step size rises from 0."""
    halvings: int = 5
    """Number of times the step size is halved, at equal intervals in the second half of the run (the paper did it by
    hand, whenever the loss stopped falling); 0 for a decay to a twentieth along half a cosine."""
    betas: tuple[float, float] = (0.9, 0.96)
    weight_decay: float = 0.045
    clip: float | None = 4.0
    """Maximum norm of all gradients; None for no limit."""
    max_second_moment: float | None = 5.0
    """Limit of AdamW's running mean of squares after each update; None for no limit."""
    ema: float = 0.99
    """Decay of the moving average of the weights, which is written instead of them; 0 for none."""
    ema_every: int = 25
    """Updates between two steps of that average."""
    text_weight: float = 1 / 8
    """Weight of the text loss; the image loss gets the rest."""
    counts_padding: bool = True
    """Whether padding counts in the text loss."""
    is_augmented: bool = True
    """Whether pictures are randomly cropped and scaled, and encoded again for each update."""
    held_out: int | None = None
    """Pairs held out of training for evaluation. None: a tenth, at most 256."""
    checkpointing: bool = False
    """Whether states are recomputed in the backward pass, to save memory."""
    compress: int = 0
    """Rank of the matrices that gradients are compressed to between processes; 0 for no compression."""

    def __post_init__(self) -> None:
        check_common(self, "batch", "accumulate", "steps", "ema_every", least_held_out=1)
        for name in ("warmup", "halvings"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.pieces and self.pieces < NUM_BYTES:
            raise ValueError(
                f"pieces must be at least {NUM_BYTES}, one for each byte, or 0 for CLIP's own; got {self.pieces}"
            )
        if not 0 <= self.bpe_dropout < 1:
            raise ValueError(f"bpe_dropout must be from 0 to below 1, got {self.bpe_dropout}")
        if not 0 <= self.text_weight <= 1:
            raise ValueError(f"the weight of the text must be from 0 to 1, got {self.text_weight}")
        if not 0 < self.highest_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"step size and weight decay must be numbers from 0, got {self.highest_rate}")
        if self.max_second_moment is not None and not self.max_second_moment > 0:
            raise ValueError(f"max_second_moment must be above 0, got {self.max_second_moment}")

    def rate(self, step: int) -> float:
        """Learning rate of an update, counted from 0.

        >>> options = PriorOptions(steps=100, warmup=4, highest_rate=1.0)
        >>> [options.rate(step) for step in (0, 3, 49, 50, 60, 99)]
        [0.25, 1.0, 1.0, 0.5, 0.25, 0.03125]
        """
        rate = self.highest_rate * min(1.0, (step + 1) / max(1, self.warmup))
        if not self.halvings:
            return rate * (0.05 + 0.95 * (1 + math.cos(math.pi * step / self.steps)) / 2)
        num_halvings = max(0, self.halvings * (2 * step - self.steps) // self.steps + 1)
        return rate * 0.5 ** min(num_halvings, self.halvings)


def prior_small(steps: int | None = None) -> PriorOptions:
    """Recipe for coloured shapes, 48 pixels wide."""
    return PriorOptions(
        hidden_dim=192,
        num_heads=3,
        num_layers=4,
        activation="gelu",
        text_length=16,
        pieces=1024,
        bpe_dropout=0.0,
        size=48,
        batch=16,
        accumulate=1,
        steps=steps or 3_000,
        highest_rate=1.5e-3,
        warmup=100,
        halvings=0,
        clip=1.0,
        max_second_moment=None,
        ema=0.0,
        is_augmented=False,
    )


PRIOR_RECIPES: dict[str, Callable[[int | None], PriorOptions]] = {
    "paper": lambda steps: PriorOptions(steps=steps or PriorOptions.steps),
    "small": prior_small,
}
"""Recipes by name, default first."""
