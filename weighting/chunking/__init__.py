"""Cutting a prompt's tokens into chunks by the rules of various programs, one per file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from ...encoder.quoting import quote
from ..syntax import syntax_of
from ..text.chunks import ChunkContext, Chunked, TokenChunk
from ..text.prompt import Issue, Prompt, Section, encoded_fragments
from . import a1111, comfy, compel
from .open import chunk_open

CHUNKINGS: dict[str, Callable[[Prompt, ChunkContext], Chunked]] = {
    "a1111": a1111.chunk_a1111,
    "comfy segment": partial(comfy.chunk_comfy, split=comfy.segments),
    "comfy word": partial(comfy.chunk_comfy, split=comfy.words),
    **{f"compel {mode}": partial(compel.chunk_compel, mode=mode) for mode in compel.LADDERS},
    "compel truncate": compel.chunk_compel_truncate,
}
"""Chunk rules by name: from a parsed prompt and its context to chunks and issues."""


ChunkedSection = Section[TokenChunk]
"""A section of a prompt in chunks."""


class ChunkedPrompt(NamedTuple):
    """Chunks of a prompt, and issues met in making them."""

    sections: tuple[ChunkedSection, ...]
    """At least one section."""
    issues: tuple[Issue, ...]
    """Problems, such as an unknown embedding."""

    @property
    def chunks(self) -> tuple[TokenChunk, ...]:
        """All chunks in reading order."""
        return chunks_of(self.sections)


def chunks_of(sections: Sequence[ChunkedSection]) -> tuple[TokenChunk, ...]:
    """All chunks of some sections in reading order."""
    return tuple(chunk for section in sections for prompt in section.prompts for chunk in prompt)


def chunk_prompt(prompt: Prompt, context: ChunkContext, chunking: str = "as syntax") -> ChunkedPrompt:
    """Cut each section of a prompt into chunks by a named rule; in an open layout at BREAK alone.

    Args:
        prompt: The parsed prompt.
        context: Tokenizer, layout and options.
        chunking: A key of `CHUNKINGS`, or ``as syntax``.

    Returns:
        The chunks and the issues of making them.

    Raises:
        ValueError: If the rule is unknown.
    """
    chunking = rule_of(chunking, prompt.syntax)
    if chunking not in CHUNKINGS:
        raise ValueError(f"unknown chunking {quote(chunking)}; allowed: as syntax, {', '.join(CHUNKINGS)}")
    rule = context.rule or (chunk_open if context.layout.is_open else CHUNKINGS[chunking])
    issues: list[Issue] = []
    first_fragment = 0

    def cut(part: Prompt) -> tuple[TokenChunk, ...]:
        nonlocal first_fragment
        chunks, found = rule(part, context)
        issues.extend(found)
        chunks = tuple(_counted_from(chunk, first_fragment) for chunk in chunks)
        first_fragment += len(part.parts)
        return chunks

    chunked = [
        ChunkedSection(
            tuple(cut(replace(prompt, parts=encoded_fragments(part))) for part in section.prompts),
            section.shares,
            section.normalize,
            section.weight,
        )
        for section in prompt.sections
    ]
    return ChunkedPrompt(tuple(chunked or [ChunkedSection((cut(prompt),))]), tuple(issues))


def rule_of(chunking: str, syntax: str) -> str:
    """Chunk rule of this name; ``as syntax`` is resolved for the syntax."""
    return syntax_of(syntax).chunking if chunking == "as syntax" else chunking


def _counted_from(chunk: TokenChunk, first: int) -> TokenChunk:
    """The chunk with fragment numbers counted through the whole prompt."""
    if not first:
        return chunk
    tokens = tuple(t._replace(fragment=t.fragment + first) if t.fragment >= 0 else t for t in chunk.tokens)
    return replace(chunk, tokens=tokens)
