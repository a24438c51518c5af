"""A prompt as the WebUI itself reads it, before any script does: comments, tags, parts between ANDs, times.

Source: docs/timed.md; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..bare import bare
from ..prompt import Issue, quoted
from ..reading import ReadPrompt, told_here
from ..syntax.a1111 import TIMED_READER
from ..view import TAG_ISSUES
from .schedule import COUNTERS, Counter, read_timed
from .view import StandingText, TimedRead, read_standing, standing_texts, timed_view

MAX_TEXTS = 20
"""Maximum number of texts of a prompt that are read."""

_NOT_HERE = "The WebUI does not read it in this place"


def read_as_webui(
    source: str,
    steps: int,
    read: Callable[[str], ReadPrompt],
    *,
    is_negative: bool = False,
    has_comments: bool = True,
    counter: Counter = COUNTERS[0],
) -> tuple[list[TimedRead], list[StandingText]]:
    """Read each text that the WebUI makes of a prompt.

    Args:
        source: The prompt.
        steps: Number of sampling steps.
        read: Function that reads one of these texts, without removing anything else.
        is_negative: Whether it is a negative prompt, in which tags and AND are text.
        has_comments: Whether ``#`` starts a comment.
        counter: Way of counting steps.

    Returns:
        The first texts as read, in positions of the whole prompt; and the other texts.

    Raises:
        ValueError: As in `read_timed`, or raised by ``read``.
    """
    prompt = read_timed(source, steps, has_comments=has_comments, is_negative=is_negative)
    texts = standing_texts(prompt, steps, counter)
    issues: list[Issue] = []
    for tag in bare(source, has_comments=has_comments, has_tags=is_negative).tags:
        written = quoted(source, tag.span)
        message = f"“{written}” is text in a negative prompt: the WebUI acts on tags in the prompt alone."
        issues.append(Issue("tag-as-text", message, tag.span))

    def read_here(text: str) -> ReadPrompt:
        return told_here(read(text), TIMED_READER, _NOT_HERE)

    reads = read_standing(prompt, texts[:MAX_TEXTS], read_here, issues)
    return reads, texts[MAX_TEXTS:]


def webui_view(timed: TimedRead) -> dict[str, Any]:
    """Same as `timed_view`. A tag, which the WebUI acts on, is a chip like others and not a problem."""
    shown = timed_view(timed)
    kept = [number for number, issue in enumerate(shown["issues"]) if issue["code"] not in TAG_ISSUES]
    for chunk in shown["chunks"]:
        for chip in chunk["chips"]:
            chip["problems"] = [kept.index(number) for number in chip["problems"] if number in kept]
            chip["hidden"] = chip["hidden"] and bool(chip["ids"])
    return {**shown, "issues": [shown["issues"][number] for number in kept]}
