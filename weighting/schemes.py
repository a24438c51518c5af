"""How weights act on hidden states: one pure function for each scheme, and the table that every menu and page reads.

Notation in scheme_api.py. Rows of weight exactly 1 are copies of C in every scheme that works row by row.

Source: docs/weighting.md, "Schemes"; each function names the program it equals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .chunks import TokenChunk
from .masked_blend import masked_blend
from .prompt import Issue, Span
from .scheme_api import DEFAULT_OPTIONS, EncodeFn, SchemeOptions, Weighted, encode_lerped, has_weights, weights_of


def unweighted(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """C: the weights are read and not applied (A1111's emphasis mode ``Ignore``)."""
    encoding = encode([chunk.ids for chunk in chunks], options.mask_of(chunks))
    return Weighted(encoding.hidden, encoding.pooled[:1], len(chunks))


def comfy(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """``E + (C - E) w``: rows move along the line from the empty prompt. Equals ComfyUI 0.29.0.

    E is encoded in the same batch, last, and only if a weight differs from 1, as the host does.
    """
    (rows,), count = encode_lerped([chunks], [options.mask_of(chunks)], encode, options.layout)
    return Weighted(rows.hidden, rows.pooled[:1], count)


def a1111_no_norm(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """``C w``: rows are scaled. Equals A1111's emphasis mode ``No norm``."""
    result = unweighted(chunks, encode, options)
    return result._replace(hidden=_scaled(result.hidden, chunks))


def a1111(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """``C w``, then each chunk is rescaled to its former mean. Equals A1111's emphasis mode ``Original``.

    The mean is over all 77 rows and features of one chunk, signed, so every row of the chunk is scaled by one number.
    """
    result = unweighted(chunks, encode, options)
    return _restore_mean(result, _scaled(result.hidden, chunks), chunks, axes=(1, 2))


def a1111_global_norm(
    chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS
) -> Weighted:
    """``C w``, then all chunks are rescaled by one number to their former mean. Called ``A1111`` in ADV_CLIP_emb."""
    result = unweighted(chunks, encode, options)
    return _restore_mean(result, _scaled(result.hidden, chunks), chunks, axes=(0, 1, 2))


def _scaled(hidden: Tensor, chunks: Sequence[TokenChunk]) -> Tensor:
    return hidden * weights_of(chunks, hidden)


SMALL_MEAN = 1e-4
"""A mean smaller than this part of the mean absolute value is too near zero to divide by with confidence."""


def _restore_mean(result: Weighted, scaled: Tensor, chunks: Sequence[TokenChunk], axes: tuple[int, ...]) -> Weighted:
    if not has_weights(chunks):
        return result
    before = result.hidden.mean(dim=axes, keepdim=True)
    after = scaled.mean(dim=axes, keepdim=True)
    small = after.abs() < SMALL_MEAN * scaled.abs().mean(dim=axes, keepdim=True)
    # exactly zero would give infinity or NaN; the reference does, we leave the rows unscaled
    ratio = torch.where(after == 0, torch.ones_like(after), before / after)
    issues = result.issues
    if bool(small.any()):
        message = (
            "The mean of the weighted rows is nearly zero, so restoring the former mean multiplies them by "
            f"{float(ratio.abs().max()):.3g}. Choose a1111_no_norm, or other weights."
        )
        issues = (*issues, Issue("unstable-mean", message, Span(0, 0)))
    return result._replace(hidden=scaled * ratio, issues=issues)


SchemeFn = Callable[[Sequence[TokenChunk], EncodeFn, SchemeOptions], Weighted]


@dataclass(frozen=True)
class Scheme:
    """A row of the table: a weighting scheme as users choose it."""

    apply: SchemeFn
    """``(chunks, encode, options)`` to `Weighted`."""
    summary: str
    """One sentence for menus: what a weight does."""
    equals: str
    """The program whose numbers it has."""


SCHEMES: dict[str, Scheme] = {
    "comfy": Scheme(comfy, "Moves a word's rows away from, or towards, the empty prompt.", "ComfyUI"),
    "a1111": Scheme(
        a1111, "Scales a word's rows, then restores each chunk's mean.", "A1111 and Forge, emphasis Original"
    ),
    "masked_blend": Scheme(
        masked_blend, "Below 1, blends in encodings without the word; above 1 as comfy.", "none: our own (law nested)"
    ),
    "a1111_no_norm": Scheme(
        a1111_no_norm, "Scales a word's rows and nothing else.", "A1111 and Forge, emphasis No norm"
    ),
    "a1111_global_norm": Scheme(
        a1111_global_norm, "As a1111, with one mean over all chunks.", "ADV_CLIP_emb and prompt-control, style A1111"
    ),
    "unweighted": Scheme(unweighted, "Reads the weights and applies none.", "A1111 and Forge, emphasis Ignore"),
}
"""Every scheme by its permanent name, in the order of menus. A name never changes its meaning."""
