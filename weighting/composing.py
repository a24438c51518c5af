"""Predictions of several prompts made into one: what AND, AND_PERP, AND_SALT and AND_TOPK mean.

Each prompt adds a difference to the prediction without a prompt. Those of AND are summed. To their sum come

- of AND_PERP, its part perpendicular to the sum (Perp-Neg, arXiv 2304.04968);
- of AND_SALT, wherever it is the most salient, what it has beyond the sum (MagicFusion, arXiv 2303.13126);
- of AND_TOPK, the twentieth of its values that are the largest (SEGA, arXiv 2301.12247);

each times its weight. Prompts in square brackets are made into one difference first.

Source: docs/timed.md, "AND_PERP, AND_SALT, AND_TOPK"; behaviour of sd-webui-neutral-prompt 64ee2be (2024-03).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .timed.joining import Joined

TOP = 0.05
"""Share of the values that AND_TOPK keeps."""


def composed(
    joined: Joined,
    predictions: Sequence[Tensor],  # each [batch, ...], of the prompts in order
    without: Tensor,  # [batch, ...]
) -> Tensor:
    """Difference that prompts make to the prediction without a prompt, ``[batch, ...]``; each picture by itself.

    >>> parts = (Joined("AND", 1.0), Joined("AND_PERP", -1.0))
    >>> composed(Joined("AND", 1.0, parts), [torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 4.0]])], torch.zeros(1, 2))
    tensor([[ 2., -4.]])
    """
    pictures = zip(without, *predictions, strict=True)
    return torch.stack([_difference(joined, [one - base for one in each]) for base, *each in pictures])


def _difference(joined: Joined, differences: Sequence[Tensor]) -> Tensor:
    """Difference of prompts, given that of each."""
    if not joined.parts:
        return differences[0]
    each: list[tuple[Joined, Tensor]] = []
    first = 0
    for part in joined.parts:
        each.append((part, _difference(part, differences[first : first + part.num_prompts])))
        first += part.num_prompts
    total = torch.zeros_like(differences[0])
    for part, difference in each:
        if part.joint == "AND":
            total = total + part.weight * difference
    added = torch.zeros_like(total)
    for part, difference in each:
        if part.joint == "AND_PERP":
            added = added + part.weight * _perpendicular(total, difference)
        elif part.joint == "AND_TOPK":
            added = added + part.weight * _largest(difference)
    salient = [(difference, part.weight) for part, difference in each if part.joint == "AND_SALT"]
    return total + (added + _salient(total, salient))


def _perpendicular(normal: Tensor, vector: Tensor) -> Tensor:
    """Part of a vector perpendicular to another; all of it if that is zero."""
    if not bool(normal.any()):
        return vector
    return vector - normal * torch.sum(normal * vector) / torch.norm(normal) ** 2


def _largest(vector: Tensor) -> Tensor:
    """The largest values of a vector, the others 0."""
    size = vector.abs()
    least = torch.kthvalue(size.flatten(), max(1, int(size.numel() * (1 - TOP)))).values
    return vector * (size >= least).to(vector.dtype)


def _salient(normal: Tensor, vectors: Sequence[tuple[Tensor, float]]) -> Tensor:
    """What vectors have beyond another, each where its share of its own sum is the largest of all."""
    result = torch.zeros_like(normal)
    if not vectors:
        return result
    each = (normal, *(vector for vector, _ in vectors))
    most = torch.stack([torch.softmax(vector.abs().flatten(), 0).reshape_as(vector) for vector in each]).argmax(0)
    for number, (vector, weight) in enumerate(vectors, 1):
        result = result + weight * (most == number).to(vector.dtype) * (vector - normal)
    return result
