"""From a prompt that was read to its plan, and from plans to results: equal encodings once, in calls of bounded size.

Every front end calls `read_prompt` to read a prompt, and ``encoders.py`` to encode it.

Source: docs/performance.md, "Plans".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from ..encoder.encoding import EncodeFn, Encoding
from ..encoder.quoting import quote
from .options import EncodeOptions
from .padding import BEHIND_CONTENT, cleaned, padding_visible
from .phrases.bind import BindError, bound, refusal
from .phrases.hidden_phrases import phrases_visible
from .plan import Ask, Call, Plan, Variant, Visible, VisibleFn, both, gathered, mask_tensor, uncausal
from .reading.prompt_reader import ReadPrompt
from .schemes import SCHEMES
from .schemes.blend import EMPHASES, parted
from .schemes.scheme import Place, SchemeFn, SchemeOptions, Weighted, all_places, empty_prompt_aside, has_weights
from .schemes.sections import plan_sections
from .text.chunks import ChunkLayout, Token, TokenChunk, Tokenize, close_chunk
from .text.prompt import Issue, Span

T = TypeVar("T")


class EncodedPrompt(NamedTuple):
    """A prompt's conditioning."""

    hidden: Tensor
    """``[1, rows, dim]``; 77 rows per chunk, unless the scheme, the padding or a ``.blend`` changes that."""
    pooled: Tensor
    """``[1, pooled_dim]``."""
    read: ReadPrompt
    """The prompt that was encoded; its issues include those of the scheme."""
    num_encodings: int = 0
    """Number of different encodings it took."""
    signs: tuple[float, ...] = ()
    """Factor of each row's value in the attention that reads it, 1 or -1; empty if all are 1."""
    places: Sequence[Place] = ()
    """Origin of each row in the chunks of ``read``; those of a blend are those of its longest prompt."""
    variants: Callable[[], Iterable[Variant]] = tuple
    """Function that returns the versions that were encoded, as in its `Plan`."""


def plan_prompt(read: ReadPrompt, tokenize: Tokenize) -> Plan[EncodedPrompt]:
    """Plan a prompt by the scheme in its options.

    Args:
        read: The prompt.
        tokenize: The encoder's tokenizer, for the filler and for pooled vectors of the raw text.

    Returns:
        Plan of its conditioning.

    Raises:
        BindError: If its phrases cannot be bound.
        NegPipError: If the scheme ``negpip`` cannot blend its prompts.
        ValueError: If the filler is not exactly one token.
    """
    options = read.options
    scheme = SCHEMES[options.scheme]
    scheme_options = _scheme_options(read, tokenize)

    def plan_chunks(chunks: Sequence[TokenChunk]) -> Plan[Weighted]:
        plan = scheme.plan(chunks, scheme_options)
        plan = plan.then(lambda weighted: _with_eos_rows(weighted, chunks, options.eos_rows, read.layout))
        if options.padding not in BEHIND_CONTENT:
            return plan
        return plan.then_with(
            empty_prompt_aside(scheme_options),
            lambda weighted, empty: cleaned(weighted, chunks, options.padding, empty.hidden[0]),
        )

    plan = plan_sections(read.sections, plan_chunks, scheme_options)
    if not read.layout.has_bos:
        plan = plan.then(_without_begin)
    if options.pooled == "raw text":
        plan = _with_pooled_of_raw_text(plan, read, tokenize)
    plan = scheme.finish(plan.then(lambda weighted: without_padding(weighted, read)), read, scheme_options)
    plan = _as_chosen(plan, [read])
    return plan.then(lambda weighted: _encoded(weighted, read))


def _scheme_options(read: ReadPrompt, tokenize: Tokenize) -> SchemeOptions:
    options = read.options
    return SchemeOptions(
        law=options.law,
        mask_method=options.mask_method,
        filler_id=_filler_id(options.filler, tokenize),
        emphasis=options.emphasis if _is_emphasized(options) else None,
        pooled=options.pooled,
        visible_in=visible_fn(options, read.layout),
        layout=read.layout,
        strength=options.strength,
    )


def _is_emphasized(options: EncodeOptions) -> bool:
    """Whether the WebUI's emphasis acts after the scheme."""
    return options.above_one == "as the WebUI" and "above_one" in SCHEMES[options.scheme].options


def _as_chosen(plan: Plan[T], reads: Sequence[ReadPrompt]) -> Plan[T]:
    """The plan of some prompts with options that affect every encoding applied: bound phrases, and no causality."""
    options = reads[0].options
    if options.binds:
        for read in reads:
            _check_bound(read)
        plan = bound(plan, options.bind_strength, options.bind_rest)
    return plan if options.is_causal else uncausal(plan)


def _check_bound(read: ReadPrompt) -> None:
    """Check that the phrases of a prompt can be bound."""
    options = read.options
    if not options.binds:
        return
    if message := refusal(read.issues, options):
        raise BindError(message)
    is_weighted = any(token.weight != 1.0 for chunk in read.chunks for token in chunk.tokens)
    if options.bind_hide == "cutoff" and is_weighted and not SCHEMES[options.scheme].bound_as_cutoff:
        allowed = ", ".join(name for name, scheme in SCHEMES.items() if scheme.bound_as_cutoff)
        raise BindError(
            f"With weights, cutoff goes with the schemes {allowed}; under {options.scheme} it would "
            "not give what Cutoff gives, which mixes rows after they are weighted."
        )


def _with_pooled_of_raw_text(plan: Plan[Weighted], read: ReadPrompt, tokenize: Tokenize) -> Plan[Weighted]:
    ids = [token_id for token_id, _, _ in tokenize(read.prompt.source)][: read.layout.capacity]
    raw = close_chunk([Token(token_id) for token_id in ids], read.layout)
    typed = Variant((raw,), (None,), "the text as typed", is_aside=True)
    return plan.then_with(typed, lambda weighted, rows: weighted._replace(pooled=rows.pooled))


def _encoded(weighted: Weighted, read: ReadPrompt) -> EncodedPrompt:
    read = read._replace(issues=(*read.issues, *weighted.issues))
    return EncodedPrompt(weighted.hidden, weighted.pooled, read, signs=weighted.signs, places=weighted.places)


def is_in_columns(reads: Sequence[ReadPrompt]) -> bool:
    """Whether the WebUI encodes texts chunk by chunk: with one of its own schemes, and only options that it has.

    Its emphasis after another scheme is one, if it has anything to do.
    """
    options = reads[0].options
    is_plain = all(len(read.sections) == 1 and not read.sections[0].shares for read in reads)
    is_plain = is_plain and not reads[0].layout.is_open and all(read.sections[0].weight == 1.0 for read in reads)
    is_raised = any(weight > 1.0 for read in reads for chunk in read.chunks for weight in chunk.weights)
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
    in_columns, parts = scheme.in_columns, [read.chunks for read in reads]
    blends: list[Plan[Weighted]] = []
    if scheme_options.emphasis is not None:
        in_columns = EMPHASES[scheme_options.emphasis].in_columns
        lowered, parts = zip(*map(parted, parts), strict=True)
        scheme_options = replace(scheme_options, emphasis=None)
        if any(map(has_weights, lowered)):
            blends = [scheme.plan(chunks, scheme_options) for chunks in lowered]
    assert in_columns is not None
    columns = gathered([_plan_column(column, in_columns, scheme_options) for column in zip(*parts, strict=True)])

    def of_texts(results: Sequence[Weighted]) -> list[Weighted]:
        return [_of_text(results, index, read) for index, read in enumerate(reads)]

    def emphasized(texts: Sequence[Weighted]) -> list[Weighted]:
        found = of_texts(columns.combine(_in_columns(texts, layout.length)))
        return [one._replace(issues=(*text.issues, *one.issues)) for text, one in zip(texts, found, strict=True)]

    plan = gathered(blends).then(emphasized) if blends else columns.then(of_texts)
    if options.padding in BEHIND_CONTENT:
        plan = plan.then_with(
            empty_prompt_aside(scheme_options),
            lambda texts, empty: [
                cleaned(text, read.chunks, options.padding, empty.hidden[0])
                for text, read in zip(texts, reads, strict=True)
            ],
        )
    return _as_chosen(plan.then(lambda texts: list(map(_encoded, map(without_padding, texts, reads), reads))), reads)


def _plan_column(column: Sequence[TokenChunk], plan_chunks: SchemeFn, options: SchemeOptions) -> Plan[Weighted]:
    """Plan one chunk of every text: hidden states ``[texts, 77, dim]`` and pooled vectors ``[texts, pooled_dim]``."""
    plan = plan_chunks(column, options)

    def combine(results: Iterator[Encoding]) -> Weighted:
        rows = next(results)
        weighted = plan.combine(iter([rows]))
        return weighted._replace(hidden=weighted.hidden.view_as(rows.hidden), pooled=rows.pooled)

    return Plan(plan.variants, combine)


def _in_columns(texts: Sequence[Weighted], length: int) -> Iterator[Encoding]:
    """Rows of some texts as those of their columns."""
    hidden = torch.cat([text.hidden for text in texts]).unflatten(1, (-1, length))  # [texts, chunks, 77, dim]
    pooled = torch.cat([text.pooled for text in texts])
    return (Encoding(rows, pooled) for rows in hidden.unbind(1))


def _of_text(columns: Sequence[Weighted], index: int, read: ReadPrompt) -> Weighted:
    """Share of one text in every column."""
    hidden = torch.cat([column.hidden[index : index + 1] for column in columns], dim=1)  # [1, 77 * chunks, dim]
    # issues found in a column are reported once, with the first text
    found = [issue for column in columns for issue in column.issues] if index == 0 else []
    places = all_places(len(columns), read.layout.length)
    return Weighted(hidden, columns[0].pooled[index : index + 1], places, tuple(dict.fromkeys(found)))


def visible_fn(options: EncodeOptions, layout: ChunkLayout) -> VisibleFn:
    """Mask of padding policy and hidden phrases together, for every encoding of a prompt."""
    of_padding, of_phrases = padding_visible(options.padding, layout), phrases_visible(options)

    def visible(chunk: TokenChunk) -> Visible:
        return both(of_padding(chunk), of_phrases(chunk))

    return visible


def without_padding(weighted: Weighted, read: ReadPrompt) -> Weighted:
    """Drop the rows of padding, if the prompt's options say so."""
    kept = read.kept
    if kept is None:
        return weighted
    if len(weighted.places) != len(kept) * read.layout.length:  # a scheme that leaves out rows by itself
        message = "Padding cannot be dropped here, because this scheme leaves out other rows: all of its rows are kept."
        return weighted._replace(issues=(*weighted.issues, Issue("padding-kept", message, Span(0, 0))))
    rows = [row for row, place in enumerate(weighted.places) if place.position < kept[place.chunk]]
    return weighted._replace(hidden=weighted.hidden[:, rows], places=[weighted.places[row] for row in rows])


def _without_begin(weighted: Weighted) -> Weighted:
    """Drop the rows of positions that the encoder does not have."""
    rows = [row for row, place in enumerate(weighted.places) if place.position]
    return weighted._replace(hidden=weighted.hidden[:, rows], places=[weighted.places[row] for row in rows])


def _with_eos_rows(weighted: Weighted, chunks: Sequence[TokenChunk], rule: str, layout: ChunkLayout) -> Weighted:
    """Replace the first EOS row of every chunk by that of the first chunk, or by the mean of them."""
    if rule == "own" or len(chunks) == 1 or len(weighted.places) != len(chunks) * layout.length:
        return weighted
    ends = {Place(index, chunk.plain_ids.index(layout.eos_id)) for index, chunk in enumerate(chunks)}
    rows = [row for row, place in enumerate(weighted.places) if place in ends]
    hidden = weighted.hidden.clone()
    hidden[:, rows] = hidden[:, rows[:1]] if rule == "first" else hidden[:, rows].mean(1, keepdim=True)
    return weighted._replace(hidden=hidden)


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
    wanted: list[list[int]] = []
    calls: list[Call | None] = []
    for variant in variants:
        wanted.append([numbers.setdefault(one, len(numbers)) for one in variant.asks()])
        calls.append(variant.call if keeps_calls else None)
    asks = list(numbers)
    left = Counter(number for some, call in zip(wanted, calls, strict=True) if call is None for number in some)
    waiting = _waiting(wanted, calls)
    known: dict[int, Encoding] = {}

    def run(some: Sequence[int]) -> Encoding:
        if check is not None:
            check()
        encoding = _called([asks[number] for number in some], encode)
        rows = map(Encoding, encoding.hidden, encoding.pooled)
        known.update((number, row) for number, row in zip(some, rows, strict=True) if left[number])
        return encoding

    for index, some in enumerate(wanted):
        if calls[index] == "goes on":
            continue
        if calls[index] == "starts":
            end = next((i for i in range(index + 1, len(calls)) if calls[i] != "goes on"), len(calls))
            encoding = run([number for part in wanted[index:end] for number in part])
            sizes = [len(part) for part in wanted[index:end]]
            yield from map(Encoding, encoding.hidden.split(sizes), encoding.pooled.split(sizes))
            continue
        while any(number not in known for number in some):
            run(_batch(waiting, asks, max_chunks))
        yield Encoding(*map(torch.stack, zip(*(known[number] for number in some), strict=True)))
        left.subtract(some)
        for number in some:
            if not left[number]:
                known.pop(number, None)


def _waiting(wanted: Sequence[Sequence[int]], calls: Sequence[Call | None]) -> deque[int]:
    """Encodings that no call makes before they are needed, in the order in which they are needed."""
    is_seen: set[int] = set()
    waiting: deque[int] = deque()
    for some, call in zip(wanted, calls, strict=True):
        if call is None:
            waiting.extend(dict.fromkeys(number for number in some if number not in is_seen))
        is_seen.update(some)
    return waiting


def _batch(waiting: deque[int], asks: Sequence[Ask], max_chunks: int) -> list[int]:
    """Take the next encodings that can share a call."""
    batch = [waiting.popleft()]
    while waiting and len(batch) < max_chunks and asks[waiting[0]].is_causal == asks[batch[0]].is_causal:
        batch.append(waiting.popleft())
    return batch


def _called(asks: Sequence[Ask], encode: EncodeFn) -> Encoding:
    """Call the encoder once."""
    ids = [one.ids for one in asks]
    return encode(ids, mask_tensor([one.visible for one in asks], len(ids[0])), is_causal=asks[0].is_causal)
