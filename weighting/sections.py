"""Putting prompts together that were encoded on their own: compel's ``.blend`` and ``.and``.

Source: docs/weighting.md, "compel syntax"; behaviour of compel 2.5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from .chunking import ChunkedSection
from .chunks import TokenChunk, close_chunk
from .prompt import Issue, Span
from .scheme_api import EncodeFn, SchemeOptions, Weighted


def combine_sections(
    sections: Sequence[ChunkedSection],
    apply: Callable[[Sequence[TokenChunk]], Weighted],
    encode: EncodeFn,
    options: SchemeOptions,
) -> Weighted:
    """Encode each prompt of each section and join them.

    The prompts of a blend are padded to the longest with copies of E, the empty prompt's encoding, and summed by their
    shares. A section of weight a other than 1 becomes ``E + (section - E) a``. Sections follow one another.

    Args:
        sections: The prompt.
        apply: Encodes one prompt's chunks by the chosen scheme.
        encode: The encoder, for E.
        options: Layout of a chunk; what is hidden, in E too; whether a blend in the first section blends its pooled
            vectors.

    Returns:
        The rows of all sections; the pooled vector of the first prompt, or of the first section's blend.
    """
    results = [[apply(chunks) for chunks in section.prompts] for section in sections]
    first = results[0][0]
    if len(sections) == 1 and len(results[0]) == 1 and sections[0].weight == 1.0 and not sections[0].shares:
        return first
    blank = close_chunk([], options.layout)
    empty = encode([blank.ids], options.mask_of([blank])).hidden[0]  # [77, dim]
    issues = [issue for result in results for weighted in result for issue in weighted.issues]
    parts: list[Tensor] = []
    for section, result in zip(sections, results, strict=True):
        hidden = [weighted.hidden for weighted in result]
        part = _blend(hidden, section, empty, issues) if section.shares else hidden[0]
        if section.weight != 1.0:
            base = _repeated(empty, part.shape[1])
            part = base + (part - base) * section.weight
        parts.append(part)
    return Weighted(
        hidden=torch.cat(parts, dim=1),
        pooled=_blended_pooled(sections[0], results[0]) if options.pooled == "weighted" else first.pooled,
        num_encodings=1 + sum(weighted.num_encodings for result in results for weighted in result),
        issues=tuple(issues),
    )


def _blend(hidden: Sequence[Tensor], section: ChunkedSection, empty: Tensor, issues: list[Issue]) -> Tensor:
    if section.normalize and sum(section.shares) == 0.0:
        message = (
            "The weights of the blend sum to 0, so they cannot be divided by their sum: they are taken as they are."
        )
        issues.append(Issue("zero-blend", message, Span(0, 0)))
    scale = _scale(section)
    rows = max(part.shape[1] for part in hidden)
    padded = (torch.cat([part, _repeated(empty, rows - part.shape[1])], dim=1) for part in hidden)
    return reduce(torch.add, (share / scale * part for share, part in zip(section.shares, padded, strict=True)))


def _scale(section: ChunkedSection) -> float:
    """What the shares of a blend are divided by."""
    return (sum(section.shares) or 1.0) if section.normalize else 1.0


def _blended_pooled(section: ChunkedSection, results: Sequence[Weighted]) -> Tensor:
    scale = _scale(section)
    return reduce(
        torch.add, (share / scale * r.pooled for share, r in zip(section.shares or (1.0,), results, strict=True))
    )


def _repeated(empty: Tensor, rows: int) -> Tensor:
    """``[77, dim]`` to ``[1, rows, dim]``: copies of E behind one another."""
    copies = -(-rows // empty.shape[0])
    return empty.repeat(copies, 1)[:rows].unsqueeze(0)
