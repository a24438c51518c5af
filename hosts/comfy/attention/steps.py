"""Rows of text that a diffusion model of ComfyUI reads for a marked entry in a step, and the inputs that tell it.

Entries of a batch get inputs of the same sizes. What they lack is filled with what changes nothing.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention" and after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ....weighting.attention import PLAIN
from ....weighting.placing.field_bias import Places
from ....weighting.placing.shared_attention import Shared
from ....weighting.placing.word_maps import key_rows
from ..contract import host
from ..families.attention_layers import Weighing
from ..families.families import MASK
from .fields import Step, acting
from .recorder import Due, Maps
from .regions import Region, reading

MARKER = "weighted_clip_attention"
"""Name of the marker among a model's inputs."""
PLACES = "weighted_clip_places"
"""Name of the weights by place."""
LEAST = "weighted_clip_least"
"""Name of the bias of rows for queries without a place."""
SHARES = "weighted_clip_shares"
"""Name of the shares of prompts by place."""
REGIONS = "weighted_clip_regions"
"""Name of the rows of regions."""
LLAMAS = "weighted_clip_llamas"
"""Name of those of Llama."""
LLAMA_ROWS = "encoder_hidden_states_llama3"
"""The model's own name of Llama's rows."""
MASKS = "weighted_clip_masks"
"""Name of the masks of rows of regions."""
PROMPTS = "weighted_clip_prompts"
"""Name of the number of each row's prompt."""
BLENDING = "weighted_clip_blending"
"""Name of what says which prompts blend."""
WATCHED = "weighted_clip_watched"
"""Name of the rows of watched words."""
ENTRY = "weighted_clip_entry"
"""Name of the number of a watched entry; other entries may have the host's id of it."""
NOBODY = -1.0
"""Number of the prompt of a row that only fills up a batch."""


class Read(NamedTuple):
    """Rows that are read for an entry in a step."""

    lines: Tensor
    """Bias and factor of each, then 1 for those of each field, else 0: ``[2 + fields, rows]``."""
    prompts: Tensor
    """Number of the prompt of each, 0 for the base: ``[rows]``."""
    weights: Tensor
    """Weights of the fields by place: ``[1 or batch, fields, (frames,) height, width]``."""
    least: Tensor
    """Bias of each row by their least weights, for queries without a place: ``[1 or batch, rows]``."""
    regions: tuple[Region, ...]
    """Regions whose rows are read."""
    shares: Tensor | None
    """Shares of the prompts by place; None if only one is read, which is the region, if there is one."""
    watched: Tensor
    """1 for the rows of each word whose maps are made, else 0: ``[words, rows]``."""
    entry: int = 0
    """Number of the entry if it has such words, from 1."""

    @property
    def blending(self) -> Tensor:
        """1 for the base and each region that blends, else 0: ``[1 + regions]``; the base does if all regions do."""
        blends = [region.blends for region in self.regions]
        return torch.tensor([all(blends), *blends]).float()

    @property
    def num_beside(self) -> int:
        """Number of rows of ``text`` beside the base's."""
        return 0 if self.shares is None else sum(len(region.parts[0]) for region in self.regions)


def plain(num_rows: int, num_fields: int = 0) -> Tensor:
    """Bias and factor of unchanged rows, and that they have no fields: ``[2 + fields, rows]``."""
    return torch.tensor([PLAIN.bias, PLAIN.factor, *[0.0] * num_fields])[:, None].expand(-1, num_rows)


def read_in(marker: Any, step: Step | None, num_filled: int, num_last: int = 0, due: Due | None = None) -> Read:
    """Rows that are read for a marker in a step; the model puts some rows of zeros before the base's.

    ``num_last`` are Llama's among those of the base; they are read behind all others, as are those of regions. ``step``
    may be None for a marker without fields, regions and watches; ``due`` are those that record this step.
    """
    lines = marker.cond.view(2, -1)
    if step is None:
        lines = torch.cat([plain(num_filled), lines], 1)
        num_rows = lines.shape[1]
        return Read(lines, torch.zeros(num_rows), torch.ones(1, 0, 1, 1), torch.zeros(1, num_rows), (), None, lines[:0])
    num_rows = lines.shape[1]
    fields = acting(marker.fields, num_rows, step)
    regions, shares = reading(marker.regions, step)
    watched = key_rows([own for one in (due.watches if due else ()) for own in one.rows], num_rows)
    lines = torch.cat([lines[:1] + fields.bias, lines[1:], fields.rows])
    prompts = torch.zeros(num_rows)
    if regions and shares is None:
        rows = list(regions[0].rows)
        num_filled = max(0, num_filled + marker.num_own - len(rows)) if num_filled else 0
    else:
        num_first = marker.num_own - num_last
        parts = zip((range(num_first), range(num_first, marker.num_own)), *(one.parts for one in regions), strict=True)
        rows = [row for of_prompts in parts for own in of_prompts for row in own]
        for number, region in enumerate(regions, 1):
            prompts[region.rows] = number
    lines = torch.cat([plain(num_filled, len(fields.rows)), lines[:, rows]], 1)
    is_used = lines[2:].any(1)
    return Read(
        torch.cat([lines[:2], lines[2:][is_used]]),
        torch.cat([torch.zeros(num_filled), prompts[rows]]),
        fields.weights[:, is_used],
        torch.nn.functional.pad(fields.least[:, rows], (num_filled, 0)),
        regions,
        shares,
        torch.nn.functional.pad(watched[:, rows], (num_filled, 0)),
        due.number if due else 0,
    )


class Sizes(NamedTuple):
    """Sizes that the inputs of all entries of a batch have."""

    rows: int
    fields: int
    regions: int
    """Regions that are read beside a base."""
    beside: int
    """Their rows."""
    words: int
    """Watched words."""

    def of(self, read: Read | None) -> Sizes:
        """These, with just the regions of an entry, so that it shares no batch with one that has others."""
        if read is None or read.shares is None:
            return self._replace(regions=0, beside=0)
        return self._replace(regions=len(read.regions), beside=read.num_beside)


TextOf = Callable[[Region], Tensor]
"""From a region to its rows as the model reads them, ``[1, rows, dim]``."""


def sizes_of(reads: Sequence[Read]) -> Sizes:
    """Sizes of inputs that hold each of these."""
    return Sizes(
        max(one.lines.shape[1] for one in reads),
        max(len(one.lines) - 2 for one in reads),
        max(0 if one.shares is None else len(one.regions) for one in reads),
        max(one.num_beside for one in reads),
        max(len(one.watched) for one in reads),
    )


def inputs_for(
    inputs: Mapping[str, Any], read: Read | None, sizes: Sizes, step: Step | None, text_of: TextOf
) -> dict[str, Any]:
    """A model's inputs for an entry, with those for our `weighing_of`; None for an entry that is not marked.

    Rows that an entry lacks are NaN.
    """
    conds = host("comfy.conds")
    marker = torch.full((2 + sizes.fields, sizes.rows), torch.nan)
    prompts = torch.zeros(1, sizes.rows)
    found = {**inputs}
    text = inputs["c_crossattn"]
    if read is not None:
        marker[:, : read.lines.shape[1]] = 0.0
        marker[: len(read.lines), : read.lines.shape[1]] = read.lines
        if read.regions and read.shares is None:
            alone = text_of(read.regions[0]).to(text.cond)
            num_filled = read.lines.shape[1] - alone.shape[1]
            if (llama := read.regions[0].llama) is not None:
                num_filled -= llama.shape[2]
                found[LLAMA_ROWS] = conds.CONDRegular(llama)
            found["c_crossattn"] = text._copy_with(torch.nn.functional.pad(alone, (0, 0, num_filled, 0)))
            if MASK in inputs:
                found[MASK] = conds.CONDRegular(read.regions[0].mask)
    found[MARKER] = conds.CONDRegular(marker.view(1, -1))
    places = () if step is None else step.latent.shape[2:]
    if sizes.fields:
        weights = torch.ones(1, sizes.fields, *places)
        found[PLACES] = conds.CONDNoiseShape(_with(weights, None if read is None else read.weights))
        least = torch.zeros(1, sizes.rows)
        found[LEAST] = conds.CONDRegular(_with(least, None if read is None else read.least))
    if sizes.words:
        watched = torch.zeros(1, sizes.words, sizes.rows)
        if read is not None:
            watched[0, : len(read.watched), : read.watched.shape[1]] = read.watched
        found[WATCHED] = conds.CONDRegular(watched)
        found[ENTRY] = conds.CONDRegular(torch.tensor([[0 if read is None else read.entry]]))
    if sizes.regions:
        shares = torch.zeros(1, 1 + sizes.regions, *places)
        shares[:, 0] = 1.0
        beside = text.cond.new_zeros(1, sizes.beside, *text.cond.shape[2:])
        blending = torch.zeros(1, 1 + sizes.regions)
        if read is not None and read.shares is not None:
            shares = _with(shares, read.shares)
            rows = torch.cat([text_of(region).to(beside) for region in read.regions], 1)
            beside[:, : rows.shape[1]] = rows
            llamas = [region.llama for region in read.regions if region.llama is not None]
            if llamas:
                found[LLAMAS] = conds.CONDRegular(torch.cat(llamas, 2))
            prompts[0, : len(read.prompts)] = read.prompts
            blending[0, : 1 + len(read.regions)] = read.blending
        found[PROMPTS] = conds.CONDRegular(prompts)
        found[SHARES] = conds.CONDNoiseShape(shares)
        found[REGIONS] = conds.CONDRegular(beside)
        found[BLENDING] = conds.CONDRegular(blending)
        if MASK in inputs:
            masks = [] if read is None or read.shares is None else [region.mask for region in read.regions]
            num_missing = sizes.beside - sum(mask.shape[1] for mask in masks)
            masks.append(torch.zeros(1, num_missing, dtype=torch.long))
            found[MASKS] = conds.CONDRegular(torch.cat(masks, 1))
    return found


def _with(neutral: Tensor, own: Tensor | None) -> Tensor:
    """Maps ``[1, maps, ...]`` with the first of them, or of their frames, replaced, for each picture there is."""
    if own is None:
        return neutral
    maps = neutral.repeat(len(own), *[1] * (neutral.dim() - 1))
    maps[(slice(None), *map(slice, own.shape[1:3]))] = own
    return maps


class Taken(NamedTuple):
    """Our inputs, taken from those of a call of a model."""

    rows: list[Tensor]
    """Lines of each image's rows, as in `Read`."""
    prompts: list[Tensor]
    """Number of the prompt of each of them."""
    weights: Tensor | None
    least: list[Tensor]
    """`Read.least` for each of them."""
    shares: Tensor | None
    blending: Tensor | None
    """`Read.blending` of each image."""
    beside: Tensor | None
    """Rows of regions, ``[1 or batch, rows, dim]``, that are read behind the text; None if none is."""
    watched: list[Tensor]
    """`Read.watched` for each image; of no words if none of them is watched."""
    entries: list[int]
    """`Read.entry` for each image."""
    llamas: Tensor | None
    """Those of Llama, ``[1 or batch, layers, rows, dim]``."""
    masks: Tensor | None
    """1 for rows of ``beside`` that may be read, else 0, ``[1 or batch, rows]``; None if the model takes no mask."""

    def of_frames(self, number: int) -> Taken:
        """The same with maps of the first frames alone, or of the first lines of a latent without frames."""
        weights, shares = (None if maps is None else maps[:, :, :number] for maps in (self.weights, self.shares))
        return self._replace(weights=weights, shares=shares)


def take(inputs: dict[str, Any], batch: int) -> Taken | None:
    """Remove our inputs from those of a call of a model; None if there are none."""
    given: Tensor | None = inputs.pop(MARKER, None)
    names = (PLACES, LEAST, SHARES, BLENDING, REGIONS, LLAMAS, PROMPTS, WATCHED, ENTRY, MASKS)
    found = (inputs.pop(name, None) for name in names)
    weights, least, shares, blending, beside, llamas, prompts, watched, entry, masks = found
    if given is None:
        return None
    # a wrapper that cuts the picture into tiles may have repeated only what it knows
    marker, numbers, least = (
        torch.zeros(batch, 1) if one is None else one.cpu().expand(batch, -1) for one in (given, prompts, least)
    )
    lines = marker.view(batch, 2 + (0 if weights is None else weights.shape[1]), -1)
    there = [~own[0].isnan() for own in lines]
    owners, of_rows = (
        [own.expand(len(is_there))[is_there] for own, is_there in zip(each, there, strict=True)]
        for each in (numbers, least)
    )
    rows = [own[:, is_there] for own, is_there in zip(lines, there, strict=True)]
    blending = None if blending is None else blending.cpu().expand(batch, -1)
    beside = beside if any(bool(own.any()) for own in owners) else None
    if watched is None or entry is None or not bool(watched.any()):
        watched, entry = torch.zeros(1, 0, marker.shape[1]), torch.zeros(1, 1)
    words = watched.cpu().expand(batch, -1, -1)
    of_words = [own[:, : len(is_there)][:, is_there] for own, is_there in zip(words, there, strict=True)]
    return Taken(
        rows,
        owners,
        weights,
        of_rows,
        shares,
        blending,
        beside,
        of_words,
        entry.cpu().expand(batch, -1).flatten().int().tolist(),
        llamas,
        masks,
    )


def num_changed(lines: Tensor) -> int:
    """Number of rows with effects or fields."""
    return int((lines != plain(1, len(lines) - 2)).any(0).sum())


def weighing_of(taken: Taken, num_keys: int, device: torch.device, watch: Callable[[Tensor], Maps]) -> Weighing:
    """Weights for the keys of a call, where the host has repeated shorter texts until there are so many.

    ``watch`` makes maps of the keys of words, as `Maps` takes them.
    """
    num_words = len(taken.watched[0])
    num_others = len(taken.rows[0]) - 1 + num_words  # fields, the bias of queries without a place, watched words
    num_beside = 0 if taken.beside is None else taken.beside.shape[1]
    num_beside += 0 if taken.llamas is None else taken.llamas.shape[2]
    keys, prompts = [], []
    for lines, least, watched, own in zip(taken.rows, taken.least, taken.watched, taken.prompts, strict=True):
        lines = torch.cat([lines, watched, least[None]])
        if len(own) == num_keys + num_beside:  # in the order in which they are read
            keys.append(lines)
            prompts.append(own)
            continue
        text, others = lines[:, own == 0], lines[:, own != 0]
        text = text.repeat(1, num_keys // text.shape[1]) if text.numel() else plain(num_keys, num_others)
        num_missing = num_beside - others.shape[1]
        keys.append(torch.cat([text, others, plain(num_missing, num_others)], 1))
        prompts.append(torch.cat([torch.zeros(num_keys), own[own != 0], torch.full((num_missing,), NOBODY)]))
    bias, factor, *others, least = torch.stack(keys, 1)
    of_fields, words = others[: len(others) - num_words], others[len(others) - num_words :]
    weighing = Weighing(bias, factor, device)
    if words:
        weighing.maps = watch(torch.stack(words, 1))
    if taken.weights is not None:
        weighing.places = Places(taken.weights.cpu(), torch.stack(of_fields, 1), least, device)
    if taken.beside is not None and taken.shares is not None:
        weighing.shared = Shared(torch.stack(prompts), taken.shares.cpu(), taken.blending, device)
    return weighing
