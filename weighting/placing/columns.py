"""A bias by place as columns of queries and keys, instead of a table of every key at every query.

The bias that fields and prompts give a key at a query is a sum of few products, one number of the query by one of the
key. So they stand behind the numbers of queries and keys, and their products are added to the logits. That takes memory
by queries and keys, not by their product, and any attention that takes the scale of its logits.

Source: docs/reference/attention.md, "Memory of weights by place".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

LARGEST = 1000.0
"""Largest size of a bias in columns: enough to hide a key, and exact enough in every number type."""
SIDE = 8.0
"""Size of what marks a key, or a query, in a column: a power of 2, so that it is exact in every number type."""
MULTIPLE = 8
"""Numbers of columns are rounded up to a multiple, as fused kernels want it."""


class Columns(NamedTuple):
    """Columns of an attention."""

    of_queries: Tensor
    """``[batch, queries, columns]``."""
    of_keys: Tensor
    """``[batch, keys, columns]``."""

    def to(self, other: Tensor) -> Columns:
        """The same with the number type and on the device of a tensor."""
        return Columns(*(part.to(other.device, other.dtype) for part in self))

    def picked(self, images: Any) -> Columns:
        """Those of some images of the batch."""
        return Columns(*(part[images] for part in self))


def columns_of(products: Sequence[tuple[Tensor, Tensor]], scale: float) -> Columns:
    """Columns whose products, times the scale of the logits, are the sum of some products.

    Args:
        products: A number of each query, ``[batch, queries]``, by one of each key, ``[batch, keys]``, of which one is 0
            or 1 everywhere.
        scale: Factor of the logits.
    """
    queries, keys = [], []
    for of_query, of_key in products:
        is_mark = bool(((of_query == 0) | (of_query == 1)).all())
        marks, numbers = (of_query, of_key) if is_mark else (of_key, of_query)
        marks, numbers = marks * SIDE, numbers.clamp(-LARGEST, LARGEST) / (SIDE * scale)
        queries.append(marks if is_mark else numbers)
        keys.append(numbers if is_mark else marks)
    missing = -len(products) % MULTIPLE
    return Columns(*(pad(torch.stack(parts, -1), (0, missing)) for parts in (queries, keys)))


def with_columns(attention: Callable[..., Tensor], columns: Columns) -> Callable[..., Tensor]:
    """An attention whose logits have a bias by columns; shapes as in `AttentionWeighting.attend`.

    It has as many keys as queries. Columns stand behind queries, keys and values by one operator, and are taken off the
    result by another. Those of the values may have any numbers.
    """

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        number, is_by_head = columns.of_queries.shape[-1], query.dim() == 4
        parts: list[Tensor] = []
        for states, part in zip((query, key, value), (*columns, columns.of_keys), strict=True):
            by_head = states if states.dim() == 4 else states.unflatten(-1, (heads, -1))
            parts += [by_head, part.unsqueeze(1 if is_by_head else 2).expand(*by_head.shape[:-1], -1)]
        longer = torch.cat(parts, -1).split(parts[0].shape[-1] + number, -1)
        if not is_by_head:
            longer = [states.transpose(1, 2) for states in longer]
        options = {"scale": parts[0].shape[-1] ** -0.5, **options, "skip_reshape": True}
        result = attention(*longer, heads, mask, *rest, **options)
        if result.dim() == 4:
            return result[..., :-number]
        return result.unflatten(-1, (heads, -1))[..., :-number].flatten(2)

    return attend
