"""Captions laid end to end, so that a text tower computes next to no padding: sequence packing.

A batch is as wide as its longest caption, and what stands behind the others' EOS is computed for nothing. Here several
captions share a row. Each has the positions that it has alone, and sees nothing but itself, so its vector is the same.

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
"""Lengths of rows that are considered, in longest captions. Longer ones fill up better, and attend to more."""


class Packed(NamedTuple):
    """Captions in rows."""

    ids: Tensor
    """``[rows, length]``, int64."""
    ends: Tensor
    """``[captions]``, int64: place of each caption's EOS, counted through all rows."""
    positions: Tensor | None = None
    """``[rows, length]``, int64: of each token in its caption. None where each row is one caption."""
    captions: Tensor | None = None
    """``[rows, length]``, int64: number of each token's caption; -1 behind the last one of a row. None as above."""


def pack(ids: Tensor, config: TextConfig) -> Packed:
    """Lay captions end to end, each from BOS to its first EOS, in the rows that take the fewest multiplications.

    Args:
        ids: ``[captions, s]``, int64: BOS, tokens, EOS, padding. A caption without EOS is taken whole.
        config: Of the tower.

    Returns:
        The captions as they are where nothing is saved. The same ones are always packed in the same way.

    Raises:
        ValueError: If there are more positions than the tower has.

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
        """Values of tokens, ``[captions, s]`` or fewer, in rows."""
        flat = torch.full((best.num_rows * best.length,), behind, device=device)
        flat[places] = values.expand_as(ids)[is_caption]
        return flat.view(best.num_rows, best.length)

    numbered = torch.arange(num_captions, device=device).unsqueeze(1)
    return Packed(laid(ids, config.pad_id), starts + last, laid(columns, 0), laid(numbered, -1))


def projected(model: TextModel, packed: Packed, vectors: Vectors | None = None) -> Tensor:
    """Projected vectors of packed captions.

    Args:
        model: A tower with a text projection.
        packed: The captions.
        vectors: By row and place in it, as `TextModel.forward` has them by chunk and position.

    Returns:
        ``[captions, p]``, in the order in which they were given.
    """
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
    """Where captions begin."""

    num_rows: int
    length: int
    starts: Sequence[int]
    """Counted through all rows."""

    def cost(self, config: TextConfig) -> int:
        """Multiplications in a layer, divided by ``2 d``.

        A token takes ``4 d^2 + 2 d m`` in the linear layers, and ``2 d`` in attention for each place of its row.
        """
        return self.num_rows * self.length * (2 * config.hidden_dim + config.mlp_dim + self.length)


def _filled(lengths: Sequence[int], num_rows: int) -> _Rows:
    """Put captions of some lengths into rows: the longest first, each into the row that is emptiest by then."""
    filled = [(0, row) for row in range(num_rows)]
    begins = [(0, 0)] * len(lengths)
    for caption in sorted(range(len(lengths)), key=lambda caption: -lengths[caption]):
        column, row = filled[0]
        begins[caption] = row, column
        heapreplace(filled, (column + lengths[caption], row))
    longest = max(filled)[0]
    return _Rows(num_rows, longest, [row * longest + column for row, column in begins])
