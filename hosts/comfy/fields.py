"""Fields of words in one step of ComfyUI's samplers: weights by place of those that act, and their bias in a layer.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Places and times".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...weighting.areas import Area, area_mask
from ...weighting.attention import effect_of
from ...weighting.fields import acts_at, levels_of_steps, logarithms, means, weights_by_place

PIXELS = 8
"""Pixels along a side of a latent's place, unless the host says otherwise."""


class Where(NamedTuple):
    """Place and time of something."""

    name: str
    """Its name in messages."""
    area: Area | None = None
    """Area of the mask; None for the whole picture."""
    mask: Tensor | None = None
    """Mask of another size, ``[pictures, height, width]``, 0 to 1, by which the area is multiplied."""
    start: float = 0.0
    """First time at which it acts: a part of the way from noise to the picture, or a step counted from 0."""
    end: float = 1.0
    """First time at which it does not act any more; 1, or the number of steps, is the end of the sampling."""
    in_steps: bool = False
    """Whether times are steps."""
    node_id: str | None = None
    """Node to notify after sampling."""


class Field(NamedTuple):
    """Weight of some rows by place and time."""

    rows: tuple[int, ...]
    """The rows, counted from 0."""
    inside: float
    """Weight where the mask is 1."""
    outside: float
    """Weight where the mask is 0."""
    where: Where
    """Place of the mask, and time of the weights."""
    phrase: str
    """The phrase whose rows they are."""


class Acting(NamedTuple):
    """Fields of an entry that act in a step."""

    bias: Tensor
    """Bias of each row by weights that are the same everywhere: ``[rows]``."""
    weights: Tensor
    """Weights by place of the others: ``[1 or batch, fields, height, width]``."""
    rows: Tensor
    """1 for the rows of each of them, else 0: ``[fields, rows]``."""


class Step(NamedTuple):
    """A step of a sampling."""

    model: Any
    """The host's model."""
    latent: Tensor
    """``[batch, channels, height, width]``."""
    sigma: Tensor
    """Its noise level."""
    sigmas: Sequence[float] | None
    """Levels of all steps and the one after the last; None if unknown."""
    masks: dict[tuple[int, torch.Size], Tensor | None]
    """Masks made so far in this sampling, by the identity of their `Where` and the latent's shape."""


def acting(fields: Sequence[Field], num_rows: int, step: Step) -> Acting:
    """Fields that act in a step, for an entry of so many rows."""
    bias = torch.zeros(num_rows)
    weights: list[Tensor] = []
    rows: list[Tensor] = []
    for field in fields:
        if not acts_in(field.where, step):
            continue
        mask = mask_of(field.where, step)
        same = None if mask is None else mask.flatten()[0]
        if mask is None or field.inside == field.outside or bool((mask == same).all()):
            share = 1.0 if same is None else float(same)
            effect = effect_of(share * field.inside + (1 - share) * field.outside)
            bias[list(field.rows)] += effect.bias
        else:
            weights.append(weights_by_place(mask, field.inside, field.outside))
            is_own = torch.zeros(num_rows)
            is_own[list(field.rows)] = 1.0
            rows.append(is_own)
    height, width = step.latent.shape[-2:]
    if not weights:
        return Acting(bias, torch.ones(1, 0, height, width), torch.zeros(0, num_rows))
    num_pictures = max(map(len, weights))
    by_picture = [one.expand(num_pictures, -1, -1) for one in weights]
    return Acting(bias, torch.stack(by_picture, 1).float(), torch.stack(rows))


def acts_in(where: Where, step: Step) -> bool:
    """Whether something acts in a step."""
    return acts_at(step.sigma, *_range_of(where, step))


def steps_of(where: Where, step: Step, start: float | None, end: float | None) -> set[int]:
    """Steps in which something acts, of an entry sampled from one noise level to another; None: the whole way."""
    times = _range_of(where, step)
    return {
        index
        for index, sigma in enumerate((step.sigmas or [0.0])[:-1])
        if acts_at(sigma, *times) and (start is None or sigma <= start) and (end is None or sigma >= end)
    }


def _range_of(where: Where, step: Step) -> tuple[float, float]:
    """Noise levels of a start and an end."""
    if not where.in_steps:
        start, end = map(step.model.model_sampling.percent_to_sigma, (where.start, where.end))
        return float(start), float(end)
    if step.sigmas is None:
        raise ValueError(
            f"{where.name} is placed in steps, but this sampler does not say which steps it has. Set unit to percent."
        )
    return levels_of_steps(int(where.start), int(where.end), step.sigmas)


def mask_of(where: Where, step: Step) -> Tensor | None:
    """Mask at the latent's places, ``[1 or batch, height, width]``; None if it is 1 everywhere."""
    key = id(where), step.latent.shape
    if key not in step.masks:
        step.masks[key] = _made_mask(where, step)
    return step.masks[key]


def _made_mask(where: Where, step: Step) -> Tensor | None:
    batch, cells = step.latent.shape[0], (step.latent.shape[-2], step.latent.shape[-1])
    mask: Tensor | None = None
    if where.area is not None:
        ratio = getattr(step.model.latent_format, "spacial_downscale_ratio", PIXELS)
        mask = area_mask(where.area, cells, (cells[0] * ratio, cells[1] * ratio))[None]
    if where.mask is not None:
        if len(where.mask) not in (1, batch):
            raise ValueError(
                f"The mask of {where.name} has {len(where.mask)} pictures, but {batch} are sampled: give one mask for "
                "all of them, or one for each."
            )
        own = means(where.mask.cpu(), cells).float()
        mask = own if mask is None else own * mask
    if mask is not None and not bool(mask.any()):
        raise ValueError(f"{where.name} has no place in the picture: its area and its mask do not meet.")
    return mask


class OnGrid:
    """Base of what depends on the places of a layer's queries."""

    grid: tuple[int, int]
    """Rows and columns of queries in the next layer."""

    def see(self, query: Tensor, extra: Sequence[Any]) -> None:
        """Note the grid of a layer of a U-Net, from the host's options for patches, and check it against its queries.

        The query is ``[batch, queries, dim]``.
        """
        options: Mapping[str, Any] = extra[0] if extra else {}
        shape = options.get("activations_shape", (0, 0))
        self.grid = int(shape[-2]), int(shape[-1])
        if math.prod(self.grid) != query.shape[1]:
            raise ValueError(
                "Place Phrase and Region need to know where in the picture each of "
                f"{query.shape[1]} places is, but another node has changed them, or this ComfyUI is too old to tell. "
                "Take out that node, or Place Phrase and Region."
            )


class Places(OnGrid):
    """Fields in one call of a model."""

    def __init__(self, weights: Tensor, rows: Tensor, device: torch.device | str = "cpu") -> None:
        """Store weights by place, ``[batch, fields, height, width]``, and rows, ``[batch, fields, keys]``, on the CPU.

        ``device`` is the model's.
        """
        self._weights, self._rows, self._device = weights, rows.to(device), device
        self._by_grid: dict[tuple[int, int], Tensor] = {}

    def bias(self) -> Tensor:
        """Bias of each key's logit at each query of the grid: ``[batch, 1, queries, keys]``, float32."""
        if self.grid not in self._by_grid:
            logs = logarithms(self._weights, self.grid).to(self._device)  # [batch, fields, queries]
            pairs = zip(logs.unbind(1), self._rows.unbind(1), strict=True)
            first, *others = (log[:, :, None] * own[:, None] for log, own in pairs)
            self._by_grid[self.grid] = sum(others, first)[:, None]
        return self._by_grid[self.grid]
