"""Prompts for text encoders other than CLIP: the tokens that are made of their characters.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ....weighting.chunking import ChunkedSection
from ....weighting.options import EncodeOptions
from ....weighting.phrases.words import Words
from ....weighting.reading.characters import Character
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.text.chunks import ChunkLayout, Token, TokenChunk
from ....weighting.text.embeddings import TokenId
from ....weighting.text.prompt import Issue, Prompt, Span
from ..families.connectors import UNCONNECTED, rows_of_connectors
from ..families.families import rows_of_anima

Part = Mapping[str, Words]
"""Words and rows by text encoder; several stand side by side, cut to the length of the shortest."""


def num_rows_read(rows: Tensor, values: Mapping[str, Any]) -> int:
    """Number of text rows that a model reads of an entry of a conditioning: ``[1, rows, dim]`` and its values.

    HiDream also reads Llama's rows. Anima's model makes its rows from these and T5's ids; LTX-2's model adds some.
    """
    ids, llama = values.get("t5xxl_ids"), values.get("conditioning_llama3")  # llama: [1, layers, rows, dim]
    num_rows = rows.shape[1] if ids is None else rows_of_anima(len(ids))
    if values.get(UNCONNECTED):
        num_rows = rows_of_connectors(num_rows)
    return num_rows + (0 if llama is None else llama.shape[2])


def token_of(token_id: TokenId, characters: Sequence[Character], issues: list[Issue]) -> Token:
    """A token with the weight of its text, or without a position if it belongs to the template."""
    characters = [character for character in characters if character.text.strip()] or characters
    if not characters:
        return Token(token_id)
    first = characters[0]
    span = Span(first.place, characters[-1].place + 1)
    if any(character.weight != first.weight for character in characters):
        typed = "".join(character.text for character in characters)
        message = f"“{typed}” is one token of this text encoder: all of it gets the weight {first.weight:g}."
        issues.append(Issue("one-token", message, span))
    return Token(token_id, first.weight, first.fragment + 1, first.fragment, span)


def as_read(prompt: Prompt, tokens: Sequence[Token], issues: Sequence[Issue], options: EncodeOptions) -> ReadPrompt:
    """The tokens of the prompt as one chunk that contains just them."""
    chunk = TokenChunk((Token(0), *tokens, Token(0)), len(tokens))
    layout = ChunkLayout(max(3, len(chunk.tokens)), is_open=True)
    every = tuple(sorted([*prompt.issues, *issues], key=lambda issue: issue.span))
    return ReadPrompt(prompt, (ChunkedSection(((chunk,),)),), every, options, layout)
