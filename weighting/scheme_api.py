"""What a weighting scheme is given and what it gives back, and the few steps that schemes share.

Notation here and in every scheme: C = the encoding of a prompt's chunks, ``[chunks, 77, dim]``; w = the weights,
``[chunks, 77, 1]``; E = the encoding of the empty prompt, ``[77, dim]``, the same for every chunk.

Source: docs/weighting.md, "Schemes".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from .chunks import CLIP_L_LAYOUT, ChunkLayout, TokenChunk
from .embeddings import TokenId
from .prompt import Issue


class EncoderError(RuntimeError):
    """An encoder that cannot do what it is asked, or is not there; the message tells its user what to do."""


class Encoding(Protocol):
    """What an encode function returns."""

    @property
    def hidden(self) -> Tensor:
        """``[chunks, 77, dim]``, float."""
        ...

    @property
    def pooled(self) -> Tensor:
        """``[chunks, pooled_dim]``, float."""
        ...


class Rows(NamedTuple):
    """Some rows of an `Encoding`."""

    hidden: Tensor
    pooled: Tensor


class EncodeFn(Protocol):
    """All that weighting knows of a model: token ids and masks in, hidden states and pooled vectors out."""

    def __call__(
        self, ids: Sequence[Sequence[TokenId]], mask: Tensor | None = None, *, is_causal: bool = True
    ) -> Encoding:
        """Encode chunks.

        Args:
            ids: 77 ids for each chunk.
            mask: Bool ``[chunks, 1 or 77, 77]``, True = may be attended, on top of causality; None: nothing hidden.
            is_causal: Whether a position is kept from seeing later ones.

        Returns:
            One row for each chunk, in order.
        """
        ...


MaskFn = Callable[[Sequence[TokenChunk]], "Tensor | None"]
"""Chunks to the mask they are encoded with: bool ``[chunks, 1 or 77, 77]``, True = may be attended, or None."""


def hide_nothing(chunks: Sequence[TokenChunk]) -> None:
    """The `MaskFn` under which every position sees all that causality lets it see."""
    del chunks


Law = Literal["nested", "compel"]
MaskMethod = Literal["attention", "token", "remove"]
Pooled = Literal["unweighted", "weighted", "raw text"]

# in the order of menus, default first
LAWS: tuple[Law, ...] = get_args(Law)
MASK_METHODS: tuple[MaskMethod, ...] = get_args(MaskMethod)
POOLED: tuple[Pooled, ...] = get_args(Pooled)


@dataclass(frozen=True)
class SchemeOptions:
    """What a scheme may want to know beyond the chunks."""

    law: Law = "nested"
    """masked_blend: how several faded words share the result."""
    mask_method: MaskMethod = "attention"
    """masked_blend: what it means for a word to be absent."""
    filler_id: int = 266
    """masked_blend: the id that stands in for an absent token with the method ``token``; 266 is ``+``."""
    pooled: Pooled = "unweighted"
    """Whether a scheme that blends encodings blends their pooled vectors too (``weighted``). Schemes that work row by
    row leave them as they are either way: a pooled vector is the row of EOS, whose weight is always 1. ``raw text`` is
    no matter of schemes: `encode_prompt` sees to it."""
    mask_of: MaskFn = hide_nothing
    """What is hidden in every encoding of the prompt, such as padding. The empty prompt is always encoded unmasked."""
    layout: ChunkLayout = CLIP_L_LAYOUT
    """The fixed parts of a chunk."""

    def __post_init__(self) -> None:
        for name, allowed in (("law", LAWS), ("mask_method", MASK_METHODS), ("pooled", POOLED)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")


DEFAULT_OPTIONS = SchemeOptions()


class Weighted(NamedTuple):
    """The result of a scheme."""

    hidden: Tensor
    """``[1, rows, dim]``; 77 rows for each chunk, unless the scheme says otherwise."""
    pooled: Tensor
    """``[1, pooled_dim]``."""
    num_encodings: int
    """How many chunks were encoded for it."""
    issues: tuple[Issue, ...] = ()
    """What could not be done as asked."""


def weights_of(chunks: Sequence[TokenChunk], like: Tensor) -> Tensor:
    """Weights as ``[chunks, 77, 1]``, in the type and on the device of ``like``."""
    return torch.tensor([chunk.weights for chunk in chunks], dtype=like.dtype, device=like.device).unsqueeze(-1)


def has_weights(chunks: Sequence[TokenChunk]) -> bool:
    """Whether any weight differs from 1."""
    return any(weight != 1.0 for chunk in chunks for weight in chunk.weights)


def as_rows(hidden: Tensor) -> Tensor:
    """Chunks behind one another: ``[chunks, 77, dim]`` to ``[1, 77 * chunks, dim]``."""
    return hidden.flatten(0, 1).unsqueeze(0)


def lerp(hidden: Tensor, empty: Tensor, weights: Tensor) -> Tensor:
    """``E + (C - E) w`` where w differs from 1, else C.

    Args:
        hidden: C, ``[chunks, 77, dim]``.
        empty: E, ``[77, dim]``.
        weights: w, ``[chunks, 77, 1]``.

    Returns:
        ``[chunks, 77, dim]``.
    """
    return torch.where(weights == 1.0, hidden, (hidden - empty) * weights + empty)


def encode_lerped(
    variants: Sequence[Sequence[TokenChunk]], masks: Sequence[Tensor | None], encode: EncodeFn, layout: ChunkLayout
) -> tuple[list[Rows], int]:
    """Encode several versions of a prompt in one batch and move their rows as `lerp` says.

    The empty prompt is encoded in the same batch, last and with nothing hidden, but only if a weight differs from 1.

    Args:
        variants: Versions of the prompt, each with its own weights.
        masks: For each of them its mask, ``[chunks, 1 or 77, 77]`` or None.
        encode: The encoder.
        layout: The fixed parts of a chunk.

    Returns:
        Hidden states and pooled vectors of each version, and the number of chunks encoded.
    """
    ids = [chunk.ids for chunks in variants for chunk in chunks]
    counts = [len(chunks) for chunks in variants]
    is_weighted = any(has_weights(chunks) for chunks in variants)
    if is_weighted:
        ids.append(layout.empty_ids())
        masks, counts = [*masks, None], [*counts, 1]
    encoding = encode(ids, stacked_masks(masks, counts, layout.length))
    rows: list[Rows] = []
    start = 0
    for chunks in variants:
        end = start + len(chunks)
        hidden = encoding.hidden[start:end]
        if is_weighted:
            hidden = lerp(hidden, encoding.hidden[-1], weights_of(chunks, hidden))
        rows.append(Rows(hidden, encoding.pooled[start:end]))
        start = end
    return rows, len(ids)


def stacked_masks(masks: Sequence[Tensor | None], counts: Sequence[int], length: int) -> Tensor | None:
    """Masks of chunks that are encoded in one batch.

    Args:
        masks: Each ``[chunks or 1, 1 or length, length]``, or None.
        counts: For how many chunks each of them is.
        length: Positions in a chunk.

    Returns:
        All of them along the batch axis; None if nothing is hidden.
    """
    if all(mask is None for mask in masks):
        return None
    queries = max(mask.shape[1] for mask in masks if mask is not None)
    visible = torch.ones(1, 1, length, dtype=torch.bool)
    return torch.cat(
        [
            (visible if mask is None else mask).expand(count, queries, length)
            for mask, count in zip(masks, counts, strict=True)
        ]
    )
