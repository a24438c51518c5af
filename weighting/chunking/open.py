"""Encoders that take a text of any length, such as T5: everything up to a BREAK is one chunk."""

from __future__ import annotations

from ..text.chunks import ChunkContext, Chunked, Token, TokenChunk, tokens_by_part
from ..text.prompt import Prompt


def chunk_open(prompt: Prompt, context: ChunkContext) -> Chunked:
    """Cut at BREAK alone. Each chunk is as long as its text; its first token stands for BOS, which T5 has not."""
    layout = context.layout
    contents: list[list[Token]] = [[]]
    for tokens in tokens_by_part(prompt, context.tokenize):
        if tokens is None:
            contents.append([])
        else:
            contents[-1] += tokens
    if len(contents) > 1 and not contents[-1]:  # a BREAK at the end begins nothing
        contents.pop()
    return Chunked(
        tuple(TokenChunk((Token(layout.bos_id), *content, Token(layout.eos_id)), len(content)) for content in contents),
        (),
    )
