"""Fields of words in one step of ComfyUI's samplers: weights by place of those that act, and their bias in a layer.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Places and times".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....weighting.attention import effect_of
from ....weighting.placing.areas import Area, area_mask
from ....weighting.placing.field_bias import least_bias
from ....weighting.placing.fields import acts_at, levels_of_steps, means, weights_by_place
from ....weighting.placing.word_maps import place_in
from .recorder import Record, Watch

PIXELS = 8
"""Pixels along a side of a latent's place, unless the host says otherwise."""


class Where(NamedTuple):
    """Place and time of something."""

    name: str
    """Its name in messages."""
    area: Area | None = None
    """Area of the mask; None for the whole picture."""
    mask: Tensor | None = None
    """Mask of another size, ``[pictures or frames, height, width]``, 0 to 1, by which the area is multiplied."""
    start: float = 0.0
    """First time at which it acts: a part of the way from noise to the picture, or a step counted from 0."""
    end: float = 1.0
    """First time at which it does not act any more; 1, or the number of steps, is the end of the sampling."""
    in_steps: bool = False
    """Whether times are steps."""
    node_id: str | None = None
    """Node to notify after sampling."""
    watch: Watch | None = None
    """Watch of one word, whose map so far is the place, instead of an area."""
    boxes: tuple[Area, ...] = ()
    """Boxes whose union is the place, or a part of it within area and mask."""

    @property
    def area_text(self) -> str:
        """The area as typed, and the boxes; empty if there are none."""
        area = f"where {self.watch.names[0]}" if self.watch else self.area.text if self.area else ""
        return " and ".join(([area] if area else []) + [box.text for box in self.boxes])

    @property
    def is_everywhere(self) -> bool:
        """Whether it has neither area, boxes nor mask."""
        return self.area is None and self.mask is None and self.watch is None and not self.boxes


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
    """Weights by place of the others: ``[1 or batch, fields, (frames,) height, width]``."""
    rows: Tensor
    """1 for the rows of each of them, else 0: ``[fields, rows]``."""
    unplaced_bias: Tensor
    """Bias of each row by its least weight in the picture, for queries without a place: ``[1 or batch, rows]``."""


class Step(NamedTuple):
    """A step of a sampling."""

    model: Any
    """The host's model."""
    latent: Tensor
    """``[batch, channels, (frames,) height, width]``."""
    sigma: Tensor
    """Its noise level."""
    sigmas: Sequence[float] | None
    """Levels of all steps and the one after the last; None if unknown."""
    masks: dict[tuple[int, torch.Size], Tensor | None]
    """Masks made so far in this sampling, by the identity of their `Where` and the latent's shape."""
    is_part: bool = False
    """Whether the latent has some frames of a longer video."""
    records: Mapping[Watch, Record] = MappingProxyType({})
    """Maps of watched words so far."""
    known: list[float] | None = None
    """Its noise level as a number, once it is known: reading it waits for a GPU."""
    of_times: dict[float, float] | None = None
    """Levels of parts of the way found so far in this sampling."""

    @property
    def level(self) -> float:
        """Its noise level as a number."""
        if self.known is None:
            return float(self.sigma)
        if not self.known:
            self.known.append(float(self.sigma))
        return self.known[0]

    def level_at(self, time: float) -> float:
        """Noise level at a part of the way from noise to the picture, as the host finds it."""
        levels = {} if self.of_times is None else self.of_times
        if time not in levels:
            levels[time] = float(self.model.model_sampling.percent_to_sigma(time))
        return levels[time]


def acting(fields: Sequence[Field], num_rows: int, step: Step) -> Acting:
    """Find the fields that act in a step, for an entry with ``num_rows`` rows."""
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
            rows.append(torch.zeros(num_rows).index_fill(0, torch.tensor(field.rows), 1.0))
    sizes = step.latent.shape[2:]
    if not weights:
        return Acting(bias, torch.ones(1, 0, *sizes), torch.zeros(0, num_rows), torch.zeros(1, num_rows))
    num_pictures = max(map(len, weights))
    by_field = torch.stack([weight_map.expand(num_pictures, *sizes) for weight_map in weights], 1).float()
    of_field = torch.stack(rows)
    return Acting(bias, by_field, of_field, least_bias(by_field, of_field))


def acts_in(where: Where, step: Step) -> bool:
    """Whether something acts in a step; where a word is read, it does if that is known and within its mask."""
    is_always = not where.in_steps and where.start <= 0 and where.end >= 1
    if not is_always and not acts_at(step.level, *_range_of(where, step)):
        return False
    mask = None if where.watch is None else mask_of(where, step)
    return mask is None or bool(mask.any())


def steps_of(where: Where, step: Step, start: float | None, end: float | None) -> set[int]:
    """Steps in which something acts, of an entry sampled from one noise level to another; None: the whole way."""
    times = _range_of(where, step)
    return {
        index
        for index, sigma in enumerate((step.sigmas or [0.0])[:-1])
        if (index or where.watch is None)  # in the first step nothing has been read yet
        and acts_at(sigma, *times)
        and (start is None or sigma <= start)
        and (end is None or sigma >= end)
    }


def _range_of(where: Where, step: Step) -> tuple[float, float]:
    """Noise levels of a start and an end."""
    if not where.in_steps:
        return step.level_at(where.start), step.level_at(where.end)
    if step.sigmas is None:
        raise ValueError(
            f"{where.name} is placed in steps, but this sampler does not say which steps it has. Set unit to percent."
        )
    return levels_of_steps(int(where.start), int(where.end), step.sigmas)


def mask_of(where: Where, step: Step) -> Tensor | None:
    """Mask at the latent's places, ``[1 or batch, (1 or frames,) height, width]``; None if it is 1 everywhere."""
    key = id(where), step.latent.shape
    if where.watch is not None or key not in step.masks:
        step.masks[key] = _made_mask(where, step)
    return step.masks[key]


def _made_mask(where: Where, step: Step) -> Tensor | None:
    cells = step.latent.shape[-2], step.latent.shape[-1]
    mask: Tensor | None = None
    if where.watch is not None:
        record = step.records.get(where.watch)
        none = torch.zeros(1, 1, *step.latent.shape[2:])
        mask = place_in((none if record is None else record.running().cpu())[:, 0])
    ratio = getattr(step.model.latent_format, "spacial_downscale_ratio", PIXELS)
    pixels = cells[0] * ratio, cells[1] * ratio
    if where.area is not None:
        mask = area_mask(where.area, cells, pixels)[None]
    if where.boxes:
        factor = torch.stack([area_mask(box, cells, pixels) for box in where.boxes]).amax(0, keepdim=True)
        mask = factor if mask is None else factor * mask
    if where.mask is not None:
        factor = _by_picture(means(where.mask.cpu(), cells).float(), where, step)
        mask = factor if mask is None else factor * mask
    if mask is not None and where.watch is None and not bool(mask.any()):
        raise ValueError(without_place(where.name))
    is_flat = mask is not None and mask.dim() < step.latent.dim() - 1
    return mask[:, None] if mask is not None and is_flat else mask


def without_place(name: str) -> str:
    """Message about a phrase or region whose area and mask have no place in common."""
    return f"{name} has no place in the picture: area and mask do not overlap."


def _by_picture(pictures: Tensor, where: Where, step: Step) -> Tensor:
    """Pictures of a mask as one for all or each of a batch, or for a video as frames: ``[1, frames, ...]``."""
    batch, number = step.latent.shape[0], len(pictures)
    num_frames = math.prod(step.latent.shape[2:-2])
    if number == 1:
        return pictures
    if num_frames == 1:
        if number == batch:
            return pictures
        raise ValueError(
            f"The mask of {where.name} has {number} pictures, but {batch} are sampled: give one mask for all of "
            "them, or one for each."
        )
    if step.is_part:
        raise ValueError(
            f"The mask of {where.name} has {number} pictures, one for each frame, but another node samples the "
            "video in parts (context windows): give one mask for all frames."
        )
    ratio = getattr(step.model.latent_format, "temporal_downscale_ratio", 1)
    if number == num_frames:
        return pictures[None]
    if number != ratio * (num_frames - 1) + 1:
        raise ValueError(
            f"The mask of {where.name} has {number} pictures, but the video has {ratio * (num_frames - 1) + 1} "
            f"frames, of which the model makes {num_frames}: give one mask for all of them, or one for each."
        )
    return torch.cat([pictures[:1], pictures[1:].unflatten(0, (-1, ratio)).mean(1)])[None]
