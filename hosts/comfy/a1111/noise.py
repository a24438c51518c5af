"""Noise as A1111 and Forge draw it: a generator for each picture, and variations of a picture by a second seed.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06), compared to the bit; Philox 4x32-10 by Salmon et
al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ....weighting.text.prompt import shortened

SOURCES = ("NV", "CPU")
"""Sources of random numbers: as a graphics card of NVIDIA draws them, and as the processor does."""
Draw = Callable[[Sequence[int]], Tensor]
"""A generator: draws normal numbers of a shape, others at each call."""

_SEEDS = 2**64
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint32(0x9E3779B9), np.uint32(0xBB67AE85)
_PER_INTEGER = np.float32(2.3283064e-10)
_TWO_PI = np.float32(6.2831855)
_LOW, _HIGH = np.uint64(0xFFFFFFFF), np.uint64(32)


def make_generator(source: str, seed: int) -> Draw:
    """Make a generator of float32 numbers.

    Args:
        source: One of `SOURCES`.
        seed: Any integer; beyond 64 bits, as its lowest 64.
    """
    seed %= _SEEDS
    if source == "CPU":
        generator = torch.Generator("cpu").manual_seed(seed)
        return lambda shape: torch.randn(tuple(shape), generator=generator)
    num_calls = 0

    def draw(shape: Sequence[int]) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return _philox(seed, num_calls - 1, shape)

    return draw


def _philox(seed: int, call: int, shape: Sequence[int]) -> Tensor:
    """Normal numbers of a shape: those of a call, by Philox 4x32-10 and Box and Muller's first number."""
    size = prod(shape)
    key = [np.uint32(seed & 0xFFFFFFFF), np.uint32(seed >> 32)]
    counter = [np.full(size, call, np.uint32), np.zeros(size, np.uint32), np.arange(size, dtype=np.uint32)]
    counter.append(np.zeros(size, np.uint32))
    with np.errstate(over="ignore"):
        for _ in range(10):
            first, second = (counter[i].astype(np.uint64) * m for i, m in zip((0, 2), _MULTIPLIERS, strict=True))
            counter = [
                (second >> _HIGH).astype(np.uint32) ^ counter[1] ^ key[0],
                (second & _LOW).astype(np.uint32),
                (first >> _HIGH).astype(np.uint32) ^ counter[3] ^ key[1],
                (first & _LOW).astype(np.uint32),
            ]
            key = [part + step for part, step in zip(key, _KEY_STEPS, strict=True)]
    # in float64 from here on, but with constants of float32
    unit, angle = np.float64(_PER_INTEGER), np.float64(_PER_INTEGER * _TWO_PI)
    u, v = counter[0] * unit + unit / 2, counter[1] * angle + angle / 2
    return torch.from_numpy((np.sqrt(-2 * np.log(u)) * np.sin(v)).astype(np.float32).reshape(tuple(shape)))


def slerp(share: float, first: Tensor, second: Tensor) -> Tensor:
    """Turn one noise towards another, row by row of the latent; straight where both are nearly the same.

    Args:
        share: Way from ``first``, 0, to ``second``, 1.
        first: Noise, ``[channels, height, width]``.
        second: Noise of the same shape.
    """
    rows = [noise / noise.norm(dim=1, keepdim=True) for noise in (first, second)]
    cosine = (rows[0] * rows[1]).sum(1)
    if cosine.mean() > 0.9995:
        return first * share + second * (1 - share)
    angle = cosine.acos()
    parts = [((1 - share) * angle).sin() / angle.sin(), (share * angle).sin() / angle.sin()]
    return parts[0].unsqueeze(1) * first + parts[1].unsqueeze(1) * second


@dataclass(frozen=True)
class A1111Noise:
    """The host's NOISE, and what a sampler needs to draw more of it."""

    seed: int
    """Seed of the first picture of a batch; the next ones follow by 1."""
    source: str = "NV"
    """One of `SOURCES`."""
    ensd: int = 0
    """Added to the seed for noise after the first; "eta noise seed delta"."""
    subseed: int = 0
    """Seed of the variation; with one, it is this that moves in a batch."""
    subseed_strength: float = 0.0
    """Share of the variation, 0 to 1."""
    resize_width: int = 0
    """Width in pixels of the picture whose noise stays the same; 0: this one's."""
    resize_height: int = 0
    """Height of it."""

    def __post_init__(self) -> None:
        if not isfinite(self.subseed_strength) or not 0 <= self.subseed_strength <= 1:
            raise ValueError(f"subseed_strength must be from 0 to 1; got {self.subseed_strength}")

    def generate_noise(self, latent: Mapping[str, Any]) -> Tensor:
        """First noise of a latent, ``[batch, channels, height, width]``; the host calls it."""
        shape = latent["samples"].shape
        if len(shape) != 4:
            raise ValueError(
                f"A1111 and Forge make noise for pictures: [batch, channels, height, width]; got {list(shape)}"
            )
        numbers = list(latent.get("batch_index") or range(shape[0]))
        if numbers != list(range(shape[0])):
            raise ValueError(
                f"these are pictures {numbers} of a batch, counted from 0; A1111 draws noise for all from the first. "
                f"Give the latent of one picture and its own seed: that of the first and its number"
            )
        return torch.stack([self._first(i, shape[1:]) for i in numbers])

    def step_noise(self, shape: Sequence[int]) -> Callable[[], Tensor]:
        """Noise after the first, for latents of a shape: ``[batch, channels, height, width]`` at each call."""
        generators = [make_generator(self.source, self.seeds(i)[0] + self.ensd) for i in range(shape[0])]
        if not self.ensd:
            for draw in generators:
                draw(shape[1:])
        return lambda: torch.stack([draw(shape[1:]) for draw in generators])

    def seeds(self, place: int) -> tuple[int, int]:
        """Seed and subseed of a picture of the batch."""
        if self.subseed_strength:
            return self.seed, self.subseed + place
        return self.seed + place, self.subseed

    def _first(self, place: int, shape: Sequence[int]) -> Tensor:
        """First noise of a picture, ``[channels, height, width]``."""
        seed, subseed = self.seeds(place)
        small = list(shape)
        if self.resize_width > 0 and self.resize_height > 0:
            small[1:] = self.resize_height // 8, self.resize_width // 8
        noise = make_generator(self.source, seed)(small)
        if self.subseed_strength:
            noise = slerp(self.subseed_strength, noise, make_generator(self.source, subseed)(small))
        if small == list(shape):
            return noise
        whole = make_generator(self.source, seed)(shape)
        inside, part = zip(*(_centered(*sizes) for sizes in zip(shape[1:], small[1:], strict=True)), strict=True)
        whole[(..., *inside)] = noise[(..., *part)]
        return whole


def _centered(whole: int, part: int) -> tuple[slice, slice]:
    """Place of a part centered in a whole, and what of the part fits."""
    offset = (whole - part) // 2
    if offset >= 0:
        return slice(offset, offset + part), slice(None)
    return slice(0, part + 2 * offset), slice(-offset, part + offset)


def batch_note(noise: A1111Noise, size: str, position: str, sampler: str) -> str:
    """Sentence on which picture of a batch one was.

    A1111 wrote the number of pictures, and of this one from 0, until 2023-01-29. The seeds count up by 1 from the first
    picture's, and each picture's text has its own.

    Args:
        noise: The picture's.
        size: The setting “Batch size”.
        position: The setting “Batch pos”.
        sampler: The picture's, of which the SDE ones drew one noise for a whole batch until 2023-02-11.

    >>> batch_note(A1111Noise(7), "4", "2", "Euler a")
    'Batch: picture 3 of 4, whose seeds count up from 5; 7 is its own, so it is drawn alone'
    """
    numbers = [int(text) if re.fullmatch(r"\d{1,4}", text.strip(), re.ASCII) else -1 for text in (size, position)]
    if not 0 <= numbers[1] < numbers[0]:
        return (
            f"Batch size: {shortened(size, 40)}, Batch pos: {shortened(position, 40)}: not a place in a batch; not used"
        )
    name, own = ("variation seed", noise.subseed) if noise.subseed_strength else ("seed", noise.seed)
    line = f"Batch: picture {numbers[1] + 1} of {numbers[0]}, whose {name}s count up from {own - numbers[1]}"
    if "SDE" in sampler:
        return f"{line}; A1111 drew one noise for all of them with {sampler} then, so the picture will be another"
    return f"{line}; {own} is its own, so it is drawn alone"
