"""Regions: prompts of their own, in places of their own, beside a base prompt; who is read where in a step and a layer.

Each place reads every prompt by itself, and the results are mixed by shares that add up to 1. The base is prompt 0.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Regions".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...weighting.fields import means, shares_of
from .fields import Step, Where, acts_in, mask_of, steps_of

if TYPE_CHECKING:
    from .words import Carried


class Region(NamedTuple):
    """A prompt with a place of its own, as it is carried by the entries of the base prompt."""

    text: Tensor
    """Its rows: ``[1, rows, dim]``."""
    rows: range
    """Their places among the rows of the entry, behind those of the base and of the regions before it."""
    strength: float
    """Factor of its mask."""
    where: Where
    """Its place and time."""
    times: tuple[float, float] = (0.0, 1.0)
    """Parts of the way between which its entry is sampled, both included."""
    words: Carried | None = None
    """Its words, if they are known."""

    def acts(self, step: Step) -> bool:
        """Whether it acts in a step."""
        start, end = _levels(self, step)
        sigma = step.sigma.float().cpu()
        return acts_in(self.where, step) and bool(sigma <= start) and bool(sigma >= end)

    def steps(self, step: Step, start: float | None, end: float | None) -> set[int]:
        """Steps in which it acts, for an entry of the base sampled from one noise level to another."""
        first, last = _levels(self, step)
        starts, ends = ([float(one) for one in pair if one is not None] for pair in ((start, first), (end, last)))
        return steps_of(self.where, step, min(starts), max(ends))


def _levels(region: Region, step: Step) -> tuple[float, float]:
    """Noise levels between which its entry is sampled, as the host finds them."""
    start, end = map(step.model.model_sampling.percent_to_sigma, region.times)
    return float(start), float(end)


class Reading(NamedTuple):
    """Prompts that an entry's image reads in a step."""

    regions: tuple[Region, ...]
    """The regions that act."""
    shares: Tensor | None
    """Share of the base and of each of them by place, ``[1 or batch, 1 + regions, (frames,) height, width]``; None if
    all places read the only region."""


def reading(regions: Sequence[Region], step: Step) -> Reading:
    """Prompts that an entry's image reads in a step; none of the regions if it reads the base alone."""
    there = tuple(region for region in regions if region.acts(step))
    if not there:
        return Reading((), None)
    sizes = step.latent.shape[2:]
    ones = torch.ones(1, *sizes)
    masks = [ones if (mask := mask_of(region.where, step)) is None else mask for region in there]
    num_pictures = max(map(len, masks))
    scaled = [region.strength * mask.expand(num_pictures, *sizes) for region, mask in zip(there, masks, strict=True)]
    shares = shares_of(torch.stack(scaled, 1).double()).float()
    return Reading(there, None if len(there) == 1 and not bool(shares[:, 0].any()) else shares)


class Part(NamedTuple):
    """Keys of one prompt in a layer."""

    prompt: int
    """Number of the prompt in its image: 0 is the base."""
    images: list[int]
    """Images of the batch that read it."""
    keys: slice


class Shared:
    """Prompts in one call of a model."""

    def __init__(self, owners: Tensor, shares: Tensor, device: torch.device | str = "cpu") -> None:
        """Store each key's prompt, ``[batch, keys]``, -1 for none, and shares by place, as in `Reading`.

        Both are on the CPU; ``device`` is the model's. The keys of a prompt are in sequence.
        """
        self._shares, self._device = shares, device
        self._by_grid: dict[tuple[int, ...], Tensor] = {}
        found: dict[tuple[int, int, int], list[int]] = {}
        for image, own in enumerate(owners):
            for prompt in range(shares.shape[1]):
                places = (own == prompt).nonzero().flatten().tolist()
                if places and bool(shares[image, prompt].any()):
                    found.setdefault((prompt, places[0], places[-1] + 1), []).append(image)
        self.parts = [Part(prompt, images, slice(first, end)) for (prompt, first, end), images in found.items()]
        """Keys that are read, by prompt."""

    def _at_grid(self, grid: tuple[int, ...]) -> Tensor:
        """Share of each prompt at each query: ``[batch, prompts, queries]``."""
        if grid not in self._by_grid:
            shares = means(self._shares, (grid[-2], grid[-1]), of_layer=True)
            self._by_grid[grid] = shares.flatten(2).float().to(self._device)
        return self._by_grid[grid]

    def attend(
        self,
        grid: tuple[int, ...],
        attention: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """The host's attention to each prompt by itself, mixed by their shares; shapes as in `Weighing.attend`.

        ``grid`` is that of the queries, which are all places of the picture. The mask has four dimensions, the last of
        which is that of the keys.
        """
        shares = self._at_grid(grid)
        result: Tensor | None = None
        for prompt, images, keys in self.parts:
            own = [one if len(images) == len(query) else one[images] for one in (query, key, value)]
            is_by_head = value.dim() == 4 and key.dim() == 3
            read = attention(
                own[0],
                own[1][..., keys, :],
                own[2][:, keys] if is_by_head else own[2][..., keys, :],
                heads,
                None if mask is None else (mask[images] if len(mask) > 1 else mask)[..., keys],
                *rest,
                **options,
            )
            share = shares[images, prompt][..., None].to(read.dtype)  # [images, queries, 1]
            if result is None:
                result = read.new_zeros(len(query), *read.shape[1:])
            result[images] += read * (share if read.dim() == 3 else share[:, None])
        assert result is not None  # the shares of an image add up to 1
        return result
