"""Chunks with marked bound phrases, and issues about phrases that cannot be bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .chunks import TokenChunk
from .options import BindRest, EncodeOptions
from .prompt import Issue, Span

UNBOUND = "unbound-phrase"
"""Issue code for phrases that cannot be bound."""
ABSENT = "absent-phrase"
"""Issue code for missing phrases, or missing words of phrases."""


class BindError(ValueError):
    """Raised for phrases that cannot be bound; the message names them."""


class Bound(NamedTuple):
    """Chunks with marked bound phrases."""

    chunks: tuple[TokenChunk, ...]
    """The prompt, with ``phrase`` and ``apart`` of its tokens set."""
    issues: tuple[Issue, ...]
    """Issues about phrases that cannot be bound or are missing."""


def bound_passes(chunks: Sequence[TokenChunk], rest: BindRest) -> list[int]:
    """Phrases with a pass of their own in a prompt, in order; then 0 if all other tokens have one too.

    Under ``cutoff`` they can have one where no phrase has: see `marked_as_cutoff`.
    """
    tokens = [token for chunk in chunks for token in chunk.tokens]
    phrases = sorted({token.phrase for token in tokens} - {0})
    return [*phrases, 0] if rest == "alone" and any(token.apart is not None for token in tokens) else phrases


def bind_issue(code: str, message: str) -> Issue:
    """Issue placed before all others, since it must survive when only the first issues are kept."""
    return Issue(code, message, Span(0, 0))


def refusal(issues: Sequence[Issue], options: EncodeOptions) -> str:
    """Reason why a prompt with these issues cannot be bound; empty if it can."""
    codes = (UNBOUND,) if options.binds_some else (UNBOUND, ABSENT)
    found = next((issue for issue in issues if issue.code in codes), None)
    return "" if found is None else f"These phrases cannot be bound: {found.line}"
