"""The one way through: text and options in, chunks out; chunks and an encode function in, conditioning out.

Every front end calls `read_prompt`, which needs no model, and `encode_prompt`, which needs nothing of a model but an
encode function. A model with several text towers goes through ``towers.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ..encoder.masks import combine
from .chunks import ChunkLayout, Token, TokenChunk, Tokenize, close_chunk
from .hiding import hidden_mask_fn
from .options import CHUNKING_CHOICES, EOS_ROWS, EncodeOptions, EosRows
from .padding import padding_mask_fn
from .prompt import Issue, Span
from .reading import MAX_ISSUES, MAX_WEIGHT, ReadPrompt, read_prompt
from .scheme_api import EncodeFn, MaskFn, SchemeOptions, Weighted
from .schemes import SCHEMES
from .sections import combine_sections

__all__ = [
    "CHUNKING_CHOICES",
    "EOS_ROWS",
    "MAX_ISSUES",
    "MAX_WEIGHT",
    "EncodeOptions",
    "EncodedPrompt",
    "ReadPrompt",
    "encode_prompt",
    "mask_fn",
    "read_prompt",
    "without_padding",
]


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
        mask_of=mask_fn(options, read.layout),
        layout=read.layout,
    )

    if not options.is_causal:
        encode = partial(encode, is_causal=False)

    def apply(chunks: Sequence[TokenChunk]) -> Weighted:
        weighted = SCHEMES[options.scheme].apply(chunks, encode, scheme_options)
        return weighted._replace(hidden=_with_eos_rows(weighted.hidden, chunks, options.eos_rows, read.layout))

    weighted = combine_sections(read.sections, apply, encode, scheme_options)
    if options.pooled == "raw text":
        ids = [token_id for token_id, _, _ in tokenize(read.prompt.source)][: read.layout.capacity]
        raw = close_chunk([Token(token_id) for token_id in ids], read.layout)
        weighted = weighted._replace(pooled=encode([raw.ids]).pooled, num_encodings=weighted.num_encodings + 1)
    if read.kept is not None:
        weighted = without_padding(weighted, read.kept, read.layout)
    return EncodedPrompt(
        hidden=weighted.hidden,
        pooled=weighted.pooled,
        read=read._replace(issues=(*read.issues, *weighted.issues)),
        num_encodings=weighted.num_encodings,
    )


def mask_fn(options: EncodeOptions, layout: ChunkLayout) -> MaskFn:
    """What padding policy and hidden phrases hide together, in every encoding of a prompt.

    Args:
        options: Of the prompt.
        layout: The fixed parts of its chunks.

    Returns:
        A function from chunks to a mask, ``[chunks, 1 or 77, 77]``, or None.
    """
    of_padding, of_phrases = padding_mask_fn(options.padding, layout), hidden_mask_fn(options)
    return lambda chunks: combine(of_padding(chunks), of_phrases(chunks))


def without_padding(weighted: Weighted, kept: Sequence[int], layout: ChunkLayout) -> Weighted:
    """Drop the padding's rows.

    Args:
        weighted: The result of a scheme.
        kept: How many rows of each chunk stay.
        layout: The fixed parts of a chunk.

    Returns:
        The rows of each chunk up to its EOS, or as many as asked for. All rows and an issue where the scheme has left
        out others.
    """
    if weighted.hidden.shape[1] != len(kept) * layout.length:  # a scheme that leaves rows out by itself
        message = "Padding cannot be dropped here, as this scheme leaves out other rows: all of its rows are kept."
        return weighted._replace(issues=(*weighted.issues, Issue("padding-kept", message, Span(0, 0))))
    rows = [layout.length * chunk + row for chunk, count in enumerate(kept) for row in range(count)]
    return weighted._replace(hidden=weighted.hidden[:, rows])


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
