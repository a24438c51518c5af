"""Schemes that also encode the prompt with words replaced by the token ``+``.

Source: docs/reference/schemes.md, "Schemes"; behaviour of ComfyUI_ADV_CLIP_emb 63984de and prompt-control 3.0.0-beta.9.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...encoder.encoding import Encoding
from ..chunks import TokenChunk
from .api import DEFAULT_OPTIONS, SchemeOptions, Weighted, weighted_rows
from .blend import fold_blend, nested_blend, plan_blend, without
from .plan import Plan, Variant


def adv_compel(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[Weighted]:
    """Nested law of masked_blend with words replaced and negative weights unchanged.

    Called ``compel`` in ADV_CLIP_emb and prompt-control; it differs from the compel library.
    """
    options = replace(options, mask_method="token")
    return plan_blend(nested_blend(chunks, options), options)


def down_weight(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[Weighted]:
    """All weights divided by the largest, then as `adv_compel`: one word is raised by fading all others."""
    top = max(weight for chunk in chunks for weight in chunk.weights)
    scaled = [chunk.reweighted(lambda token: token.weight / top if token.word else 1.0) for chunk in chunks]
    return adv_compel(scaled, options)


def comfy_plus_plus(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[Weighted]:
    """Below 1 as `adv_compel`; above, ``(w - 1) (C - C_without)`` is added to the word's own rows."""
    options = replace(options, mask_method="token")
    blend = nested_blend([chunk.reweighted(lambda token: min(token.weight, 1.0)) for chunk in chunks], options)
    plain = tuple(chunk.reweighted(lambda token: 1.0) for chunk in chunks)
    weight_of: dict[int, float] = {}
    for chunk in chunks:
        for token in chunk.content:
            weight_of.setdefault(token.word, token.weight)
    raised = [(word, weight) for word, weight in weight_of.items() if weight > 1.0]

    def rows_of(word: int) -> list[list[bool]]:
        return [[token.word == word for token in chunk.tokens] for chunk in chunks]

    def variants() -> Iterator[Variant]:
        yield from blend.versions()
        for word, weight in raised:
            yield without(plain, rows_of(word), f"without a word at {weight:g}", options)

    def combine(results: Iterator[Encoding]) -> Weighted:
        whole, (hidden, pooled) = fold_blend(blend, results, options)
        for (word, weight), rows in zip(raised, results, strict=False):  # further results belong to others
            is_word = hidden.new_tensor(rows_of(word)).bool().unsqueeze(-1)  # [chunks, 77, 1]
            hidden = (hidden + (weight - 1.0) * (whole.hidden - rows.hidden)).where(is_word, hidden)
        return weighted_rows(hidden, pooled)

    return Plan(variants, combine)
