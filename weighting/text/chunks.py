"""Chunks: 77 positions of BOS, up to 75 tokens, EOS and padding. The rules for cutting prompts are in ``chunking/``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .embeddings import Embeddings, EmbeddingVector, TokenId, plain_id
from .prompt import Break, Issue, Prompt, Span


class Apart(NamedTuple):
    """Hiding of a token from bound phrases."""

    phrase: int
    """The only phrase whose pass keeps the token."""
    stand_in: int | None = None
    """Id that replaces it in all other passes. None: it stays, but is masked there."""


class Token(NamedTuple):
    """One position of a chunk."""

    id: TokenId
    """Vocabulary id, or an embedding's vector."""
    weight: float = 1.0
    """1.0 is neutral; BOS, EOS and padding always have it."""
    word: int = 0
    """Group of tokens it belongs to, counted from 1 through the prompt; 0 for BOS, EOS and padding."""
    fragment: int = -1
    """Index of its fragment in the prompt; -1 for BOS, EOS and padding."""
    span: Span | None = None
    """Source text; None for BOS, EOS and padding."""
    is_hidden: bool = False
    """Whether it is hidden from other tokens; see ``hiding.py``."""
    is_blind: bool = False
    """Whether it does not see tokens that are hidden only from some."""
    phrase: int = 0
    """Bound phrase it belongs to, counted from 1; 0 for none."""
    apart: Apart | None = None
    """Its hiding, if bound phrases hide it from each other."""

    @property
    def at(self) -> Span:
        """Its span, or the start of the text if it has none."""
        return self.span or Span(0, 0)


@dataclass(frozen=True)
class ChunkLayout:
    """Fixed parts of a chunk."""

    length: int = 77
    """Positions in a chunk."""
    bos_id: int = 49406
    """Id at position 0."""
    eos_id: int = 49407
    """Id after the last token."""
    pad_id: int = 49407
    """Id that fills the rest: EOS again for CLIP-L, 0 for OpenCLIP encoders."""
    comma_id: int = 267
    """Id of the token ``,``, at which A1111 prefers to cut."""
    is_open: bool = False
    """Whether it has room for any text, as in encoders without chunks; the length is then that of the text."""
    has_bos: bool = True
    """Whether the encoder has a begin token. Without one, position 0 is none of its own, and has no row."""

    def __post_init__(self) -> None:
        if self.length < 3:
            raise ValueError(f"a chunk must hold BOS, a token and EOS, so at least 3 positions, got {self.length}")

    @property
    def capacity(self) -> int:
        """Tokens that fit between BOS and EOS."""
        return self.length - 2


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
        """Ids in order."""
        return tuple(token.id for token in self.tokens)

    @property
    def plain_ids(self) -> tuple[int, ...]:
        """Ids in order; for a vector, the id beneath it."""
        return tuple(plain_id(token.id) for token in self.tokens)

    @property
    def weights(self) -> tuple[float, ...]:
        """Weights in order."""
        return tuple(token.weight for token in self.tokens)

    @property
    def content(self) -> tuple[Token, ...]:
        """Tokens between BOS and EOS."""
        return self.tokens[1 : 1 + self.num_content]

    def reweighted(self, weight_of: Callable[[Token], float]) -> TokenChunk:
        """Copy with a new weight for each token."""
        return replace(self, tokens=tuple(token._replace(weight=weight_of(token)) for token in self.tokens))


def close_chunk(content: Sequence[Token], layout: ChunkLayout) -> TokenChunk:
    """Wrap tokens in BOS, EOS and padding."""
    padding = [Token(layout.pad_id)] * (layout.capacity - len(content))
    return TokenChunk((Token(layout.bos_id), *content, Token(layout.eos_id), *padding), len(content))


def filled(chunk: TokenChunk, length: int, layout: ChunkLayout) -> TokenChunk:
    """Fill a chunk with EOS as content up to a length, as if it had been typed."""
    start = 1 + chunk.num_content
    behind = tuple(
        token if isinstance(token.id, EmbeddingVector) else token._replace(id=layout.eos_id)
        for token in chunk.tokens[start:length]
    )
    return TokenChunk((*chunk.tokens[:start], *behind, *chunk.tokens[length:]), length - 2)


Tokenize = Callable[[str], Sequence[tuple[int, int, int]]]
"""From text to ``(id, start, end)`` triples, as returned by `encoder.tokenizer.Tokenizer`."""


@dataclass(frozen=True)
class ChunkContext:
    """Context of a chunk rule, besides the prompt."""

    tokenize: Tokenize
    """The encoder's tokenizer."""
    layout: ChunkLayout = CLIP_L_LAYOUT
    """Fixed parts of the encoder's chunks."""
    comma_backtrack: int = 20
    """Rule ``a1111``: maximum distance, in tokens, of a comma to cut at; 0 switches that off."""
    embeddings: Embeddings | None = None
    """Embeddings a prompt can name, under the rules ``a1111`` and ``comfy …``; without them, names are plain text."""
    quirks: bool = False
    """Rule ``a1111``: whether to follow the program even where that loses an embedding's vectors."""
    rule: Callable[[Prompt, ChunkContext], Chunked] | None = None
    """The encoder's only chunk rule, in place of the chosen one."""

    def __post_init__(self) -> None:
        if not 0 <= self.comma_backtrack < self.layout.capacity:
            raise ValueError(
                f"comma_backtrack must be 0 to {self.layout.capacity - 1} tokens, got {self.comma_backtrack}"
            )


class Chunked(NamedTuple):
    """Chunks of a prompt, and issues met in making them."""

    chunks: tuple[TokenChunk, ...]
    """At least one chunk."""
    issues: tuple[Issue, ...]
    """Problems, such as an unknown embedding."""


def tokens_by_part(prompt: Prompt, tokenize: Tokenize) -> Iterator[list[Token] | None]:
    """Tokens of each fragment in order, None for a break; each fragment is one word."""
    word = 0
    for index, part in enumerate(prompt.parts):
        if isinstance(part, Break):
            yield None
        else:
            word += 1
            yield tokens_of(part.text, part.positions, part.weight, index, word, tokenize)


def tokens_of(
    text: str, positions: Sequence[int], weight: float, fragment: int, word: int, tokenize: Tokenize
) -> list[Token]:
    """Tokenize a stretch of text; ``positions[i]`` is the position of its character i in the prompt."""
    return [
        Token(token_id, weight, word, fragment, Span(positions[start], positions[end - 1] + 1) if end > start else None)
        for token_id, start, end in tokenize(text)
    ]
