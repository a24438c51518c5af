"""Schemes that encode the prompt again with words replaced by the token ``+``.

Source: docs/weighting.md, "Schemes"; behaviour of ComfyUI_ADV_CLIP_emb 63984de and prompt-control 3.0.0-beta.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

import torch

from .chunks import TokenChunk
from .masked_blend import blend, nested_variants, reweighted, without
from .scheme_api import DEFAULT_OPTIONS, EncodeFn, SchemeOptions, Weighted, as_rows, encode_lerped


def adv_compel(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """The nested law of masked_blend with words replaced, negative weights as they are.

    Called ``compel`` in ADV_CLIP_emb and prompt-control; it is not what the compel library does.
    """
    options = replace(options, mask_method="token")
    return blend(nested_variants(chunks, options), encode, options)


def down_weight(chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS) -> Weighted:
    """All weights divided by the largest, then as `adv_compel`: one word is raised by fading all others."""
    top = max(weight for chunk in chunks for weight in chunk.weights)
    scaled = [reweighted(chunk, lambda token: token.weight / top if token.word else 1.0) for chunk in chunks]
    return adv_compel(scaled, encode, options)


def comfy_plus_plus(
    chunks: Sequence[TokenChunk], encode: EncodeFn, options: SchemeOptions = DEFAULT_OPTIONS
) -> Weighted:
    """Below 1 as `adv_compel`; above, ``(w - 1) (C - C_without)`` is added to the rows of the word itself."""
    options = replace(options, mask_method="token")
    fading = [reweighted(chunk, lambda token: min(token.weight, 1.0)) for chunk in chunks]
    faded = nested_variants(fading, options)
    plain = faded[0].chunks  # every weight is 1 there
    weight_of: dict[int, float] = {}
    for chunk in chunks:
        for token in chunk.content:
            weight_of.setdefault(token.word, token.weight)
    raised = {word: weight for word, weight in weight_of.items() if weight > 1.0}
    places = {word: [[token.word == word for token in chunk.tokens] for chunk in chunks] for word in raised}
    absent = [without(plain, places[word], 1.0, options) for word in raised]

    variants = [*faded, *absent]
    rows, count = encode_lerped(
        [variant.chunks for variant in variants], [variant.mask for variant in variants], encode, options.layout
    )
    base = rows[0].hidden
    shares = [variant.share for variant in faded]
    hidden = reduce(torch.add, (share * row.hidden for share, row in zip(shares, rows, strict=False)))
    for (word, weight), row in zip(raised.items(), rows[len(faded) :], strict=True):
        is_word = torch.tensor(places[word], device=base.device).unsqueeze(-1)  # [chunks, 77, 1]
        hidden = torch.where(is_word, hidden + (weight - 1.0) * (base - row.hidden), hidden)
    pooled = rows[0].pooled[:1]
    if options.pooled == "weighted":
        pooled = reduce(torch.add, (share * row.pooled[:1] for share, row in zip(shares, rows, strict=False)))
    return Weighted(as_rows(hidden), pooled, count)
