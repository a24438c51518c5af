"""ComfyUI's way of cutting a prompt: groups of tokens are packed, and small ones kept whole.

A group is a weighted segment (``comfy segment``, since December 2024) or a word (``comfy word``, until then).

Source: docs/weighting.md, "Chunks"; behaviour of ComfyUI 0.29.0 and of its last revision before 2024-12-10.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..chunks import Chunked, ChunkLayout, Token, TokenChunk, Tokenize, close_chunk, tokens_of
from ..embeddings import EMBEDDING_PREFIX, EmbeddingVector, FindEmbedding, read_embedding
from ..prompt import Break, Fragment, Issue, Prompt, Span

LARGE_GROUP = 8
"""ComfyUI keeps groups of fewer tokens than this in one chunk."""

_WORD_BORDER = re.compile("[ \n]")
_EMBEDDING_BORDER = re.compile(rf"(?<=\s){EMBEDDING_PREFIX}")


def chunk_comfy_segment(
    prompt: Prompt,
    tokenize: Tokenize,
    layout: ChunkLayout,
    *,
    comma_backtrack: int = 20,
    find_embedding: FindEmbedding | None = None,
) -> Chunked:
    """Cut as ComfyUI does since December 2024: groups are weighted segments, split before ``embedding:``.

    Args:
        prompt: The parsed prompt.
        tokenize: The tokenizer.
        layout: The fixed parts of a chunk.
        comma_backtrack: Not used by this rule.
        find_embedding: Looks up ``embedding:name``; without it that is plain text.

    Returns:
        The chunks. A break, which ComfyUI does not have, starts a new chunk.
    """
    del comma_backtrack
    return _chunk_groups(prompt, layout, lambda part, index: _segment_groups(part, index, tokenize, find_embedding))


def chunk_comfy_word(
    prompt: Prompt,
    tokenize: Tokenize,
    layout: ChunkLayout,
    *,
    comma_backtrack: int = 20,
    find_embedding: FindEmbedding | None = None,
) -> Chunked:
    """Cut as ComfyUI did until December 2024: groups are words between spaces or newlines.

    Args:
        prompt: The parsed prompt.
        tokenize: The tokenizer.
        layout: The fixed parts of a chunk.
        comma_backtrack: Not used by this rule.
        find_embedding: Looks up ``embedding:name``; without it that is plain text.

    Returns:
        The chunks. A break, which ComfyUI does not have, starts a new chunk.
    """
    del comma_backtrack
    return _chunk_groups(prompt, layout, lambda part, index: _word_groups(part, index, tokenize, find_embedding))


class _Group(NamedTuple):
    tokens: list[Token]
    issue: Issue | None = None


def _chunk_groups(
    prompt: Prompt, layout: ChunkLayout, groups_of: Callable[[Fragment, int], Iterable[_Group]]
) -> Chunked:
    """Pack groups of tokens, keeping small ones whole. Words are numbered through the prompt, empty groups included."""
    chunks: list[TokenChunk] = []
    issues: list[Issue] = []
    content: list[Token] = []
    word = 0
    for index, part in enumerate(prompt.parts):
        if isinstance(part, Break):
            chunks.append(close_chunk(content, layout))
            content = []
            continue
        for group, issue in groups_of(part, index):
            if issue is not None:
                issues.append(issue)
                continue
            word += 1
            tokens = [token._replace(word=word) for token in group]
            is_large = len(tokens) >= LARGE_GROUP
            while len(content) + len(tokens) > layout.capacity:
                room = layout.capacity - len(content) if is_large else 0
                chunks.append(close_chunk(content + tokens[:room], layout))
                content, tokens = [], tokens[room:]
            content += tokens
    chunks.append(close_chunk(content, layout))
    return Chunked(tuple(chunks), tuple(issues))


def _segment_groups(
    part: Fragment, index: int, tokenize: Tokenize, find_embedding: FindEmbedding | None
) -> Iterator[_Group]:
    text, positions = part.text, part.positions
    borders = [match.start() for match in _EMBEDDING_BORDER.finditer(text)]
    for start, end in zip([0, *borders], [*borders, len(text)], strict=True):
        yield from _groups(text[start:end], positions[start:end], part.weight, index, tokenize, find_embedding)


def _word_groups(
    part: Fragment, index: int, tokenize: Tokenize, find_embedding: FindEmbedding | None
) -> Iterator[_Group]:
    text, positions = part.text, part.positions
    start = 0
    for match in _WORD_BORDER.finditer(text + " "):
        end = match.start()
        yield from _groups(text[start:end], positions[start:end], part.weight, index, tokenize, find_embedding)
        start = match.end()


def _groups(
    text: str,
    positions: Sequence[int],
    weight: float,
    fragment: int,
    tokenize: Tokenize,
    find_embedding: FindEmbedding | None,
) -> Iterator[_Group]:
    """The group or groups of one segment or word, which may start with an embedding's name."""
    if not text:
        return
    rests = [(0, len(text))]
    mention = None if find_embedding is None else read_embedding(text, find_embedding)
    if mention is not None:
        rests = mention.rests
        span = Span(positions[0], positions[mention.end - 1] + 1)
        if mention.vectors is None:
            message = f"There is no embedding “{mention.name}”: the name is left out, as in ComfyUI."
            yield _Group([], Issue("unknown-embedding", message, span))
        else:
            vectors = (EmbeddingVector(mention.name, i, vector) for i, vector in enumerate(mention.vectors))
            yield _Group([Token(vector, weight, 0, fragment, span) for vector in vectors])
    tokens = [
        token
        for start, end in rests
        for token in tokens_of(text[start:end], positions[start:end], weight, fragment, 0, tokenize)
    ]
    if rests:
        yield _Group(tokens)
