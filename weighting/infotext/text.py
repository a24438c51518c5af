"""Generation data as a text: a prompt, a negative prompt, and settings as ``name: value, name: value``.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06), which reads the last line as settings. This reads
more: texts whose line breaks were lost, settings with line breaks in them, and lines after the settings.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from .names import webui_settings
from .record import MAX_SETTINGS, Infotext, in_line

NEGATIVE = "Negative prompt:"
"""Beginning of the line with which the negative prompt starts."""
KNOWN = frozenset({"Steps", "Sampler", "Seed"})
"""Names of settings of which a text has at least one; and at least three settings."""
JSON_SETTINGS = frozenset({"Civitai resources", "Civitai metadata", "Hashes"})
"""Names of settings that hold JSON, which their writers do not quote."""
TEMPLATES = frozenset({"Template", "Negative Template"})
"""Names of prompts before wildcards were filled in, which dynamic prompts writes as lines after the settings."""

_MAX_NAME = 60
_NOT_OF_A_NAME = re.compile(r"[^\w \-/]")
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_QUOTED = re.compile(r'"(?:\\.|[^\\"])+"(?=[,\n]|\Z)', re.DOTALL)
_END = re.compile(rf",|\n(?=\w[\w \-/]{{1,{_MAX_NAME}}}:)")
_NUMBER_LINE = re.compile(r"-?[\d.]+(?:x\d+)?\n")
_PAIR = re.compile(r'[ \t]*(\w[\w \-/]+):(?:\s*"(?:\\.|[^\\"])+"|[^,]*),')
_USUAL_NAME = re.compile(
    r"(?:Clip skip|Denoising strength|Hires [\w ]+|Lora hashes|Model|Model hash|Size|VAE|VAE hash|Version)\Z"
)
_NEGATIVE_LINE = re.compile(rf"^(?:{NEGATIVE}|Negative Prompt:)[ \t]*", re.MULTILINE)
_NEGATIVE_WORDS = re.compile(r"(?<![^\s,.;|])Negative [pP]rompt:")
_POSITIVE_WORDS = re.compile(r"(?:(?:Positive [pP]rompt|Prompt|[pP]arameters):|[pP]arameters\n)\s*")
_BEFORE = r"(?<![^\s,.;|])"
_BEFORE_SMALL = r"(?:(?<![^\n,.;|])|(?<=[,.;|] ))"
"""Small letters begin a setting only after a sign or a line break: “Hires steps: 5” is one name."""
_STEPS = re.compile(rf"(?:{_BEFORE}Steps|{_BEFORE_SMALL}(?:Sampling )?steps):\s*\d")
_SETTING = re.compile(
    rf"{_BEFORE}(?:Steps:\s*\d|Seed:\s*-?\d|Sampler:\s*\w|CFG [sS]cale:\s*\d|Size:\s*\d+x\d|Clip [sS]kip:\s*\d"
    rf"|Model hash:\s*\w)|{_BEFORE_SMALL}(?:(?:Sampling )?steps:\s*\d|seed:\s*-?\d|sampler:\s*\w|cfgScale:\s*\d"
    rf"|clipSkip:\s*\d|(?:width|height):\s*\d)"
)
_LIKE_A_SETTING = re.compile(
    r"\b(steps|sampler|seed|cfg scale)\"?[ \t]*[:：=]|^(steps|sampler|seed|cfg scale)$", re.IGNORECASE | re.MULTILINE
)
_LIKE_NEGATIVE = re.compile(r"^negative prompt[ \t]*[:：]", re.IGNORECASE | re.MULTILINE)


class _ParsedSettings(NamedTuple):
    """Settings read from a stretch of text, and sentences about what was left out."""

    values: dict[str, str]
    problems: list[str]

    @property
    def are_settings(self) -> bool:
        """Whether a text that reads so is a list of settings."""
        return len(self.values) >= 3 and not KNOWN.isdisjoint(self.values)


def begin_of_data(text: str) -> int:
    """Position at which a negative prompt or settings begin; 0 if neither does.

    >>> begin_of_data("a cat. Steps: 20, Sampler: Euler a, Seed: 7")
    7
    """
    starts = [match.start() for match in (_NEGATIVE_WORDS.search(text), _SETTING.search(text)) if match]
    return min(starts, default=0)


def read_lines(text: str) -> Infotext:
    """Split a text into prompt, negative prompt and settings; a text that is none is a prompt."""
    text = "\n".join(line.strip() for line in text.replace("\r\n", "\n").replace("\r", "\n").strip().split("\n"))
    start, end, settings = _find_settings(text)
    problems: list[str] = []
    before = text[:start].rstrip(" \t")
    if before.endswith("\n"):
        before = before[:-1]
    elif before and settings.values:
        problems.append(
            f"The settings begin within a line, at “{in_line(text[start:], 20)}”: compare where the prompt ends."
        )
    prompt, negative, more = _cut_negative(before)
    if settings.values and end < len(text):
        negative = _NEGATIVE_WORDS.sub("", text[end:], 1).strip()
        more.append("The negative prompt comes after the settings.")
    if (settings.values or negative) and (words := _POSITIVE_WORDS.match(prompt)):
        prompt = prompt[words.end() :]
        more.append(f"“{words[0].strip()}” before the prompt is left out.")
    if settings.values and not prompt.strip():
        more.append("The prompt is empty: nothing is before the negative prompt and the settings.")
    more += [*_unread(prompt, negative, settings), *problems, *settings.problems]
    return Infotext(prompt, negative, settings.values).with_problems(*more)


def _find_settings(text: str) -> tuple[int, int, _ParsedSettings]:
    """Beginning and end of the settings in a text, and what they are; the end of the text if there are none."""
    start, words = _begin_of_settings(text), [*_NEGATIVE_WORDS.finditer(text)]
    settings = _read_settings(text[start:])
    if len(words) == 1 and (words[0].start() > start or not settings.are_settings):
        before = text[: words[0].start()]
        earlier = _begin_of_settings(before)
        settings_before = _read_settings(before[earlier:])
        if settings_before.are_settings:
            return earlier, words[0].start(), settings_before
    return (start, len(text), settings) if settings.are_settings else (len(text), len(text), _ParsedSettings({}, []))


def _begin_of_settings(text: str) -> int:
    """Position at which the settings begin, if there are any: a line, or words within one."""
    prompts = max((match.start() for match in _NEGATIVE_LINE.finditer(text)), default=0)
    line = text.rfind("\n") + 1
    steps = _STEPS.search(text, prompts)
    last = _read_settings(text[line:])
    if not last.are_settings or (steps and steps.start() < line and "Steps" not in last.values):
        # several lines of settings, or lines after them
        first = steps or _SETTING.search(text, prompts)
        if first is None:
            return line
        line = text.rfind("\n", 0, first.start()) + 1
    first = _SETTING.search(text, line)
    if first is None:
        return line
    position = line
    while pair := _PAIR.match(text, position, first.start()):
        # the WebUI takes a line as a whole, whatever its first settings are; one alone may begin with a prompt
        if line == prompts and not _USUAL_NAME.match(pair[1]):
            break
        position = pair.end()
    return first.start() if text[position : first.start()].strip(" ,") else line


def _cut_negative(text: str) -> tuple[str, str, list[str]]:
    """Cut a text without settings into prompt and negative prompt; also the sentences about how."""
    if line := _NEGATIVE_LINE.search(text):
        return text[: line.start()].removesuffix("\n"), _NEGATIVE_LINE.sub("", text[line.start() :]).lstrip("\n"), []
    words = [*_NEGATIVE_WORDS.finditer(text)]
    if not words:
        return text, "", []
    before, negative = text[: words[0].start()].rstrip(), text[words[0].end() :].strip()
    if len(words) > 1 or not before.strip(" ,.;|"):
        return (
            text,
            "",
            [f"“{NEGATIVE}” does not begin a line, so it is unclear where the prompt ends: all of it is the prompt."],
        )
    return before, negative, [f"“{NEGATIVE}” does not begin a line: the text before it is taken as the prompt."]


def _unread(prompt: str, negative: str, settings: _ParsedSettings) -> list[str]:
    """Sentences about words in the prompts that look like a negative prompt or settings."""
    if settings.values:
        words = _LIKE_NEGATIVE.search(prompt)
        return [f"“{words[0]}” is text of the prompt, as in the WebUI: write “{NEGATIVE}”."] if words else []
    if len({(match[1] or match[2]).lower() for match in _LIKE_A_SETTING.finditer(f"{prompt}\n{negative}")}) < 2:
        return []
    return ["It names settings that cannot be split: a line like “Steps: 20, Sampler: Euler a, Seed: 7” is read."]


def _read_settings(text: str) -> _ParsedSettings:
    """Read ``name: value, name: value``; anything between them is left out, with a sentence."""
    values: dict[str, str] = {}
    problems: list[str] = []
    position, last = 0, ""

    def leave_out(left: str) -> None:
        left = left.strip(" \n,")
        if left and last:
            problems.append(f"“{in_line(left)}”, behind {last}, is no setting: left out.")

    while (colon := text.find(":", position)) >= 0:
        if len(values) == MAX_SETTINGS:
            problems.append(f"Only the first {MAX_SETTINGS:,} settings are read.")
            break
        start = max(position, colon - _MAX_NAME)
        name = _NOT_OF_A_NAME.split(text[start:colon])[-1].lstrip(" -/")
        if len(name) > 1:
            leave_out(text[position : colon - len(name)])
            if name in TEMPLATES and text[colon - len(name) - 1 : colon - len(name)] == "\n":
                values[name], position = _read_template(text, colon + 1)
            else:
                may_be_json = name in JSON_SETTINGS and name not in values
                values[name], position, is_quoted = _read_value(text, colon + 1, may_be_json)
                if "\n" in values[name] and not is_quoted:
                    problems.append(f"{name}: “{in_line(values[name])}” has a line break: read to the next setting.")
            last = name
        else:
            leave_out(text[position:colon])
            position = colon + 1
    else:
        leave_out(text[position:])
    named, given_twice = webui_settings(values)
    return _ParsedSettings(named, [*given_twice, *problems])


def _read_value(text: str, start: int, may_be_json: bool) -> tuple[str, int, bool]:
    """Read the value after a colon; also where the next setting may start, and whether it is quoted."""
    space = _SPACE.match(text, start)
    start = space.end() if space else start
    if quoted := _QUOTED.match(text, start):
        try:
            return str(json.loads(quoted[0], strict=False)), quoted.end() + 1, True
        except ValueError:
            return quoted[0], quoted.end() + 1, True
    if may_be_json and (end := _end_of_json(text, start)):
        return text[start:end], end + 1, True
    match = _NUMBER_LINE.match(text, start) or _END.search(text, start)
    end = match.end() - 1 if match else len(text)
    return text[start:end], end + 1, False


def _read_template(text: str, start: int) -> tuple[str, int]:
    """Read a line “Template: …”, whose text may have commas, colons and line breaks."""
    end = text.find("\nNegative Template:", start)
    end = len(text) if end < 0 else end
    return text[start:end].strip(), end


def _end_of_json(text: str, start: int) -> int:
    """End of a value that is JSON as a whole; 0 if it is not."""
    try:
        _, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError):
        return 0
    return end if text[end : end + 1] in ("", ",", "\n") else 0
