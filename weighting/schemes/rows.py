"""Schemes that work row by row: each moves or scales the rows of a word, and rows of weight exactly 1 are copies of C.

Notation in ``scheme.py``.

Source: docs/reference/schemes.md, "Schemes" and "The lpw pipelines"; each function names the program it equals. The
lpw pipelines are ``examples/community/lpw_stable_diffusion.py`` and ``lpw_stable_diffusion_xl.py`` of diffusers 2843b3d
(2026-02), the same as in diffusers 0.38 to 0.40; they use an older form of the a1111 syntax, and issues say where it
differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...encoder.encoding import Encoding
from ..chunking import chunks_of
from ..plan import Plan
from ..syntax import syntax_of
from ..text.chunks import TokenChunk
from ..text.prompt import Break, Issue, Issues, LateIssues, Span
from .scheme import (
    DEFAULT_OPTIONS,
    SchemeOptions,
    SchemePrompt,
    WeightedRows,
    all_places,
    has_weights,
    lerp,
    places_of,
    plan_rows,
    plan_with_empty,
    sent,
    weighted_rows,
    weights_of,
)

if TYPE_CHECKING:
    from torch import Tensor


def unweighted(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """C: weights are read but not applied. Equals A1111's emphasis mode ``Ignore``."""
    first = next((token for chunk in chunks for token in chunk.content if token.weight != 1.0), None)
    issues = () if first is None else (Issue("ignored-weights", "This scheme applies no weights.", first.at),)
    return plan_rows(chunks, options, lambda rows: weighted_rows(rows.hidden, rows.pooled[:1], issues))


def comfy(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """``E + (C - E) w``: rows move along the line from the empty prompt. Equals ComfyUI 0.29.0.

    E is encoded in the same batch, last, and only if a weight differs from 1, as the host does.
    """
    return plan_with_empty(chunks, options, lerp)


def a1111_no_norm(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """``C w``: rows are scaled. Equals A1111's emphasis mode ``No norm``."""
    return plan_rows(chunks, options, lambda rows: weighted_rows(_scaled(rows.hidden, chunks), rows.pooled[:1]))


def a1111(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """``C w``, then each chunk is rescaled to its former mean. Equals A1111's emphasis mode ``Original``.

    The mean is over all 77 rows and features of one chunk, signed, so every row of the chunk is scaled by one number.
    """
    return _plan_with_mean_restored(chunks, options, _mean_of_each)


def a1111_global_norm(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """``C w``, then all chunks are rescaled by one number to their former mean. Called ``A1111`` in ADV_CLIP_emb."""
    return _plan_with_mean_restored(chunks, options, _mean)


def lpw(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """As `a1111_global_norm`, on the rows without BOS and EOS between chunks.

    Equals ``get_weighted_text_embeddings`` of diffusers' lpw pipeline for SD 1.x with ``no_boseos_middle=True``. So n
    chunks yield ``75 n + 2`` rows: the first keeps its BOS, the last its row 76.
    """
    length = options.layout.length
    places = all_places(len(chunks), length)
    selected = [row for row, place in enumerate(places) if place.position not in (0, length - 1)]
    selected = [0, *selected, len(places) - 1]

    def fold(rows: Encoding) -> WeightedRows:
        every = weighted_rows(rows.hidden, rows.pooled[:1])
        chosen = every.of_rows(selected)
        if not has_weights(chunks):
            return chosen
        weights = sent([chunks[place.chunk].weights[place.position] for place in chosen.places], chosen.hidden)
        hidden, issues = _with_mean_of(chosen.hidden * weights.unsqueeze(-1), chosen.hidden, _mean)
        return chosen._replace(hidden=hidden, issues=issues)

    return plan_rows(chunks, options, fold)


def lerp_last(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """``L + (C - L) w`` with L the row of the EOS that closes the chunk. Equals diffusers' lpw pipeline for SDXL.

    Its chunks have no padding, so that EOS is the last row: `without_padding` leaves out everything after it. Weights
    are rounded to float16 as in the pipeline, and the pooled vector is the last chunk's.
    """
    too_large = [token for chunk in chunks for token in chunk.content if abs(token.weight) > MAX_HALF]
    message = f"This scheme takes weights in float16: a larger one than {MAX_HALF:g} acts as that."
    issues = tuple(Issue("clamped-weight", message, token.at) for token in too_large[:1])
    ends = [chunk.num_content + 1 for chunk in chunks]

    def fold(rows: Encoding) -> WeightedRows:
        weights = weights_of(chunks, rows.hidden).clamp(-MAX_HALF, MAX_HALF)
        length = options.layout.length
        at_end = places_of([length * chunk + end for chunk, end in enumerate(ends)], rows.hidden)
        last = rows.hidden.flatten(0, 1).index_select(0, at_end).unsqueeze(1)  # [chunks, 1, dim]
        hidden = lerp(rows.hidden, last, weights.half().to(rows.hidden.dtype))
        return weighted_rows(hidden, rows.pooled[-1:], issues)

    return plan_rows(chunks, options, fold)


MAX_HALF = 65504.0
"""The largest number in float16."""


def perp(chunks: Sequence[TokenChunk], options: SchemeOptions = DEFAULT_OPTIONS) -> Plan[WeightedRows]:
    """Move a row by the projection of the empty prompt's row onto it. Equals prompt-control 3.0.0-beta.9.

    With ``P = (E . C) / |C|^2 C`` row by row: ``C + w P`` for a weight beyond 1 or -1, E for 0, else ``C - (1 - w) P``.
    The jump just above 1 is the reference's.
    """

    def move(hidden: Tensor, empty: Tensor, weights: Tensor) -> Tensor:
        along = (empty * hidden).sum(-1, keepdim=True) / (hidden * hidden).sum(-1, keepdim=True) * hidden
        along = along.nan_to_num(nan=0.0)
        moved = (hidden + weights * along).where(weights.abs() > 1.0, hidden - (1.0 - weights) * along)
        moved = empty.where(weights == 0.0, moved)
        return hidden.where(weights == 1.0, moved)

    return plan_with_empty(chunks, options, move)


def _scaled(hidden: Tensor, chunks: Sequence[TokenChunk]) -> Tensor:
    return hidden * weights_of(chunks, hidden)


SMALL_MEAN = 1e-4
"""Relative mean, to the mean absolute value, below which division is numerically doubtful."""


def _plan_with_mean_restored(
    chunks: Sequence[TokenChunk], options: SchemeOptions, mean: Callable[[Tensor], Tensor]
) -> Plan[WeightedRows]:
    if not has_weights(chunks):
        return unweighted(chunks, options)

    def fold(rows: Encoding) -> WeightedRows:
        hidden, issues = _with_mean_of(_scaled(rows.hidden, chunks), rows.hidden, mean)
        return weighted_rows(hidden, rows.pooled[:1], issues)

    return plan_rows(chunks, options, fold)


def _mean_of_each(hidden: Tensor) -> Tensor:
    """Mean of each chunk, ``[chunks, 1, 1]``; reduced one by one, as in A1111, so that the last digits agree."""
    import torch  # not above: commands that encode nothing read the table of schemes

    means = [chunk.mean() for chunk in hidden]
    return (means[0] if len(means) == 1 else torch.stack(means)).view(-1, 1, 1)


def _mean(hidden: Tensor) -> Tensor:
    """Mean of everything."""
    return hidden.mean()


def _with_mean_of(scaled: Tensor, plain: Tensor, mean: Callable[[Tensor], Tensor]) -> tuple[Tensor, Issues]:
    """Scale rows to the mean of the plain ones; an issue if that mean is too close to zero.

    A GPU is waited for when the issues are read.
    """
    before, after = mean(plain), mean(scaled)
    is_large = after.abs() >= SMALL_MEAN * mean(scaled.abs())
    # exactly zero would give infinity or NaN, as in the reference; we leave the rows unscaled
    ratio = (before / after).nan_to_num(nan=1.0, posinf=1.0, neginf=1.0)
    largest = ratio.abs().masked_fill(is_large, -1.0).max()
    return scaled * ratio, LateIssues(lambda: _unstable_mean(float(largest)))


def _unstable_mean(largest: float) -> Iterator[Issue]:
    """Issue for the largest factor by which means near zero are restored; below 0 there are none."""
    if largest < 0 or largest == 1.0:  # or the rows stay as they are, zeros and NaN too
        return
    message = (
        "The mean of the weighted rows is nearly zero, so restoring the former mean multiplies them by "
        f"{largest:.3g}. Choose a1111_no_norm, or other weights."
    )
    yield Issue("unstable-mean", message, Span(0, 0))


CODE = "lpw-reads-otherwise"

_SPACED_WEIGHT = re.compile(r":(?:\s+[+-]?[.\d]+\s*|[+-]?[.\d]+\s+)\)")


def lpw_issues(parsed: SchemePrompt, *, is_xl: bool = False) -> Iterator[Issue]:
    """Issues where a prompt is read differently than by the pipeline for Stable Diffusion 1.x, or that for SDXL."""
    prompt = parsed.prompt
    if not syntax_of(prompt.syntax).by_webui:
        return
    breaks = [part.span for part in prompt.parts if isinstance(part, Break)]
    weight = " at weight -1" if is_xl else ""
    for span in breaks:
        message = f"diffusers' pipeline reads BREAK as the word “break”{weight}; here it ends the chunk."
        yield Issue(CODE, message, span)
    for issue in prompt.issues:
        if issue.code == "break-in-brackets" and not is_xl:
            message = "diffusers' pipeline gives the word “break” the weight of its brackets; here it is as in A1111."
            yield Issue(CODE, message, issue.span)
    for mark in prompt.marks:
        for match in _SPACED_WEIGHT.finditer(prompt.source, *mark):
            message = (
                "diffusers' pipeline takes no weight with white space around it: to it this is text, and the bracket "
                "weighs 1.1."
            )
            yield Issue(CODE, message, Span(*match.span()))
    capacity = parsed.layout.capacity
    if not breaks and any(chunk.num_content < capacity for chunk in chunks_of(parsed.sections)[:-1]):
        message = (
            f"diffusers' pipeline cuts at {capacity} tokens, wherever that is; so does the chunking compel brutal."
        )
        yield Issue(CODE, message, Span(0, 0))


def left_out_issues(spans: Sequence[Span]) -> Iterator[Issue]:
    """Issues for each tag and comment removed from a prompt, which the pipelines keep."""
    for span in spans:
        yield Issue(CODE, "diffusers' pipeline reads this as text; here it is left out.", span)
