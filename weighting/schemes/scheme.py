"""Weighting schemes: their record, their input and output, and the steps they share.

Notation here and in every scheme: C = the encoding of a prompt's chunks, ``[chunks, 77, dim]``; w = the weights,
``[chunks, 77, 1]``; E = the encoding of the empty prompt, ``[77, dim]``, the same for every chunk.

Source: docs/reference/schemes.md, "Schemes".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...encoder.encoding import Encoding
from ..chunking import ChunkedSection
from ..chunking.t5 import T5Rule
from ..plan import Plan, Variant, Visible, VisibleFn
from ..text.chunks import CLIP_L_LAYOUT, ChunkLayout, Token, TokenChunk, close_chunk
from ..text.prompt import Fragment, Issue, Issues, Prompt, Span

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def hide_nothing(chunk: TokenChunk) -> Visible:
    """`VisibleFn` under which every position sees everything that causality allows."""
    del chunk


@dataclass(frozen=True)
class SchemeOptions:
    """Options of a scheme, besides the chunks."""

    law: str = "nested"
    """masked_blend: how several faded words share the result."""
    mask_method: str = "attention"
    """masked_blend: how words are made absent."""
    filler_id: int = 266
    """masked_blend: id that replaces an absent token with the method ``token``; 266 is ``+``."""
    emphasis: str | None = None
    """masked_blend: the WebUI's emphasis mode by which weights above 1 act; None: they act as in the scheme
    ``comfy``."""
    pooled: str = "unweighted"
    """Whether a scheme that blends encodings blends their pooled vectors too (``weighted``). Schemes that work row by
    row leave them unchanged either way: a pooled vector is the row of EOS, whose weight is always 1. ``raw text`` is
    not for schemes: `plan_prompt` handles it."""
    visible_in: VisibleFn = hide_nothing
    """Mask in every encoding of the prompt, e.g. of padding. The empty prompt is always encoded unmasked."""
    layout: ChunkLayout = CLIP_L_LAYOUT
    """Fixed parts of a chunk."""
    strength: float = 1.0
    """negpip: scale of weights, as in `effective_weight`."""


DEFAULT_OPTIONS = SchemeOptions()


class ReadTerm(NamedTuple):
    """A term that the scheme ``negpip_apart`` encodes separately."""

    chunks: tuple[TokenChunk, ...]
    """Its chunks with their final weights."""
    num_tokens: int
    """Number of its tokens, including the padding between chunks."""


class CutTerm(NamedTuple):
    """A term as it is encoded. All spans are positions in the whole prompt."""

    fragment: Fragment
    """``(text:1.2)``: the text with the absolute weight."""
    text: Fragment
    """The text alone."""
    span: Span
    """The stretch cut out."""


class ReadOptions(Protocol):
    """Fields of `EncodeOptions` that act before or after the chunks are weighted."""

    @property
    def finest_step(self) -> str:
        """repeat: maximum number of steps from weight 0 to 1."""
        ...

    @property
    def strength(self) -> float:
        """negpip: scale of weights."""
        ...


class SchemePrompt(Protocol):
    """The parts of a `ReadPrompt` that schemes use; its own module needs the table of schemes."""

    @property
    def prompt(self) -> Prompt:
        """Fragments, breaks and marks."""
        ...

    @property
    def sections(self) -> tuple[ChunkedSection, ...]:
        """Chunks with their final weights."""
        ...

    @property
    def chunks(self) -> tuple[TokenChunk, ...]:
        """All chunks, terms' last."""
        ...

    @property
    def options(self) -> ReadOptions:
        """Options it was read with."""
        ...

    @property
    def layout(self) -> ChunkLayout:
        """Fixed parts of its chunks."""
        ...

    @property
    def kept(self) -> tuple[int, ...] | None:
        """Number of rows kept of each chunk; None: all."""
        ...

    @property
    def terms(self) -> tuple[ReadTerm, ...]:
        """Terms cut out of the prompt."""
        ...

    @property
    def has_signs(self) -> bool:
        """Whether any row has the sign -1."""
        ...


class RowOrigin(NamedTuple):
    """Origin of a row of a result."""

    chunk: int
    """Chunk of the result, counted from 0."""
    position: int
    """Position in the chunk, counted from 0, which is BOS."""


class WeightedRows(NamedTuple):
    """The result of a scheme."""

    hidden: Tensor
    """``[1, rows, dim]``."""
    pooled: Tensor
    """``[1, pooled_dim]``."""
    places: Sequence[RowOrigin]
    """Origin of each row, in text order; most schemes return all rows of every chunk."""
    issues: Issues = ()
    """Problems with the request."""
    signs: tuple[float, ...] = ()
    """Factor of each row's value in the attention that reads it, 1 or -1; empty if all are 1."""

    def of_rows(self, rows: Sequence[int]) -> WeightedRows:
        """The result with some rows alone, each as often as it is named."""
        hidden = self.hidden.index_select(1, places_of(rows, self.hidden))
        return self._replace(hidden=hidden, places=[self.places[row] for row in rows])


def all_places(num_chunks: int, length: int) -> list[RowOrigin]:
    """Places of all rows of some chunks."""
    return [RowOrigin(chunk, position) for chunk in range(num_chunks) for position in range(length)]


def weighted_rows(hidden: Tensor, pooled: Tensor, issues: Issues = ()) -> WeightedRows:
    """Result with all rows of every chunk, from hidden states ``[chunks, 77, dim]``."""
    return WeightedRows(hidden.flatten(0, 1).unsqueeze(0), pooled, all_places(*hidden.shape[:2]), issues)


def whole_prompt(chunks: Sequence[TokenChunk], options: SchemeOptions) -> Variant:
    """The prompt itself, in the same call as in a host."""
    visible = tuple(map(options.visible_in, chunks))
    return Variant(tuple(chunks), visible, "the prompt", call="starts")


def empty_prompt(options: SchemeOptions) -> Variant:
    """E, encoded in the same call as the prompt before it, last and without a mask, as in ComfyUI."""
    chunk = close_chunk([], options.layout)
    return Variant((chunk,), (None,), "the empty prompt", is_aside=True, call="goes on")


def empty_prompt_aside(options: SchemeOptions) -> Variant:
    """E, batched with any other encodings, for a step after a scheme."""
    return replace(empty_prompt(options), call=None)


def plan_rows(
    chunks: Sequence[TokenChunk], options: SchemeOptions, fold: Callable[[Encoding], WeightedRows]
) -> Plan[WeightedRows]:
    """Plan of a scheme that needs only C."""
    return Plan(lambda: [whole_prompt(chunks, options)], lambda rows: fold(next(rows)))


def plan_with_empty(
    chunks: Sequence[TokenChunk], options: SchemeOptions, move: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Plan[WeightedRows]:
    """Plan of a scheme that moves rows by ``move(C, E, w)``, and leaves C alone if every weight is 1."""
    if not has_weights(chunks):
        return plan_rows(chunks, options, lambda rows: weighted_rows(rows.hidden, rows.pooled[:1]))

    def combine(results: Iterator[Encoding]) -> WeightedRows:
        rows, empty = next(results), next(results)
        hidden = move(rows.hidden, empty.hidden[0], weights_of(chunks, rows.hidden))
        return weighted_rows(hidden, rows.pooled[:1])

    return Plan(lambda: [whole_prompt(chunks, options), empty_prompt(options)], combine)


def weights_of(chunks: Sequence[TokenChunk], like: Tensor) -> Tensor:
    """Weights as ``[chunks, 77, 1]``, with the type and device of ``like``."""
    return sent([chunk.weights for chunk in chunks], like).unsqueeze(-1)


MOST_FILLS = 6
"""Most runs of equal numbers that `sent` fills in on the device."""


def sent(numbers: Sequence[Any], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers on the device of ``like``, with its type or another one, without waiting for a GPU.

    Where few differ from the others, as weights do, a GPU fills them in, so that a prompt is copied to it only once.
    """
    import torch  # not above: commands that encode nothing read the table of schemes

    made = torch.tensor(numbers, dtype=dtype or like.dtype)
    if like.device.type == "cpu":
        return made
    values, counts = (part.tolist() for part in made.flatten().unique_consecutive(return_counts=True))
    usual = max(zip(counts, values, strict=True), default=(0, 0))[1]
    runs = zip(values, counts, accumulate(counts), strict=True)
    fills = [(value, end - count, count) for value, count, end in runs if value != usual]
    if len(fills) > MOST_FILLS:
        return (made.pin_memory() if like.is_cuda else made).to(like.device, non_blocking=True)
    filled = like.new_full((made.numel(),), usual, dtype=made.dtype)
    for value, start, count in fills:
        filled.narrow(0, start, count).fill_(value)
    return filled.view(made.shape)


def places_of(rows: Sequence[int], like: Tensor) -> Tensor:
    """Numbers of rows, on the device of ``like``."""
    import torch

    return sent(rows, like, torch.long)


def effective_weight(weight: float, strength: float) -> float:
    """Scale a weight: ``1 + strength (weight - 1)``, and the weight itself at strength 1.

    >>> effective_weight(-1.0, 1.0), effective_weight(-1.0, 0.25)
    (-1.0, 0.5)
    """
    return weight if strength == 1.0 else 1.0 + strength * (weight - 1.0)


def negative_weight_issues(chunks: Sequence[TokenChunk], acting: str) -> tuple[Issue, ...]:
    """Issues for a scheme without weights below 0: one for each fragment that has one.

    Schemes that equal a program treat such weights as it does, and have no such issue.
    """
    first: dict[tuple[int, float], Token] = {}
    for token in (token for chunk in chunks for token in chunk.content if token.weight < 0):
        first.setdefault((token.fragment, token.weight), token)
    message = "The weight {:g} acts as {}. To take a word away, choose the scheme negpip."
    return tuple(Issue("negative-weight", message.format(token.weight, acting), token.at) for token in first.values())


def has_weights(chunks: Sequence[TokenChunk]) -> bool:
    """Whether any weight differs from 1."""
    return any(weight != 1.0 for chunk in chunks for weight in chunk.weights)


def lerp(hidden: Tensor, empty: Tensor, weights: Tensor) -> Tensor:
    """``E + (C - E) w`` if w differs from 1, else C.

    Args:
        hidden: C, ``[chunks, 77, dim]``.
        empty: E, ``[77, dim]``.
        weights: w, ``[chunks, 77, 1]``.

    Returns:
        ``[chunks, 77, dim]``.
    """
    return hidden.where(weights == 1.0, (hidden - empty) * weights + empty)


SchemeFn = Callable[[Sequence[TokenChunk], SchemeOptions], Plan[WeightedRows]]
FinishFn = Callable[[Plan[WeightedRows], SchemePrompt, SchemeOptions], Plan[WeightedRows]]


@dataclass(frozen=True)
class Scheme:
    """A row of the table: a weighting scheme as users choose it, and everything that is true of it alone."""

    plan: SchemeFn
    """Function from ``(chunks, options)`` to the plan of a `WeightedRows`."""
    equals: str
    """Program whose numbers it reproduces."""
    short: str
    """Effect of a weight in a few plain words, shown after its name."""
    advice: str
    """Example of a weight and its effect, in plain sentences, shown on pages where it is chosen."""
    choose: str = ""
    """Case in which to choose it, for the guide."""
    formula: str = ""
    """Row j of the result, for the reference: C is the encoding of the prompt, E the empty prompt's."""
    cost: str = ""
    """Number of chunks encoded for a prompt of n chunks, for the reference."""
    options: tuple[str, ...] = ()
    """Fields of `EncodeOptions` that count with it alone."""
    is_compared: bool = True
    """Whether `workshop.parity` compares it with its program: not if it has none, or one that only acts in a host's
    sampler, where tests/hosts compare it."""
    is_padded: bool = True
    """Whether its chunks are filled with padding. If not, the result has no rows after the EOS that closes a chunk."""
    is_weighing: bool = True
    """Whether it applies weights."""
    is_repeating: bool = False
    """Whether weights change the number of rows."""
    by_host: bool = False
    """Whether ComfyUI can apply it by itself, to prompts for encoders without a CLIP text tower."""
    bound_as_cutoff: bool = False
    """Whether it makes no difference to mix rows before it, as bound phrases do, or after it, as Cutoff does."""
    in_columns: SchemeFn | None = None
    """Equivalent for a column, i.e. the same chunk of several texts, if the WebUI has the scheme; it needs only the
    rows."""
    cut: Callable[[Fragment], tuple[Fragment, Sequence[CutTerm]]] | None = None
    """Function that cuts out the terms to encode separately, before a text is read."""
    issues: Callable[[SchemePrompt], Iterable[Issue]] = lambda _: ()
    """Issues about a prompt, before tags and comments are added to it."""
    left_out_issues: Callable[[Sequence[Span]], Iterable[Issue]] = lambda _: ()
    """Issues about the tags and comments removed from a prompt."""
    check: Callable[[Mapping[str, SchemePrompt]], None] | None = None
    """Function that raises a ValueError if it cannot weight a prompt as read by each tower, by name."""
    finish: FinishFn = lambda plan, parsed, options: plan
    """Last step, for the rows of the whole prompt: from ``(plan, read, options)`` to another plan."""
    has_signs: Callable[[SchemePrompt], bool] | None = None
    """Function that tells whether it gives any row of a prompt the sign -1; None: it has no signs."""
    t5: T5Rule | None = None
    """Rule by which its program weighs the rows of T5, if it does."""

    @property
    def is_signed(self) -> bool:
        """Whether rows can have signs, which hosts must carry to the attention."""
        return self.has_signs is not None
