"""Chunks whose bound phrases are marked, and what is said of phrases that cannot be bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .chunks import TokenChunk
from .options import EncodeOptions
from .prompt import Issue, Span

UNBOUND = "unbound-phrase"
"""Code of what is said of phrases that cannot be bound."""
ABSENT = "absent-phrase"
"""Code of what is said of phrases, or words of theirs, that are not there."""


class BindError(ValueError):
    """Phrases that cannot be bound; the message names them."""


class Bound(NamedTuple):
    """Chunks whose bound phrases are marked."""

    chunks: tuple[TokenChunk, ...]
    """The prompt, with ``phrase`` and ``apart`` of its tokens set."""
    issues: tuple[Issue, ...]
    """Why phrases cannot be bound, and which are not there."""


def bind_issue(code: str, message: str) -> Issue:
    """An issue that stands before all others, as a prompt with more of them than are kept must be refused too."""
    return Issue(code, message, Span(0, 0))


def refusal(issues: Sequence[Issue], options: EncodeOptions) -> str:
    """Why a prompt with these issues cannot be bound; empty if it can."""
    codes = (UNBOUND,) if options.binds_some else (UNBOUND, ABSENT)
    found = next((issue for issue in issues if issue.code in codes), None)
    return "" if found is None else f"These phrases cannot be bound: {found.line}"
