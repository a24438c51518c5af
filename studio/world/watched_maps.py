"""Word maps of the small world: where its U-Net reads each word, compared with where the judge finds its thing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ...weighting.placing.word_maps import LayerMaps, mean_shares
from .joint import Joint, Reading, SingleBlock
from .judge import Found
from .model import CELLS
from .unet import Attention, Regions, Text, TransformerBlock, UNet

PARTS = ("article", "color", "kind")
"""Words of a thing, in the order of its phrase."""
ALL, FINE, COARSE, EARLY, LATE = "all", "fine", "coarse", "first half", "second half"
LAYERS, STEPS = (ALL, FINE, COARSE), (ALL, EARLY, LATE)


class Selection(NamedTuple):
    """Maps that are compared with the things."""

    part: str
    """Word of a thing's phrase, one of `PARTS`."""
    layers: str = ALL
    """Layers of the finest cells, all others, or all."""
    steps: str = ALL
    """Half of the steps, or all."""


class Mapped(NamedTuple):
    """Answers for a picture's maps of some words, the mean over them; NaN where the things are not to be found."""

    favoured: float
    """Share of the words that have more at a place of their own thing than at one of the other."""
    inside: float
    """Share of a word's map that is on its thing."""
    covered: float
    """Part of the picture that its thing covers."""
    distance: float
    """Distance from the middle of the map to that of the thing, in sides of the picture."""
    blank: float
    """The same for a map without a word's mark: distance from the middle of the picture."""
    read: float
    """Mean share of the attention."""
    own_half: float
    """Share of the map in the left half for words of the first thing, in the right half for others."""


@contextmanager
def watched(network: UNet | Joint) -> Iterator[list[Tensor]]:
    """Record the maps of the words of all texts that a network draws with.

    Returns:
        A list that gets, in each layer of each step, ``[pictures, words, rows, columns]`` in cells of the layer.
    """
    found: list[Tensor] = []

    def note(block: TransformerBlock, given: tuple[Tensor, Text | Regions, tuple[int, int]]) -> None:
        x, text, cells = given
        texts = text.in_layer(cells) if isinstance(text, Regions) else [(torch.ones(1, 1), text)]
        x = block.norm2(x + block.attn1(block.norm1(x)))
        maps = [share.T * _shares(block.attn2, x, one, cells) for share, one in texts if one.words is not None]
        if maps:
            found.append(sum(maps[1:], maps[0]).unflatten(-1, cells))

    def note_joint(block: SingleBlock, given: tuple[Tensor, Tensor, Tensor, Reading, int]) -> None:
        x, time, turns, reading, number = given
        if reading.words is None:
            return
        query, key, _, _ = block.states(x, time, turns)

        def read(value: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(query, key, value, reading.masks[number])

        shares = mean_shares(read, reading.words, key, key.shape[-1])
        found.append(shares[..., -math.prod(reading.cells) :].unflatten(-1, reading.cells))

    with ExitStack() as hooks:
        for module in network.modules():
            if isinstance(module, SingleBlock):
                hooks.callback(module.register_forward_pre_hook(note_joint).remove)
            elif isinstance(module, TransformerBlock):
                hooks.callback(module.register_forward_pre_hook(note).remove)
        yield found


def _shares(layer: Attention, x: Tensor, text: Text, cells: tuple[int, int]) -> Tensor:
    """Shares of a text's words, ``[pictures, words, places]``."""
    query, key = (
        states.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for states in (layer.to_q(x), layer.to_k(text.rows))
    )
    mask, words = text.mask(cells), text.words
    assert words is not None

    def read(value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, mask)

    return mean_shares(read, words, key, key.shape[-1])


def mean_maps(recorded: Sequence[Tensor], layers: str = ALL, steps: str = ALL) -> Tensor:
    """Mean of recorded maps of some layers and steps at the places of a latent, ``[pictures, words, 16, 16]``."""
    half = len(recorded) // 2
    some = recorded[: half if steps == EARLY else None][half if steps == LATE else 0 :]
    finest = max(one.shape[-1] for one in recorded)
    by_cells = LayerMaps()
    for one in some:
        by_cells.add(tuple(one.shape[-2:]), one)
    found = by_cells.mean(CELLS, lambda grid: layers == ALL or (grid[-1] == finest) == (layers == FINE))
    assert found is not None  # the U-Net has layers of both kinds
    return found


def mapped(maps: Tensor, things: Sequence[Found | None], numbers: Sequence[int]) -> Mapped:
    """Answers for the maps of one word of each thing.

    Args:
        maps: ``[things, 16, 16]``.
        things: Findings of the judge for each thing; None if it is missing or not right.
        numbers: Things whose words are asked about.
    """
    maps = maps.double()
    whole = maps.sum((1, 2))

    def middles(of: Tensor) -> Tensor:
        rows, columns = ((torch.arange(size) + 0.5) / size for size in CELLS)
        return torch.stack([(of.sum(2) * rows).sum(1), (of.sum(1) * columns).sum(1)], 1) / of.sum((1, 2))[:, None]

    left = maps[:, :, : CELLS[1] // 2].sum((1, 2)) / whole
    own_half = torch.where(torch.arange(len(maps)) == 0, left, 1 - left)
    asked = list(numbers)
    everywhere = [float(maps[asked].mean()), float(own_half[asked].mean())]
    areas = [F.avg_pool2d(one.area[None].double(), 2)[0] for one in things if one is not None]
    if len(areas) < len(things):
        return Mapped._make([math.nan] * 5 + everywhere)
    covers = torch.stack(areas)
    on_things = torch.einsum("nhw,mhw->nm", maps, covers)  # [words, things]
    by_place = on_things / covers.sum((1, 2))
    others = by_place.masked_fill(torch.eye(len(maps), dtype=torch.bool), -1).amax(1)
    centres = middles(covers)
    by_word = (
        (by_place.diagonal() > others).double(),
        on_things.diagonal() / whole,
        covers.mean((1, 2)),
        (middles(maps) - centres).norm(dim=1),
        (0.5 - centres).norm(dim=1),
    )
    return Mapped._make([float(values[asked].mean()) for values in by_word] + everywhere)
