"""NegPip: weights below 0 subtract a word, through the values of its rows when the image reads them.

An attention reads rows by keys and values. A row with sign -1 keeps its key, so the image attends to it as before, but
its value is negated, so its contribution is subtracted. Hosts carry the signs to the attention:
``hosts/comfy/clip/schemes.py``, ``hosts/webui/attention/pairs.py``.

Source: docs/reference/schemes.md, "NegPip"; behaviour of ComfyUI-ppm 200f4609 (2026-05) and sd-webui-negpip dc75fd2c
(2025-11).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..chunking import ChunkedSection, chunks_of
from ..plan import Plan, gathered
from ..text.chunks import TokenChunk
from ..text.prompt import Fragment, Piece, Span, pieces_of
from .rows import a1111
from .scheme import (
    DEFAULT_OPTIONS,
    CutTerm,
    RowOrigin,
    SchemeOptions,
    SchemePrompt,
    WeightedRows,
    effective_weight,
    plan_with_empty,
    sent,
)

if TYPE_CHECKING:
    from torch import Tensor


class NegPipError(ValueError):
    """Raised for weights below 0 that cannot act here; the message says what can be done."""


def negpip(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """``E + (C - E) |w|``; `signed` gives rows with w < 0 the sign -1. Equals ComfyUI-ppm's CLIP NegPip.

    With ``options.strength`` s, w is replaced by ``1 + s (w - 1)``.
    """
    strength = options.strength

    def move(hidden: Tensor, empty: Tensor, weights: Tensor) -> Tensor:
        effective = weights if strength == 1.0 else 1.0 + strength * (weights - 1.0)
        return hidden.where(weights == 1.0, (hidden - empty) * effective.abs() + empty)

    return plan_with_empty(chunks, options, move)


def negpip_apart(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """As `a1111`, for the rest of a prompt and each term cut out of it. Equals sd-webui-negpip.

    The terms' rows are appended by `with_terms`.
    """
    return a1111(chunks, options)


def finish_signed(plan: Plan[WeightedRows], parsed: SchemePrompt, options: SchemeOptions) -> Plan[WeightedRows]:
    """Give rows signs by their weights, for the scheme ``negpip``."""
    check_blends(parsed.sections, options.strength)
    return plan.then(lambda weighted: signed(weighted, parsed.sections, options.strength))


def finish_with_terms(plan: Plan[WeightedRows], parsed: SchemePrompt, options: SchemeOptions) -> Plan[WeightedRows]:
    """Append the rows of the terms cut out of a prompt, for the scheme ``negpip_apart``."""
    if not parsed.terms:
        return plan
    plans = gathered([plan, *(negpip_apart(term.chunks, options) for term in parsed.terms)])
    counts = [term.num_tokens for term in parsed.terms]
    return plans.then(lambda every: with_terms(every[0], zip(every[1:], counts, strict=True)))


def signed(weighted: WeightedRows, sections: Sequence[ChunkedSection], strength: float) -> WeightedRows:
    """Give each row of a prompt the sign of its weight."""
    rows = [
        [effective_weight(weight, strength) < 0 for weight in chunk.weights]
        for section in sections
        for chunk in max(section.prompts, key=len)
    ]
    signs = tuple(-1.0 if rows[place.chunk][place.position] else 1.0 for place in weighted.places)
    return weighted._replace(signs=signs if -1.0 in signs else ())


def check_blends(sections: Sequence[ChunkedSection], strength: float) -> None:
    """Raise `NegPipError` if blended prompts have rows with the sign -1, as the scheme ``negpip`` takes weights."""
    of_blends = chunks_of([section for section in sections if len(section.prompts) > 1])
    if any(effective_weight(weight, strength) < 0 for chunk in of_blends for weight in chunk.weights):
        raise NegPipError(
            "The scheme negpip cannot blend prompts with weights below 0: a row of a .blend is a mixture of the words "
            "at its place in all of them. Leave those weights out, or take another scheme."
        )


def has_weights_below_zero(parsed: SchemePrompt) -> bool:
    """Whether the scheme ``negpip`` gives any row of a prompt the sign -1."""
    weights = (weight for chunk in parsed.chunks for weight in chunk.weights)
    return any(effective_weight(weight, parsed.options.strength) < 0 for weight in weights)


def with_terms(weighted: WeightedRows, terms: Iterable[tuple[WeightedRows, int]]) -> WeightedRows:
    """Append the rows of terms encoded separately, with the sign -1."""
    import torch  # not above: commands that encode nothing read the table of schemes

    hidden, places, issues = [weighted.hidden], list(weighted.places), weighted.issues
    for term, num_tokens in terms:
        first = 1 + max((place.chunk for place in places), default=-1)
        rows = slice(1, num_tokens + 2)
        hidden.append(term.hidden[:, rows])
        places += [RowOrigin(first + place.chunk, place.position) for place in term.places[rows]]
        issues = issues + term.issues
    if len(hidden) == 1:
        return weighted
    signs = (1.0,) * len(weighted.places) + (-1.0,) * (len(places) - len(weighted.places))
    return weighted._replace(hidden=torch.cat(hidden, dim=1), places=places, issues=issues, signs=signs)


def check_terms(towers: Mapping[str, SchemePrompt]) -> None:
    """Check that the rows of terms can be joined."""
    (first, counts), *rest = ((name, [term.num_tokens for term in parsed.terms]) for name, parsed in towers.items())
    for name, tower_counts in rest:
        if tower_counts != counts:
            raise NegPipError(
                f"The scheme negpip_apart appends rows of {first} and {name} side by side, so both must have the same "
                "terms with as many tokens: give both the same text, and no embedding in a term that has more vectors "
                "for one than for the other."
            )


def check_without_signs(reads: Iterable[SchemePrompt], where: str) -> None:
    """Refuse rows with signs where nothing can carry them."""
    if any(parsed.has_signs for parsed in reads):
        raise NegPipError(
            f"{where[0].upper()}{where[1:]} cannot hold that a word of a weight below 0 is taken away, as NegPip does "
            "it in the model's attention: use these schemes in ComfyUI or the WebUI, or weights of 0 and above."
        )


def paired(hidden: Tensor, signs: Sequence[float]) -> Tensor:
    """Duplicate rows as pairs: one to be read as key, one as value, which has the sign.

    Args:
        hidden: ``[batch, rows, dim]``.
        signs: Sign of each row; empty if all are 1.

    Returns:
        ``[batch, 2 rows, dim]``: keys in even rows, values in odd ones, as in ComfyUI-ppm's CLIP NegPip.
    """
    import torch

    values = hidden * sent(signs, hidden).unsqueeze(-1) if signs else hidden
    return torch.stack([hidden, values], dim=2).flatten(1, 2)


_TERM = re.compile(r"\((?P<text>[^():]*):\s*-(?P<weight>\d+(?:\.\d+)?)\s*\)")


def cut_terms(prompt: Fragment) -> tuple[Fragment, tuple[CutTerm, ...]]:
    """Cut the terms out of a prompt: groups with a weight below 0 that contain no bracket and no colon.

    As in the program, a backslash before the bracket does not protect it, and ``(BREAK:-1)`` is cut out and dropped.

    >>> left, terms = cut_terms(Fragment((Piece("a cat (oil, ink:-1.5) here", Span(0, 26)),)))
    >>> left.text, [term.fragment.text for term in terms]
    ('a cat  here', ['(oil, ink:1.5)'])
    """
    matches = list(_TERM.finditer(prompt.text))
    borders = [0, *(border for match in matches for border in match.span()), len(prompt.text)]
    left = [_part(prompt, start, end) for start, end in list(pairwise(borders))[::2]]
    terms: list[CutTerm] = []
    for match in matches:
        start, end = match.span("text")
        span = prompt.span_of(Span(*match.span()))
        if match["text"] == "BREAK":
            continue
        text = _part(prompt, start, end)
        number = Piece(f":{float(match['weight'])})", Span(span.end, span.end))
        pieces = (*_part(prompt, start - 1, end).pieces, number)
        terms.append(CutTerm(Fragment(pieces), text, span))
    return Fragment(tuple(piece for part in left for piece in part.pieces)), tuple(terms)


def _part(prompt: Fragment, start: int, end: int) -> Fragment:
    """A stretch of a prompt's text."""
    return Fragment(tuple(pieces_of(prompt.text[start:end], prompt.positions[start:end])))
