"""Brownian motion of a picture, for the samplers named SDE: the same numbers whatever is asked first.

Source: torchsde 0.2.6, `BrownianTree`, whose values are computed here from the same seeds; Li et al.,
"Scalable Gradients for Stochastic Differential Equations" (2020). Its normal numbers come from a source of the WebUI.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .noise import make_generator

_DIGITS = 6
"""Decimals to which times are rounded."""
_POOL = 24
"""Size of the pool of entropy of each seed."""


class BrownianPath:
    """Brownian motion between two times, halved and halved again where it is asked for.

    Args:
        seed: The picture's seed.
        source: Source of normal numbers (`SOURCES`).
        times: First and last time.
        shape: Shape of the picture's latent.
    """

    def __init__(self, seed: int, source: str, times: tuple[float, float], shape: Sequence[int]) -> None:
        self.seed, self.source, self.shape = seed, source, tuple(shape)
        self.start, self.end = (round(time, _DIGITS) for time in times)
        self.whole = self._normal(np.random.SeedSequence(seed, pool_size=_POOL)) * math.sqrt(times[1] - times[0])
        self.split = lru_cache(64)(self._split)

    def between(self, start: float, end: float) -> Tensor:
        """Increment from a time to a later one, float64."""
        return self._at(end) - self._at(start)

    def _at(self, time: float) -> Tensor:
        """Increment from the first time to this one."""
        time = round(min(max(time, self.start), self.end), _DIGITS)
        start, end, whole = self.start, self.end, self.whole
        before = torch.zeros_like(whole)
        key = depth = 0
        while True:
            if time == start:
                return before
            if time == end:
                return before + whole
            middle = round(0.5 * (end + start), _DIGITS)
            share = (middle - start) / (end - start)
            left = share * whole + math.sqrt((end - middle) * share) * self.split(key, depth)
            key, depth = 2 * key, depth + 1
            if time <= middle:
                end, whole = middle, left
            else:
                start, whole, before, key = middle, whole - left, before + left, key + 1

    def _split(self, key: int, depth: int) -> Tensor:
        """Normal numbers by which an interval is halved."""
        return self._normal(np.random.SeedSequence(self.seed, spawn_key=(key, depth), pool_size=_POOL))

    def _normal(self, seeds: np.random.SeedSequence) -> Tensor:
        return make_generator(self.source, int(seeds.generate_state(1)[0]))(self.shape).double()
