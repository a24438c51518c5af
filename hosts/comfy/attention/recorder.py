"""Words watched while ComfyUI samples: their maps, made in its attention layers and kept for the node that shows them.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Word maps".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ....weighting.placing import word_maps
from ....weighting.placing.queries import Queries
from ....weighting.reading.view import counted

ALL, COARSE, FINE, AS_DAAM = "all", "coarse", "fine", "as DAAM"
LAYERS = (ALL, COARSE, FINE, AS_DAAM)
"""Layers that a watch records."""
_FEWER = "take fewer words in Watch Words, or fewer pictures at a time"
MOST_KEPT = 2**26
"""Most bytes of the values that read words in layers of one form, kept from step to step."""
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


class WatchedWords(NamedTuple):
    """Words that are watched in an entry of a conditioning."""

    watch: Watch
    rows: tuple[tuple[int, ...], ...]
    """Rows of each of its maps, counted from 0; none for a word that is absent."""


class Due(NamedTuple):
    """Words of an entry that are watched in a step."""

    number: int
    """Number of the entry, from 1."""
    watches: tuple[WatchedWords, ...]
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
        word_maps.check_bytes(
            2 * torch.float32.itemsize * math.prod(shape),  # those of a call are added to their sum
            f"Maps of {counted(shape[1], 'word')} in {counted(shape[0], 'picture')}",
            _FEWER,
        )
        self.size = tuple(shape[2:])
        """(Frames,) height and width of the latent."""
        self._sums = latent.new_zeros(shape, dtype=torch.float32)
        self._counts = torch.zeros(1, *shape[1:])  # on the CPU
        self._maps: Tensor | None = None
        self._watch = watch
        self._by_layer: dict[int, Tensor] = {}
        self._result = torch.zeros(0)
        self.ratio, self.frames_ratio = ratio, frames_ratio
        self.levels: set[float] = set()
        """Noise levels of the calls of the model that were recorded."""

    def add(
        self, are_present: Sequence[bool], maps: Maps, images: slice, words: slice, area: Sequence[int] | None
    ) -> None:
        """Add the maps of a call of the model.

        Args:
            are_present: Whether each word is in the entry.
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
            for layer, layer_maps in maps.by_layer.items():
                by_head = layer_maps[images, :, words]
                self._by_layer[layer] = self._by_layer[layer] + by_head if layer in self._by_layer else by_head
            num_bytes = sum(2 * by_head.nbytes for by_head in self._by_layer.values())
            word_maps.check_bytes(num_bytes, "Maps as DAAM, which keeps those of each layer and head,", _FEWER)
            return
        mean_maps = maps.mean(self._watch.layers)
        if mean_maps is None:
            raise ValueError(f"This model has no {self._watch.layers} layers: set layers of Watch Words to all.")
        is_there = torch.tensor(are_present, dtype=torch.float32)
        self._sums[(slice(None), slice(None), *part)] += mean_maps[images, words]
        self._counts[(slice(None), slice(None), *part)] += is_there.view(-1, *[1] * len(maps.size))

    def _part(self, area: Sequence[int] | None) -> tuple[slice, ...]:
        """Part of the latent that an area is, which may have more or fewer dimensions; the last ones count."""
        if area is None:
            return (slice(None),) * (self._sums.dim() - 2)
        half, number = len(area) // 2, self._sums.dim() - 2
        ranges = [slice(first, first + size) for size, first in zip(area[:half], area[half:], strict=True)]
        return (*[slice(None)] * (number - half), *ranges[:number])

    def running(self) -> Tensor:
        """Mean share of each word so far at each place: ``[pictures, words, (frames,) height, width]``, float32."""
        return self._sums / self._counts.clamp(min=1).to(self._sums.device)

    def finished(self, result: Tensor) -> Record:
        """This record with its maps alone, on the CPU, of a sampling with this result."""
        self._maps, self._result = self.maps().cpu(), result.detach().cpu()
        self._sums = self._counts = torch.zeros(0)
        self._by_layer.clear()
        return self

    def is_of(self, samples: Tensor) -> bool:
        """Whether this is the record of a sampling with this result, with or without guide frames at its end."""
        latent = samples.cpu().to(self._result.dtype)
        results = self._result, self._result[:, :, : self.size[0]]
        return any(latent.shape == result.shape and torch.equal(latent, result) for result in results)

    def maps(self) -> Tensor:
        """Map of each word, ``[pictures, words, (frames,) height, width]``, float32: shares, or as DAAM makes them.

        Height and width are the latent's; as DAAM, `daam_size`.
        """
        if self._maps is not None:
            return self._maps
        if self._watch.layers != AS_DAAM:
            return self.running()
        if not self._by_layer:
            return torch.zeros(len(self._sums), len(self._watch.lengths), *word_maps.daam_size(self.size))
        pictures = zip(*self._by_layer.values(), strict=True)
        of_rows = torch.stack([word_maps.daam_maps(layers, word_maps.daam_size(self.size)) for layers in pictures])
        of_words = torch.stack([row_maps.mean(1) for row_maps in of_rows.split(self._watch.lengths, 1)], 1)
        return of_words / len(self.levels)


class Records:
    """Maps of watched words in the sampling that is going on; no dictionary, as the host copies those."""

    def __init__(self) -> None:
        self.by_watch: dict[Watch, Record] = {}


class Maps:
    """Maps made in one call of a model."""

    def __init__(
        self,
        words: Tensor,
        latent: Tensor,
        layers: Iterable[str],
        *,
        has_grids: bool,
        kept: dict[Hashable, list[Tensor]] | None = None,
    ) -> None:
        """Watch the words of a call.

        Args:
            words: 1 for the keys of each word, else 0: ``[batch, words, keys]``, on the CPU.
            latent: ``[batch, channels, (frames,) height, width]``, for its size.
            layers: Choices of `LAYERS` that are wanted.
            has_grids: Whether layers have grids of several sizes, the finest first; if not, all layers are
                both coarse and fine.
            kept: What the same words need in each call.
        """
        self._words, self.size, self._has_grids = words, tuple(latent.shape[2:]), has_grids
        self._wanted = set(layers)
        self._kept = {} if kept is None else kept
        self._finest: tuple[int, ...] = ()
        images = words.flatten(1).any(1).nonzero().flatten().tolist()
        is_row = images == [*range(images[0], images[0] + len(images))] if images else False
        self._images: slice | list[int] = slice(images[0], images[0] + len(images)) if is_row else images
        self._are_few = len(images) < len(words)
        self._layers: dict[bool, word_maps.LayerMaps] = {}
        """Maps of layers, by whether they are of the images with words alone."""
        self.by_layer: dict[int, Tensor] = {}
        """Maps of layers by their order, ``[batch, heads, words, height, width]``, where DAAM's are wanted."""

    @property
    def has_layers(self) -> bool:
        """Whether any layer has read text in this call."""
        return bool(self._finest)

    def _has(self, layers: str, grid: Sequence[int]) -> bool:
        """Whether a choice of layers includes one with a grid."""
        if layers == AS_DAAM:
            return word_maps.is_of_daam(grid, word_maps.daam_size(self.size))
        return layers == ALL or not self._has_grids or (grid == self._finest) == (layers == FINE)

    def read_again(self, num_rows: int) -> None:
        """As in `Watching`."""
        self._words = torch.cat([self._words, self._words[..., -num_rows:]], -1)

    def picked(self, mask: Tensor | None) -> slice | list[int] | None:
        """As in `Watching`."""
        return self._images if self._are_few and (mask is None or mask.dim() == 4) else None

    def add(
        self,
        layer: int,
        queries: Queries,
        around: tuple[int, int],
        read: Callable[[Tensor], Tensor],
        value: Tensor,
        dim: int,
        picked: slice | list[int] | None,
        *,
        is_by_row: bool,
        is_middle: bool = False,
    ) -> None:
        """As in `Watching`."""
        self._finest = self._finest or queries.grid
        words = self._words if picked is None else self._words[picked]
        form = self._words.shape[-1], around, picked is None, value.shape[1:], value.dtype, dim, is_by_row

        def in_form(parts: Sequence[Tensor]) -> list[Tensor]:
            return [word_maps.for_heads(part, value, is_by_row=is_by_row) for part in parts]

        def values() -> list[Tensor]:
            if form not in self._kept:
                parts = word_maps.of_one_head(torch.nn.functional.pad(words, around), value, dim)
                is_large = len(parts) * len(words) * value[0].nbytes > MOST_KEPT
                self._kept[form] = parts if is_large else in_form(parts)
            made = self._kept[form]
            is_whole = made[0].shape[1:] == value.shape[1:]
            return made if is_whole else in_form(made)

        def placed(shares: Tensor) -> Tensor:
            return shares[..., queries.picture].unflatten(-1, queries.grid)

        if AS_DAAM in self._wanted and self._has(AS_DAAM, queries.grid) and not is_middle:
            by_head = word_maps.shares_by_head(read, values(), words.shape[1], dim)
            self.by_layer[layer] = self._of_all(placed(by_head), picked is not None)
        if any(self._has(layers, queries.grid) for layers in self._wanted - {AS_DAAM}):
            of_layers = self._layers.setdefault(picked is not None, word_maps.LayerMaps())
            of_layers.add(queries.grid, placed(word_maps.mean_shares(read, words, value, dim, values=values())))

    def _of_all(self, maps: Tensor, is_picked: bool) -> Tensor:
        """Maps of all images of the batch, 0 for those that were not picked."""
        if not is_picked:
            return maps
        of_all = maps.new_zeros(len(self._words), *maps.shape[1:])
        of_all[self._images] = maps
        return of_all

    def mean(self, layers: str) -> Tensor | None:
        """Mean of the layers of a choice, ``[batch, words, (frames,) height, width]``; None if there is none."""
        by_images = {
            is_picked: total
            for is_picked, of_layers in self._layers.items()
            if (total := of_layers.total(self.size[-2:], lambda grid: self._has(layers, grid))) is not None
        }
        if not by_images:
            return None
        totals = [self._of_all(total, is_picked) for is_picked, (total, _) in by_images.items()]
        return sum(totals[1:], totals[0]) / sum(number for _, number in by_images.values())
