"""Joining prompts that were encoded separately: compel's ``.blend`` and ``.and``.

Source: docs/reference/syntaxes.md, "compel syntax"; behaviour of compel 2.5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor

from ..chunking import ChunkedSection
from ..plan import Plan, Variant, gathered
from ..text.chunks import TokenChunk, close_chunk
from ..text.prompt import Issue, Span
from .scheme import RowOrigin, SchemeOptions, WeightedRows


def plan_sections(
    sections: Sequence[ChunkedSection],
    plan: Callable[[Sequence[TokenChunk]], Plan[WeightedRows]],
    options: SchemeOptions,
) -> Plan[WeightedRows]:
    """Plan each prompt of each section, and join the results.

    The prompts of a blend are padded to the longest with copies of E, the empty prompt's encoding, and summed by their
    shares. A section of weight a other than 1 becomes ``E + (section - E) a``. Sections follow one another.
    """
    first = sections[0]
    if len(sections) == 1 and len(first.prompts) == 1 and first.weight == 1.0 and not first.shares:
        return plan(first.prompts[0])
    blank = close_chunk([], options.layout)
    empty = Variant((blank,), (options.visible_in(blank),), "the empty prompt", is_aside=True)
    plans = gathered([gathered([plan(chunks) for chunks in section.prompts]) for section in sections])
    return plans.then_with(empty, lambda results, rows: _joined(sections, results, rows.hidden[0], options))


def _joined(
    sections: Sequence[ChunkedSection], results: Sequence[Sequence[WeightedRows]], empty: Tensor, options: SchemeOptions
) -> WeightedRows:
    """Join the results of all prompts; ``empty`` is E, ``[77, dim]``."""
    issues = sum((weighted.issues for result in results for weighted in result), ())
    problems: list[Issue] = []
    parts: list[Tensor] = []
    places: list[RowOrigin] = []
    for section, result in zip(sections, results, strict=True):
        part = _blend([weighted.hidden for weighted in result], section, empty, problems)
        if section.weight != 1.0:
            base = _repeated(empty, part.shape[1])
            part = base + (part - base) * section.weight
        longest = max((weighted.places for weighted in result), key=len)
        start = places[-1].chunk + 1 if places else 0
        places += [place._replace(chunk=start + place.chunk) for place in longest]
        parts.append(part)
    return WeightedRows(
        hidden=torch.cat(parts, dim=1),
        pooled=_blended_pooled(sections[0], results[0]) if options.pooled == "weighted" else results[0][0].pooled,
        places=places,
        issues=issues + tuple(problems),
    )


def _blend(hidden: Sequence[Tensor], section: ChunkedSection, empty: Tensor, issues: list[Issue]) -> Tensor:
    if not section.shares:
        return hidden[0]
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
    """Divisor of the shares of a blend."""
    return (sum(section.shares) or 1.0) if section.normalize else 1.0


def _blended_pooled(section: ChunkedSection, results: Sequence[WeightedRows]) -> Tensor:
    scale = _scale(section)
    return reduce(
        torch.add, (share / scale * r.pooled for share, r in zip(section.shares or (1.0,), results, strict=True))
    )


def _repeated(empty: Tensor, rows: int) -> Tensor:
    """``[77, dim]`` to ``[1, rows, dim]``: consecutive copies of E."""
    copies = -(-rows // empty.shape[0])
    return empty.repeat(copies, 1)[:rows].unsqueeze(0)
