"""Rotary positions: queries and keys are rotated by angles proportional to their position, instead of a learned table.

The score of a query and a key then depends on their distance, not on their absolute positions, so a model can read
texts longer than those it was trained on. No released CLIP was trained this way.

A head of ``e`` channels is ``e / 2`` pairs. Pair i is rotated by ``m theta_i`` at position m, ``theta_i = 10000^(-2(i -
1)/e)``, counted from 1. Channels i and ``i + e / 2`` make a pair, as in Llama; with channels 2i - 1 and 2i, as in the
paper, the scores are the same for queries and keys with reordered channels.

Source: J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; the layout of pairs as in
transformers' Llama.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BASE = 10000.0

ABOUT = f"half-split pairs as Llama's, base {BASE:g}"
"""Metadata entry of a file under ``rotary``; files with other rotary positions are not read."""

Rotation = Callable[[Tensor], Tensor]
"""Rotates queries or keys ``[..., h, s, e]`` by their positions, keeping the shape."""


def angles_of(positions: Tensor, head_dim: int) -> Tensor:
    """Rotation angles of the pairs of a head.

    Args:
        positions: ``[...]``, whole numbers.
        head_dim: e, even.

    Returns:
        ``[..., e / 2]``, float64, in radians, on the CPU.

    >>> angles_of(torch.tensor([0, 3]), 4).tolist()
    [[0.0, 0.0], [3.0, 0.03]]
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return positions.cpu().double().unsqueeze(-1) * BASE**-exponents


def rotation(positions: Tensor, head_dim: int) -> Rotation:
    """Function that rotates queries and keys by their positions.

    Args:
        positions: ``[s]``, or ``[b, s]`` if they differ between the rows of a batch; whole numbers.
        head_dim: e, even.

    Returns:
        Function of ``[b, h, s, e]`` (``[h, s, e]`` for positions ``[s]``) that computes in its argument's type.
    """
    angles = angles_of(positions, head_dim).unsqueeze(-3)  # [b, 1, s, e / 2]
    cosines, sines = angles.cos(), angles.sin()

    def turned(states: Tensor) -> Tensor:
        # cast first, as not every device has float64
        cos, sin = (part.to(states.dtype).to(states.device) for part in (cosines, sines))
        first, second = states.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return turned
