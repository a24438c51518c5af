"""Prompts that change while a picture is sampled, in the boxes of any node.

Source: docs/timed.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ....weighting.timed.glides import GLIDES
from ....weighting.timed.schedule import TimedPrompt, read_timed
from ..clip.marks import values_of
from ..clip.timed_prompts import check_branches, timed_entries, uniform_timing
from ..types import Conditioning

if TYPE_CHECKING:
    from .encoder_call import Session


class TimedChunks(list[Any]):
    """Chunks of the first text of a timed prompt, with all of its texts."""

    prompt: TimedPrompt
    tokens: Mapping[str, Mapping[str, Any]]
    """The host's tokens of each text."""
    values: tuple[Any, ...]
    """Their content as long as nobody edits them."""


def timed_tokens(text: str, session: Session, tokens_of: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    """Tokens of a prompt that may change over time; a text that does not change gets the tokens of ``tokens_of``."""
    settings, options = session.settings, session.method.options
    prompt = read_timed(
        text,
        settings.steps,
        has_comments=options.comment_marks,
        glides=settings.glides,
        counter=settings.counter,
        joins=settings.joins,
    )
    check_branches(prompt)
    texts = list(dict.fromkeys(part for branch in prompt.branches for part in branch.all_texts))
    if len(texts) == 1 and len(prompt.branches) == 1:
        return tokens_of(text if settings.glides == GLIDES[0] else texts[0])
    tokens = {part: tokens_of(part) for part in ([*texts, ""] if settings.glides != GLIDES[0] else texts)}
    first_tokens: dict[str, Any] = {}
    for key, chunks in tokens[texts[0]].items():
        first_tokens[key] = chunks
        if isinstance(chunks, list):
            timed = first_tokens[key] = TimedChunks(chunks)
            timed.prompt, timed.tokens, timed.values = prompt, tokens, values_of(chunks)
    return first_tokens


def timed_conditioning(
    tokens: Mapping[str, Any], session: Session, encoded: Callable[[Mapping[str, Any]], Conditioning]
) -> Conditioning:
    """Conditioning of tokens; a timed prompt gets an entry for each of its texts and times.

    Raises:
        ValueError: If another node has edited the tokens of a timed prompt, or has mixed those of several.
    """
    chunks = [encoder_chunks for encoder_chunks in tokens.values() if isinstance(encoder_chunks, list)]
    timed = [encoder_chunks for encoder_chunks in chunks if isinstance(encoder_chunks, TimedChunks)]
    if not timed:
        return encoded(tokens)
    first = timed[0]
    if len(timed) < len(chunks) or any(
        encoder_chunks.prompt != first.prompt or values_of(encoder_chunks) != encoder_chunks.values
        for encoder_chunks in timed
    ):
        raise ValueError(
            "A node has edited or mixed the tokens of a prompt that changes while the picture is sampled: give each of "
            "its texts the same times, or take out what changes, such as [from:to:when] and AND."
        )
    settings = session.settings
    timing = uniform_timing(settings.steps)
    texts = {text: encoded(first.tokens[text]) for branch in first.prompt.branches for text in branch.all_texts}
    return timed_entries(
        first.prompt, timing, settings.counter, lambda index, text: texts[text], lambda: encoded(first.tokens[""])
    )
