"""Rotary positions: queries and keys are turned by angles that grow with their position, in place of a learned table.

The score of a query and a key then depends on how far apart they are, and not on where they stand, so a model can read
texts longer than those that it was trained on. No released CLIP has been trained this way.

A head of ``e`` channels is ``e / 2`` pairs. Pair i is turned by ``m theta_i`` at position m, ``theta_i = 10000^(-2(i -
1)/e)``, counted from 1. Channels i and ``i + e / 2`` make a pair, as in Llama; with channels 2i - 1 and 2i, as the
paper has them, the scores are the same for queries and keys whose channels are reordered.

Source: J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; the layout of pairs as in
transformers' Llama.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BASE = 10000.0

ABOUT = f"half-split pairs as Llama's, base {BASE:g}"
"""What metadata of a file say of them under ``rotary``; a file of other rotary positions is not read."""

Rotation = Callable[[Tensor], Tensor]
"""Turns queries or keys ``[..., h, s, e]`` of some positions; the shape stays."""


def angles_of(positions: Tensor, head_dim: int) -> Tensor:
    """Angles by which the pairs of a head are turned.

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
    """What turns the queries and keys of some positions.

    Args:
        positions: ``[s]``, or ``[b, s]`` where they differ between the rows of a batch; whole numbers.
        head_dim: e, even.

    Returns:
        A function of ``[b, h, s, e]`` (``[h, s, e]`` for positions ``[s]``), in whose type it computes.
    """
    angles = angles_of(positions, head_dim).unsqueeze(-3)  # [b, 1, s, e / 2]
    cosines, sines = angles.cos(), angles.sin()

    def turned(states: Tensor) -> Tensor:
        # the type first, as not every device has float64
        cos, sin = (part.to(states.dtype).to(states.device) for part in (cosines, sines))
        first, second = states.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return turned
