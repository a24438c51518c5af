"""A1111's chunk rule: cuts at 75 tokens or at a comma shortly before, and at BREAK; embeddings by bare names.

Source: docs/reference/chunks.md, "Chunks" and "Textual inversion"; behaviour of stable-diffusion-webui-forge dfdcbab6
(2025-06).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ..text.chunks import ChunkContext, Chunked, ChunkLayout, Token, TokenChunk, close_chunk, tokens_by_part
from ..text.embeddings import EMBEDDING_PREFIX, Embeddings, EmbeddingVector, LookUp, TokenId, look_up, plain_id
from ..text.phrases import phrases_of
from ..text.prompt import Issue, Prompt, Span


def chunk_a1111(prompt: Prompt, context: ChunkContext) -> Chunked:
    """Cut as the A1111 WebUI does.

    When a 76th token arrives that is not a comma, and the last comma is at most ``comma_backtrack`` tokens back, the
    cut is after that comma. BREAK ends the chunk. The vectors of an embedding stay together: if they do not fit, they
    start the next chunk.

    Tokens moved by the comma rule take their vectors along. In the program they do not, and ``quirks`` reproduces that:
    the vectors stay where they were, which is now padding, and the next chunk has the ids beneath them.
    """
    layout, backtrack = context.layout, context.comma_backtrack
    chunks: list[TokenChunk] = []
    issues: list[Issue] = []
    content: list[Token] = []
    last_comma = -1

    def close() -> None:
        nonlocal content, last_comma
        chunks.append(_covered(_blank_after_eos(close_chunk(content, layout), layout)))
        content, last_comma = [], -1

    for unit in _units(prompt, context, issues):
        if unit is None:
            close()
            continue
        if unit.first_id == layout.comma_id:
            last_comma = len(content)
        elif backtrack and len(content) == layout.capacity and last_comma >= 0:
            cut = last_comma + 1
            if len(content) - last_comma <= backtrack:
                moved = content[cut:]
                content = content[:cut]
                close()
                if context.quirks:
                    chunks[-1] = _covered(_with_left_vectors(chunks[-1], moved))
                    issues += _left_vector_issues(moved)
                    moved = [token._replace(id=plain_id(token.id)) for token in moved]
                content = moved
        if len(content) + len(unit.tokens) > layout.capacity:
            close()
        content += unit.tokens
    if content or not chunks:
        close()
    return Chunked(tuple(chunks), tuple(issues))


class _Unit(NamedTuple):
    """Unit that is not split: a token, or all vectors of an embedding."""

    tokens: Sequence[Token]
    first_id: int
    """Id of the text's first token, even if that is part of an embedding's name."""


def _units(prompt: Prompt, context: ChunkContext, issues: list[Issue]) -> Iterator[_Unit | None]:
    """Units of all fragments in order, None for a break; problems with embeddings go into ``issues``."""
    reader = None if context.embeddings is None else _NameReader(prompt.source, context.embeddings, context, issues)
    for tokens in tokens_by_part(prompt, context.tokenize):
        if tokens is None:
            yield None
        else:
            yield from reader.units(tokens) if reader else (_Unit([token], plain_id(token.id)) for token in tokens)


class _NameReader:
    """Finds embeddings by name among the tokens of a prompt."""

    def __init__(self, source: str, embeddings: Embeddings, context: ChunkContext, issues: list[Issue]) -> None:
        self._source = source
        self._embeddings = embeddings
        self._names = phrases_of(tuple(embeddings.names()), context.tokenize)
        self._capacity = context.layout.capacity
        self._issues = issues
        self._found: dict[str, LookUp] = {}

    def units(self, tokens: Sequence[Token]) -> Iterator[_Unit]:
        """Units of one fragment: at each position the longest matching name, or else the token."""
        ids = tuple(plain_id(token.id) for token in tokens)
        position = 0
        while position < len(tokens):
            first, length = tokens[position], 1
            unit = [first]
            for name, num_tokens in self._names.at(position, ids):
                span = Span(first.at.start, tokens[position + num_tokens - 1].at.end)
                vectors = self._vectors(name, span)
                if vectors:
                    unit, length = [first._replace(id=vector, span=span) for vector in vectors], num_tokens
                    break
            yield _Unit(unit, ids[position])
            position += length

    def _vectors(self, name: str, span: Span) -> list[TokenId]:
        """Vectors of an embedding, and the id 0 at positions without one; nothing if it cannot be used."""
        if name not in self._found:
            self._found[name] = look_up(name, self._embeddings)
        vectors, problem = self._found[name]
        if problem:
            message = f"{problem} The name is read as if there were no such file."
            self._issues.append(Issue("unusable-embedding", message, span))
        if vectors is None:
            return []
        count = getattr(vectors, "num_positions", len(vectors))
        if count > self._capacity:
            message = f"“{name}” has {count} vectors: the first {self._capacity} are used, no more fit a chunk."
            self._issues.append(Issue("embedding-cut", message, span))
        if self._source.endswith(EMBEDDING_PREFIX, 0, span.start):
            message = f"“{EMBEDDING_PREFIX}” is ComfyUI's: A1111 reads it as text, and then the embedding “{name}”."
            whole = Span(span.start - len(EMBEDDING_PREFIX), span.end)
            self._issues.append(Issue("comfy-embedding", message, whole))
        placed = min(count, self._capacity)
        ids = [EmbeddingVector(name, index, vector) for index, vector in enumerate(vectors[:placed])]
        if count <= placed:
            ids[-1] = replace(ids[-1], behind=tuple(vectors[count:]))
        return [*ids, *[0] * (placed - len(ids))]


def _covered(chunk: TokenChunk) -> TokenChunk:
    """Chunk in which vectors without a position cover the tokens that follow, to its end; other vectors stay."""
    tokens = list(chunk.tokens)
    ids = chunk.ids
    for position, last in enumerate(ids):
        if not isinstance(last, EmbeddingVector):
            continue
        for number, vector in enumerate(last.behind[: len(ids) - position - 1], 1):
            if not isinstance(ids[position + number], EmbeddingVector):
                token = tokens[position + number]
                covering = EmbeddingVector(last.name, last.index + number, vector, plain_id(token.id))
                tokens[position + number] = token._replace(id=covering)
    return replace(chunk, tokens=tuple(tokens))


def _with_left_vectors(chunk: TokenChunk, moved: Sequence[Token]) -> TokenChunk:
    """Chunk that keeps the vectors of tokens moved out of it at their old positions: in its padding."""
    tokens = list(chunk.tokens)
    for position, token in enumerate(moved, 1 + chunk.num_content):
        if isinstance(token.id, EmbeddingVector):
            vector = replace(token.id, placeholder=plain_id(tokens[position].id))
            tokens[position] = tokens[position]._replace(id=vector)
    return replace(chunk, tokens=tuple(tokens))


def _left_vector_issues(moved: Sequence[Token]) -> Iterator[Issue]:
    """One issue for each embedding among tokens moved without their vectors."""
    for token in moved:
        if isinstance(token.id, EmbeddingVector) and token.id.index == 0:
            message = f"The comma rule moves “{token.id.name}” to the next chunk and leaves its vectors, as in A1111."
            yield Issue("left-behind", message, token.at)


def _blank_after_eos(chunk: TokenChunk, layout: ChunkLayout) -> TokenChunk:
    """Without EOS as padding, A1111 blanks every id after the first EOS id, even one typed by the user."""
    if layout.pad_id == layout.eos_id:
        return chunk
    first = chunk.plain_ids.index(layout.eos_id)
    if first == chunk.num_content + 1:
        return chunk
    blanked = (token._replace(id=_blanked(token.id, layout.pad_id)) for token in chunk.tokens[first + 1 :])
    return TokenChunk((*chunk.tokens[: first + 1], *blanked), chunk.num_content)


def _blanked(token: TokenId, pad_id: int) -> TokenId:
    """The padding id; a vector remains, on top of it."""
    return replace(token, placeholder=pad_id) if isinstance(token, EmbeddingVector) else pad_id
