"""Sequence packing: captions laid end to end, so that a text tower computes almost no padding.

A batch is as wide as its longest caption, and everything after the others' EOS is wasted. Here several captions share a
row. Each keeps its own positions and sees only itself, so its vector is the same.

Source: M. M. Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..encoder.config import TextConfig
from ..encoder.masks import causal_mask, group_mask
from ..encoder.text_model import TextModel, Vectors, check_ids, first_eos

LENGTHS = (1, 2, 4)
"""Row lengths considered, in multiples of the longest caption. Longer rows fill up better, but cost more in
attention."""


class Packed(NamedTuple):
    """Captions packed into rows."""

    ids: Tensor
    """``[rows, length]``, int64."""
    ends: Tensor
    """``[captions]``, int64: place of each caption's EOS, counted through all rows."""
    positions: Tensor | None = None
    """``[rows, length]``, int64: position of each token in its caption. None if each row is one caption."""
    captions: Tensor | None = None
    """``[rows, length]``, int64: number of each token's caption; -1 after the last one of a row. None as above."""


def pack(ids: Tensor, config: TextConfig) -> Packed:
    """Pack captions, each from BOS to its first EOS, into the rows that take the fewest multiplications.

    A caption without EOS is used whole. Captions stay as they are if packing saves nothing; it is deterministic.

    >>> ids = torch.tensor([[1, 5, 9, 9], [1, 6, 7, 9], [1, 9, 9, 9], [1, 8, 9, 9]])
    >>> packed = pack(ids, TextConfig(bos_id=1, eos_id=9))
    >>> packed.ids.tolist(), packed.ends.tolist()
    ([[1, 6, 7, 9, 1, 9], [1, 5, 9, 1, 8, 9]], [8, 3, 5, 11])
    """
    check_ids(ids, config)
    (num_captions, width), device = ids.shape, ids.device
    last = first_eos(ids, config.eos_id)
    lengths = [end + 1 for end in last.tolist()]
    plain = _Rows(num_captions, width, range(0, ids.numel(), width))
    numbers = sorted({-(-sum(lengths) // (factor * max(lengths))) for factor in LENGTHS})
    best = min([plain, *(_filled(lengths, number) for number in numbers)], key=lambda rows: rows.cost(config))
    starts = torch.tensor(best.starts, device=device)
    if best is plain:
        return Packed(ids, starts + last)
    columns = torch.arange(width, device=device)
    is_caption = columns <= last.unsqueeze(1)  # [captions, s]
    places = (starts.unsqueeze(1) + columns)[is_caption]

    def laid(values: Tensor, behind: int) -> Tensor:
        """Arrange values of tokens, ``[captions, s]`` or fewer, in rows."""
        flat = torch.full((best.num_rows * best.length,), behind, device=device)
        flat[places] = values.expand_as(ids)[is_caption]
        return flat.view(best.num_rows, best.length)

    numbered = torch.arange(num_captions, device=device).unsqueeze(1)
    return Packed(laid(ids, config.pad_id), starts + last, laid(columns, 0), laid(numbered, -1))


def projected(model: TextModel, packed: Packed, vectors: Vectors | None = None) -> Tensor:
    """Project packed captions to ``[captions, p]``, in the original order."""
    if packed.captions is None:
        return model(packed.ids, vectors=vectors).projected
    hidden = model.embeddings(packed.ids, vectors, packed.positions)
    causal = causal_mask(hidden.shape[1]).to(hidden.device)
    mask = (causal & group_mask(packed.captions)).unsqueeze(1)  # [rows, 1, length, length]
    rotate = None if packed.positions is None else model.rotation(packed.positions)
    last = model.encoder(hidden, mask, is_causal=False, rotate=rotate)[-1]
    pooled = model.final_layer_norm(last.flatten(0, 1)[packed.ends])  # [rows, length, d] -> [captions, d]
    return cast("nn.Linear", model.text_projection)(pooled)


class _Rows(NamedTuple):
    """Starts of captions."""

    num_rows: int
    length: int
    starts: Sequence[int]
    """Counted through all rows."""

    def cost(self, config: TextConfig) -> int:
        """Multiplications per layer, divided by ``2 d``.

        A token takes ``4 d^2 + 2 d m`` in the linear layers, and ``2 d`` in attention for each place in its row.
        """
        return self.num_rows * self.length * (2 * config.hidden_dim + config.mlp_dim + self.length)


def _filled(lengths: Sequence[int], num_rows: int) -> _Rows:
    """Distribute captions of given lengths over rows: the longest first, each into the emptiest row."""
    filled = [(0, row) for row in range(num_rows)]
    begins = [(0, 0)] * len(lengths)
    for caption in sorted(range(len(lengths)), key=lambda caption: -lengths[caption]):
        column, row = filled[0]
        begins[caption] = row, column
        heapreplace(filled, (column + lengths[caption], row))
    longest = max(filled)[0]
    return _Rows(num_rows, longest, [row * longest + column for row, column in begins])
