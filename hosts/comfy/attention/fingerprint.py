"""Fingerprints of the rows of a CONDITIONING, by which they are known again.

Made when a prompt is encoded and compared later: between the two, the rows may go to another device or number type, and
other nodes may change them.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

NUM_SIGNS = 8
"""Sums that describe a row."""
TOLERANCE = 2**-8
"""Largest distance of rows that are the same, relative to their length: twice what bfloat16 rounds away."""


def fingerprint(rows: Tensor) -> Tensor:
    """Describe each row by sums of its numbers under fixed random signs, and by its length.

    From ``[batch, rows, dim]`` of any number type to ``[batch, rows, NUM_SIGNS + 1]``, float32 on the CPU.
    """
    rows = rows.detach().float()
    sums = rows @ _signs(rows.shape[-1], rows.device)
    return torch.cat([sums, rows.norm(dim=-1, keepdim=True)], -1).cpu()


def are_same(recorded: Tensor, current: Tensor) -> bool:
    """Whether each batch of the current rows is the recorded row for row; ``recorded`` has one batch."""
    if recorded.shape[1] != current.shape[1]:
        return False
    distance = (current[..., :-1] - recorded[..., :-1]).norm(dim=-1)
    return not bool((distance > TOLERANCE * recorded[..., -1]).any())


@cache
def _signs(dim: int, device: torch.device) -> Tensor:  # [dim, NUM_SIGNS]
    """Random signs of a fixed seed, scaled so that sums are about as large as the row is long."""
    drawn = torch.randint(2, (dim, NUM_SIGNS), generator=torch.Generator().manual_seed(dim), device="cpu")
    return (2 * drawn - 1).float().to(device) * NUM_SIGNS**-0.5
