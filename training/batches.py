"""Batches of a training run: the order of each epoch, cut into batches.

Like the choice of captions, it depends on the seed and the step number alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from .data import Example


class Batches:
    """Batches of all steps, each a list of indices of examples."""

    def __init__(self, examples: Sequence[Example], size: int, seed: int) -> None:
        """Prepare the batches; the last, smaller one of an epoch is dropped."""
        self._repeats = [example.repeats for example in examples]
        self._size = size
        self._seed = seed
        self.per_epoch = sum(self._repeats) // size
        """Steps per epoch."""
        if not self.per_epoch:
            raise ValueError(f"an epoch has {sum(self._repeats)} pairs, fewer than a batch of {size}")
        self._order = lru_cache(maxsize=1)(self._order_of)

    def __call__(self, step: int) -> tuple[int, list[int]]:
        """Epoch of a step, counted from 0, and the indices of its examples."""
        epoch, number = divmod(step, self.per_epoch)
        return epoch, self._order(epoch)[number * self._size : (number + 1) * self._size]

    def _order_of(self, epoch: int) -> list[int]:
        """Order of the pairs in an epoch: all images once, then those that repeat once more, and so on.

        So an image is rarely in a batch twice, where it would be its own negative.
        """
        rng = random.Random(f"{self._seed}/{epoch}")
        order: list[int] = []
        for turn in range(max(self._repeats)):
            some = [index for index, repeats in enumerate(self._repeats) if repeats > turn]
            rng.shuffle(some)
            order += some
        return order


def held_out(examples: Sequence[Example], count: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Split examples at random."""
    out = set(random.Random(f"{seed}/held out").sample(range(len(examples)), count))
    return (
        [example for index, example in enumerate(examples) if index not in out],
        [example for index, example in enumerate(examples) if index in out],
    )
