"""Options for training DALL·E's prior, with two recipes: the paper's, and one for coloured shapes on a laptop.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.2 and appendix B.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from ..dalle.pieces import NUM_BYTES
from ..encoder.config import Activation
from .dvae_options import MAX_HELD_OUT
from .options import Precision


@dataclass(frozen=True)
class PriorOptions:
    """Options that determine the result of a run. The defaults are the paper's.

    Raises:
        ValueError: If a number is out of range.
    """

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
    """Weight of the text loss; the rest goes to that of the image."""
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
        for name in ("batch", "accumulate", "steps", "ema_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("warmup", "halvings"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.compress < 0:
            raise ValueError(f"the rank of compressed gradients must be at least 1, got {self.compress}")
        if self.pieces and self.pieces < NUM_BYTES:
            raise ValueError(
                f"pieces must be at least {NUM_BYTES}, one for each byte, or 0 for CLIP's own; got {self.pieces}"
            )
        for name in ("bpe_dropout", "ema"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be from 0 to below 1, got {getattr(self, name)}")
        if not 0 <= self.text_weight <= 1:
            raise ValueError(f"the weight of the text must be from 0 to 1, got {self.text_weight}")
        if not 0 < self.highest_rate < math.inf or not 0 <= self.weight_decay < math.inf:
            raise ValueError(f"step size and weight decay must be numbers from 0, got {self.highest_rate}")
        for name in ("clip", "max_second_moment"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        if self.held_out is not None and self.held_out < 1:
            raise ValueError(f"at least 1 pair must be held out, got {self.held_out}")

    def num_held_out(self, count: int) -> int:
        """Number of pairs held out, given their total."""
        return max(1, min(MAX_HELD_OUT, count // 10)) if self.held_out is None else self.held_out

    def rate(self, step: int) -> float:
        """Learning rate of an update, counted from 0.

        >>> options = PriorOptions(steps=100, warmup=4, highest_rate=1.0)
        >>> [options.rate(step) for step in (0, 3, 49, 50, 60, 99)]
        [0.25, 1.0, 1.0, 0.5, 0.25, 0.03125]
        """
        rate = self.highest_rate * min(1.0, (step + 1) / max(1, self.warmup))
        if not self.halvings:
            return rate * (0.05 + 0.95 * (1 + math.cos(math.pi * step / self.steps)) / 2)
        done = max(0, self.halvings * (2 * step - self.steps) // self.steps + 1)
        return rate * 0.5 ** min(done, self.halvings)

    def as_dict(self) -> dict[str, Any]:
        """The options as a dict, for a record."""
        return asdict(self)


def paper(steps: int | None = None) -> PriorOptions:
    """The paper's recipe."""
    return PriorOptions(steps=steps or PriorOptions.steps)


def small(steps: int | None = None) -> PriorOptions:
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


RECIPES: dict[str, Callable[[int | None], PriorOptions]] = {"paper": paper, "small": small}
"""Recipes by name, default first."""
