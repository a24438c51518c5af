"""The one way through: text and options in, chunks out; chunks and an encode function in, conditioning out.

Every front end calls `read_prompt`, which needs no model, and `encode_prompt`, which needs nothing of a model but an
encode function. A host with several text encoders calls the pair once for each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from torch import Tensor

from .chunking import CHUNKINGS, ChunkedSection, chunk_prompt, chunks_of
from .chunks import CLIP_L_LAYOUT, ChunkContext, ChunkLayout, Token, TokenChunk, Tokenize, close_chunk
from .embeddings import Embeddings
from .normalize import NORMALIZATIONS, normalize
from .padding import PADDINGS, padding_mask_fn
from .prompt import Issue, Prompt
from .scheme_api import (
    LAWS,
    MASK_METHODS,
    POOLED,
    EncodeFn,
    Law,
    MaskMethod,
    Pooled,
    SchemeOptions,
    Weighted,
)
from .schemes import SCHEMES
from .sections import combine_sections
from .syntax import SYNTAXES, parse

EosRows = Literal["own", "first", "mean"]
EOS_ROWS: tuple[EosRows, ...] = get_args(EosRows)
"""What stands in the row of each chunk's first EOS, default first: its own state, the first chunk's, the mean of all.
The others are compel's COPY_FIRST_CLS_TOKEN and MERGE_CLS_TOKENS."""

CHUNKING_CHOICES = ("as syntax", *CHUNKINGS)
"""Chunk rules as menus show them, default first."""

MAX_WEIGHT = 1e30
"""Larger weights are clamped to this: times a hidden state they would no longer fit a float32."""


MAX_ISSUES = 100
"""Of more problems than this the rest are only counted."""


@dataclass(frozen=True)
class EncodeOptions:
    """Everything a user can choose about one prompt.

    Raises:
        ValueError: If a choice is not one of those allowed; the message lists them.
    """

    syntax: str = "comfy"
    """How weights are written; a key of `SYNTAXES`."""
    scheme: str = "comfy"
    """What a weight does; a key of `SCHEMES`."""
    normalization: str = "none"
    """What happens to the weights before; one of `NORMALIZATIONS`."""
    chunking: str = "as syntax"
    """Where long prompts are cut; one of `CHUNKING_CHOICES`."""
    padding: str = "attend"
    """What the encoder may see of padding; one of `PADDINGS`."""
    pooled: Pooled = "unweighted"
    """``unweighted``: of the first chunk; ``weighted``: masked_blend and its like blend pooled vectors too; ``raw
    text``: of the text as typed, weights and brackets included, cut to one chunk, as the compel library does."""
    law: Law = "nested"
    """masked_blend: how several faded words share the result."""
    mask_method: MaskMethod = "attention"
    """masked_blend: what absent means."""
    filler: str = "+"
    """masked_blend, method ``token``: the text that stands in for an absent token; exactly one token long."""
    comma_backtrack: int = 20
    """Chunk rule a1111: how many tokens back a comma may be to be cut at; 0 to 74."""
    eos_rows: EosRows = "own"
    """Prompts of several chunks: what stands in their EOS rows; one of `EOS_ROWS`."""
    quirks: bool = False
    """Chunk rule a1111: do as the program does also where that loses an embedding's vectors."""
    strict: bool = False
    """Raise where the program of that syntax raises, instead of reporting an issue."""

    def __post_init__(self) -> None:
        for name, allowed in (
            ("syntax", SYNTAXES),
            ("scheme", SCHEMES),
            ("normalization", NORMALIZATIONS),
            ("chunking", CHUNKING_CHOICES),
            ("padding", PADDINGS),
            ("pooled", POOLED),
            ("law", LAWS),
            ("mask_method", MASK_METHODS),
            ("eos_rows", EOS_ROWS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of: {', '.join(allowed)}; got {getattr(self, name)!r}")


class ReadPrompt(NamedTuple):
    """A prompt as far as it gets without a model."""

    prompt: Prompt
    """Fragments, breaks and marks."""
    sections: tuple[ChunkedSection, ...]
    """Chunks with their final weights; one section of one prompt, unless the syntax has ``.and`` or ``.blend``."""
    issues: tuple[Issue, ...]
    """Everything the author should know, in the order of the text."""
    options: EncodeOptions
    """How it was read."""
    layout: ChunkLayout
    """The fixed parts of its chunks."""

    @property
    def chunks(self) -> tuple[TokenChunk, ...]:
        """All chunks in reading order, at least one."""
        return chunks_of(self.sections)


class EncodedPrompt(NamedTuple):
    """A prompt's conditioning."""

    hidden: Tensor
    """``[1, rows, dim]``; 77 rows for each chunk, unless the scheme or a ``.blend`` makes them fewer."""
    pooled: Tensor
    """``[1, pooled_dim]``."""
    read: ReadPrompt
    """What was encoded; its issues include those of the scheme."""
    num_encodings: int
    """How many chunks went through the encoder for it."""


def read_prompt(
    text: str,
    options: EncodeOptions,
    tokenize: Tokenize,
    layout: ChunkLayout = CLIP_L_LAYOUT,
    *,
    embeddings: Embeddings | None = None,
) -> ReadPrompt:
    """Parse, tokenize, cut into chunks and normalise.

    Args:
        text: Any string.
        options: How.
        tokenize: The encoder's tokenizer.
        layout: The encoder's chunk layout; CLIP-L's by default.
        embeddings: What the prompt can name; without them, names are plain text.

    Returns:
        The chunks, their weights final and finite.

    Raises:
        PromptError: In strict mode, where the reference raises.
        ValueError: If an option is out of range.
    """
    prompt = parse(text, options.syntax, strict=options.strict)
    context = ChunkContext(tokenize, layout, options.comma_backtrack, embeddings, options.quirks)
    chunked, chunk_issues = chunk_prompt(prompt, context, options.chunking)
    weight_issues: list[Issue] = []

    def final(chunks: tuple[TokenChunk, ...]) -> tuple[TokenChunk, ...]:
        result, found = _clamped(normalize(chunks, options.normalization))
        weight_issues.extend(found)
        return result

    sections = tuple(replace(section, prompts=tuple(map(final, section.prompts))) for section in chunked)
    issues = sorted([*prompt.issues, *chunk_issues, *weight_issues], key=lambda issue: issue.span)
    return ReadPrompt(prompt, sections, _at_most(MAX_ISSUES, issues), options, layout)


def encode_prompt(read: ReadPrompt, encode: EncodeFn, tokenize: Tokenize) -> EncodedPrompt:
    """Encode a prompt by the scheme its options name.

    Args:
        read: The prompt.
        encode: The encoder.
        tokenize: Its tokenizer, for the filler and for pooled vectors of the raw text.

    Returns:
        The conditioning.

    Raises:
        ValueError: If the filler is not exactly one token.
    """
    options = read.options
    scheme_options = SchemeOptions(
        law=options.law,
        mask_method=options.mask_method,
        filler_id=_filler_id(options.filler, tokenize),
        pooled=options.pooled,
        mask_of=padding_mask_fn(options.padding, read.layout),
        layout=read.layout,
    )

    def apply(chunks: Sequence[TokenChunk]) -> Weighted:
        weighted = SCHEMES[options.scheme].apply(chunks, encode, scheme_options)
        return weighted._replace(hidden=_with_eos_rows(weighted.hidden, chunks, options.eos_rows, read.layout))

    weighted = combine_sections(read.sections, apply, encode, scheme_options)
    if options.pooled == "raw text":
        ids = [token_id for token_id, _, _ in tokenize(read.prompt.source)][: read.layout.capacity]
        raw = close_chunk([Token(token_id) for token_id in ids], read.layout)
        weighted = weighted._replace(pooled=encode([raw.ids]).pooled, num_encodings=weighted.num_encodings + 1)
    return EncodedPrompt(
        hidden=weighted.hidden,
        pooled=weighted.pooled,
        read=read._replace(issues=(*read.issues, *weighted.issues)),
        num_encodings=weighted.num_encodings,
    )


def _with_eos_rows(hidden: Tensor, chunks: Sequence[TokenChunk], rule: EosRows, layout: ChunkLayout) -> Tensor:
    """Put the first EOS row, or the mean of them, into the first EOS row of every chunk."""
    if rule == "own" or len(chunks) == 1 or hidden.shape[1] != len(chunks) * layout.length:
        return hidden
    places = [row * layout.length + chunk.plain_ids.index(layout.eos_id) for row, chunk in enumerate(chunks)]
    hidden = hidden.clone()
    hidden[:, places] = hidden[:, places[:1]] if rule == "first" else hidden[:, places].mean(1, keepdim=True)
    return hidden


def _filler_id(filler: str, tokenize: Tokenize) -> int:
    tokens = tokenize(filler)
    if len(tokens) != 1:
        raise ValueError(f"the filler must be exactly one token, such as '+'; {filler!r} is {len(tokens)}")
    return tokens[0][0]


def _at_most(count: int, issues: Sequence[Issue]) -> tuple[Issue, ...]:
    """The first issues, and one that counts the others."""
    if len(issues) <= count:
        return tuple(issues)
    rest = Issue("more-problems", f"{len(issues) - count} more problems are not listed.", issues[count].span)
    return (*issues[:count], rest)


def _clamped(chunks: Sequence[TokenChunk]) -> tuple[tuple[TokenChunk, ...], list[Issue]]:
    """Weights that a float32 can carry; one issue for each fragment where that changed something."""
    issues: dict[int, Issue] = {}

    def clamped(token: Token) -> Token:
        if abs(token.weight) <= MAX_WEIGHT:
            return token
        weight = 1.0 if math.isnan(token.weight) else math.copysign(MAX_WEIGHT, token.weight)
        issues[token.fragment] = Issue(
            "clamped-weight", f"The weight {token.weight:g} cannot be used: {weight:g} is.", token.place
        )
        return token._replace(weight=weight)

    result = tuple(replace(chunk, tokens=tuple(map(clamped, chunk.tokens))) for chunk in chunks)
    return result, list(issues.values())
