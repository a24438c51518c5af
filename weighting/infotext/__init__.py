"""Generation data as A1111, Forge and Civitai write it: a prompt, a negative prompt, and a line of settings.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06); where this reads more, `read_infotext` says so.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

NEGATIVE = "Negative prompt:"
"""Beginning of the line with which the negative prompt starts."""
KNOWN = frozenset({"Steps", "Sampler", "Seed"})
"""Names of settings of which a line of settings has at least one."""
CIVITAI = frozenset({"Civitai resources", "Civitai metadata"})
"""Names of settings that hold JSON, which Civitai does not quote."""

MAX_PROBLEMS = 20
"""Maximum number of problems listed; the rest are only counted."""

_NOT_OF_A_NAME = re.compile(r"[^\w \-/]")
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r'"(?:\\.|[^\\"])+"(?=,|\Z)')


@dataclass(frozen=True)
class Infotext:
    """Generation data, read."""

    prompt: str
    """Prompt, which may have line breaks."""
    negative: str = ""
    """Negative prompt, without the words that announce it."""
    settings: dict[str, str] = field(default_factory=dict)
    """Settings by their names, in the order of the text; of two with one name the last."""
    problems: tuple[str, ...] = ()
    """What was left out or is uncertain, a sentence each; at most `MAX_PROBLEMS`."""
    writer: str = ""
    """Name of the program that wrote it, if it is not in the WebUI's own form."""

    @property
    def is_generation_data(self) -> bool:
        """Whether the text was more than a prompt."""
        return bool(self.negative or self.settings)


def read_infotext(text: str) -> Infotext:
    r"""Read generation data; a text that is none is a prompt.

    The WebUI takes any last line with three settings for one, so that three words with weights, ``(red:1.2), (cat:1.3),
    (dog:1.1)``, would be lost; here such a line names steps, sampler or seed. It also cuts Civitai's lists of resources
    at their commas; here they stay whole.

    Args:
        text: Any string.

    >>> data = read_infotext("a cat\nNegative prompt: blurry\nSteps: 20, Sampler: Euler a, Seed: 7")
    >>> data.prompt, data.negative, data.settings
    ('a cat', 'blurry', {'Steps': '20', 'Sampler': 'Euler a', 'Seed': '7'})
    """
    lines = [line.strip() for line in text.strip().split("\n")]
    settings = _read_settings(lines[-1])
    if len(settings) < 3 or KNOWN.isdisjoint(settings):
        settings = {}
    else:
        lines.pop()
    start = next((i for i, line in enumerate(lines) if line.startswith(NEGATIVE)), len(lines))
    negative = (line.removeprefix(NEGATIVE).strip() for line in lines[start:])
    return Infotext("\n".join(lines[:start]), "\n".join(negative).lstrip("\n"), settings)


def _read_settings(line: str) -> dict[str, str]:
    """Read ``name: value, name: value``; what stands between them is left out."""
    settings: dict[str, str] = {}
    position = 0
    while (colon := line.find(":", position)) >= 0:
        name = _NOT_OF_A_NAME.split(line[position:colon])[-1].lstrip(" -/")
        position = colon + 1
        if len(name) > 1:
            settings[name], position = _read_value(line, position, name in CIVITAI - settings.keys())
    return settings


def _read_value(line: str, start: int, may_be_json: bool) -> tuple[str, int]:
    """Read the value that starts behind a colon; also where the next setting may start."""
    space = _SPACE.match(line, start)
    start = space.end() if space else start
    if quoted := _QUOTED.match(line, start):
        try:
            return str(json.loads(quoted[0])), quoted.end() + 1
        except ValueError:
            return quoted[0], quoted.end() + 1
    end = (may_be_json and _end_of_json(line, start)) or line.find(",", start)
    end = len(line) if end < 0 else end
    return line[start:end], end + 1


def _end_of_json(line: str, start: int) -> int:
    """End of a value that is JSON as a whole; 0 if it is not."""
    try:
        _, end = _DECODER.raw_decode(line, start)
    except (ValueError, RecursionError):
        return 0
    return end if line[end : end + 1] in ("", ",") else 0
