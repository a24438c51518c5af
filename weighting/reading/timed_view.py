"""Texts of a timed prompt, in positions of the whole prompt: for reports and front ends.

Also those that the WebUI itself reads, before any script does: without comments and tags, between ANDs, by times.

Source: docs/timed.md; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..syntax.a1111 import TIMED_READER
from ..text.prompt import Fragment, Issue, Span, quoted
from ..text.tags import LORA_ISSUES, TIMED_LORA, bare
from ..timed.glides import GLIDES, Glides, on_line
from ..timed.joining import JOINS, Joins, Joint
from ..timed.loras import LoraTimes
from ..timed.regions import RegionPlace
from ..timed.schedule import COUNTERS, Counter, TextRun, TimedPrompt, read_timed, runs
from .prompt_reader import MAX_ISSUES, ReadPrompt, at_most, relocated, reworded
from .view import TAG_ISSUES, utf16_offsets, view, weight_text


class StandingText(NamedTuple):
    """One text of a timed prompt, not read yet."""

    branch: int
    """Number of the part between ANDs, counted from 0."""
    fragment: Fragment
    """The text, made of pieces of the prompt."""
    steps: tuple[tuple[int, int], ...]
    """First and last step of each period in which it is active, counted from 1."""
    shares: tuple[float, ...] = ()
    """Its share in each step if it is mixed with others; else none."""
    versions: tuple[tuple[int, Fragment], ...] = ()
    """Its versions if weights in it follow a line, each with its first step, counted from 0; else none."""


class TimedRead(NamedTuple):
    """One text of a timed prompt."""

    branch: int
    """Number of the part between ANDs, counted from 0."""
    weight: float
    """Weight of that part."""
    steps: tuple[tuple[int, int], ...]
    """First and last step of each period in which it is active, counted from 1."""
    text: str
    """The text itself."""
    read: ReadPrompt
    """The text as read, in positions of the whole prompt. A problem of several texts is listed with the first of them
    only, one of the times or the place of a part with the part's first text."""
    place: RegionPlace | None = None
    """Place of that part in the picture; None for the whole."""
    shares: tuple[float, ...] = ()
    """As of `StandingText`."""
    glides: tuple[Span, ...] = ()
    """Glides in which the text is one of several."""
    joint: Joint = "AND"
    """Word before its part."""
    versions: tuple[tuple[int, ReadPrompt], ...] = ()
    """Some of the text's versions with other weights, each with its first step, counted from 0."""


def standing_texts(prompt: TimedPrompt, steps: int, counter: Counter) -> list[StandingText]:
    """All texts of a timed prompt in order, branch by branch."""
    found: dict[tuple[int, str], _Standing] = {}
    for index, branch in enumerate(prompt.branches):
        for run in runs(branch, steps, counter):
            for share, fragment in run.shares:
                found.setdefault((index, _without_lines(fragment)), _Standing([], {}, {})).add(run, share, fragment)
    return [standing.text(index, steps) for (index, _), standing in found.items()]


class _Standing(NamedTuple):
    """A text with all that changes of it."""

    times: list[tuple[int, int]]
    shares: dict[tuple[int, int], float]
    versions: dict[Fragment, int]

    def add(self, run: TextRun, share: float, fragment: Fragment) -> None:
        self.versions.setdefault(fragment, run.first)
        self.shares[run.first, run.end] = share
        if self.times and self.times[-1][1] == run.first:
            self.times[-1] = self.times[-1][0], run.end
        else:
            self.times.append((run.first + 1, run.end))

    def text(self, index: int, steps: int) -> StandingText:
        shares = [0.0] * steps
        for (first, end), share in self.shares.items():
            shares[first:end] = [share] * (end - first)
        is_mixed = any(share != 1.0 for share in self.shares.values())
        versions = tuple((first, fragment) for fragment, first in self.versions.items())
        return StandingText(
            index,
            versions[0][1],
            tuple(self.times),
            tuple(shares) if is_mixed else (),
            versions if len(versions) > 1 else (),
        )


def _without_lines(fragment: Fragment) -> str:
    """A text in which all weights on lines are alike."""
    return "".join(text if span.end > span.start or text == " " else "@" for text, span in fragment.pieces)


def read_standing(
    prompt: TimedPrompt,
    texts: Sequence[StandingText],
    read_part: Callable[[str], ReadPrompt],
    issues: Sequence[Issue] = (),
) -> list[TimedRead]:
    """Read the first texts of a timed prompt."""
    whole = [*prompt.issues, *issues]
    seen = set(whole)
    starts = [branch.start for branch in prompt.branches]
    of_branch: dict[int, list[Issue]] = {}
    for issue in whole:
        branch = bisect_right(starts, issue.span.start) - 1
        of_branch.setdefault(min(branch, texts[-1].branch), []).append(issue)
    result: list[TimedRead] = []
    for index, fragment, steps, shares, all_versions in texts:
        parsed = relocated(read_part(fragment.text), prompt.source, fragment)
        count = min(len(all_versions), MAX_VERSIONS)
        versions = [all_versions[number * (len(all_versions) - 1) // (count - 1)] for number in range(count)]
        new = [*of_branch.pop(index, []), *(issue for issue in parsed.issues if issue not in seen)]
        seen.update(new)
        parsed = parsed._replace(issues=at_most(MAX_ISSUES, sorted(new, key=lambda issue: issue.span)))
        branch = prompt.branches[index]
        result.append(
            TimedRead(
                *(index, branch.weight, steps, fragment.text, parsed, branch.place, shares),
                branch.glides if shares else (),
                branch.joint,
                tuple((first, relocated(read_part(each.text), prompt.source, each)) for first, each in versions),
            )
        )
    return result


def timed_view(timed: TimedRead) -> dict[str, Any]:
    """The JSON view of one text, with ``branch``, ``weight`` and ``steps`` besides.

    If it has a place, ``places`` holds it: its functions as ``name`` and its ``picture``, and its first chip says so;
    ``is_coupled`` says whether COUPLE joins it to the text before, and ``joint`` is the word that does if not AND.

    Chips that glide have a ``curve``: values over the steps, from the first to the last. In a text that is mixed with
    others they are its shares, else weights.
    """
    steps = [list(run) for run in timed.steps]
    data: dict[str, Any] = {**view(timed.read), "branch": timed.branch, "weight": timed.weight, "steps": steps}
    if timed.joint != "AND":
        data["joint"] = timed.joint
    _add_curves(data, timed)
    if timed.place is not None:
        data["places"] = [{"name": timed.place.text, "picture": timed.place.picture()}]
        data["is_coupled"] = timed.place.is_coupled
        first = next((chip for chunk in data["chunks"] for chip in chunk["chips"]), {})
        first["places"] = [0]
    return data


MAX_VERSIONS = 9
"""Maximum number of versions of a text, with other weights, that are read for their curve."""
MAX_POINTS = 50
"""Maximum number of values of a curve."""


def _add_curves(data: dict[str, Any], timed: TimedRead) -> None:
    chips = [chip for chunk in data["chunks"] for chip in chunk["chips"]]
    if timed.shares:
        offset = utf16_offsets(data["text"])
        spans = [(offset(span.start), offset(span.end)) for span in timed.glides]
        for chip in chips:
            if any(start <= chip["start"] < end for start, end in spans):
                _add_curve(chip, timed.shares)
    versions = [
        [chip["weight"] for chunk in view(read)["chunks"] for chip in chunk["chips"]] for _, read in timed.versions
    ]
    if len(versions) < 2 or any(len(weights) != len(chips) for weights in versions):
        return
    first_steps = [first for first, _ in timed.versions]
    last = max(end for _, end in timed.steps)
    for number, chip in enumerate(chips):
        weights = [version[number] for version in versions]
        if len(set(weights)) > 1:
            points = tuple((weight, float(step)) for weight, step in zip(weights, first_steps, strict=True))
            _add_curve(chip, [on_line(points, step) for step in range(first_steps[0], last)])


def _add_curve(chip: dict[str, Any], values: Sequence[float]) -> None:
    """Give a chip a curve, and a note of where it begins and ends."""
    count = min(len(values), MAX_POINTS)
    chosen = [values[number * (len(values) - 1) // max(count - 1, 1)] for number in range(count)]
    chip["curve"] = [round(value, 4) for value in chosen]
    chip["note"] = f"{weight_text(values[0])}→{weight_text(values[-1])}"


MAX_TEXTS = 20
"""Maximum number of texts of a prompt that are read."""

NOT_HERE = "The WebUI does not read it in this place"


def read_as_webui(
    source: str,
    steps: int,
    read_part: Callable[[str], ReadPrompt],
    *,
    is_negative: bool = False,
    has_comments: bool | tuple[str, ...] = True,
    counter: Counter = COUNTERS[0],
    glides: Glides = GLIDES[0],
    joins: Joins = JOINS[0],
) -> tuple[list[TimedRead], list[StandingText]]:
    """Read each text that the WebUI makes of a prompt, or our script where it glides or joins prompts."""
    prompt = read_timed(
        source, steps, has_comments=has_comments, is_negative=is_negative, glides=glides, counter=counter, joins=joins
    )
    prompt = replace(prompt, issues=tuple(_of_webui(issue, source) for issue in prompt.issues))
    texts = standing_texts(prompt, steps, counter)
    issues: list[Issue] = []
    for tag in bare(source, has_comments=has_comments, has_tags=is_negative).tags:
        written = quoted(source, tag.span)
        message = f"“{written}” is text in a negative prompt: the WebUI acts on tags in the prompt alone."
        issues.append(Issue("tag-as-text", message, tag.span))
    reads = read_standing(
        prompt, texts[:MAX_TEXTS], lambda text: reworded(read_part(text), TIMED_READER, NOT_HERE), issues
    )
    return reads, texts[MAX_TEXTS:]


def _of_webui(issue: Issue, source: str) -> Issue:
    """An issue with what the WebUI does in place of what ComfyUI's nodes do."""
    if issue.code != "unreadable-strength":
        return issue
    tag = quoted(source, issue.span)
    message = f"A strength in “{tag}” is no number such as 0.8: the WebUI then loads no LoRA at all."
    return replace(issue, message=message)


def webui_view(timed: TimedRead) -> dict[str, Any]:
    """Same as `timed_view`. A tag, which the WebUI and its extensions act on, is a chip like others and no problem."""
    return _with_tags(timed_view(timed), (*TAG_ISSUES, *LORA_ISSUES))


def with_lora_times(data: dict[str, Any], times: Sequence[LoraTimes], *, by_part: bool = False) -> dict[str, Any]:
    """A view in which the chip of each LoRA that acts in time says when, and by which part, and is no problem."""
    if not times:
        return data
    offset = utf16_offsets(data["text"])
    notes = {offset(lora.tag.span.start): lora for lora in times}
    for chip in (chip for chunk in data["chunks"] for chip in chunk["chips"] if not chip["ids"]):
        if chip["start"] in notes:
            lora = notes[chip["start"]]
            chip["note"] = f"{lora.text}, part {lora.part + 1}" if by_part else lora.text
    return _with_tags(data, ("lora", TIMED_LORA))


def _with_tags(data: dict[str, Any], codes: Sequence[str] = TAG_ISSUES) -> dict[str, Any]:
    """A view in which tags that are acted on are chips like others and not problems."""
    for chip in (chip for chunk in data["chunks"] for chip in chunk["chips"]):
        chip["hidden"] = chip["hidden"] and bool(chip["ids"])
    return without_issues(data, codes)


def without_issues(data: dict[str, Any], codes: Sequence[str]) -> dict[str, Any]:
    """A view without issues of some codes."""
    remaining = [number for number, issue in enumerate(data["issues"]) if issue["code"] not in codes]
    moved = {number: index for index, number in enumerate(remaining)}
    for chunk in data["chunks"]:
        for chip in chunk["chips"]:
            chip["problems"] = [moved[number] for number in chip["problems"] if number in moved]
    return {**data, "issues": [data["issues"][number] for number in remaining]}
