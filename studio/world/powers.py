"""Questions about powers over whole phrases: is a weight a dial.

Its numbers were chosen on other prompts and seeds: these begin behind `CHOSEN_BY`.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ...weighting.guidance import GUIDANCE
from .measure import Judged, Point, Sitting
from .model import World
from .questions import FEW_WAYS, SEEDS, Question, Way, limited
from .scenes import BACKGROUND, COLORS

CHOSEN_BY = 20
"""First prompts of each number of things, on which numbers were chosen."""
NEAR = 0.2
"""Distance from the weight within which a picture counts as near."""
MIN_PIXELS = 20.0
"""Least amount of a thing in pixels beside the picture without it; with less, its dial says nothing."""


class Dialled(NamedTuple):
    """Answers for a picture at a weight; NaN if the thing is hardly there at weight 1."""

    amount: float
    """Amount of its colour, from 0 without the phrase to 1 at weight 1."""
    error: float
    """Distance of the amount from the weight, at most 1."""
    near: float
    """Whether it is within 0.2."""
    others: float
    """All other things are there, with colour and kind."""


def amounts(pictures: Tensor, color: str) -> Tensor:
    """Pixels of a colour in pictures ``[n, 3, h, w]``, those between it and the background in part."""
    pure, ground = (torch.tensor(rgb).float() / 255 for rgb in (COLORS[color], BACKGROUND))
    distance = (pictures.permute(0, 2, 3, 1) - pure).norm(dim=-1) / (ground - pure).norm()
    return (1 - distance).clamp(0, 1).sum((1, 2))


class DialSitting(Sitting):
    """Pictures of a weighted phrase, with those of the prompt without it."""

    @staticmethod
    def answers(way: Way) -> type[Dialled]:
        """As in `Sitting`."""
        return Dialled

    @cached_property
    def gone(self) -> Tensor:
        """Pictures of the other things alone, ``[prompts, seeds, 3, 32, 32]``."""
        texts = [
            " and ".join(thing.phrase for number, thing in enumerate(prompt.scene.things) if number != prompt.target)
            for prompt in self.prompts
        ]
        return self.painter.pictures([self.painter.text(text, Way("")) for text in texts], self.seeds)

    def point(self, way: Way, weight: float) -> Point:
        """As in `Sitting`."""
        drawn = self.draw(way, weight)
        point: list[list[Dialled]] = []
        for index, (prompt, judged) in enumerate(zip(self.prompts, self.judge(drawn), strict=True)):
            color = prompt.scene.things[prompt.target].color
            pictures = (drawn, self.gone, self.plain[0])
            pixels, without, whole = (amounts(rows[index], color).tolist() for rows in pictures)
            seeds = zip(pixels, without, whole, judged, strict=True)
            point.append([_dialled(*seed, weight) for seed in seeds])
        return point


def _dialled(pixels: float, without: float, whole: float, judged: Judged, weight: float) -> Dialled:
    if whole - without <= MIN_PIXELS:
        return Dialled(*[math.nan] * len(Dialled._fields))
    amount = (pixels - without) / (whole - without)
    error = min(1.0, abs(amount - weight))
    return Dialled(min(1.5, max(-0.5, amount)), error, error < NEAR, judged.others)


DIALS = (
    *(way for way in FEW_WAYS if way.name != "compel"),
    Way("attention value", how="value"),
    Way("guidance", how=GUIDANCE),
)
POWERS = (
    Question(
        "dial",
        "A dial: a whole phrase of two",
        DIALS,
        (0.0, 0.25, 0.5, 0.75, 1.0),
        num_prompts=8,
        answers=Dialled._fields,
        num_skipped=CHOSEN_BY,
        sitting=DialSitting,
    ),
)
"""Questions about powers in the world of a U-Net."""


def powers_of(world: World, *, max_prompts: int | None = None, num_seeds: int = SEEDS) -> tuple[Question, ...]:
    """Questions about powers in a kind of world, limited as those of `questions_of`."""
    questions = POWERS
    if world.name != "unet":
        ways = tuple(way for way in DIALS if way.how)
        questions = tuple(question._replace(ways=ways, kinds=world.kinds) for question in POWERS)
    return limited(questions, max_prompts, num_seeds)
