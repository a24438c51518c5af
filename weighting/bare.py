"""What is taken out of a prompt before anything else is read: comments, and tags of extra networks.

A1111 and Forge read everything from ``#`` to the end of its line as a comment, unless a setting of theirs is off. They
put a line break where a comment was; here the one that ended the line stays, which is the same to a tokenizer.

Source: docs/reference/syntaxes.md, "Comments"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from .extra_networks import Tag, tag_issues, take_tags
from .prompt import Fragment, Issue, Piece, Span, quoted

_COMMENT = re.compile(r"#[^\n]*")


class Bare(NamedTuple):
    """A prompt without its comments and tags. All spans are places of the whole prompt."""

    fragment: Fragment
    """What is left, in pieces that know their places."""
    tags: tuple[Tag, ...]
    """The tags, in order."""
    comments: tuple[Span, ...]
    """The comments, in order."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Where something was taken out."""
        return tuple(sorted([*self.comments, *(tag.span for tag in self.tags)]))

    def issues(self, source: str) -> list[Issue]:
        """What the author of the prompt ``source`` should know of what was taken out of it."""
        return [*comment_issues(source, self.comments), *tag_issues(self.tags)]


def bare(source: str, *, has_comments: bool, has_tags: bool) -> Bare:
    r"""Take comments, and then tags, out of a prompt.

    Args:
        source: Any string.
        has_comments: Whether ``#`` starts a comment in it.
        has_tags: Whether ``<lora:name:0.8>`` is a tag in it.

    Returns:
        The prompt without them.

    >>> found = bare("a cat # (ugly:1.3)\nin <lora:ink:0.8>a bowl", has_comments=True, has_tags=True)
    >>> found.fragment.text, found.comments
    ('a cat \nin a bowl', (Span(start=6, end=18),))
    """
    comments = tuple(Span(*found.span()) for found in _COMMENT.finditer(source)) if has_comments else ()
    left = _without(source, comments)
    if not has_tags:
        return Bare(left, (), comments)
    fragment, tags = take_tags(left.text)
    if not comments:
        return Bare(fragment, tags, ())
    moved = tuple(tag._replace(span=left.span_of(tag.span)) for tag in tags)
    return Bare(left.part(fragment), moved, comments)


def comment_issues(source: str, comments: Sequence[Span]) -> list[Issue]:
    """That comments are not encoded."""
    return [
        Issue("comment", f"“{quoted(source, span)}” is a comment, as in A1111 and Forge: it is not encoded.", span)
        for span in comments
    ]


def _without(source: str, spans: Sequence[Span]) -> Fragment:
    """A text without some stretches of it."""
    starts = [0, *(span.end for span in spans)]
    ends = [*(span.start for span in spans), len(source)]
    pieces = (Piece(source[start:end], Span(start, end)) for start, end in zip(starts, ends, strict=True))
    return Fragment(tuple(piece for piece in pieces if piece.text))
