"""Rows of text that a diffusion model of ComfyUI reads for a marked entry in a step, and how they reach its call.

The host joins entries into a batch. Each entry's rows travel through it as one value, which the batch makes into a list
with the rows of each image.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention" and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ....weighting.attention import PLAIN
from ....weighting.placing.field_bias import FieldBias
from ....weighting.placing.shared_attention import SharedAttention
from ....weighting.placing.word_maps import key_rows
from ..contract import host
from ..families.attention_layers import ComfyWeighting
from .fields import Step, acting, acts_in
from .recorder import Due
from .regions import MASK, Region, reading

MARKER = "weighted_clip_attention"
"""Name of the marker among a model's inputs."""
LLAMA_ROWS = "encoder_hidden_states_llama3"
"""The model's own name of Llama's rows."""
NOBODY = -1.0
"""Number of the prompt of a row that only fills up a batch."""


class StepRows(NamedTuple):
    """Rows that are read for an entry in a step; in a call of the model for one of its images."""

    effects: Tensor
    """Bias and factor of each row, then for each field 1 for its rows, else 0: ``[2 + fields, rows]``."""
    prompts: Tensor
    """Number of the prompt of each, 0 for the base: ``[rows]``."""
    unplaced_bias: Tensor
    """Bias of each row by its fields' least weights, for queries without a place: ``[1 or batch, rows]``."""
    watched: Tensor
    """1 for the rows of each word whose maps are made, else 0: ``[words, rows]``."""
    weights: Tensor | None = None
    """Weights of the fields by place, ``[1 or batch, fields, (frames,) height, width]``; None if there are none."""
    entry: int = 0
    """Number of the entry if it has such words, from 1."""
    regions: tuple[Region, ...] = ()
    """Regions whose rows are read."""
    shares: Tensor | None = None
    """Shares of the prompts by place; None if only one is read, which is the region, if there is one."""
    texts: tuple[Tensor, ...] = ()
    """Rows of the regions beside a base as the model reads them, each ``[1, rows, dim]``."""
    kind: tuple[int, ...] = ()
    """Entries of different kinds share no call of the model."""
    key: Hashable = None
    """All that it depends on within a sampling; None if that is more than can be told."""

    @property
    def beside_base(self) -> tuple[Region, ...]:
        """Regions that are read beside a base."""
        return () if self.shares is None else self.regions

    @property
    def is_watched(self) -> bool:
        """Whether maps of any of its words are made."""
        return bool(self.watched.any())

    @property
    def num_changed(self) -> int:
        """Number of rows with effects or fields."""
        return int((self.effects != plain(1, len(self.effects) - 2)).any(0).sum())

    def of_image(self, index: int, area: Sequence[int] | None) -> StepRows:
        """The same for an image of the entry's batch; ``area`` has sizes, then offsets, of its part of the latent."""
        area = area or ()
        half = len(area) // 2
        part = [slice(first, first + size) for size, first in zip(area[:half], area[half:], strict=True)]
        weights, shares = (
            None if maps is None else maps[index % len(maps)][(None, slice(None), *part)]
            for maps in (self.weights, self.shares)
        )
        index %= max(len(maps) for maps in (self.unplaced_bias, self.weights, self.shares) if maps is not None)
        unplaced_bias = self.unplaced_bias[index % len(self.unplaced_bias)][None]
        key = None if self.key is None else (self.key, index, tuple(area))
        return self._replace(unplaced_bias=unplaced_bias, weights=weights, shares=shares, key=key)


UNMARKED = StepRows(torch.zeros(2, 0), torch.zeros(0), torch.zeros(1, 0), torch.zeros(0, 0), key="none")
"""Rows of an entry without a marker, beside which others are marked."""


@cache
def _cond_class() -> Any:
    """Class of the host's values that carry the rows of an entry into the batch."""

    class StepCond(host("comfy.conds").CONDRegular):
        def process_cond(self, batch_size: int, area: Sequence[int] | None = None, **_: Any) -> StepCond:
            return StepCond([rows.of_image(index, area) for rows in self.cond for index in range(batch_size)])

        def can_concat(self, other: StepCond) -> bool:
            return self.cond[0].kind == other.cond[0].kind

        def concat(self, others: Sequence[StepCond]) -> list[StepRows]:
            return [rows for each in (self, *others) for rows in each.cond]

        def size(self) -> list[int]:
            return [1]

    return StepCond


def plain(num_rows: int, num_fields: int = 0) -> Tensor:
    """Bias and factor of unchanged rows, and that they have no fields: ``[2 + fields, rows]``."""
    return torch.tensor([PLAIN.bias, PLAIN.factor, *[0.0] * num_fields])[:, None].expand(-1, num_rows)


def key_of(marker: Any, step: Step | None, num_filled: int, num_last: int, due: Due | None) -> Hashable:
    """All that `rows_in_step` depends on within a sampling; None if a place is where a word is drawn so far."""
    if step is None:
        return id(marker), num_filled, num_last
    if any(placed.where.watch is not None for placed in (*marker.fields, *marker.regions)):
        return None
    acts = (*(acts_in(field.where, step) for field in marker.fields), *(one.acts(step) for one in marker.regions))
    watched = due and (due.number, *(id(each.watch) for each in due.watches))
    return id(marker), num_filled, num_last, step.latent.shape, acts, watched


def rows_in_step(
    marker: Any, step: Step | None, num_filled: int, num_last: int = 0, due: Due | None = None
) -> StepRows:
    """Rows that are read for a marker in a step; the model puts ``num_filled`` rows of zeros before the base's.

    The base's last ``num_last`` rows are Llama's, which the model reads after all others, as it does regions'. ``step``
    may be None for a marker without fields, regions and watches; ``due`` has the watches that record this step.
    """
    effects = marker.cond.view(2, -1)
    if step is None:
        effects = torch.cat([plain(num_filled), effects], 1)
        num_rows = effects.shape[1]
        return StepRows(effects, torch.zeros(num_rows), torch.zeros(1, num_rows), torch.zeros(0, num_rows))
    num_rows = effects.shape[1]
    fields = acting(marker.fields, num_rows, step)
    regions, shares = reading(marker.regions, step)
    word_rows = [rows for watched in (due.watches if due else ()) for rows in watched.rows]
    effects = torch.cat([effects[:1] + fields.bias, effects[1:], fields.rows])
    prompts = torch.zeros(num_rows)
    if regions and shares is None:
        rows = list(regions[0].rows)
        num_filled = max(0, num_filled + marker.num_own - len(rows)) if num_filled else 0
    else:
        num_first = marker.num_own - num_last
        parts = zip(
            (range(num_first), range(num_first, marker.num_own)), *(region.parts for region in regions), strict=True
        )
        rows = [row for part in parts for prompt_rows in part for row in prompt_rows]
        for number, region in enumerate(regions, 1):
            prompts[region.rows] = number
    effects = torch.cat([plain(num_filled, len(fields.rows)), effects[:, rows]], 1)
    is_used = effects[2:].any(1)
    return StepRows(
        torch.cat([effects[:2], effects[2:][is_used]]),
        pad(prompts[rows], (num_filled, 0)),
        pad(fields.unplaced_bias[:, rows], (num_filled, 0)),
        pad(key_rows(word_rows, num_rows)[:, rows], (num_filled, 0)),
        fields.weights[:, is_used] if bool(is_used.any()) else None,
        due.number if due else 0,
        regions,
        shares,
    )


TextOf = Callable[[Region, Tensor], Tensor]
"""From a region, and a text for number type and device, to its rows as the model reads them, ``[1, rows, dim]``."""


def inputs_for(
    inputs: Mapping[str, Any], step_rows: StepRows | None, text_of: TextOf, *, shares_calls: bool
) -> dict[str, Any]:
    """A model's inputs for an entry, with its rows for `take`; ``step_rows`` is None if the entry is not marked.

    ``shares_calls``: whether entries with regions can share a call of the model with others.
    """
    step_rows = UNMARKED if step_rows is None else step_rows
    all_inputs, text = {**inputs}, inputs["c_crossattn"]
    if step_rows.beside_base:
        texts = tuple(text_of(region, text.cond) for region in step_rows.regions)
        parts = zip(*(region.parts for region in step_rows.regions), strict=True)
        kind = () if shares_calls else (len(texts), *(sum(map(len, rows)) for rows in parts))
        step_rows = step_rows._replace(texts=texts, kind=kind)
    elif step_rows.regions:
        (region,) = step_rows.regions
        conds = host("comfy.conds")
        alone = text_of(region, text.cond)
        num_filled = step_rows.effects.shape[1] - alone.shape[1]
        if region.llama is not None:
            num_filled -= region.llama.shape[2]
            all_inputs[LLAMA_ROWS] = conds.CONDRegular(region.llama)
        all_inputs["c_crossattn"] = text._copy_with(pad(alone, (0, 0, num_filled, 0)) if num_filled else alone)
        if MASK in inputs:
            all_inputs[MASK] = conds.CONDRegular(region.mask)
    all_inputs[MARKER] = _cond_class()([step_rows])
    return all_inputs


def take(inputs: dict[str, Any], batch: int) -> list[StepRows] | None:
    """Remove the rows of each image from the inputs of a call of a model; None if no entry was marked."""
    images: list[StepRows] | None = inputs.pop(MARKER, None)
    # a wrapper that cuts the picture into tiles repeats only what it knows
    return images * batch if images is not None and len(images) == 1 else images


def region_texts(images: Sequence[StepRows], text: Tensor) -> Tensor | None:
    """Rows of regions that are read after a text ``[batch, rows, dim]``, with as many for each image; None if none is.

    An image with fewer rows gets zeros behind them, which nobody reads.
    """
    num_rows = max(sum(rows.shape[1] for rows in image.texts) for image in images)
    if not num_rows:
        return None
    region_rows = text.new_zeros(len(images), num_rows, *text.shape[2:])
    for rows, image in zip(region_rows, images, strict=True):
        if image.texts:
            image_rows = torch.cat(image.texts, 1)[0]
            rows[: len(image_rows)] = image_rows
    return region_rows


def filled_in_front(images: Sequence[StepRows], text: Tensor, num_region_rows: int) -> Tensor:
    """Rows of a text and of regions, with the zeros of images with fewer regions in front: ``[batch, rows, dim]``."""
    missing = [num_region_rows - sum(rows.shape[1] for rows in image.texts) for image in images]
    if not any(missing):
        return text
    return torch.stack([rows.roll(number, 0) for rows, number in zip(text, missing, strict=True)])


def region_masks(images: Sequence[StepRows], num_rows: int) -> Tensor:
    """1 for rows of regions that may be read, else 0: ``[batch, rows]``."""
    masks = [[region.mask[0] for region in image.beside_base] or [torch.zeros(0).long()] for image in images]
    return torch.stack([pad(mask, (0, num_rows - len(mask))) for mask in map(torch.cat, masks)])


def region_llamas(images: Sequence[StepRows]) -> Tensor | None:
    """Rows of Llama of regions that are read beside a base, ``[batch, layers, rows, dim]``; None if there are none.

    An image with fewer rows gets zeros, which nobody reads.
    """
    by_image = [[region.llama for region in image.beside_base if region.llama is not None] for image in images]
    if not any(by_image):
        return None
    some = next(llama for llamas in by_image for llama in llamas)
    joined = [torch.cat([some[:, :, :0], *llamas], 2) for llamas in by_image]
    num_rows = max(rows.shape[2] for rows in joined)
    return torch.cat([pad(rows, (0, 0, 0, num_rows - rows.shape[2])) for rows in joined])


class Weights(NamedTuple):
    """Weights for the keys of calls of a model."""

    weighting: ComfyWeighting
    """For `ComfyWeighting.again`."""
    words: Tensor | None
    """1 for the keys of each word whose maps are made, else 0: ``[batch, words, keys]``; None if there are none."""
    num_changed: int
    """Most rows of an image with effects or fields."""
    texts: Tensor | None
    """Rows of regions, as `region_texts` gives them."""
    of_maps: dict[Hashable, list[Tensor]]
    """What maps of the words need in each call."""

    @property
    def num_bytes(self) -> int:
        """Bytes of what is kept for calls."""
        of_maps = sum(ones.nbytes for values in self.of_maps.values() for ones in values)
        return self.weighting.num_bytes + of_maps + (0 if self.texts is None else self.texts.nbytes)


class Keys(NamedTuple):
    """Numbers of keys in calls of a model that follow one another."""

    text: int
    """Those of the text, which the host repeats to that number."""
    regions: int = 0
    """Regions' after them."""


def weights_of_calls(
    images: Sequence[StepRows],
    first: Keys,
    last: Keys,
    device: torch.device,
    texts: Tensor | None,
    *,
    fills_in_front: bool = False,
) -> Weights:
    """Weights for the keys of calls: the ``first`` ones, then for HiDream Llama's; ``texts`` are rows of regions."""
    num_fields = max(len(image.effects) for image in images) - 2
    num_words = max(len(image.watched) for image in images)
    keys, prompts = [], []
    for image in images:
        effects = pad(image.effects, (0, 0, 0, 2 + num_fields - len(image.effects)))
        words = pad(image.watched, (0, 0, 0, num_words - len(image.watched)))
        lines = torch.cat([effects, words, image.unplaced_bias, image.prompts[None]])
        num_last = last.text + sum(len(region.parts[1]) for region in image.beside_base) if lines.numel() else 0
        parts = lines.split([lines.shape[1] - num_last, num_last], 1)
        halves = zip(parts, (first, last), strict=True)
        filled = torch.cat([_filled(part, numbers, in_front=fills_in_front) for part, numbers in halves], 1)
        keys.append(filled[:-1])
        prompts.append(filled[-1])
    bias, factor, *lines, unplaced_bias = torch.stack(keys, 1)
    weighing = ComfyWeighting(bias, factor, device)
    words = torch.stack(lines[num_fields:], 1) if any(image.is_watched for image in images) else None
    if num_fields:
        weights = _stacked([image.weights for image in images], torch.ones(num_fields))
        weighing.places = FieldBias(weights, torch.stack(lines[:num_fields], 1), unplaced_bias, device)
    if num_regions := max(len(image.beside_base) for image in images):
        shares = _stacked([image.shares for image in images], torch.eye(1, 1 + num_regions)[0])
        blending = torch.stack([_blending(image.beside_base, num_regions) for image in images])
        weighing.shared = SharedAttention(torch.stack(prompts), shares, blending, device)
    return Weights(weighing, words, max(image.num_changed for image in images), texts, {})


def _filled(lines: Tensor, keys: Keys, *, in_front: bool) -> Tensor:
    """Lines of as many keys, the last line being their prompts; what is missing, at an end, is read by nobody."""
    owners = lines[-1]
    if len(owners) == sum(keys):  # in the order in which they are read
        return lines
    base, regions = lines[:, owners == 0], lines[:, owners != 0]
    unchanged = plain(1, len(lines) - 2)
    base = base.repeat(1, keys.text // base.shape[1]) if base.numel() else unchanged.expand(-1, keys.text)
    missing = unchanged.repeat(1, keys.regions - regions.shape[1])
    missing[-1] = NOBODY
    return torch.cat([missing, base, regions] if in_front else [base, regions, missing], 1)


def _blending(regions: Sequence[Region], num_regions: int) -> Tensor:
    """1 for the base and each region that blends, else 0: ``[1 + num_regions]``; the base does if all regions do."""
    blends = [region.blends for region in regions]
    return pad(torch.tensor([bool(blends) and all(blends), *blends]).float(), (0, num_regions - len(blends)))


def _stacked(maps: Sequence[Tensor | None], neutral: Tensor) -> Tensor:
    """Maps of each image, ``[1, maps, ...]``, as ``[batch, maps, ...]``, with ``neutral`` where one is missing."""
    sizes = next(each.shape[2:] for each in maps if each is not None)
    stacked = neutral.view(-1, *[1] * len(sizes)).repeat(len(maps), *sizes).unflatten(0, (len(maps), -1))
    for image, each in zip(stacked, maps, strict=True):
        if each is not None:
            image[: each.shape[1]] = each[0]
    return stacked
