"""Normalisation of a prompt's weights before a scheme sees them.

Source: docs/reference/chunks.md, "Normalisations"; behaviour of ComfyUI_ADV_CLIP_emb 63984de.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ..encoder.quoting import quote
from .text.chunks import Token, TokenChunk

NORMALIZATIONS = {
    "none": "",
    "mean": "shifts them so that they average to 1.",
    "length": "a word of several tokens counts no more than a short one.",
    "length+mean": "",
}
"""Rules by name, default first, with what a tooltip says of them."""


def normalize(chunks: Sequence[TokenChunk], rule: str) -> tuple[TokenChunk, ...]:
    """Normalise the weights of a prompt, over all its chunks.

    ``length`` divides the distance of a weight from 1 by the square root of the number of tokens its word has, so that
    a long word counts no more than a short one. ``mean`` shifts all weights by the same amount so that they average to
    1. Special tokens (word 0) keep weight 1.

    Args:
        chunks: The prompt.
        rule: One of `NORMALIZATIONS`.

    Returns:
        Chunks with the new weights.

    Raises:
        ValueError: If the rule is unknown.
    """
    if rule not in NORMALIZATIONS:
        raise ValueError(f"unknown normalization {quote(rule)}; allowed: {', '.join(NORMALIZATIONS)}")
    chunks = tuple(chunks)
    if "length" in rule:
        chunks = _length(chunks)
    if "mean" in rule:
        chunks = _mean(chunks)
    return chunks


def _length(chunks: tuple[TokenChunk, ...]) -> tuple[TokenChunk, ...]:
    sizes = Counter(token.word for chunk in chunks for token in chunk.tokens)

    def scaled(token: Token) -> float:
        if not token.word:
            return token.weight
        return 1.0 + math.copysign(abs(token.weight - 1.0) / math.sqrt(sizes[token.word]), token.weight - 1.0)

    return tuple(chunk.reweighted(scaled) for chunk in chunks)


def _mean(chunks: tuple[TokenChunk, ...]) -> tuple[TokenChunk, ...]:
    weights = [token.weight for chunk in chunks for token in chunk.tokens if token.word]
    if not weights:
        return chunks
    shift = 1.0 - sum(weights) / len(weights)
    return tuple(
        chunk.reweighted(lambda token: token.weight + shift if token.word else token.weight) for chunk in chunks
    )
