"""Word maps: shares of an image's attention that words get, by place.

An attention whose values are 1 at the keys of a word, and 0 at all others, gives at each query the share of that word.
So the shares are the attention's own, with its masks and biases, and no table of probabilities is kept.

Source: docs/reference/attention.md, "Word maps"; DAAM, Tang et al. 2022 (arXiv:2210.04885), for `daam_maps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, pad, scaled_dot_product_attention

from .fields import cell_side


def word_shares(
    query: Tensor,
    key: Tensor,
    words: Sequence[Sequence[int]],
    *,
    mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Share of the attention that each word gets at each query, the mean over heads.

    Args:
        query: ``[batch, heads, queries, dim]``.
        key: ``[batch, heads, keys, dim]``.
        words: Keys of each word, counted from 0.
        mask: As PyTorch's attention takes it: boolean (may be attended) or added to the logits.
        scale: Factor of the logits; None for ``dim ** -0.5``.

    Returns:
        ``[batch, words, queries]``, float32, from 0 to 1. Words of all keys together have 1 at each query.

    Raises:
        ValueError: If a word has a key that does not exist.
    """
    num_keys = key.shape[-2]
    wrong = [index for word in words for index in word if not 0 <= index < num_keys]
    if wrong:
        raise ValueError(f"keys of words must be 0 to {num_keys - 1}, got {wrong[0]}")
    rows = key_rows(words, num_keys).to(key.device).expand(len(key), -1, -1)

    def read(value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    return mean_shares(read, rows, key, key.shape[-1])


def key_rows(words: Sequence[Sequence[int]], num_keys: int) -> Tensor:
    """1 for each word's keys, else 0: ``[words, keys]``, float32."""
    flags = torch.zeros(len(words), num_keys)
    for row, keys in zip(flags, words, strict=True):
        row[list(keys)] = 1.0
    return flags


Read = Callable[[Tensor], Tensor]
"""An attention as a function of its values alone, to ``[batch, queries, heads * dim]`` or ``[batch, heads, queries,
dim]``."""


def mean_shares(
    attend: Read,
    words: Tensor,
    value: Tensor,
    dim: int,
    *,
    is_by_row: bool = False,
    values: Sequence[Tensor] | None = None,
) -> Tensor:
    """Share of each word at each query, the mean over heads: ``[batch, words, queries]``, float32.

    Arguments as in `one_hot_values`, whose result may be given as ``values``; no word is kept by head.
    """
    values = one_hot_values(words, value, dim, is_by_row=is_by_row) if values is None else values
    return _joined([part.mean(1, dtype=torch.float32) for part in _read_in_parts(attend, values, words.shape[1], dim)])


def shares_by_head(attend: Read, values: Sequence[Tensor], num_words: int, dim: int) -> Tensor:
    """Share of each word at each query, head by head: ``[batch, heads, words, queries]``, float32.

    ``values`` and ``dim`` are as in `one_hot_values`.
    """
    return _joined([part.float() for part in _read_in_parts(attend, values, num_words, dim)])


def one_hot_values(words: Tensor, value: Tensor, dim: int, *, is_by_row: bool = False) -> list[Tensor]:
    """Values with which an attention gives the shares of as many words as a head has numbers, and so on.

    Args:
        words: 1 for each word's keys, else 0: ``[batch, words, keys]``.
        value: Values of the attention, for their form, number type and device: ``[batch, keys, heads * dim]`` or
            ``[batch, heads, keys, dim]``.
        dim: Numbers of a head.
        is_by_row: Whether values of four dimensions are ``[batch, keys, heads, dim]``.
    """
    return [for_heads(part, value, is_by_row=is_by_row) for part in of_one_head(words, value, dim)]


def of_one_head(words: Tensor, value: Tensor, dim: int) -> list[Tensor]:
    """The values of `one_hot_values` for one head, ``[batch, keys, dim]``."""
    parts = words.to(value.device).split(dim, 1)
    return [pad(part.transpose(1, 2), (0, dim - part.shape[1])).to(value.dtype) for part in parts]


def for_heads(ones: Tensor, value: Tensor, *, is_by_row: bool) -> Tensor:
    """Values of one head in the form of an attention's values."""
    if value.dim() == 3:
        return ones.repeat(1, 1, value.shape[-1] // ones.shape[-1])
    ones = ones[:, :, None] if is_by_row else ones[:, None]
    return ones.expand(len(ones), *value.shape[1:]).contiguous()


def _read_in_parts(attend: Read, values: Sequence[Tensor], num_words: int, dim: int) -> Iterator[Tensor]:
    """Shares of words, as many at a time as values were made for: ``[batch, heads, queries, words]``."""
    for number, ones in enumerate(values):
        result = attend(ones)
        by_head = result.unflatten(-1, (-1, dim)).transpose(1, 2) if result.dim() == 3 else result
        yield by_head[..., : num_words - number * dim]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return (parts[0] if len(parts) == 1 else torch.cat([*parts], -1)).transpose(-1, -2)


def on_latent(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Maps of a layer at the places of the latent, between its cells by bilinear interpolation.

    From ``[..., rows, columns]`` to ``[..., *size]``, where ``size`` is a height and a width. The cells at an edge may
    reach over it. Maps that add up to 1 still do.
    """
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    covered = [round(cells * cell_side(length, cells)) for length, cells in zip(size, maps.shape[-2:], strict=True)]
    flat = maps.reshape(1, -1, *maps.shape[-2:])
    grown = interpolate(flat, covered, mode="bilinear", align_corners=False)
    return grown[..., : size[0], : size[1]].reshape(*maps.shape[:-2], *size)


class LayerMaps:
    """Maps of layers, added up by the grid of their cells."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, ...], Tensor] = {}
        self._numbers: dict[tuple[int, ...], int] = {}

    def add(self, grid: tuple[int, ...], maps: Tensor) -> None:
        """Add maps of a layer, ``[..., *grid]``, where a grid is (frames,) rows and columns."""
        self._sums[grid] = self._sums[grid] + maps if grid in self._sums else maps
        self._numbers[grid] = self._numbers.get(grid, 0) + 1

    def total(self, size: Sequence[int], has: Callable[[tuple[int, ...]], bool]) -> tuple[Tensor, int] | None:
        """Sum of the layers whose grid is wanted, as in `mean`, and their number; None without any."""
        total: Tensor | None = None
        for grid in filter(has, self._sums):
            maps = on_latent(self._sums[grid], size)
            total = maps if total is None else total + maps
        return None if total is None else (total, sum(self._numbers[grid] for grid in filter(has, self._sums)))

    def mean(self, size: Sequence[int], has: Callable[[tuple[int, ...]], bool] = lambda _: True) -> Tensor | None:
        """Mean of the layers whose grid is wanted, ``[..., (frames,) *size]`` as in `on_latent`; None without any."""
        found = self.total(size, has)
        return None if found is None else found[0] / found[1]


THRESHOLD = 0.4
"""Least part of a map's largest share that belongs to the word's place."""


def place_in(shares: Tensor) -> Tensor:
    """Place of a word by its map: 1 where its share is large, 0 elsewhere, with edges a cell soft.

    From ``[..., height, width]`` to the same, float32; 0 everywhere if the word is not read.
    """
    largest = shares.amax((-2, -1), keepdim=True)
    is_large = ((shares >= THRESHOLD * largest) & (largest > 0)).float()
    flat = is_large.reshape(-1, 1, *shares.shape[-2:])
    return avg_pool2d(flat, 3, 1, 1, count_include_pad=False).reshape(shares.shape)


MAX_WATCHED = 50
"""Most words that are watched at a time: their maps take memory by word, picture and place."""
NUM_WATCHED = 12
"""Number of first words that are watched if none is named."""
MAX_BYTES = 2**29
"""Most bytes of the maps of a sampling."""


def check_bytes(num_bytes: int, what: str, advice: str) -> None:
    """Refuse maps of more than `MAX_BYTES`, with a ValueError that says what to do."""
    if num_bytes > MAX_BYTES:
        raise ValueError(
            f"{what} would take {num_bytes / 2**20:,.0f} MiB, and {MAX_BYTES // 2**20} MiB at most are allowed: "
            f"{advice}."
        )


DAAM_SIDE = 64
"""Side of DAAM's maps of pictures of 512 and of 1024 pixels: it does not grow with them."""


def daam_size(size: Sequence[int]) -> tuple[int, ...]:
    """Height and width of DAAM's maps for a latent; of other sizes as many cells as fit best.

    >>> daam_size((64, 64)), daam_size((96, 96)), daam_size((128, 128)), daam_size((104, 152))
    ((64, 64), (96, 96), (64, 64), (52, 76))
    """
    side = 1
    while max(size) >= 2 * side * DAAM_SIDE:
        side *= 2
    return tuple(-(-length // side) for length in size)


def is_of_daam(grid: Sequence[int], size: Sequence[int]) -> bool:
    """Whether DAAM uses a layer with this grid for maps of a size: all but layers of an eighth of its sides."""
    return int(math.sqrt(math.prod(size) // math.prod(grid))) != 8


def daam_maps(layers: Iterable[Tensor], size: Sequence[int]) -> Tensor:
    """Maps of single rows as DAAM makes them, without its scaling.

    Each layer and head is enlarged by bicubic interpolation, cut off at 0, and all are averaged.

    Args:
        layers: ``[heads, rows, height, width]`` of each layer that `is_of_daam`, added up over the steps; none is of
            the middle block.
        size: Height and width of the maps.

    Returns:
        ``[rows, *size]``, float32.
    """
    total, num_heads = torch.zeros(()), 0
    for layer in layers:
        grown = interpolate(layer, tuple(size), mode="bicubic").clamp(min=0)
        total, num_heads = total.to(layer.device) + grown.sum(0), num_heads + len(layer)
    return total / num_heads
