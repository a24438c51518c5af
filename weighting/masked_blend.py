"""Turning words down by blending in encodings in which they are absent.

A word at weight 0.3 should be 0.3 present, in its own rows and in every row that read it. Scaling its rows cannot do
that: later rows have already attended it. So the prompt is also encoded with the word absent, and the two encodings are
mixed. Two laws say how several faded words share the result, three methods say what absent means.

Source: docs/weighting.md, "masked_blend"; the law ``compel`` is that of the compel library 2.5.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from .chunks import Token, TokenChunk
from .prompt import Issue
from .scheme_api import DEFAULT_OPTIONS, EncodeFn, SchemeOptions, Weighted, as_rows, encode_lerped

LEAST_WEIGHT = 1e-5
"""compel's law takes weights below this for this, so that its tangent stays finite."""


class Variant(NamedTuple):
    """The prompt with some tokens absent: one encoding to be mixed in."""

    chunks: tuple[TokenChunk, ...]
    mask: Tensor | None
    """What is hidden in it, ``[chunks, 1 or 77, 77]``, or None."""
    share: float
    """Its part of the result; the shares of all variants sum to 1."""


def masked_blend(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """Blend the prompt's encoding with encodings in which its down-weighted tokens are absent.

    Law ``nested``: with the distinct weights below 1, ``v_0 < ... < v_(k-1)`` and ``v_k = 1``,
    ``v_0 B + sum_i (v_(i+1) - v_i) M_i``, where B is the whole prompt and in M_i every token of weight up to v_i is
    absent. It is the mean encoding if a number is drawn from 0..1 and every token below it is absent: a set of words at
    0 is absent altogether. Weights above 1 act in B and every M_i as in the scheme ``comfy``; negative ones act as 0.
    With the method ``attention`` an absent token still fills its own row, as the sum of its embedding and what it
    reads; no mask can change that.

    Law ``compel``: ``(Z + sum_k g_k D_k) / (1 + sum_k g_k)`` with ``g = tan((1 - v) pi / 2)``, one D_k for each
    fragment below 1, in which that fragment alone is absent; all weights also act in Z and D_k as in ``comfy``. Two
    words at 0 each survive by half.

    Args:
        chunks: The prompt.
        encode: The encoder.
        options: Law, method, filler, pooled and mask.

    Returns:
        The blend. Its pooled vector is that of the whole prompt, or the blend of all if ``options.pooled`` says so.
    """
    if options.law == "compel":
        return blend(_compel_variants(chunks, options), encode, options)
    floored = [reweighted(chunk, lambda token: max(token.weight, 0.0)) for chunk in chunks]
    return blend(nested_variants(floored, options), encode, options)._replace(issues=_negative_weights(chunks))


def reweighted(chunk: TokenChunk, weight_of: Callable[[Token], float]) -> TokenChunk:
    """The chunk with another weight for each token."""
    return replace(chunk, tokens=tuple(token._replace(weight=weight_of(token)) for token in chunk.tokens))


def nested_variants(chunks: Sequence[TokenChunk], options: SchemeOptions) -> list[Variant]:
    """The encodings of the nested law: B with its share ``v_0``, then each M_i with ``v_(i+1) - v_i``.

    Args:
        chunks: The prompt; weights below 0 count as they are.
        options: Method and mask.

    Returns:
        The variants. They carry the weights raised to at least 1; what is absent is decided by those in ``chunks``.
    """
    raised = tuple(reweighted(chunk, lambda token: max(token.weight, 1.0)) for chunk in chunks)
    written = [chunk.weights for chunk in chunks]
    levels = sorted({weight for row in written for weight in row if weight < 1.0})
    shares = [high - low for low, high in zip([0.0, *levels], [*levels, 1.0], strict=True)]
    variants = [Variant(raised, options.mask_of(raised), shares[0])]
    for level, share in zip(levels, shares[1:], strict=True):
        gone = [[weight <= level for weight in row] for row in written]
        variants.append(without(raised, gone, share, options))
    return variants


def _compel_variants(chunks: Sequence[TokenChunk], options: SchemeOptions) -> list[Variant]:
    chunks = tuple(chunks)
    faded = {token.fragment: token.weight for chunk in chunks for token in chunk.content if token.weight < 1.0}
    tangents = [math.tan((1.0 - max(weight, LEAST_WEIGHT)) * math.pi / 2) for weight in faded.values()]
    total = 1.0 + sum(tangents)
    variants = [Variant(chunks, options.mask_of(chunks), 1.0 / total)]
    for fragment, tangent in zip(faded, tangents, strict=True):
        gone = [[token.fragment == fragment for token in chunk.tokens] for chunk in chunks]
        if options.mask_method == "attention":
            gone = _filled_between(gone)
        variants.append(without(chunks, gone, tangent / total, options))
    return variants


def _filled_between(gone: list[list[bool]]) -> list[list[bool]]:
    """From a fragment's first token to its last, also over the end of a chunk: EOS and padding there are absent too.

    The first and last position of each chunk stay, as in compel, but for a last one that is marked itself.
    """
    length = len(gone[0])
    places = [index for index, is_gone in enumerate(flag for row in gone for flag in row) if is_gone]
    within = range(places[0], places[-1] + 1)
    return [
        [flag or (row * length + column in within and 0 < column < length - 1) for column, flag in enumerate(flags)]
        for row, flags in enumerate(gone)
    ]


def without(
    chunks: tuple[TokenChunk, ...], gone: Sequence[Sequence[bool]], share: float, options: SchemeOptions
) -> Variant:
    """The prompt with the marked tokens absent, by the chosen method."""
    if options.mask_method == "attention":
        keep = ~torch.tensor(gone, dtype=torch.bool).unsqueeze(1)  # [chunks, 1, 77]
        mask = options.mask_of(chunks)
        return Variant(chunks, keep if mask is None else keep & mask, share)
    change = _refilled if options.mask_method == "remove" else _replaced
    changed = tuple(change(chunk, absent, options) for chunk, absent in zip(chunks, gone, strict=True))
    return Variant(changed, options.mask_of(changed), share)


def _replaced(chunk: TokenChunk, gone: Sequence[bool], options: SchemeOptions) -> TokenChunk:
    """The chunk with its marked tokens replaced by the filler, at weight 1."""
    filled = (
        token._replace(id=options.filler_id, weight=1.0) if is_gone else token
        for token, is_gone in zip(chunk.tokens, gone, strict=True)
    )
    return replace(chunk, tokens=tuple(filled))


def _refilled(chunk: TokenChunk, gone: Sequence[bool], options: SchemeOptions) -> TokenChunk:
    """The chunk without its marked tokens: what follows moves up, and padding fills the end."""
    kept = [token for token, is_gone in zip(chunk.tokens, gone, strict=True) if not is_gone]
    num_gone = len(chunk.tokens) - len(kept)
    padding = [Token(options.layout.pad_id)] * num_gone
    return TokenChunk((*kept, *padding), chunk.num_content - num_gone)


def blend(variants: Sequence[Variant], encode: EncodeFn, options: SchemeOptions) -> Weighted:
    """Encode all variants in one batch and sum them by their shares."""
    batches, masks = [variant.chunks for variant in variants], [variant.mask for variant in variants]
    rows, count = encode_lerped(batches, masks, encode, options.layout)
    parts = [(variant.share, row) for variant, row in zip(variants, rows, strict=True) if variant.share]
    hidden = reduce(torch.add, (share * row.hidden for share, row in parts))
    pooled = rows[0].pooled[:1]
    if options.pooled == "weighted":
        pooled = reduce(torch.add, (share * row.pooled[:1] for share, row in parts))
    return Weighted(as_rows(hidden), pooled, count)


def _negative_weights(chunks: Sequence[TokenChunk]) -> tuple[Issue, ...]:
    """One issue for each fragment of negative weight."""
    first: dict[int, Token] = {}
    for token in (token for chunk in chunks for token in chunk.content if token.weight < 0):
        first.setdefault(token.fragment, token)
    message = "The weight {:g} acts as 0 here: a word cannot be less than absent."
    return tuple(Issue("negative-weight", message.format(token.weight), token.place) for token in first.values())
