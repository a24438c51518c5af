"""Words watched while ComfyUI samples: their maps, made in its attention layers and kept for the node that shows them.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Word maps".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ....weighting.placing.queries import Queries
from ....weighting.placing.word_maps import (
    LayerMaps,
    check_bytes,
    daam_maps,
    daam_size,
    is_of_daam,
    mean_shares,
    shares_by_head,
)
from ....weighting.reading.view import counted

ALL, COARSE, FINE, AS_DAAM = "all", "coarse", "fine", "as DAAM"
LAYERS = (ALL, COARSE, FINE, AS_DAAM)
"""Layers that a watch records."""
_FEWER = "take fewer words in Watch Words, or fewer pictures at a time"
MAX_RECORDS = 4
"""Number of last samplings whose maps are kept."""


class Watch:
    """Words to be watched, and their maps in the last samplings."""

    def __init__(
        self,
        names: Sequence[str],
        every: int = 1,
        layers: str = ALL,
        lengths: Sequence[int] = (),
        *,
        keeps: bool = True,
        note: str = "",
    ) -> None:
        self.names, self.keeps = tuple(names), keeps
        """Words, and whether their maps are kept after a sampling."""
        self.note = note
        """Line of the report about words that are not watched; empty if there are none."""
        self.every = every
        """Steps from one that is recorded to the next; the first one is."""
        self.layers = layers
        self.lengths = tuple(lengths) or (1,) * len(self.names)
        """Number of maps of each word: as DAAM, one for each of its rows, else 1."""
        self.records: list[Record] = []
        """Maps of the last samplings, the oldest first."""

    def __deepcopy__(self, _: object) -> Watch:
        return self  # who copies a conditioning still fills this watch

    def add(self, record: Record, result: Tensor) -> None:
        """Keep the maps of a sampling that is over, with its result."""
        if self.keeps:
            self.records = [*self.records, record.finished(result)][-MAX_RECORDS:]

    def record_of(self, samples: Tensor) -> Record:
        """Maps of the sampling with this result; a ValueError if there are none."""
        for record in reversed(self.records):
            if record.is_of(samples):
                return record
        raise ValueError(
            "No word maps are known of this LATENT: connect the output of the sampler that samples with the "
            "CONDITIONING of Watch Words, as it comes out. Latents that were changed, cut or decoded and encoded again "
            f"are others; of one Watch Words, the last {MAX_RECORDS} samplings are kept."
        )


class Watched(NamedTuple):
    """Words that are watched in an entry of a conditioning."""

    watch: Watch
    rows: tuple[tuple[int, ...], ...]
    """Rows of each of its maps, counted from 0; none for a word that is absent."""


class Due(NamedTuple):
    """Words of an entry that are watched in a step."""

    number: int
    """Number of the entry, from 1."""
    watches: tuple[Watched, ...]
    area: Sequence[int] | None
    """Sizes, then offsets, of the entry's part of the latent; None for all of it."""


class Record:
    """Maps of a watch's words in one sampling."""

    def __init__(self, watch: Watch, latent: Tensor, ratio: int, frames_ratio: int = 1) -> None:
        """Record nothing yet; ``latent`` is ``[batch, channels, (frames,) height, width]`` and gives shape and device.

        ``ratio``: pixels along a side of one of its places; ``frames_ratio``: frames of a video for each but the first
        of its frames.
        """
        shape = latent.shape[0], sum(watch.lengths), *latent.shape[2:]
        check_bytes(
            2 * torch.float32.itemsize * math.prod(shape),  # those of a call are added to their sum
            f"Maps of {counted(shape[1], 'word')} in {counted(shape[0], 'picture')}",
            _FEWER,
        )
        self.size = tuple(shape[2:])
        """(Frames,) height and width of the latent."""
        self._sums = latent.new_zeros(shape, dtype=torch.float32)
        self._counts = latent.new_zeros((1, *shape[1:]), dtype=torch.float32)
        self._maps: Tensor | None = None
        self._watch = watch
        self._by_layer: dict[int, Tensor] = {}
        self._result = torch.zeros(0)
        self.ratio, self.frames_ratio = ratio, frames_ratio
        self.levels: set[float] = set()
        """Noise levels of the calls of the model that were recorded."""

    def add(self, there: Sequence[bool], maps: Maps, images: slice, words: slice, area: Sequence[int] | None) -> None:
        """Add the maps of a call of the model.

        Args:
            there: Whether each word is in the entry.
            maps: The call's maps.
            images: Images of the call that are the entry's.
            words: Words of the call that are the watch's.
            area: Sizes, then offsets, of the entry's part of the latent; None for all of it.
        """
        if not maps.has_layers:  # a cache answered the call
            return
        part = self._part(area)
        if self._sums[(0, 0, *part)].shape != maps.size:
            raise ValueError(
                "Watch Words cannot tell what is drawn where while another node cuts the picture into parts, such as "
                "tiles: take out that node, or Watch Words."
            )
        if self._watch.layers == AS_DAAM:
            if area is not None:
                raise ValueError("Watch Words cannot record areas as DAAM does: set its layers to all, coarse or fine.")
            for layer, own in maps.by_layer.items():
                by_head = own[images, :, words]
                self._by_layer[layer] = self._by_layer[layer] + by_head if layer in self._by_layer else by_head
            num_bytes = sum(2 * by_head.nbytes for by_head in self._by_layer.values())
            check_bytes(num_bytes, "Maps as DAAM, which keeps those of each layer and head,", _FEWER)
            return
        made = maps.mean(self._watch.layers)
        if made is None:
            raise ValueError(f"This model has no {self._watch.layers} layers: set layers of Watch Words to all.")
        is_there = torch.tensor(there, dtype=torch.float32, device=made.device)
        self._sums[(slice(None), slice(None), *part)] += made[images, words]
        self._counts[(slice(None), slice(None), *part)] += is_there.view(-1, *[1] * len(maps.size))

    def _part(self, area: Sequence[int] | None) -> tuple[slice, ...]:
        """Part of the latent that an area is, which may have more or fewer dimensions; the last ones count."""
        if area is None:
            return (slice(None),) * (self._sums.dim() - 2)
        half, number = len(area) // 2, self._sums.dim() - 2
        found = [slice(first, first + size) for size, first in zip(area[:half], area[half:], strict=True)]
        return (*[slice(None)] * (number - half), *found[:number])

    def running(self) -> Tensor:
        """Mean share of each word so far at each place: ``[pictures, words, (frames,) height, width]``, float32."""
        return self._sums / self._counts.clamp(min=1)

    def finished(self, result: Tensor) -> Record:
        """This record with its maps alone, on the CPU, of a sampling with this result."""
        self._maps, self._result = self.maps().cpu(), result.detach().cpu()
        self._sums = self._counts = torch.zeros(0)
        self._by_layer.clear()
        return self

    def is_of(self, samples: Tensor) -> bool:
        """Whether this is the record of a sampling with this result, with or without the frames of guides behind it."""
        found = samples.cpu().to(self._result.dtype)
        results = self._result, self._result[:, :, : self.size[0]]
        return any(found.shape == result.shape and torch.equal(found, result) for result in results)

    def maps(self) -> Tensor:
        """Map of each word, ``[pictures, words, (frames,) height, width]``, float32: shares, or as DAAM makes them.

        Height and width are those of the latent, as DAAM those of `daam_size`.
        """
        if self._maps is not None:
            return self._maps
        if self._watch.layers != AS_DAAM:
            return self.running()
        if not self._by_layer:
            return torch.zeros(len(self._sums), len(self._watch.lengths), *daam_size(self.size))
        pictures = zip(*self._by_layer.values(), strict=True)
        of_rows = torch.stack([daam_maps(layers, daam_size(self.size)) for layers in pictures])
        of_words = torch.stack([own.mean(1) for own in of_rows.split(self._watch.lengths, 1)], 1)
        return of_words / len(self.levels)


class Records:
    """Maps of watched words in the sampling that is going on; no dictionary, as the host copies those."""

    def __init__(self) -> None:
        self.by_watch: dict[Watch, Record] = {}


class Maps:
    """Maps made in one call of a model."""

    def __init__(self, words: Tensor, latent: Tensor, layers: Iterable[str], *, has_grids: bool) -> None:
        """Watch the words of a call.

        Args:
            words: 1 for the keys of each word, else 0: ``[batch, words, keys]``, on the CPU.
            latent: ``[batch, channels, (frames,) height, width]``, for its size and device.
            layers: Choices of `LAYERS` that are wanted.
            has_grids: Whether layers have grids of several sizes, the finest first; if not, all layers are
                both coarse and fine.
        """
        self._words, self.size, self._has_grids = words.to(latent.device), tuple(latent.shape[2:]), has_grids
        self._wanted = set(layers)
        self._finest: tuple[int, ...] = ()
        self._images = words.flatten(1).any(1).nonzero().flatten().tolist()
        self._layers = LayerMaps()
        self.by_layer: dict[int, Tensor] = {}
        """Maps of layers by their order, ``[batch, heads, words, height, width]``, where DAAM's are wanted."""

    @property
    def has_layers(self) -> bool:
        """Whether any layer has read text in this call."""
        return bool(self._finest)

    def _has(self, layers: str, grid: Sequence[int]) -> bool:
        """Whether a choice of layers includes one with a grid."""
        if layers == AS_DAAM:
            return is_of_daam(grid, daam_size(self.size))
        return layers == ALL or not self._has_grids or (grid == self._finest) == (layers == FINE)

    def read_again(self, num_rows: int) -> None:
        """As in `Watching`."""
        self._words = torch.cat([self._words, self._words[..., -num_rows:]], -1)

    def picked(self, mask: Tensor | None) -> list[int] | None:
        """As in `Watching`."""
        is_possible = len(self._images) < len(self._words) and (mask is None or mask.dim() == 4)
        return self._images if is_possible else None

    def add(
        self,
        layer: int,
        queries: Queries,
        around: tuple[int, int],
        read: Callable[[Tensor], Tensor],
        value: Tensor,
        dim: int,
        picked: list[int] | None,
        *,
        is_by_row: bool,
        is_middle: bool = False,
    ) -> None:
        """As in `Watching`."""
        self._finest = self._finest or queries.grid
        keys = torch.nn.functional.pad(self._words if picked is None else self._words[picked], around)
        if AS_DAAM in self._wanted and self._has(AS_DAAM, queries.grid) and not is_middle:
            by_head = shares_by_head(read, keys, value, dim, is_by_row=is_by_row)
            self.by_layer[layer] = self._of_all(by_head[..., queries.picture].unflatten(-1, queries.grid), picked)
        if any(self._has(layers, queries.grid) for layers in self._wanted - {AS_DAAM}):
            shares = mean_shares(read, keys, value, dim, is_by_row=is_by_row)
            self._layers.add(
                queries.grid, self._of_all(shares[..., queries.picture].unflatten(-1, queries.grid), picked)
            )

    def _of_all(self, found: Tensor, picked: list[int] | None) -> Tensor:
        """Maps of all images of the batch, 0 for those that were not picked."""
        if picked is None:
            return found
        places = torch.tensor(picked, device=found.device)
        return found.new_zeros(len(self._words), *found.shape[1:]).index_copy_(0, places, found)

    def mean(self, layers: str) -> Tensor | None:
        """Mean of the layers of a choice, ``[batch, words, (frames,) height, width]``; None if there is none."""
        return self._layers.mean(self.size[-2:], lambda grid: self._has(layers, grid))
