"""Masks of a plan as tensors: for an encoder, and with causality for display."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..encoder.masks import causal_mask
from .schemes.plan import Variant, Visible


def mask_tensor(visible: Sequence[Visible], length: int) -> Tensor | None:
    """Masks of chunks for an encoder.

    Args:
        visible: One mask per chunk.
        length: Positions in a chunk.

    Returns:
        Bool ``[chunks, 1 or length, length]``, True = may be attended; None if nothing is hidden.
    """
    if all(seen is None for seen in visible):
        return None
    size = max(len(seen) for seen in visible if seen is not None)
    everything = b"\1" * length
    flags = b"".join(one * (size // len(one)) for one in (seen or everything for seen in visible))
    return torch.frombuffer(bytearray(flags), dtype=torch.bool).view(len(visible), -1, length)


def variant_mask(variant: Variant, length: int) -> Tensor:
    """Mask of a version of a prompt, including causality.

    Args:
        variant: The version.
        length: Positions in a chunk.

    Returns:
        Bool ``[chunks, length, length]``, query by key, True = may be attended.
    """
    base = causal_mask(length) if variant.is_causal else torch.ones(1, length, length, dtype=torch.bool)
    mask = mask_tensor(variant.visible, length)
    return base.repeat(len(variant.visible), 1, 1) if mask is None else base & mask
