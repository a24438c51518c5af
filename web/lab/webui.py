"""The page's prompt as a WebUI reads it: each of its texts, and the one that is encoded here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...weighting.options import EncodeOptions
from ...weighting.prompt import shortened
from ...weighting.reading import ReadPrompt
from ...weighting.syntax.a1111 import TIMED_READER
from ...weighting.timed.schedule import COUNTERS, MAX_STEPS, Counter, read_timed
from ...weighting.timed.view import MAX_TEXTS, TimedRead, read_as_webui, standing_texts, webui_view
from .values import whole_number

DEFAULT_STEPS = 20
"""Default number of sampling steps."""

TAGS_ACT = "tags act in txt2img and img2img, not here"
_SHOWN = "The tab Schedule shows how"


class Given(NamedTuple):
    """The encoded part of the page's prompt."""

    text: str
    """Text to encode; in a WebUI one of those that it makes of the prompt, without comments and tags."""
    options: EncodeOptions
    """Options for reading it."""
    read: ReadPrompt
    """The text as read, in positions of the whole prompt."""
    note: str = ""
    """Note on which text of the prompt it is, if there are several."""


class Texts(NamedTuple):
    """Texts that the WebUI makes of a prompt."""

    reads: list[TimedRead]
    """The first texts as read; at least one."""
    num_more: int
    """Number of further texts."""


def texts_of(
    text: str,
    options: EncodeOptions,
    reader: Callable[[EncodeOptions], Callable[[str], ReadPrompt]],
    steps: object = DEFAULT_STEPS,
    counter: Counter = COUNTERS[0],
) -> Texts:
    """Read the texts that the WebUI makes of a prompt."""
    count = whole_number("steps", steps, 1, MAX_STEPS)
    has_comments = options.cleaning == "as Forge"
    reads, others = read_as_webui(text, count, reader(_left(options)), has_comments=has_comments, counter=counter)
    return Texts(reads, len(others))


def num_texts(text: str, options: EncodeOptions, steps: object) -> int:
    """Number of texts that the WebUI makes of a prompt, at most those that are read."""
    count = whole_number("steps", steps, 1, MAX_STEPS)
    prompt = read_timed(text, count, has_comments=options.cleaning == "as Forge")
    return min(MAX_TEXTS, len(standing_texts(prompt, count, COUNTERS[0])))


def given_of(texts: Texts, options: EncodeOptions, number: int, steps: object) -> Given:
    """The text to encode here, by its number from 1; one that is too large means the last one."""
    index = min(number, len(texts.reads)) - 1
    chosen, count = texts.reads[index], len(texts.reads) + texts.num_more
    note = (
        f"Of {count} texts that the WebUI makes of this prompt in {steps} steps this is number {index + 1}: "
        f"“{shortened(chosen.text)}”."
    )
    return Given(chosen.text, _left(options), chosen.read, note if count > 1 else "")


def views_of(texts: Texts) -> Sequence[dict[str, Any]]:
    """A view of each text."""
    views = [webui_view(one) for one in texts.reads]
    views[-1]["num_more"] = texts.num_more
    has_tags = any(not chip["ids"] for one in views for chunk in one["chunks"] for chip in chunk["chips"])
    return [{**one, "notes": [TAGS_ACT]} for one in views] if has_tags else views


def told(line: str) -> str:
    """A problem in the words of a WebUI."""
    return line.replace(TIMED_READER, _SHOWN)


def _left(options: EncodeOptions) -> EncodeOptions:
    """Options for reading a text from which the WebUI has removed comments and tags."""
    return replace(options, cleaning="none", has_tags=False)
