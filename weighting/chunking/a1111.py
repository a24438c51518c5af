"""A1111's way of cutting a prompt: at 75 tokens or at a comma not far before, and at BREAK.

Source: docs/weighting.md, "Chunks"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from ..chunks import ChunkContext, Chunked, ChunkLayout, Token, TokenChunk, close_chunk, fragment_tokens
from ..prompt import Prompt


def chunk_a1111(prompt: Prompt, context: ChunkContext) -> Chunked:
    """Cut as the A1111 WebUI does.

    When a 76th token arrives that is no comma, and the last comma is at most ``comma_backtrack`` tokens back, the cut
    falls behind that comma. BREAK ends the chunk.

    Args:
        prompt: The parsed prompt.
        context: Tokenizer, layout and ``comma_backtrack``.

    Returns:
        The chunks.
    """
    layout, backtrack = context.layout, context.comma_backtrack
    chunks: list[TokenChunk] = []
    content: list[Token] = []
    last_comma = -1

    def close() -> None:
        nonlocal content, last_comma
        chunks.append(_blank_behind_eos(close_chunk(content, layout), layout))
        content, last_comma = [], -1

    for token in fragment_tokens(prompt, context.tokenize):
        if token is None:
            close()
            continue
        if token.id == layout.comma_id:
            last_comma = len(content)
        elif backtrack and len(content) == layout.capacity and last_comma >= 0:
            cut = last_comma + 1
            if len(content) - last_comma <= backtrack:
                moved = content[cut:]
                content = content[:cut]
                close()
                content = moved
        if len(content) == layout.capacity:
            close()
        content.append(token)
    if content or not chunks:
        close()
    return Chunked(tuple(chunks), ())


def _blank_behind_eos(chunk: TokenChunk, layout: ChunkLayout) -> TokenChunk:
    """Where padding is not EOS, A1111 blanks everything behind the first EOS id, also one the user typed."""
    ids = chunk.ids
    if layout.pad_id == layout.eos_id or ids.index(layout.eos_id) == chunk.num_content + 1:
        return chunk
    first = ids.index(layout.eos_id)
    behind = (token._replace(id=layout.pad_id) for token in chunk.tokens[first + 1 :])
    return TokenChunk((*chunk.tokens[: first + 1], *behind), chunk.num_content)
