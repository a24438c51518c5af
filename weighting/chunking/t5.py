"""Texts for T5 by the rules of programs that weigh its rows: it has no chunks of a fixed length, and no begin token.

Position 0 of such a chunk is none of T5's own: encoders leave it out, and no row is made of it.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06, ``t5_engine.py``), compel c60b9fb (2026-05,
``CompelForFlux``) and sd_embed 4a47f71 (2025-04, ``get_weighted_text_embeddings_flux1``).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..text.chunks import ChunkContext, Chunked, ChunkLayout, Token, TokenChunk, tokens_by_part
from ..text.prompt import Break, Issue, Prompt

NOTHING, END, PADDING = 0, 1, 0
"""Ids: of position 0, of the end of a text, and of padding."""


@dataclass(frozen=True)
class T5Rule:
    """Rule of a program for T5's rows."""

    program: str
    """Its name in messages."""
    models: tuple[str, ...]
    """Models that it weighs so, by the names that messages use."""
    scheme: str
    """Scheme that gives its rows, of chunks as `chunk_t5` makes them."""
    length: int = 1
    """Least number of rows; shorter texts are padded."""
    is_cut: bool = False
    """Whether it has no more rows than that."""
    ends_fragments: bool = False
    """Whether each stretch of one weight is followed by an end token, of that weight too."""

    @property
    def layout(self) -> ChunkLayout:
        """Layout of its chunks."""
        return ChunkLayout(1 + max(76, self.length), NOTHING, END, PADDING, is_open=True, has_bos=False)


def chunk_t5(prompt: Prompt, context: ChunkContext, rule: T5Rule) -> Chunked:
    """The chunk of a prompt, by a program's rule.

    Raises:
        ValueError: If it has more tokens than the program takes.
    """
    content: list[Token] = []
    issues: list[Issue] = []
    for part, tokens in zip(prompt.parts, tokens_by_part(prompt, context.tokenize), strict=True):
        if isinstance(part, Break) or tokens is None:
            message = f"For T5 BREAK is a space here; {rule.program} reads it otherwise."
            issues.append(Issue("break-is-a-space", message, part.span))
            continue
        content += tokens
        if rule.ends_fragments:
            content.append(Token(END, part.weight, fragment=tokens[-1].fragment if tokens else -1))
    if rule.ends_fragments:
        if not any(part.text for part in prompt.fragments):  # sd_embed's stand-in for no text
            content = [*(Token(token_id) for token_id, _, _ in context.tokenize("empty")), Token(END)]
        return Chunked((TokenChunk((Token(NOTHING), *content), len(content) - 1),), tuple(issues))
    if rule.is_cut and len(content) >= rule.length:
        raise ValueError(
            f"{rule.program} takes at most {rule.length - 1} tokens of T5, and this prompt has {len(content)}: "
            "shorten it, or choose another scheme."
        )
    padding = [Token(PADDING)] * (rule.length - len(content) - 1)
    chunk = TokenChunk((Token(NOTHING), *content, Token(END), *padding), len(content))
    return Chunked((chunk,), tuple(issues))
