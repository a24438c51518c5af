"""compel's chunk rule: cuts after the last sentence, phrase or word that fits into 75 tokens, or truncates.

Source: docs/reference/chunks.md, "Chunks"; behaviour of compel 2.5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from ...encoder.tokenizer import END_OF_WORD, default_tokenizer
from ..text.chunks import ChunkContext, Chunked, Token, TokenChunk, Tokenize, close_chunk, tokens_by_part
from ..text.prompt import Issue, Prompt, Span

SENTENCE_ENDS = frozenset({269})
"""Id of ``.`` as a word."""
PHRASE_ENDS = frozenset({269, 267, 282, 281})
"""Ids of ``.``, ``,``, ``;`` and ``:`` as words."""

LADDERS: dict[str, tuple[str, ...]] = {
    "sentences": ("sentence", "phrase", "word"),
    "phrases": ("phrase", "word"),
    "words": ("word",),
    "brutal": (),
}
"""Ends that each mode cuts after, best first; if nothing fits, at 75 tokens."""


def chunk_compel(prompt: Prompt, context: ChunkContext, *, mode: str) -> Chunked:
    """Cut as compel does with ``truncate_long_prompts=False``.

    A break, which compel does not have, starts a new chunk. ``mode`` is a key of `LADDERS`: compel's SplitLongTextMode.
    """
    layout = context.layout
    chunks: list[TokenChunk] = []
    for tokens in _sections(prompt, context.tokenize):
        start = 0
        while len(tokens) - start > layout.capacity:
            end = start + _cut(tokens[start : start + layout.capacity], LADDERS[mode])
            chunks.append(close_chunk(tokens[start:end], layout))
            start = end
        chunks.append(close_chunk(tokens[start:], layout))
    return Chunked(tuple(chunks), ())


def chunk_compel_truncate(prompt: Prompt, context: ChunkContext) -> Chunked:
    """Keep one chunk, as compel does by default: each fragment is cut to 75 tokens, then all of them together.

    Each part between breaks is one chunk; an issue tells where the text was cut.
    """
    layout = context.layout
    chunks: list[TokenChunk] = []
    issues: list[Issue] = []
    for tokens in _sections(prompt, context.tokenize):
        fragments = (list(group)[: layout.capacity] for _, group in groupby(tokens, key=lambda token: token.fragment))
        shortened = [token for fragment in fragments for token in fragment]
        kept, rest = shortened[: layout.capacity], shortened[layout.capacity :]
        lost = len(tokens) - len(kept)
        if lost:
            first_lost = next(a.span for a, b in zip([*tokens, *tokens[-1:]], [*kept, None], strict=False) if a != b)
            span = Span(first_lost.start if first_lost else 0, len(prompt.source))
            issues.append(Issue("text-cut", f"{lost} tokens do not fit into {layout.capacity} and are left out.", span))
        chunk = close_chunk(kept, layout)
        if rest and kept[-1].fragment == rest[0].fragment:
            # for compel, a fragment cut by the end of the chunk includes the EOS: it hides that with the fragment
            eos = chunk.tokens[-1]._replace(fragment=kept[-1].fragment)
            chunk = replace(chunk, tokens=(*chunk.tokens[:-1], eos))
        chunks.append(chunk)
    return Chunked(tuple(chunks), tuple(issues))


def _sections(prompt: Prompt, tokenize: Tokenize) -> list[list[Token]]:
    """Tokens between breaks."""
    sections: list[list[Token]] = [[]]
    for tokens in tokens_by_part(prompt, tokenize):
        if tokens is None:
            sections.append([])
        else:
            sections[-1] += tokens
    return sections


def _cut(window: Sequence[Token], ladder: Sequence[str]) -> int:
    """Number of tokens to keep of a full window."""
    for step in ladder:
        for index in range(len(window), 0, -1):
            if _is_end(window[index - 1], step):
                return index
    return len(window)


def _is_end(token: Token, step: str) -> bool:
    if not isinstance(token.id, int):
        return step == "word"
    if step == "word":
        return default_tokenizer().symbol(token.id).endswith(END_OF_WORD)
    return token.id in (SENTENCE_ENDS if step == "sentence" else PHRASE_ENDS)
