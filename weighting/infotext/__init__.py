"""Generation data as people have it: texts of A1111, Forge, Civitai and image savers, and JSON of other programs."""

from __future__ import annotations

from dataclasses import replace

from .record import MAX_CHARACTERS, Infotext
from .text import read_lines
from .writers import as_written, read_json, read_labels

__all__ = ["MAX_CHARACTERS", "Infotext", "read_infotext"]


def read_infotext(text: str) -> Infotext:
    r"""Read generation data; a text that is none is a prompt.

    The WebUI takes any last line with three settings for one, so that three words with weights, ``(red:1.2), (cat:1.3),
    (dog:1.1)``, would be lost; here such a line names steps, sampler or seed. It also cuts Civitai's lists of resources
    at their commas; here they stay whole.

    Args:
        text: Any string. If it is longer than `MAX_CHARACTERS`, its end is read, and the rest is prompt.

    >>> data = read_infotext("a cat\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Seed: 7")
    >>> data.prompt, data.negative, data.settings
    ('a cat', 'blurry', {'Steps': '20', 'Sampler': 'Euler a', 'Seed': '7'})
    """
    if len(text) <= MAX_CHARACTERS:
        return read_json(text) or read_labels(text) or as_written(read_lines(text))
    data = as_written(read_lines(text[-MAX_CHARACTERS:]))
    problem = f"Of {len(text):,} characters the last {MAX_CHARACTERS:,} are read."
    return replace(data, prompt=text[:-MAX_CHARACTERS] + data.prompt).with_problems(problem)
