"""Word maps of the small world: where its U-Net reads each word, to compare with where things are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor

from ..weighting.word_maps import on_latent, word_shares
from .measure import CELLS
from .unet import Attention, Text, TransformerBlock, UNet


@contextmanager
def watched(unet: UNet, text: Text, words: Sequence[Sequence[int]]) -> Iterator[list[Tensor]]:
    """Record the maps of a text's words while a U-Net draws with it.

    Args:
        unet: The U-Net.
        text: The text, whose own rows are drawn with, not a copy of them.
        words: Rows of each word.

    Returns:
        A list that gets, in each layer and step, ``[pictures, words, 16, 16]``.
    """
    found: list[Tensor] = []

    def note(layer: Attention, given: tuple[Tensor, Text, tuple[int, int]], _: Any) -> None:
        x, read, cells = given
        if read.rows.data_ptr() != text.rows.data_ptr():
            return
        query, key = (
            states.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2)
            for states in (layer.to_q(x), layer.to_k(read.rows))
        )
        shares = word_shares(query, key, words, mask=read.mask(cells))
        found.append(on_latent(shares.unflatten(-1, cells), CELLS))

    with ExitStack() as hooks:
        for module in unet.modules():
            if isinstance(module, TransformerBlock):
                hooks.callback(module.attn2.register_forward_hook(note).remove)
        yield found
