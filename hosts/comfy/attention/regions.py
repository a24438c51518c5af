"""Regions: further prompts, each for its area; which prompt each place of the picture reads in a step.

Each place reads every prompt by itself, and the results are mixed by shares that add up to 1. The base is prompt 0.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Regions".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ....weighting.placing.fields import shares_of
from ..families.families import MASK
from .fields import Step, Where, acts_in, mask_of, steps_of

if TYPE_CHECKING:
    from .words import Carried


LLAMA = "conditioning_llama3"
"""Name of Llama's rows among the values of an entry."""


class Region(NamedTuple):
    """Region prompt stored on a base conditioning entry."""

    text: Tensor
    """Its rows: ``[1, rows, dim]``."""
    rows: range
    """Their numbers among all rows of the entry, after the rows of the base and of earlier regions."""
    strength: float
    """Factor of its mask."""
    where: Where
    """Its place and time."""
    times: tuple[float, float] = (0.0, 1.0)
    """Parts of the way between which its entry is sampled, both included."""
    words: Carried | None = None
    """Its words, if they are known."""
    inputs: Mapping[str, Any] = MappingProxyType({})
    """Further values of its entry that the model reads, such as T5's ids."""
    blends: bool = False
    """Whether it has no mask in every second block, where text and picture share an attention."""
    has_pass: bool = False
    """Whether its area is drawn by a pass of the model of its own, with its LoRAs."""

    @property
    def llama(self) -> Tensor | None:
        """Rows of Llama, for HiDream alone, the last of its rows: ``[1, layers, rows, dim]``."""
        return self.inputs.get(LLAMA)

    @property
    def parts(self) -> tuple[range, range]:
        """Its rows of ``text``, and its rows of Llama."""
        num_last = 0 if self.llama is None else self.llama.shape[2]
        return self.rows[: len(self.rows) - num_last], self.rows[len(self.rows) - num_last :]

    @property
    def mask(self) -> Tensor:
        """1 for rows that may be read, else 0, for LTX-Video alone: ``[1, rows]``; all, if nothing says which."""
        mask: Tensor | None = self.inputs.get(MASK)
        return torch.ones(1, len(self.rows), dtype=torch.long) if mask is None else mask

    def acts(self, step: Step) -> bool:
        """Whether it acts in a step."""
        return acts_in(self.where, step) and (self.times == (0.0, 1.0) or self._is_sampled(step))

    def _is_sampled(self, step: Step) -> bool:
        """Whether its entry is sampled in a step; levels are compared in float32, as the host compares them."""
        level, start, end = torch.tensor([step.level, *_levels(self, step)])
        return bool(level <= start) and bool(level >= end)

    def steps(self, step: Step, start: float | None, end: float | None) -> set[int]:
        """Steps in which it acts, for an entry of the base sampled from one noise level to another."""
        first, last = _levels(self, step)
        starts, ends = ([float(level) for level in pair if level is not None] for pair in ((start, first), (end, last)))
        return steps_of(self.where, step, min(starts), max(ends))


def _levels(region: Region, step: Step) -> tuple[float, float]:
    """Noise levels between which its entry is sampled, as the host finds them."""
    start, end = region.times
    return step.level_at(start), step.level_at(end)


class PromptsRead(NamedTuple):
    """Prompts that an entry's image reads in a step."""

    regions: tuple[Region, ...]
    """The regions that act."""
    shares: Tensor | None
    """Share of the base and of each of them by place, ``[1 or batch, 1 + regions, (frames,) height, width]``; None if
    all places read the only region."""


def reading(regions: Sequence[Region], step: Step) -> PromptsRead:
    """Prompts that an entry's image reads in a step; none of the regions if it reads the base alone."""
    acting_regions = tuple(region for region in regions if region.acts(step))
    if not acting_regions:
        return PromptsRead((), None)
    sizes = step.latent.shape[2:]
    ones = torch.ones(1, *sizes)
    masks = [ones if (mask := mask_of(region.where, step)) is None else mask for region in acting_regions]
    num_pictures = max(map(len, masks))
    scaled = [
        region.strength * mask.expand(num_pictures, *sizes) for region, mask in zip(acting_regions, masks, strict=True)
    ]
    shares = shares_of(torch.stack(scaled, 1).double()).float()
    return PromptsRead(acting_regions, None if len(acting_regions) == 1 and not bool(shares[:, 0].any()) else shares)
