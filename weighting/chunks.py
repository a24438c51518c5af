"""Cutting a prompt's tokens into chunks of 77 positions, by the rule of the program whose result is wanted.

A chunk is BOS, up to 75 tokens, EOS, and padding. Programs differ in where they cut: A1111 at 75 tokens or at a comma
not far before, and at BREAK; ComfyUI keeps groups of fewer than 8 tokens together, a group being a weighted segment
(``comfy segment``, current) or a word (``comfy word``, until December 2024).

Source: docs/weighting.md, "Chunks"; behaviour of stable-diffusion-webui-forge dfdcbab6 and ComfyUI 0.29.0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .embeddings import EMBEDDING_PREFIX, EmbeddingVector, FindEmbedding, TokenId, read_embedding
from .prompt import Break, Fragment, Issue, Prompt, Span


class Token(NamedTuple):
    """One position of a chunk."""

    id: TokenId
    """Vocabulary id, or an embedding's vector."""
    weight: float = 1.0
    """1.0 is neutral; BOS, EOS and padding always have it."""
    word: int = 0
    """Which group of tokens it belongs to, counted from 1 through the prompt; 0 for BOS, EOS and padding."""
    fragment: int = -1
    """Index of its fragment in the prompt; -1 for BOS, EOS and padding."""
    span: Span | None = None
    """The text it came from; None for BOS, EOS and padding."""


@dataclass(frozen=True)
class ChunkLayout:
    """The fixed parts of a chunk."""

    length: int = 77
    """Positions in a chunk."""
    bos_id: int = 49406
    """Id at position 0."""
    eos_id: int = 49407
    """Id behind the last token."""
    pad_id: int = 49407
    """Id that fills the rest; EOS again for CLIP-L, 0 for OpenCLIP encoders."""
    comma_id: int = 267
    """Id of the token ``,``, at which A1111 likes to cut."""

    @property
    def capacity(self) -> int:
        """Tokens that fit between BOS and EOS."""
        return self.length - 2

    def empty_ids(self) -> tuple[int, ...]:
        """The chunk of the empty prompt."""
        return (self.bos_id, self.eos_id, *[self.pad_id] * self.capacity)


CLIP_L_LAYOUT = ChunkLayout()


@dataclass(frozen=True)
class TokenChunk:
    """One chunk: exactly ``layout.length`` tokens."""

    tokens: tuple[Token, ...]
    """BOS, content, EOS, padding."""
    num_content: int
    """Tokens between BOS and the EOS that closes the chunk."""

    @property
    def ids(self) -> tuple[TokenId, ...]:
        """The ids, in order."""
        return tuple(token.id for token in self.tokens)

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights, in order."""
        return tuple(token.weight for token in self.tokens)

    @property
    def content(self) -> tuple[Token, ...]:
        """The tokens between BOS and EOS."""
        return self.tokens[1 : 1 + self.num_content]


def close_chunk(content: Sequence[Token], layout: ChunkLayout) -> TokenChunk:
    """Wrap tokens in BOS, EOS and padding.

    Args:
        content: Up to ``layout.capacity`` tokens.
        layout: The fixed parts.

    Returns:
        The chunk.
    """
    padding = [Token(layout.pad_id)] * (layout.capacity - len(content))
    return TokenChunk((Token(layout.bos_id), *content, Token(layout.eos_id), *padding), len(content))


Tokenize = Callable[[str], Sequence[tuple[int, int, int]]]
"""Text to ``(id, start, end)`` triples, as `encoder.tokenizer.Tokenizer` gives."""


class Chunked(NamedTuple):
    """Chunks of a prompt and what was met while making them."""

    chunks: tuple[TokenChunk, ...]
    """At least one."""
    issues: tuple[Issue, ...]
    """Problems, such as an unknown embedding."""


def chunk_a1111(
    prompt: Prompt,
    tokenize: Tokenize,
    layout: ChunkLayout,
    *,
    comma_backtrack: int = 20,
    find_embedding: FindEmbedding | None = None,
) -> Chunked:
    """Cut as the A1111 WebUI does.

    When a 76th token arrives that is no comma, and the last comma is at most ``comma_backtrack`` tokens back, the cut
    falls behind that comma. BREAK ends the chunk.

    Args:
        prompt: The parsed prompt.
        tokenize: The tokenizer.
        layout: The fixed parts of a chunk.
        comma_backtrack: How far back a comma may be, in tokens; 0 switches the rule off.
        find_embedding: Not used by this rule.

    Returns:
        The chunks.
    """
    del find_embedding
    chunks: list[TokenChunk] = []
    content: list[Token] = []
    last_comma = -1

    def close() -> None:
        nonlocal content, last_comma
        chunks.append(_blank_behind_eos(close_chunk(content, layout), layout))
        content, last_comma = [], -1

    for token in _fragment_tokens(prompt, tokenize):
        if token is None:
            close()
            continue
        if token.id == layout.comma_id:
            last_comma = len(content)
        elif comma_backtrack and len(content) == layout.capacity and last_comma >= 0:
            cut = last_comma + 1
            if len(content) - last_comma <= comma_backtrack:
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


def _fragment_tokens(prompt: Prompt, tokenize: Tokenize) -> Iterator[Token | None]:
    """Tokens of all fragments in order, None for a break; one word for each fragment."""
    word = 0
    for index, part in enumerate(prompt.parts):
        if isinstance(part, Break):
            yield None
            continue
        word += 1
        yield from _tokens(part.text, part.positions, part.weight, index, word, tokenize)


def _tokens(
    text: str, positions: Sequence[int], weight: float, fragment: int, word: int, tokenize: Tokenize
) -> list[Token]:
    """Tokenize a stretch of text; ``positions[i]`` is where its character i stands in the prompt."""
    return [
        Token(token_id, weight, word, fragment, Span(positions[start], positions[end - 1] + 1) if end > start else None)
        for token_id, start, end in tokenize(text)
    ]


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
        for token in _tokens(text[start:end], positions[start:end], weight, fragment, 0, tokenize)
    ]
    if rests:
        yield _Group(tokens)


CHUNKINGS: dict[str, Callable[..., Chunked]] = {
    "a1111": chunk_a1111,
    "comfy segment": chunk_comfy_segment,
    "comfy word": chunk_comfy_word,
}
"""Every chunk rule by name. Each takes ``(prompt, tokenize, layout, *, comma_backtrack, find_embedding)``."""

CHUNKING_OF_SYNTAX = {"comfy": "comfy segment", "a1111": "a1111", "none": "comfy segment"}
"""What ``as syntax`` means."""


def chunk_prompt(
    prompt: Prompt,
    tokenize: Tokenize,
    layout: ChunkLayout,
    *,
    chunking: str = "as syntax",
    comma_backtrack: int = 20,
    find_embedding: FindEmbedding | None = None,
) -> Chunked:
    """Cut a prompt into chunks by a named rule.

    Args:
        prompt: The parsed prompt.
        tokenize: The tokenizer.
        layout: The fixed parts of a chunk.
        chunking: A key of `CHUNKINGS`, or ``as syntax``.
        comma_backtrack: For ``a1111``, in tokens, 0 to 74.
        find_embedding: Looks up textual-inversion embeddings.

    Returns:
        The chunks and the issues of making them.

    Raises:
        ValueError: If the rule is unknown or ``comma_backtrack`` out of range.
    """
    if chunking == "as syntax":
        chunking = CHUNKING_OF_SYNTAX[prompt.syntax]
    if chunking not in CHUNKINGS:
        raise ValueError(f"unknown chunking {chunking!r}; allowed: as syntax, {', '.join(CHUNKINGS)}")
    if not 0 <= comma_backtrack < layout.capacity:
        raise ValueError(f"comma_backtrack must be 0 to {layout.capacity - 1} tokens, got {comma_backtrack}")
    return CHUNKINGS[chunking](prompt, tokenize, layout, comma_backtrack=comma_backtrack, find_embedding=find_embedding)
