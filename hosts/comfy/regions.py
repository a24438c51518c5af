"""Regions: prompts of their own, in places of their own, beside a base prompt; who is read where in a step and a layer.

Each place reads every prompt by itself, and the results are mixed by shares that add up to 1. The base is prompt 0.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Regions".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ...weighting.fields import HIDDEN, logarithms, means, shares_of
from .fields import Step, Where, acts_in, mask_of, steps_of
from .queries import Queries

if TYPE_CHECKING:
    from .words import Carried


LLAMA = "conditioning_llama3"
"""Name of Llama's rows among the values of an entry."""
MASK = "attention_mask"
"""Name of the mask of rows among the values of an entry, and among a model's inputs."""


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
    inputs: Mapping[str, Any] = MappingProxyType({})
    """Values of its entry of which the model makes its rows, beside ``text``."""
    blends: bool = False
    """Whether it has no mask in every second block, where text and picture share an attention."""

    @property
    def llama(self) -> Tensor | None:
        """Rows of Llama, for HiDream alone, the last of its rows: ``[1, layers, rows, dim]``."""
        return self.inputs.get(LLAMA)

    @property
    def parts(self) -> tuple[range, range]:
        """Its rows of ``text``, and those of Llama."""
        num_last = 0 if self.llama is None else self.llama.shape[2]
        return self.rows[: len(self.rows) - num_last], self.rows[len(self.rows) - num_last :]

    @property
    def mask(self) -> Tensor:
        """1 for rows that may be read, else 0, for LTX-Video alone: ``[1, rows]``; all, if nothing says which."""
        mask: Tensor | None = self.inputs.get(MASK)
        return torch.ones(1, len(self.rows), dtype=torch.long) if mask is None else mask

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

    def __init__(
        self, owners: Tensor, shares: Tensor, blending: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Store each key's prompt, ``[batch, keys]``, -1 for none, and shares by place, as in `Reading`.

        ``blending`` is above 0 for prompts that blend, ``[batch, prompts]``. All are on the CPU; ``device`` is the
        model's. In a cross attention the keys of a prompt are in sequence.
        """
        blends = torch.zeros(shares.shape[:2]) if blending is None else blending
        self.any_blends, self.all_blend = bool((blends > 0).any()), bool((blends > 0).all())
        self._blends = (blends.gather(1, owners.long().clamp(min=0)) > 0).to(device)
        self._shares, self._device = shares, device
        self._owners = owners.long().to(device)
        self._by_layout: dict[Queries, Tensor] = {}
        found: dict[tuple[int, int, int], list[int]] = {}
        for image, own in enumerate(owners):
            for prompt in range(shares.shape[1]):
                places = (own == prompt).nonzero().flatten().tolist()
                if places and bool(shares[image, prompt].any()):
                    found.setdefault((prompt, places[0], places[-1] + 1), []).append(image)
        self.parts = [Part(prompt, images, slice(first, end)) for (prompt, first, end), images in found.items()]
        """Keys that are read, by prompt."""

    def read_again(self, num_rows: int) -> None:
        """Add the last keys once more, for layers that read them twice."""
        self._owners, self._blends = (
            torch.cat([keys, keys[:, -num_rows:]], 1) for keys in (self._owners, self._blends)
        )

    def bias(self, queries: Queries, num_references: int, *, is_between: bool = False) -> Tensor:
        """Bias of each key at each query where text and picture read each other: ``[batch, queries, keys]``, float32.

        A place of the picture reads prompts by their shares. Rows of text read those of their own prompt. Reference
        images, the last queries, read all; padding reads the base. In a block that ``is_between`` others, all read the
        prompts that blend.
        """
        owners = self._owners
        num_queries = queries.before + math.prod(queries.grid) + queries.behind
        found = torch.zeros(len(owners), num_queries, owners.shape[1], device=self._device)
        found.masked_fill_((owners > 0)[:, None], HIDDEN)
        is_own = owners[:, :, None] == owners[:, None]
        found[:, queries.text.start : queries.text.stop] = torch.where(is_own, 0.0, HIDDEN)
        if math.prod(queries.grid):
            logs = logarithms(self._shares, (queries.grid[-2], queries.grid[-1])).flatten(2).to(self._device)
            number = owners[:, None].expand(-1, logs.shape[-1], -1)
            found[:, queries.picture] = logs.transpose(1, 2).gather(2, number)
        if num_references:
            found[:, -num_references:] = 0.0
        return found.masked_fill_(self._blends[:, None], 0.0) if is_between else found

    def _at(self, queries: Queries) -> Tensor:
        """Share of each prompt at each query, ``[batch, prompts, queries]``: the mean one for those without a place."""
        if queries not in self._by_layout:
            shares = means(self._shares, (queries.grid[-2], queries.grid[-1]), of_layer=True).flatten(2)
            mean = self._shares.double().flatten(2).mean(2, keepdim=True)
            before, behind = (mean.expand(-1, -1, number) for number in (queries.before, queries.behind))
            self._by_layout[queries] = torch.cat([before, shares, behind], 2).float().to(self._device)
        return self._by_layout[queries]

    def attend(
        self,
        queries: Queries,
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

        The mask has four dimensions, the last of which is that of the keys.
        """
        shares = self._at(queries)
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
