"""From a prompt that was read to its plan, and from plans to results: equal encodings once, in calls of bounded size.

Every front end calls `read_prompt` to read a prompt, and ``encoders.py`` to encode it.

Source: docs/performance.md, "Plans".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..encoder.encoding import EncodeFn, Encoding
from ..encoder.quoting import quote
from .options import EncodeOptions
from .padding import BEHIND_CONTENT, cleaned, padding_visible
from .phrases.bind import BindError, bound, refusal
from .phrases.hidden_phrases import phrases_visible
from .plan import Ask, Call, Plan, Variant, Visible, VisibleFn, gathered, intersection, mask_tensor
from .reading.prompt_reader import ReadPrompt
from .schemes import SCHEMES
from .schemes.blend import EMPHASES, split_at_one
from .schemes.scheme import (
    RowOrigin,
    SchemeFn,
    SchemeOptions,
    WeightedRows,
    all_places,
    empty_prompt_aside,
    has_weights,
    places_of,
)
from .schemes.sections import plan_sections
from .text.chunks import ChunkLayout, Token, TokenChunk, Tokenize, close_chunk
from .text.prompt import Issue, LateIssues, Span

T = TypeVar("T")


class EncodedPrompt(NamedTuple):
    """A prompt's conditioning."""

    hidden: Tensor
    """``[1, rows, dim]``; 77 rows per chunk, unless the scheme, the padding or a ``.blend`` changes that."""
    pooled: Tensor
    """``[1, pooled_dim]``."""
    read: ReadPrompt
    """The prompt that was encoded; its issues include the scheme's."""
    num_encodings: int = 0
    """Number of different encodings it took."""
    signs: tuple[float, ...] = ()
    """Factor of each row's value in the attention that reads it, 1 or -1; empty if all are 1."""
    places: Sequence[RowOrigin] = ()
    """Origin of each row in the chunks of ``read``; for a blend, in its longest prompt."""
    variants: Callable[[], Iterable[Variant]] = tuple
    """Function that returns the versions that were encoded, as in its `Plan`."""


def plan_prompt(parsed: ReadPrompt, tokenize: Tokenize) -> Plan[EncodedPrompt]:
    """Plan a prompt by the scheme in its options.

    Args:
        parsed: The prompt.
        tokenize: The encoder's tokenizer, for the filler and for pooled vectors of the raw text.

    Returns:
        Plan of its conditioning.

    Raises:
        BindError: If its phrases cannot be bound.
        NegPipError: If the scheme ``negpip`` cannot blend its prompts.
        ValueError: If the filler is not exactly one token.
    """
    options = parsed.options
    scheme = SCHEMES[options.scheme]
    scheme_options = _scheme_options(parsed, tokenize)

    def plan_chunks(chunks: Sequence[TokenChunk]) -> Plan[WeightedRows]:
        plan = scheme.plan(chunks, scheme_options)
        plan = plan.then(lambda weighted: _with_eos_rows(weighted, chunks, options.eos_rows, parsed.layout))
        if options.padding not in BEHIND_CONTENT:
            return plan
        return plan.then_with(
            empty_prompt_aside(scheme_options),
            lambda weighted, empty: cleaned(weighted, chunks, options.padding, empty.hidden[0]),
        )

    plan = plan_sections(parsed.sections, plan_chunks, scheme_options)
    if not parsed.layout.has_bos:
        plan = plan.then(_without_begin)
    if options.pooled == "raw text":
        plan = _with_pooled_of_raw_text(plan, parsed, tokenize)
    plan = scheme.finish(plan.then(lambda weighted: without_padding(weighted, parsed)), parsed, scheme_options)
    plan = _as_chosen(plan, [parsed])
    return plan.then(lambda weighted: _encoded(weighted, parsed))


def _scheme_options(parsed: ReadPrompt, tokenize: Tokenize) -> SchemeOptions:
    options = parsed.options
    return SchemeOptions(
        law=options.law,
        mask_method=options.mask_method,
        filler_id=_filler_id(options.filler, tokenize),
        emphasis=options.emphasis if _is_emphasized(options) else None,
        pooled=options.pooled,
        visible_in=visible_fn(options, parsed.layout),
        layout=parsed.layout,
        strength=options.strength,
    )


def _is_emphasized(options: EncodeOptions) -> bool:
    """Whether the WebUI's emphasis acts after the scheme."""
    return options.above_one == "as the WebUI" and "above_one" in SCHEMES[options.scheme].options


def _as_chosen(plan: Plan[T], reads: Sequence[ReadPrompt]) -> Plan[T]:
    """The plan of some prompts with options that affect every encoding applied: bound phrases, and no causality."""
    options = reads[0].options
    if options.binds:
        for parsed in reads:
            _check_bound(parsed)
        plan = bound(plan, options.bind_strength, options.bind_rest)
    if options.is_causal:
        return plan
    return Plan(lambda: (replace(variant, is_causal=False) for variant in plan.variants()), plan.combine)


def _check_bound(parsed: ReadPrompt) -> None:
    """Check that the phrases of a prompt can be bound."""
    options = parsed.options
    if not options.binds:
        return
    if message := refusal(parsed.issues, options):
        raise BindError(message)
    is_weighted = any(token.weight != 1.0 for chunk in parsed.chunks for token in chunk.tokens)
    if options.bind_hide == "cutoff" and is_weighted and not SCHEMES[options.scheme].bound_as_cutoff:
        allowed = ", ".join(name for name, scheme in SCHEMES.items() if scheme.bound_as_cutoff)
        raise BindError(
            f"With weights, cutoff goes with the schemes {allowed}; under {options.scheme} it would "
            "not give what Cutoff gives, which mixes rows after they are weighted."
        )


def _with_pooled_of_raw_text(plan: Plan[WeightedRows], parsed: ReadPrompt, tokenize: Tokenize) -> Plan[WeightedRows]:
    ids = [token_id for token_id, _, _ in tokenize(parsed.prompt.source)][: parsed.layout.capacity]
    raw = close_chunk([Token(token_id) for token_id in ids], parsed.layout)
    typed = Variant((raw,), (None,), "the text as typed", is_aside=True)
    return plan.then_with(typed, lambda weighted, rows: weighted._replace(pooled=rows.pooled))


def _encoded(weighted: WeightedRows, parsed: ReadPrompt) -> EncodedPrompt:
    parsed = parsed._replace(issues=parsed.issues + weighted.issues)
    hidden, pooled = map(_apart, (weighted.hidden, weighted.pooled))
    return EncodedPrompt(hidden, pooled, parsed, signs=weighted.signs, places=weighted.places)


def _apart(rows: Tensor) -> Tensor:
    """Rows without the rest of a larger tensor that they are a part of, which would stay in memory with them."""
    return rows if rows.nbytes == rows.untyped_storage().nbytes() else rows.clone()


def is_in_columns(reads: Sequence[ReadPrompt]) -> bool:
    """Whether the WebUI encodes texts chunk by chunk: with one of its own schemes, and only options that it has.

    Its emphasis after another scheme is one, if it has anything to do.
    """
    options = reads[0].options
    is_plain = all(len(parsed.sections) == 1 and not parsed.sections[0].shares for parsed in reads)
    is_plain = is_plain and not reads[0].layout.is_open and all(parsed.sections[0].weight == 1.0 for parsed in reads)
    is_raised = any(weight > 1.0 for parsed in reads for chunk in parsed.chunks for weight in chunk.weights)
    is_theirs = is_raised if _is_emphasized(options) else SCHEMES[options.scheme].in_columns is not None
    is_plain = is_plain and is_theirs
    return is_plain and options.eos_rows == "own" and options.pooled != "raw text"


def plan_columns(reads: Sequence[ReadPrompt], tokenize: Tokenize) -> Plan[list[EncodedPrompt]]:
    """Plan texts that alternate while an image is made, as the WebUI encodes them.

    The WebUI encodes all first chunks, then all second ones, and so on. For most schemes that equals one text after
    another. But the WebUI takes its mean over the texts, so its own schemes need this to get the same numbers.

    Source: docs/reference/hosts.md, "In the WebUI"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
    """
    options, layout = reads[0].options, reads[0].layout
    scheme, scheme_options = SCHEMES[options.scheme], _scheme_options(reads[0], tokenize)
    in_columns, parts = scheme.in_columns, [parsed.chunks for parsed in reads]
    blends: list[Plan[WeightedRows]] = []
    if scheme_options.emphasis is not None:
        in_columns = EMPHASES[scheme_options.emphasis].in_columns
        lowered, parts = zip(*map(split_at_one, parts), strict=True)
        scheme_options = replace(scheme_options, emphasis=None)
        if any(map(has_weights, lowered)):
            blends = [scheme.plan(chunks, scheme_options) for chunks in lowered]
    assert in_columns is not None
    columns = gathered([_plan_column(column, in_columns, scheme_options) for column in zip(*parts, strict=True)])

    def of_texts(results: Sequence[WeightedRows]) -> list[WeightedRows]:
        return [_of_text(results, index, parsed) for index, parsed in enumerate(reads)]

    def emphasized(texts: Sequence[WeightedRows]) -> list[WeightedRows]:
        together = torch.cat([text.hidden for text in texts])  # [texts, 77 * chunks, dim]
        hidden = together.unflatten(1, (-1, layout.length))
        pooled = torch.cat([text.pooled for text in texts])
        results = of_texts(columns.combine(Encoding(rows, pooled) for rows in hidden.unbind(1)))
        return [
            result._replace(issues=text.issues + result.issues) for text, result in zip(texts, results, strict=True)
        ]

    plan = gathered(blends).then(emphasized) if blends else columns.then(of_texts)
    if options.padding in BEHIND_CONTENT:
        plan = plan.then_with(
            empty_prompt_aside(scheme_options),
            lambda texts, empty: [
                cleaned(text, parsed.chunks, options.padding, empty.hidden[0])
                for text, parsed in zip(texts, reads, strict=True)
            ],
        )
    return _as_chosen(plan.then(lambda texts: list(map(_encoded, map(without_padding, texts, reads), reads))), reads)


def _plan_column(column: Sequence[TokenChunk], plan_chunks: SchemeFn, options: SchemeOptions) -> Plan[WeightedRows]:
    """Plan one chunk of every text: hidden states ``[texts, 77, dim]`` and pooled vectors ``[texts, pooled_dim]``."""
    plan = plan_chunks(column, options)

    def combine(results: Iterator[Encoding]) -> WeightedRows:
        rows = next(results)
        weighted = plan.combine(iter([rows]))
        return weighted._replace(hidden=weighted.hidden.view_as(rows.hidden), pooled=rows.pooled)

    return Plan(plan.variants, combine)


def _of_text(columns: Sequence[WeightedRows], index: int, parsed: ReadPrompt) -> WeightedRows:
    """Share of one text in every column."""
    hidden = torch.cat([column.hidden[index : index + 1] for column in columns], dim=1)  # [1, 77 * chunks, dim]
    # issues found in a column are reported once, with the first text
    of_columns = [column.issues for column in columns]
    issues = LateIssues(lambda: dict.fromkeys(chain.from_iterable(of_columns)))
    places = all_places(len(columns), parsed.layout.length)
    return WeightedRows(hidden, columns[0].pooled[index : index + 1], places, () if index else issues)


def visible_fn(options: EncodeOptions, layout: ChunkLayout) -> VisibleFn:
    """Mask of padding policy and hidden phrases together, for every encoding of a prompt."""
    of_padding, of_phrases = padding_visible(options.padding, layout), phrases_visible(options)

    def visible(chunk: TokenChunk) -> Visible:
        return intersection(of_padding(chunk), of_phrases(chunk))

    return visible


def without_padding(weighted: WeightedRows, parsed: ReadPrompt) -> WeightedRows:
    """Drop the rows of padding, if the prompt's options say so."""
    row_counts = parsed.kept
    if row_counts is None:
        return weighted
    if len(weighted.places) != len(row_counts) * parsed.layout.length:  # a scheme that leaves out rows by itself
        message = "Padding cannot be dropped here, because this scheme leaves out other rows: all of its rows are kept."
        told = LateIssues(lambda: [Issue("padding-kept", message, Span(0, 0))])
        return weighted._replace(issues=weighted.issues + told)
    return weighted.of_rows(
        [row for row, place in enumerate(weighted.places) if place.position < row_counts[place.chunk]]
    )


def _without_begin(weighted: WeightedRows) -> WeightedRows:
    """Drop the rows of positions that the encoder does not have."""
    return weighted.of_rows([row for row, place in enumerate(weighted.places) if place.position])


def _with_eos_rows(
    weighted: WeightedRows, chunks: Sequence[TokenChunk], rule: str, layout: ChunkLayout
) -> WeightedRows:
    """Replace the first EOS row of every chunk by the first chunk's, or by their mean."""
    if rule == "own" or len(chunks) == 1 or len(weighted.places) != len(chunks) * layout.length:
        return weighted
    ends = {RowOrigin(index, chunk.plain_ids.index(layout.eos_id)) for index, chunk in enumerate(chunks)}
    rows = [row for row, place in enumerate(weighted.places) if place in ends]
    where = places_of(rows, weighted.hidden)
    ends_of_chunks = weighted.hidden.index_select(1, where)
    end = ends_of_chunks[:, :1] if rule == "first" else ends_of_chunks.mean(1, keepdim=True)
    return weighted._replace(hidden=weighted.hidden.index_copy(1, where, end.expand_as(ends_of_chunks)))


def _filler_id(filler: str, tokenize: Tokenize) -> int:
    tokens = tokenize(filler)
    if len(tokens) != 1:
        raise ValueError(f"the filler must be exactly one token, such as '+'; {quote(filler)} is {len(tokens)}")
    return tokens[0][0]


# Execution


Check = Callable[[], None]
"""Called before each call of an encoder. An exception it raises ends the work."""


def ask(
    plan: Plan[T], encode: EncodeFn, *, max_chunks: int, keeps_calls: bool = False, check: Check | None = None
) -> T:
    """Carry out a plan.

    Args:
        plan: The plan.
        encode: The encoder.
        max_chunks: Maximum number of chunks per call.
        keeps_calls: Whether to make calls exactly as a host would, whatever their size, for bit-identical results.
            Otherwise their chunks are batched with any others.
        check: Called before each call of the encoder.

    Returns:
        The plan's result.
    """
    return plan.combine(_answers(plan.variants(), encode, max_chunks, keeps_calls, check))


def _answers(
    variants: Iterable[Variant], encode: EncodeFn, max_chunks: int, keeps_calls: bool, check: Check | None
) -> Iterator[Encoding]:
    """Answers for each variant, encoded when first needed and released after their last use."""
    numbers: dict[Ask, int] = {}
    needed: list[list[int]] = []
    calls: list[Call | None] = []
    for variant in variants:
        needed.append([numbers.setdefault(ask, len(numbers)) for ask in variant.asks()])
        calls.append(variant.call if keeps_calls else None)
    asks = list(numbers)
    left = Counter(number for group, call in zip(needed, calls, strict=True) if call is None for number in group)
    repeated = {number for number, count in left.items() if count > 1}
    waiting = _waiting(needed, calls)
    places: dict[int, tuple[Encoding, int]] = {}  # the result of a call, and the row in it

    def run(batch: Sequence[int]) -> Encoding:
        if check is not None:
            check()
        encoding = _called([asks[number] for number in batch], encode)
        places.update((number, (encoding, row)) for row, number in enumerate(batch) if left[number])
        return encoding

    for index, group in enumerate(needed):
        if calls[index] == "goes on":
            continue
        if calls[index] == "starts":
            end = next((i for i in range(index + 1, len(calls)) if calls[i] != "goes on"), len(calls))
            encoding = run([number for part in needed[index:end] for number in part])
            sizes = [len(part) for part in needed[index:end]]
            yield from map(Encoding, encoding.hidden.split(sizes), encoding.pooled.split(sizes))
            continue
        while any(number not in places for number in group):
            run(_batch(waiting, asks, max_chunks))
        yield _gathered_rows([places[number] for number in group], is_alone=repeated.isdisjoint(group))
        left.subtract(group)
        for number in group:
            if not left[number]:
                places.pop(number, None)


def _gathered_rows(places: Sequence[tuple[Encoding, int]], *, is_alone: bool) -> Encoding:
    """Rows of results of calls, where no other variant has them a part of one result, which takes no operator."""
    (encoding, first), *_ = places
    if is_alone and all(of is encoding and row == first + index for index, (of, row) in enumerate(places)):
        return Encoding(*(part[first : first + len(places)] for part in encoding))
    return Encoding(*map(torch.stack, zip(*((of.hidden[row], of.pooled[row]) for of, row in places), strict=True)))


def _waiting(needed: Sequence[Sequence[int]], calls: Sequence[Call | None]) -> deque[int]:
    """Encodings that no call makes before they are needed, in the order in which they are needed."""
    is_seen: set[int] = set()
    waiting: deque[int] = deque()
    for group, call in zip(needed, calls, strict=True):
        if call is None:
            waiting.extend(dict.fromkeys(number for number in group if number not in is_seen))
        is_seen.update(group)
    return waiting


def _batch(waiting: deque[int], asks: Sequence[Ask], max_chunks: int) -> list[int]:
    """Take the next encodings that can share a call."""
    batch = [waiting.popleft()]
    while waiting and len(batch) < max_chunks and asks[waiting[0]].is_causal == asks[batch[0]].is_causal:
        batch.append(waiting.popleft())
    return batch


def _called(asks: Sequence[Ask], encode: EncodeFn) -> Encoding:
    """Call the encoder once."""
    ids = [ask.ids for ask in asks]
    return encode(ids, mask_tensor([ask.visible for ask in asks], len(ids[0])), is_causal=asks[0].is_causal)
