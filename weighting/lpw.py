"""Differences between diffusers' lpw pipelines and the a1111 syntax, whose older form they use.

Source: docs/reference/schemes.md, "The lpw pipelines"; behaviour of ``examples/community/lpw_stable_diffusion.py`` and
``lpw_stable_diffusion_xl.py`` of diffusers 2843b3d (2026-02), the same as in diffusers 0.38 to 0.40.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from .chunks import ChunkLayout, TokenChunk
from .prompt import Break, Issue, Prompt, Span

PIPELINES = ("lpw", "lerp_last")
"""Schemes named after them: the one for Stable Diffusion 1.x and the one for SDXL."""
CODE = "lpw-reads-otherwise"

_SPACED_WEIGHT = re.compile(r":(?:\s+[+-]?[.\d]+\s*|[+-]?[.\d]+\s+)\)")


def lpw_issues(prompt: Prompt, chunks: Sequence[TokenChunk], scheme: str, layout: ChunkLayout) -> Iterator[Issue]:
    """Issues where a prompt is read differently than by the pipeline that its scheme is named after.

    Args:
        prompt: The prompt, without comments and tags of extra networks.
        chunks: Its chunks.
        scheme: A key of `SCHEMES`.
        layout: The fixed parts of a chunk.

    Yields:
        An issue for each BREAK and for each weight with whitespace around it, and one if the chunks are cut elsewhere.
        None for other schemes, or if the prompt was read in another syntax.
    """
    if scheme not in PIPELINES or prompt.syntax != "a1111":
        return
    breaks = [part.span for part in prompt.parts if isinstance(part, Break)]
    weight = "" if scheme == "lpw" else " at weight -1"
    for span in breaks:
        message = f"diffusers' pipeline reads BREAK as the word “break”{weight}; here it ends the chunk."
        yield Issue(CODE, message, span)
    for issue in prompt.issues:
        if issue.code == "break-in-brackets" and scheme == "lpw":
            message = "diffusers' pipeline gives the word “break” the weight of its brackets; here it is as in A1111."
            yield Issue(CODE, message, issue.span)
    for mark in prompt.marks:
        for match in _SPACED_WEIGHT.finditer(prompt.source, *mark):
            message = (
                "diffusers' pipeline takes no weight with white space around it: to it this is text, and the bracket "
                "weighs 1.1."
            )
            yield Issue(CODE, message, Span(*match.span()))
    if not breaks and any(chunk.num_content < layout.capacity for chunk in chunks[:-1]):
        message = (
            f"diffusers' pipeline cuts at {layout.capacity} tokens, wherever that is; so does the chunking compel "
            "brutal."
        )
        yield Issue(CODE, message, Span(0, 0))


def lpw_left_out_issues(spans: Sequence[Span], scheme: str) -> Iterator[Issue]:
    """Issues for each tag and comment removed from a prompt, which the pipelines keep."""
    if scheme in PIPELINES:
        for span in spans:
            yield Issue(CODE, "diffusers' pipeline reads this as text; here it is left out.", span)
