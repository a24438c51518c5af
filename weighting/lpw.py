"""Differences between diffusers' lpw pipelines and the a1111 syntax, whose older form they use.

Source: docs/reference/schemes.md, "The lpw pipelines"; behaviour of ``examples/community/lpw_stable_diffusion.py`` and
``lpw_stable_diffusion_xl.py`` of diffusers 2843b3d (2026-02), the same as in diffusers 0.38 to 0.40.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .chunking import chunks_of
from .prompt import Break, Issue, Span
from .schemes.api import Read
from .syntax import syntax_of

CODE = "lpw-reads-otherwise"

_SPACED_WEIGHT = re.compile(r":(?:\s+[+-]?[.\d]+\s*|[+-]?[.\d]+\s+)\)")


def lpw_issues(read: Read, *, is_xl: bool = False) -> Iterator[Issue]:
    """Issues where a prompt is read differently than by the pipeline for Stable Diffusion 1.x, or that for SDXL.

    Args:
        read: The prompt, without comments and tags of extra networks.
        is_xl: Whether to compare with the pipeline for SDXL.

    Yields:
        An issue for each BREAK and for each weight with whitespace around it, and one if the chunks are cut elsewhere.
        None if the prompt was read in another syntax than A1111's.
    """
    prompt = read.prompt
    if not syntax_of(prompt.syntax).by_webui:
        return
    breaks = [part.span for part in prompt.parts if isinstance(part, Break)]
    weight = " at weight -1" if is_xl else ""
    for span in breaks:
        message = f"diffusers' pipeline reads BREAK as the word “break”{weight}; here it ends the chunk."
        yield Issue(CODE, message, span)
    for issue in prompt.issues:
        if issue.code == "break-in-brackets" and not is_xl:
            message = "diffusers' pipeline gives the word “break” the weight of its brackets; here it is as in A1111."
            yield Issue(CODE, message, issue.span)
    for mark in prompt.marks:
        for match in _SPACED_WEIGHT.finditer(prompt.source, *mark):
            message = (
                "diffusers' pipeline takes no weight with white space around it: to it this is text, and the bracket "
                "weighs 1.1."
            )
            yield Issue(CODE, message, Span(*match.span()))
    capacity = read.layout.capacity
    if not breaks and any(chunk.num_content < capacity for chunk in chunks_of(read.sections)[:-1]):
        message = (
            f"diffusers' pipeline cuts at {capacity} tokens, wherever that is; so does the chunking compel brutal."
        )
        yield Issue(CODE, message, Span(0, 0))


def left_out_issues(spans: Sequence[Span]) -> Iterator[Issue]:
    """Issues for each tag and comment removed from a prompt, which the pipelines keep."""
    for span in spans:
        yield Issue(CODE, "diffusers' pipeline reads this as text; here it is left out.", span)
