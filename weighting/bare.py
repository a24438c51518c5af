"""Comments and tags of extra networks, taken out of a prompt before anything else is read.

A1111 and Forge read everything from ``#`` to the end of its line as a comment, unless a setting of theirs is off. They
replace a comment by a line break; here the one that ended the line remains, which a tokenizer reads the same.

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
    """A prompt without its comments and tags. All spans are positions in the whole prompt."""

    fragment: Fragment
    """The remaining text, in pieces that know their positions."""
    tags: tuple[Tag, ...]
    """The tags, in order."""
    comments: tuple[Span, ...]
    """The comments, in order."""

    @property
    def spans(self) -> tuple[Span, ...]:
        """Spans of everything taken out."""
        return tuple(sorted([*self.comments, *(tag.span for tag in self.tags)]))

    def issues(self, source: str) -> list[Issue]:
        """Issues about the parts taken out, for the author of the prompt ``source``."""
        return [*comment_issues(source, self.comments), *tag_issues(self.tags)]


def bare(source: str, *, has_comments: bool, has_tags: bool) -> Bare:
    r"""Take comments, and then tags, out of a prompt.

    Args:
        source: Any string.
        has_comments: Whether ``#`` starts a comment.
        has_tags: Whether ``<lora:name:0.8>`` is a tag.

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
    """Issues saying that comments are not encoded."""
    return [
        Issue("comment", f"“{quoted(source, span)}” is a comment, as in A1111 and Forge: it is not encoded.", span)
        for span in comments
    ]


def _without(source: str, spans: Sequence[Span]) -> Fragment:
    """A text without some of its spans."""
    starts = [0, *(span.end for span in spans)]
    ends = [*(span.start for span in spans), len(source)]
    pieces = (Piece(source[start:end], Span(start, end)) for start, end in zip(starts, ends, strict=True))
    return Fragment(tuple(piece for piece in pieces if piece.text))
