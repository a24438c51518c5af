"""A1111's tags for extra networks, ``<lora:name:0.8>``: their meaning, and the prompt without them.

A tag is removed from a prompt before anything else is read.

Source: docs/reference/syntaxes.md, "LoRA tags"; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .prompt import Fragment, Issue, Piece, Span

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

    Args:
        tags: Result of `take_tags`.

    Returns:
        The LoRAs in order, and an issue for each tag that is not one or whose strength is not a number.

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


def tag_issues(tags: tuple[Tag, ...]) -> list[Issue]:
    """Issues about tags for the author of an encoded prompt: they are not encoded, and loaded elsewhere."""
    loras, issues = read_loras(tags)
    for lora in loras:
        message = (
            f"The LoRA “{lora.name}” at {lora.clip_strength:g} is no text, and is not loaded here: the node Load LoRAs "
            "from Prompt does that."
        )
        issues.append(Issue("lora", message, lora.span))
    return issues


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
