"""Comments and A1111's tags for extra networks, ``<lora:name:0.8>``: their meaning, and the prompt without them.

Both are taken out of a prompt before anything else is read. A1111 and Forge read everything from ``#`` to the end of
its line as a comment, unless a setting of theirs is off. They replace a comment by a line break; here the one that
ended the line remains, which a tokenizer reads the same.

Source: docs/reference/syntaxes.md, "Comments" and "LoRA tags"; behaviour of stable-diffusion-webui-forge
dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from .prompt import Fragment, Issue, Piece, Span, quoted

LORA_KINDS = ("lora", "lyco")
"""Kinds of LoRA tags; the second is from an older extension."""

_START = re.compile(r"<(\w+):(?!>)")


class Tag(NamedTuple):
    """A tag in a prompt."""

    kind: str
    """Kind in front: ``lora``, ``hypernet``, ..."""
    items: tuple[str, ...]
    """Items between the colons after it."""
    span: Span
    """The whole tag, including brackets."""


class LoraTag(NamedTuple):
    """A LoRA named in a prompt."""

    name: str
    """Name of the file without suffix."""
    clip_strength: float
    """Strength for the text encoder."""
    model_strength: float
    """Strength for the diffusion model; the same unless given."""
    span: Span
    """The tag."""


def take_tags(source: str) -> tuple[Fragment, tuple[Tag, ...]]:
    """Remove the tags from a prompt.

    Args:
        source: Any string.

    Returns:
        The prompt without them, in pieces that know their positions, and the tags.

    >>> text, tags = take_tags("a <lora:ink:0.8> cat")
    >>> text.text, tags[0].items
    ('a  cat', ('ink', '0.8'))
    """
    tags: list[Tag] = []
    pieces: list[Piece] = []
    position = search = 0
    while (start := _START.search(source, search)) and (end := source.find(">", start.end())) >= 0:
        span = Span(start.start(), end + 1)
        tags.append(Tag(start[1], tuple(source[start.end() : end].split(":")), span))
        pieces.append(Piece(source[position : span.start], Span(position, span.start)))
        position = search = span.end
    pieces.append(Piece(source[position:], Span(position, len(source))))
    return Fragment(tuple(piece for piece in pieces if piece.text)), tuple(tags)


def read_loras(tags: tuple[Tag, ...]) -> tuple[list[LoraTag], list[Issue]]:
    """LoRAs among some tags.

    >>> read_loras(take_tags("<lora:ink:0.8:te=0.5>")[1])[0]
    [LoraTag(name='ink', clip_strength=0.5, model_strength=0.5, span=Span(start=0, end=21))]
    """
    loras: list[LoraTag] = []
    issues: list[Issue] = []
    for tag in tags:
        written = f"<{tag.kind}:{':'.join(tag.items)}>"
        if tag.kind not in LORA_KINDS:
            message = f"“{written}” is a tag of A1111 and no text. Only LoRAs can be loaded here."
            issues.append(Issue("unknown-tag", message, tag.span))
            continue
        name, *positional = [item for item in tag.items if "=" not in item] or [""]
        named = dict(item.split("=", 1) for item in tag.items if "=" in item)
        clip = _number(named.get("te", positional[0] if positional else "1"))
        written_for_model = named.get("unet", positional[1] if positional[1:] else None)
        model = clip if written_for_model is None else _number(written_for_model)
        if clip is None or model is None:
            message = f"A strength in “{written}” is no number: 1 is taken."
            issues.append(Issue("unreadable-strength", message, tag.span))
        loras.append(LoraTag(name, 1.0 if clip is None else clip, 1.0 if model is None else model, tag.span))
    return loras, issues


LORA_LOADER = ": the node Load LoRAs from Prompt does that."
"""End of the message about a LoRA; a place that has no such node replaces it."""


def tag_issues(tags: tuple[Tag, ...]) -> list[Issue]:
    """Issues about tags for the author of an encoded prompt: they are not encoded, and loaded elsewhere."""
    loras, issues = read_loras(tags)
    for lora in loras:
        message = (
            f"The LoRA “{lora.name}” at {lora.clip_strength:g} is no text, and is not loaded here: the node Load LoRAs "
            f"from Prompt does that."
        )
        issues.append(Issue("lora", message, lora.span))
    return issues


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


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
