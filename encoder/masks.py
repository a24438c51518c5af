"""Attention masks: the only module that knows their shapes and polarity.

A mask is a bool tensor in which True means "may be attended". Every mask here has three axes, ``[batch, query, key]``,
where batch and query may be 1 and then hold for all: a key mask is ``[batch, 1, key]``, the causal mask ``[1, query,
key]``. So masks are combined by ``&`` alone. Explained with pictures in docs/reference/masks.md.

Source: docs/lecture.md Definitions 3.1, 3.2 and 5.10 (equations 59 to 61).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import and_
from typing import Literal

import torch
from torch import Tensor

from .quoting import quote

PadConvention = Literal["tokenizer", "lecture"]
"""``tokenizer``: everything after the first EOS is padding. ``lecture``: every PAD id is, and so is EOS if it has the
same id."""


class MaskError(ValueError):
    """Raised for a mask the encoder cannot use: wrong shape, wrong type, or BOS hidden."""


def causal_mask(length: int) -> Tensor:
    """Lower-triangular mask: a position sees itself and everything before it (equation 59).

    Returns:
        ``[1, length, length]``, bool.

    >>> causal_mask(3).int().tolist()
    [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    """
    return torch.ones(1, length, length, dtype=torch.bool).tril()


def padding_mask(ids: Tensor, *, eos_id: int, pad_id: int, convention: PadConvention = "tokenizer") -> Tensor:
    """Hide the padding keys from every query.

    Args:
        ids: ``[batch, key]``, token ids.
        eos_id: Id of EOS.
        pad_id: Id of padding; may equal ``eos_id``.
        convention: ``tokenizer`` keeps everything up to and including the first EOS, like a tokenizer's attention mask.
             ``lecture`` is Definition 3.2 to the letter: hidden wherever the id is PAD, which hides EOS as well in
             CLIP-L.

    Returns:
        ``[batch, 1, key]``, bool.

    >>> ids = torch.tensor([[49406, 320, 49407, 49407]])
    >>> padding_mask(ids, eos_id=49407, pad_id=49407).int().tolist()
    [[[1, 1, 1, 0]]]
    >>> padding_mask(ids, eos_id=49407, pad_id=49407, convention="lecture").int().tolist()
    [[[1, 1, 0, 0]]]
    """
    if convention == "lecture":
        keep = ids != pad_id
    elif convention == "tokenizer":
        is_eos = (ids == eos_id).int()
        keep = is_eos.cumsum(dim=-1) - is_eos == 0  # no EOS before this position
    else:
        raise MaskError(f"unknown padding convention {quote(convention)}; allowed: 'tokenizer', 'lecture'")
    return keep.unsqueeze(1)


def span_mask(length: int, hidden: Iterable[tuple[int, int]]) -> Tensor:
    """Hide spans of key positions from every query.

    Args:
        length: Number of key positions.
        hidden: ``(start, end)`` pairs of positions, end exclusive.

    Returns:
        ``[1, 1, length]``, bool.

    Raises:
        MaskError: If a span leaves the chunk.

    >>> span_mask(5, [(1, 3)]).int().tolist()
    [[[1, 0, 0, 1, 1]]]
    """
    keep = torch.ones(1, 1, length, dtype=torch.bool)
    for start, end in hidden:
        if not 0 <= start <= end <= length:
            raise MaskError(f"span {start} to {end} is not within positions 0 to {length}")
        keep[..., start:end] = False
    return keep


def hide_from(length: int, keys: Iterable[int], queries: Iterable[int]) -> Tensor:
    """Hide some key positions from some query positions only.

    Args:
        length: Number of positions.
        keys: Positions that become invisible ...
        queries: ... to these positions.

    Returns:
        ``[1, length, length]``, bool.

    >>> hide_from(3, keys=[1], queries=[2]).int().tolist()
    [[[1, 1, 1], [1, 1, 1], [1, 0, 1]]]
    """
    keep = torch.ones(1, length, length, dtype=torch.bool)
    rows, columns = torch.tensor(list(queries), dtype=torch.long), torch.tensor(list(keys), dtype=torch.long)
    keep[0, rows.unsqueeze(1), columns] = False
    return keep


def group_mask(groups: Tensor) -> Tensor:
    """Let every position see only its own group.

    Args:
        groups: ``[batch, key]``, a group number for each position.

    Returns:
        ``[batch, query, key]``, bool.

    >>> group_mask(torch.tensor([[0, 0, 1]])).int().tolist()
    [[[1, 1, 0], [1, 1, 0], [0, 0, 1]]]
    """
    return groups.unsqueeze(2) == groups.unsqueeze(1)


def combine(*masks: Tensor | None) -> Tensor | None:
    """Elementwise product of masks (equation 61); None means "everything visible".

    Args:
        masks: ``[batch or 1, query or 1, key]`` each, bool, or None.

    Returns:
        The broadcast product, or None if every argument is None.
    """
    present = [mask for mask in masks if mask is not None]
    return reduce(and_, present) if present else None  # torch 2.1.0 warns about its own logical_and here


def check_mask(mask: Tensor, batch: int, length: int) -> Tensor:
    """Expand a caller's mask to three axes and refuse invalid ones.

    Args:
        mask: Bool, ``[batch, key]`` or ``[batch or 1, query or 1, key]``.
        batch: Number of chunks.
        length: Number of positions.

    Returns:
        ``[batch or 1, query or 1, key]``, bool.

    Raises:
        MaskError: If the type or shape is wrong, or a query may not attend to BOS (position 0). Without BOS a causal
            row may have nothing to attend to, and its softmax is undefined.
    """
    if mask.dtype != torch.bool:
        raise MaskError(f"a mask is a bool tensor with True = may be attended, got {mask.dtype}")
    if mask.ndim == 2:
        mask = mask.unsqueeze(1)
    allowed = ((batch, 1), (length, 1), (length,))
    if mask.ndim != 3 or any(size not in sizes for size, sizes in zip(mask.shape, allowed, strict=True)):
        raise MaskError(
            f"mask of shape {list(mask.shape)} does not fit {batch} chunks of {length} positions; "
            f"allowed: [{batch}, {length}] or [{batch} or 1, {length} or 1, {length}]"
        )
    if not bool(mask[..., 0].all()):
        raise MaskError(
            "BOS (position 0) must stay visible to every position: it is what a token attends when all else is hidden"
        )
    return mask


def length_normalization(content: Sequence[int], *, length: int, bos_id: int, eos_id: int, pad_id: int) -> list[int]:
    """Add BOS and EOS and pad or cut the sequence to exactly ``length`` ids (Definition 3.1).

    Shorter sequences are padded on the right. Longer ones keep their first ``length - 1`` ids, and EOS is forced at the
    end.

    Args:
        content: Token ids without BOS and EOS.
        length: Ids in the result, 77 for CLIP.
        bos_id: Id of BOS.
        eos_id: Id of EOS.
        pad_id: Id of padding.

    Returns:
        ``length`` ids.

    >>> length_normalization([5, 6], length=6, bos_id=1, eos_id=2, pad_id=0)
    [1, 5, 6, 2, 0, 0]
    >>> length_normalization([5, 6, 7, 8, 9], length=4, bos_id=1, eos_id=2, pad_id=0)
    [1, 5, 6, 2]
    """
    ids = [bos_id, *content, eos_id]
    if len(ids) > length:
        return [*ids[: length - 1], eos_id]
    return ids + [pad_id] * (length - len(ids))
