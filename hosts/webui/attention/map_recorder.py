"""Word maps in the WebUI: where in each picture the words of its prompt were read, in the cross attention of Forge.

A hook on each layer runs its attention once more, with 1 for the keys of a word as values. The picture is not touched.

Source: docs/reference/attention.md, "Word maps"; docs/reference/hosts.md, "Word maps in the WebUI"; behaviour of
stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ....encoder.quoting import raising
from ....weighting.placing.queries import Queries
from ....weighting.placing.word_maps import MAX_BYTES, MAX_WATCHED, LayerMaps, check_bytes, key_rows, mean_shares
from ....weighting.reading.view import counted
from ..engines import Generation, Processed, WebUIError, host_option
from .cross_attention import AttentionHooks, attention_of
from .known_texts import RecognizedText, Texts

PARTS = ("to_q", "to_k", "to_v")
"""Layers of an attention by name, which make its queries, keys and values."""


class RunningWordMap:
    """Map of a word: a mean over the readings of the texts that have it."""

    def __init__(self, word: str) -> None:
        self.word = word
        self._sum, self._num = torch.zeros(()), 0

    def add(self, shares: Tensor, num: int) -> None:
        """Add the sum of some readings."""
        self._sum, self._num = self._sum + shares, self._num + num

    @property
    def shares(self) -> Tensor:
        """Share of the attention at each place of the latent, ``[height, width]``, float32, on the CPU."""
        return self._sum / self._num


class Readings:
    """Readings of the same texts by layers of the model; where text and picture share an attention, a `Watching`."""

    def __init__(self, texts: Sequence[RecognizedText | None], num_keys: int) -> None:
        """Store the text that each image of a call reads, if any, and the number of keys."""
        self.images: list[int] = []
        """Images of the call that read a prompt."""
        self.words: list[list[str]] = []
        """Words of each of them."""
        self.num_names = 0
        """Number of words of the longest of them, of which the first `MAX_WATCHED` are watched."""
        by_image: list[Tensor] = []
        for image, text_read in enumerate(texts):
            if text_read is not None:
                names = text_read.text.names()
                self.num_names = max(self.num_names, len(names))
                rows = {name: text_read.text.rows_of(name) for name in names[:MAX_WATCHED]}
                self.images.append(image)
                self.words.append([name for name, word_rows in rows.items() if word_rows])
                by_image.append(
                    key_rows([text_read.keys(word_rows) for word_rows in rows.values() if word_rows], num_keys)
                )
        self.keys = nn.utils.rnn.pad_sequence(by_image, batch_first=True)
        """1 for the keys of each word, else 0: ``[images, words, keys]``."""
        self.num = 0
        """Number of readings."""
        self._layers = LayerMaps()

    def add_shares(self, grid: tuple[int, ...], shares: Tensor) -> None:
        """Add the shares in a layer, ``[images, words, queries]``."""
        self._layers.add(grid, shares.unflatten(-1, grid))
        self.num += 1

    def picked(self, mask: Tensor | None) -> list[int]:
        """As in `Watching`."""
        return self.images

    def read_again(self, num_rows: int) -> None:
        """As in `Watching`."""
        self.keys = torch.cat([self.keys, self.keys[..., -num_rows:]], -1)

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
        self.keys = self.keys.to(value.device)
        shares = mean_shares(read, nn.functional.pad(self.keys, around), value, dim, is_by_row=is_by_row)
        self.add_shares(queries.grid, shares[..., queries.picture])

    def total(self, cells: Sequence[int]) -> Tensor:
        """Sum of the shares at the places of the latent, ``[images, words, *cells]``, on the CPU."""
        mean = self._layers.mean(cells)
        assert mean is not None  # asked for readings only
        return mean.cpu() * self.num


class WordMaps(AttentionHooks):
    """Maps of the words of each picture of a generation."""

    name, otherwise = "Word maps", "switch Word maps off"

    def __init__(self, texts: Texts) -> None:
        """Store the texts whose words are watched."""
        super().__init__(texts)
        self.pictures: list[list[RunningWordMap]] = []
        """Maps of each picture so far, of its last pass."""
        self._num_pictures = 0
        self._num_names = 0
        """Number of words of the longest text so far."""
        self._num_bytes = 0
        """Bytes of the maps of the pictures so far."""
        self._readings: dict[object, Readings] = {}
        """Readings in the pass that is going on, by the texts that the images of a call read."""
        self._current: Readings | None = None

    def find(self) -> None:
        """Raise if nobody can tell which rows of a text are its words."""
        for text in self._texts:
            if text.unknown and not text.is_negative:
                self.refuse_unknown(text.unknown)

    @contextmanager
    def acting(self, p: Generation) -> Iterator[None]:
        """Record what is read for the duration of the context, then add the maps to `pictures`."""
        self._num_pictures = 0
        self._readings.clear()
        with super().acting(p):
            yield
        self.pictures += self._finished()
        self._num_bytes = sum(word_map.shares.nbytes for maps in self.pictures for word_map in maps)
        self._readings.clear()

    def begin_pass(self, p: Any, latent: Tensor) -> None:
        """Note the latents that are to be sampled, and forget what was read in an earlier pass."""
        super().begin_pass(p, latent)
        self._num_pictures = len(latent)
        self._readings.clear()

    def _begin(self, p: Any, latent: Tensor, context: Tensor, options: Mapping[str, Any]) -> torch.Size | None:
        """Prepare a call of a U-Net."""
        self._current = self.readings(latent, context, options, self._known(context, options))
        return None if self._current is None else context.shape

    def readings(
        self, latent: Tensor, context: Tensor, options: Mapping[str, Any], texts: Sequence[RecognizedText | None]
    ) -> Readings | None:
        """Readings that a call of the model adds to, given the text that each image reads, if any; None if to none."""
        if not any(texts) or self._num_bytes > MAX_BYTES:
            return None
        self._check_call(latent, options)
        if len(context) != self._num_pictures * len(options["cond_or_uncond"]):
            raise WebUIError(f"Another extension divides the batch: switch it off, or {self.otherwise}.")
        key = context.shape, *texts
        if key not in self._readings:
            readings = self._readings[key] = Readings(texts, context.shape[1] // self._texts.pair)
            self._num_names = max(self._num_names, readings.num_names)
            self._check_size(readings)
        return self._readings[key] if self._readings[key].keys.numel() else None  # an empty prompt has no words

    def _check_size(self, readings: Readings) -> None:
        """Refuse maps that would take too much memory, before they are made."""
        assert self._cells is not None
        num_maps = math.prod(readings.keys.shape[:2])
        with raising(WebUIError):  # those of all layers, added up by size, and their mean
            check_bytes(3 * torch.float32.itemsize * num_maps * math.prod(self._cells), self.name, self.otherwise)

    def _hooked(self, attention: nn.Module) -> Iterator[RemovableHandle]:
        projections: dict[str, Tensor] = {}

        def note(part: str, _: nn.Module, __: tuple[Any, ...], result: Tensor) -> None:
            if self._shape is not None:
                projections[part] = result

        def read(module: nn.Module, args: tuple[Any, ...], inputs: Mapping[str, Any], _: Tensor) -> None:
            if self._shape is not None:
                query, key, value = (projections.pop(part, None) for part in PARTS)
                self._check_layer(args[0].shape[1], None if key is None else inputs.get("context"))
                assert query is not None and key is not None and value is not None
                self._read(module, query, key, value, inputs.get("mask"))

        for part in PARTS:
            yield attention.get_submodule(part).register_forward_hook(partial(note, part))
        yield attention.register_forward_hook(read, with_kwargs=True)

    def _read(self, attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
        """Let an attention read the words alone, for the images that read a prompt."""
        readings, function = self._current, attention_of(attention)
        assert readings is not None and function is not None
        images = torch.tensor(readings.images, device=query.device)
        query, key, value = (tensor.index_select(0, images) for tensor in (query, key, value))
        if mask is not None:
            mask = mask.index_select(0, images)
        heads: int = attention.heads

        def read(value: Tensor) -> Tensor:
            return function(query, key, value, heads, mask)

        readings.keys = readings.keys.to(query.device)
        readings.add_shares(self._grid, mean_shares(read, readings.keys, value, value.shape[-1] // heads))

    def _finished(self) -> list[list[RunningWordMap]]:
        """Maps of each picture of the pass."""
        maps_by_picture: list[dict[str, RunningWordMap]] = [{} for _ in range(self._num_pictures)]
        for readings in self._readings.values():
            if not readings.num:
                continue
            assert self._cells is not None
            for image, words, total in zip(readings.images, readings.words, readings.total(self._cells), strict=True):
                picture_maps = maps_by_picture[image % self._num_pictures]
                for word, shares in zip(words, total, strict=False):  # others of the batch may have more words
                    picture_maps.setdefault(word.casefold(), RunningWordMap(word)).add(shares, readings.num)
        return [list(picture_maps.values()) for picture_maps in maps_by_picture]

    # Afterwards

    def report(self) -> Iterator[str]:
        """Lines about what has no map."""
        if self._num_names > MAX_WATCHED:
            yield f"Word maps are of the first {MAX_WATCHED} of {self._num_names} words."
        if self._num_bytes > MAX_BYTES:
            number = sum(map(bool, self.pictures))
            yield f"Word maps are of the first {counted(number, 'picture')}: more are not kept."

    def add_grids(self, p: Generation, processed: Processed, draw: Callable[..., Any]) -> None:
        """Add a grid of each picture's maps to the gallery, as the host adds the pictures of a ControlNet.

        ``draw`` is as in `add_word_maps`.
        """
        grids: list[Any] = []
        for number, maps in enumerate(self.pictures):
            if maps:
                largest = max(float(word_map.shares.max()) for word_map in maps)
                note = f"picture {number + 1}; one scale for all words, 1 is {largest:.2%} of the attention"
                scaled = [(word_map.word, (word_map.shares / (largest or 1.0)).numpy()) for word_map in maps]
                grids.append(draw(scaled, note))
                if host_option("enable_pnginfo", default=True):
                    grids[-1].info["parameters"] = processed.infotext(p, number)
        processed.extra_images = [*processed.extra_images, *grids]
