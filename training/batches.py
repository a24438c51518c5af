"""Which images a step trains on: the order of each epoch, cut into batches.

Like the captions, it follows from the seed and the number of the step alone.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import lru_cache

from .data import Example


class Batches:
    """The batches of all steps, each a list of indices of examples."""

    def __init__(self, examples: Sequence[Example], size: int, seed: int) -> None:
        """Divide an epoch.

        Args:
            examples: What is trained on.
            size: Pairs in a batch. A last, smaller batch of an epoch is left out; its pairs are others in each epoch.
            seed: Of the order.

        Raises:
            ValueError: If an epoch has fewer pairs.
        """
        self._repeats = [example.repeats for example in examples]
        self._size = size
        self._seed = seed
        self.per_epoch = sum(self._repeats) // size
        """Steps in an epoch."""
        if not self.per_epoch:
            raise ValueError(f"an epoch has {sum(self._repeats)} pairs, fewer than a batch of {size}")
        self._order = lru_cache(maxsize=1)(self._order_of)

    def __call__(self, step: int) -> tuple[int, list[int]]:
        """The epoch of a step, from 0, and the indices of its examples."""
        epoch, number = divmod(step, self.per_epoch)
        return epoch, self._order(epoch)[number * self._size : (number + 1) * self._size]

    def _order_of(self, epoch: int) -> list[int]:
        """All pairs in the order of an epoch: all images once, then those that repeat once more, and so on.

        So an image seldom meets itself in a batch, where it would have to be told from itself.
        """
        rng = random.Random(f"{self._seed}/{epoch}")
        order: list[int] = []
        for turn in range(max(self._repeats)):
            some = [index for index, repeats in enumerate(self._repeats) if repeats > turn]
            rng.shuffle(some)
            order += some
        return order


def held_out(examples: Sequence[Example], count: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Divide examples at random.

    Args:
        examples: All of them.
        count: How many are held out, fewer than all.
        seed: Of the choice.

    Returns:
        What is trained on, and what is held out, both in their order.
    """
    out = set(random.Random(f"{seed}/held out").sample(range(len(examples)), count))
    return (
        [example for index, example in enumerate(examples) if index not in out],
        [example for index, example in enumerate(examples) if index in out],
    )
