"""Fading words by blending in encodings in which they are absent.

A word at weight 0.3 should be 0.3 present, in its own rows and in every row that read it. Scaling its rows cannot do
that: later rows have already attended to it. So the prompt is also encoded with the word absent, and the two encodings
are mixed. Two laws define how several faded words share the result, three methods define what absent means.

Source: docs/reference/schemes.md, "masked_blend"; the law ``compel`` is from the compel library 2.5.1. The schemes
that replace words by the token ``+``: behaviour of ComfyUI_ADV_CLIP_emb 63984de and prompt-control 3.0.0-beta.9.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from ...encoder.encoding import Encoding
from ..plan import Plan, Variant, intersection
from ..text.chunks import Token, TokenChunk
from ..text.prompt import Issue
from .rows import a1111, a1111_global_norm, a1111_no_norm, unweighted
from .scheme import (
    DEFAULT_OPTIONS,
    SchemeFn,
    SchemeOptions,
    WeightedRows,
    empty_prompt,
    has_weights,
    lerp,
    negative_weight_issues,
    sent,
    weighted_rows,
    whole_prompt,
)

if TYPE_CHECKING:
    from torch import Tensor

LEAST_WEIGHT = 1e-5
"""Minimum weight in compel's law, so that its tangent stays finite."""
MOVED_TOGETHER = 8
"""Most versions of a prompt that are moved by one operator on a GPU; a processor's caches want them one by one."""


class Blend(NamedTuple):
    """Encodings to mix."""

    versions: Callable[[], Iterator[Variant]]
    """Function that returns the whole prompt, then versions with some tokens absent. Their weights act as in the scheme
    ``comfy``."""
    shares: Sequence[float]
    """Their shares of the result, which sum to 1."""
    is_weighted: bool
    """Whether the rows of any version are moved; no version has weights that the whole prompt lacks."""


def masked_blend(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """Blend the prompt's encoding with encodings in which its down-weighted tokens are absent.

    Law ``nested``: with the distinct weights below 1, ``v_0 < ... < v_(k-1)`` and ``v_k = 1``, ``v_0 B + sum_i (v_(i+1)
    - v_i) M_i``, where B is the whole prompt and in M_i every token of weight up to v_i is absent. This is the mean
    encoding when a number is drawn from 0..1 and every token below it is absent: words at 0 are completely absent.
    Weights above 1 act in B and every M_i as in the scheme ``comfy``; negative ones act as 0. With the method
    ``attention`` an absent token still has its own row, the sum of its embedding and what it reads; no mask can change
    that.

    Law ``compel``: ``(Z + sum_k g_k D_k) / (1 + sum_k g_k)`` with ``g = tan((1 - v) pi / 2)``, with one D_k for each
    fragment below 1, in which only that fragment is absent; all weights also act in Z and D_k as in ``comfy``. Two
    words at 0 each survive by half.

    Args:
        chunks: The prompt.
        options: Law, method, filler, pooled, mask and emphasis.

    Returns:
        The plan of the blend. Its pooled vector is the whole prompt's, or a blend, depending on
        ``options.pooled``.
    """
    if options.emphasis is not None:
        return _emphasized(chunks, options.emphasis, replace(options, emphasis=None))
    if options.law == "compel":
        return plan_blend(_compel_blend(tuple(chunks), options), options)
    floored = [chunk.reweighted(lambda token: max(token.weight, 0.0)) for chunk in chunks]
    issues = negative_weight_issues(chunks, "0 here: a word cannot be less than absent")
    return plan_blend(nested_blend(floored, options), options).then(lambda result: result._replace(issues=issues))


class Emphasis(NamedTuple):
    """An emphasis mode of the WebUI, as schemes that have its numbers."""

    plan: SchemeFn
    """For a prompt by itself."""
    in_columns: SchemeFn
    """As in `Scheme`."""


def _ignoring(chunks: Sequence[TokenChunk], options: SchemeOptions) -> Plan[WeightedRows]:
    first = next((token for chunk in chunks for token in chunk.content if token.weight > 1.0), None)
    message = "Weights above 1 have no effect, as the WebUI's emphasis mode is Ignore."
    issues = () if first is None else (Issue("ignored-weights", message, first.at),)
    return unweighted(chunks, options).then(lambda weighted: weighted._replace(issues=issues))


EMPHASES = {
    "Original": Emphasis(a1111, a1111_global_norm),
    "No norm": Emphasis(a1111_no_norm, a1111_no_norm),
    "Ignore": Emphasis(_ignoring, _ignoring),
}
"""Emphasis modes of the WebUI, default first."""


def split_at_one(chunks: Sequence[TokenChunk]) -> tuple[tuple[TokenChunk, ...], tuple[TokenChunk, ...]]:
    """A prompt with its weights cut to at most 1, and with those cut to at least 1."""
    lowered = tuple(chunk.reweighted(lambda token: min(token.weight, 1.0)) for chunk in chunks)
    return lowered, tuple(chunk.reweighted(lambda token: max(token.weight, 1.0)) for chunk in chunks)


def _emphasized(chunks: Sequence[TokenChunk], mode: str, options: SchemeOptions) -> Plan[WeightedRows]:
    """Blend by weights below 1, then the WebUI's emphasis by those above; without weights below 1 it alone."""
    lowered, raised = split_at_one(chunks)
    emphasis = EMPHASES[mode].plan(raised, options)
    if not has_weights(lowered):
        return emphasis

    def then_emphasis(blended: WeightedRows) -> WeightedRows:
        rows = blended.hidden.unflatten(1, (len(raised), -1))[0]  # [chunks, 77, dim]
        weighted = emphasis.combine(iter([Encoding(rows, blended.pooled)]))
        return weighted._replace(issues=blended.issues + weighted.issues)

    return masked_blend(lowered, options).then(then_emphasis)


def compel(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """`masked_blend` by the law ``compel`` with the method ``attention``. Equals compel 2.5.1."""
    return masked_blend(chunks, replace(options, law="compel", mask_method="attention"))


def nested_blend(chunks: Sequence[TokenChunk], options: SchemeOptions) -> Blend:
    """Encodings of the nested law: B with its share ``v_0``, then each M_i with ``v_(i+1) - v_i``.

    Args:
        chunks: The prompt; weights below 0 are used as they are.
        options: Method and mask.

    Returns:
        The versions, with weights raised to at least 1; the weights in ``chunks`` decide which tokens are absent.
    """
    raised = tuple(chunk.reweighted(lambda token: max(token.weight, 1.0)) for chunk in chunks)
    written = [chunk.weights for chunk in chunks]
    levels = sorted({weight for row in written for weight in row if weight < 1.0})
    shares = [high - low for low, high in zip([0.0, *levels], [*levels, 1.0], strict=True)]

    def versions() -> Iterator[Variant]:
        yield whole_prompt(raised, options)
        for level in levels:
            gone = [[weight <= level for weight in row] for row in written]
            yield without(raised, gone, f"without {level:g} and less", options)

    return Blend(versions, shares, has_weights(raised))


def _compel_blend(chunks: tuple[TokenChunk, ...], options: SchemeOptions) -> Blend:
    faded = {token.fragment: token.weight for chunk in chunks for token in chunk.content if token.weight < 1.0}
    tangents = [math.tan((1.0 - max(weight, LEAST_WEIGHT)) * math.pi / 2) for weight in faded.values()]
    total = 1.0 + sum(tangents)

    def versions() -> Iterator[Variant]:
        yield whole_prompt(chunks, options)
        for fragment, weight in faded.items():
            gone = [[token.fragment == fragment for token in chunk.tokens] for chunk in chunks]
            if options.mask_method == "attention":
                gone = _filled_between(gone)
            yield without(chunks, gone, f"without a phrase at {weight:g}", options)

    return Blend(versions, [1.0 / total, *(tangent / total for tangent in tangents)], has_weights(chunks))


def _filled_between(gone: list[list[bool]]) -> list[list[bool]]:
    """Extend from a fragment's first token to its last, even across chunks: EOS and padding there are absent too.

    The first and last position of each chunk stay, as in compel, unless the last one itself is marked.
    """
    length = len(gone[0])
    marked = [index for index, is_gone in enumerate(flag for row in gone for flag in row) if is_gone]
    within = range(marked[0], marked[-1] + 1)
    return [
        [flag or (row * length + column in within and 0 < column < length - 1) for column, flag in enumerate(flags)]
        for row, flags in enumerate(gone)
    ]


def without(
    chunks: tuple[TokenChunk, ...], gone: Sequence[Sequence[bool]], title: str, options: SchemeOptions
) -> Variant:
    """The prompt with the marked tokens absent, by the chosen method; begin tokens, which all see, are never."""
    gone = [[False, *row[1:]] for row in gone]
    if options.mask_method == "attention":
        masks = [bytes(not is_gone for is_gone in row) for row in gone]
        visible = (intersection(mask, options.visible_in(chunk)) for mask, chunk in zip(masks, chunks, strict=True))
        return Variant(chunks, tuple(visible), title)
    change = _refilled if options.mask_method == "remove" else _replaced
    changed = tuple(
        change(chunk, absent, options) if any(absent) else chunk for chunk, absent in zip(chunks, gone, strict=True)
    )
    return Variant(changed, tuple(map(options.visible_in, changed)), title)


def _replaced(chunk: TokenChunk, gone: Sequence[bool], options: SchemeOptions) -> TokenChunk:
    """The chunk with its marked tokens replaced by the filler, at weight 1."""
    filled = (
        token._replace(id=options.filler_id, weight=1.0) if is_gone else token
        for token, is_gone in zip(chunk.tokens, gone, strict=True)
    )
    return replace(chunk, tokens=tuple(filled))


def _refilled(chunk: TokenChunk, gone: Sequence[bool], options: SchemeOptions) -> TokenChunk:
    """The chunk without its marked tokens: the rest moves up, and padding fills the end."""
    remaining = [token for token, is_gone in zip(chunk.tokens, gone, strict=True) if not is_gone]
    num_gone = len(chunk.tokens) - len(remaining)
    padding = [Token(options.layout.pad_id)] * num_gone
    return TokenChunk((*remaining, *padding), chunk.num_content - num_gone)


def plan_blend(blend: Blend, options: SchemeOptions) -> Plan[WeightedRows]:
    """Plan that sums the versions of a prompt by their shares."""

    def variants() -> Iterator[Variant]:
        versions = blend.versions()
        yield next(versions)
        if blend.is_weighted:
            yield empty_prompt(options)
        yield from versions

    return Plan(variants, lambda rows: weighted_rows(*fold_blend(blend, rows, options)[1]))


def fold_blend(blend: Blend, results: Iterator[Encoding], options: SchemeOptions) -> tuple[Encoding, Encoding]:
    """Sum encodings as they come.

    Args:
        blend: The blend.
        results: Encoding of the whole prompt; of the empty one, if any rows are moved; of the other versions.
        options: Options for pooled vectors.

    Returns:
        Rows of the whole prompt as encoded, and the sum: hidden states ``[chunks, 77, dim]`` and pooled vector ``[1,
        pooled_dim]``.
    """
    whole = next(results)
    empty = next(results).hidden[0] if blend.is_weighted else None
    hidden = pooled = None
    # the results come last: others' may follow those of the blend
    terms = zip(blend.shares, blend.versions(), chain([whole], results), strict=False)
    terms = (term for term in terms if term[0])
    on_processor = whole.hidden.device.type == "cpu"
    while some := list(islice(terms, MOVED_TOGETHER if blend.is_weighted and not on_processor else 1)):
        moved = [rows.hidden for _, _, rows in some]
        if empty is not None:
            by_version = [[chunk.weights for chunk in version.chunks] for _, version, _ in some]
            weights = sent(by_version[: 1 if by_version.count(by_version[0]) == len(some) else None], empty)
            moved = lerp(_together(moved), empty, weights.unsqueeze(-1)).unbind()  # [versions, chunks, 77, dim]
        for (share, _, rows), term in zip(some, moved, strict=True):
            hidden = _added(hidden, term, share)
            if options.pooled == "weighted":
                pooled = _added(pooled, rows.pooled[:1], share)
    assert hidden is not None, "shares sum to 1"
    return whole, Encoding(hidden, whole.pooled[:1] if pooled is None else pooled)


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one shape behind each other, ``[n, ...]``."""
    import torch  # not above: commands that encode nothing read the table of schemes

    return torch.stack(list(tensors)) if len(tensors) > 1 else tensors[0].unsqueeze(0)


def _added(total: Tensor | None, term: Tensor, share: float) -> Tensor:
    """Add a term times its share, which is rounded to its type, to a total; on a GPU by one operator."""
    import torch

    factor = torch.tensor(share, dtype=term.dtype)
    if total is None or term.device.type == "cpu":
        scaled = term * factor
        return scaled if total is None else total + scaled
    return total.add(term, alpha=factor.item())


def adv_compel(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """Nested law of masked_blend with words replaced and negative weights unchanged.

    Called ``compel`` in ADV_CLIP_emb and prompt-control; it differs from the compel library.
    """
    options = replace(options, mask_method="token")
    return plan_blend(nested_blend(chunks, options), options)


def down_weight(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """All weights divided by the largest, then as `adv_compel`: one word is raised by fading all others."""
    top = max(weight for chunk in chunks for weight in chunk.weights)
    scaled = [chunk.reweighted(lambda token: token.weight / top if token.word else 1.0) for chunk in chunks]
    return adv_compel(scaled, options)


def comfy_plus_plus(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
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

    def combine(results: Iterator[Encoding]) -> WeightedRows:
        import torch

        whole, (hidden, pooled) = fold_blend(blend, results, options)
        for (word, weight), rows in zip(raised, results, strict=False):  # further results belong to others
            is_word = sent(rows_of(word), hidden, torch.bool).unsqueeze(-1)  # [chunks, 77, 1]
            hidden = (hidden + (weight - 1.0) * (whole.hidden - rows.hidden)).where(is_word, hidden)
        return weighted_rows(hidden, pooled)

    return Plan(variants, combine)
