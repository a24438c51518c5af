"""Prompts that change while an image is sampled: A1111's prompt editing, alternation and AND.

A prompt is cut at AND first; each part has a list of texts, each with its last step. The counter decides which of them
a call of the sampler uses.

Source: docs/timed.md; behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from ..text.prompt import Fragment, Issue, Piece, Span, shortened
from ..text.tags import Bare, bare
from ..text.weights import FAR, MAX_WEIGHT, clamped, clamped_issue, far_issue
from .editing import Alternation, Edit, Editing, Part, edits_of, read_editing, spans_at
from .regions import RegionPlace, Regions, cut_at_places

Counter = Literal["as the WebUI counts", "as written"]
COUNTERS: tuple[Counter, ...] = get_args(Counter)
"""Ways of counting the calls of a sampler, default first. The WebUI compares a counter from 0 with steps from 1, so
each change comes one call later than written, and the last text of an alternation may never be used."""

MAX_STEPS = 10000
"""Maximum number of steps, as in ComfyUI's samplers."""

MAX_CHANGES = 1_000_000
"""Maximum number of edits and alternations, or parts between ANDs, times steps; more would take seconds and hundreds of
megabytes."""

MAX_CHARACTERS = 4_000_000
"""Maximum length of all texts of a prompt together, about 10,000 chunks: an alternation can make thousands of long
texts."""

AND_WORD = re.compile(r"\bAND\b")
"""Separator of a prompt's parts."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_WHEN = re.compile(r"[ \t]*[0-9.]+[ \t]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?|\d*\.\d+)")


class TimedText(NamedTuple):
    """A text and its duration."""

    last_step: int
    """Its last step, counted from 1."""
    fragment: Fragment
    """The text, made of pieces of the prompt."""

    @property
    def text(self) -> str:
        """Text to encode."""
        return self.fragment.text


@dataclass(frozen=True)
class Branch:
    """One part of a prompt between ANDs, through all steps."""

    weight: float
    """Its share of the guidance; 1.0 is neutral. Always finite."""
    texts: tuple[TimedText, ...]
    """At least one text, in order of time, the last one for the last step."""
    place: RegionPlace | None = None
    """Its place in the picture; None for the whole."""
    start: int = 0
    """Position in the prompt after the word that joins it to the previous part."""

    def at(self, call: int, counter: Counter) -> TimedText:
        """The text that a call of the denoiser uses."""
        step = call if counter == "as the WebUI counts" else call + 1
        index = bisect_left(self.texts, step, key=lambda text: text.last_step)
        return self.texts[index % len(self.texts)]


@dataclass(frozen=True)
class TimedPrompt:
    """A prompt through all steps."""

    source: str
    """The text as typed."""
    branches: tuple[Branch, ...]
    """At least one branch."""
    steps: int
    """Number of steps."""
    issues: tuple[Issue, ...]
    """Issues about times and AND. Problems within the texts are found when they are read."""


class AndPart(NamedTuple):
    """A part of a prompt between ANDs."""

    span: Span
    """Its text, without the weight and trailing whitespace."""
    weight: float = 1.0
    """The weight, 1.0 if none is written; one that is too large to be used is clamped."""
    weight_span: Span | None = None
    """Position of the weight, including the colon."""


def read_timed(
    source: str, steps: int, *, has_comments: bool = True, is_negative: bool = False, regions: Regions = "off"
) -> TimedPrompt:
    """Read a prompt with edits, alternations and ANDs.

    Args:
        source: Any string. Tags such as ``<lora:name:0.8>`` are removed first.
        steps: Number of sampling steps, 1 to `MAX_STEPS`.
        has_comments: Whether ``#`` starts a comment, which is removed as well.
        is_negative: Whether to read it as the WebUI reads a negative prompt, in which tags and AND are text.
        regions: Whether to read places of its parts, and whose.

    Returns:
        The prompt.

    Raises:
        ValueError: If ``steps`` is out of range, a place is not understood, edits or parts times steps are more than
            `MAX_CHANGES`, or all texts together longer than `MAX_CHARACTERS`.

    >>> [(text.last_step, text.text) for text in read_timed("a [cat:dog:0.5]", 20).branches[0].texts]
    [(10, 'a cat'), (20, 'a dog')]
    """
    bare_text, parts, places, issues = cut_parts(
        source, steps, has_comments=has_comments, is_negative=is_negative, regions=regions
    )
    text = bare_text.fragment.text
    editings = [read_editing(text[slice(*part.span)]) for part in parts]
    sizes = PromptTotals()
    branches = tuple(
        Branch(
            _weight(part, place),
            _texts(text, part.span.start, editing.parts, steps, sizes),
            place,
            bare_text.fragment.span_of(Span(part.span.start - 1, part.span.start)).end if part.span.start else 0,
        )
        for part, editing, place in zip(parts, editings, places or [None] * len(parts), strict=True)
    )
    prompt = TimedPrompt(source, branches, steps, tuple(_issues(text, parts, editings, steps)))
    return _in_whole_text(prompt, bare_text, issues) if bare_text.spans or places else prompt


def untimed(source: str, steps: int) -> TimedPrompt:
    """A prompt in which nothing is an edit, an AND or a tag: one text for all steps."""
    pieces = (Piece(source, Span(0, len(source))),) if source else ()
    text = TimedText(steps, Fragment(pieces))
    return TimedPrompt(source, (Branch(1.0, (text,)),), steps, ())


class CutParts(NamedTuple):
    """A prompt cut into parts between ANDs, before edits are read."""

    bare_text: Bare
    """The prompt without comments and tags; the parts' positions are in its text."""
    parts: tuple[AndPart, ...]
    """The parts."""
    places: Sequence[RegionPlace | None]
    """Their places; none if places are not read."""
    issues: list[Issue]
    """Issues about places."""


def cut_parts(source: str, steps: int, *, has_comments: bool, is_negative: bool, regions: Regions) -> CutParts:
    """Take out comments and tags, and cut at AND; arguments and errors as in `read_timed`."""
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps must be 1 to {MAX_STEPS}, got {steps}")
    bare_text = bare(source, has_comments=has_comments, has_tags=not is_negative)
    places: Sequence[RegionPlace | None] = ()
    issues: list[Issue] = []
    if regions == "off":
        text = bare_text.fragment.text
        parts = (AndPart(Span(0, len(text))),) if is_negative else split_and(text)
    else:
        cut = cut_at_places(bare_text.fragment.text)
        issues = [replace(issue, span=bare_text.fragment.span_of(issue.span)) for issue in cut.issues]
        bare_text = bare_text._replace(fragment=bare_text.fragment.part(cut.fragment))
        places = cut.places
        parts = tuple(_and_part(cut.fragment.text, *span) for span in cut.spans)
    PromptTotals().add(len(parts), steps, "parts between ANDs")
    return CutParts(bare_text, parts, places, issues)


def _weight(part: AndPart, place: RegionPlace | None) -> float:
    """Weight of a part; an area has its own."""
    return place.area_weight if place is not None and place.has_area else part.weight


def _in_whole_text(prompt: TimedPrompt, bare_text: Bare, place_issues: Sequence[Issue]) -> TimedPrompt:
    """The prompt in positions of the whole text, with issues about the removed parts, and others."""
    # thousands of steps may share a few texts
    fragments = {text.fragment: None for branch in prompt.branches for text in branch.texts}
    moved = {fragment: bare_text.fragment.part(fragment) for fragment in fragments}
    branches = (
        replace(branch, texts=tuple(text._replace(fragment=moved[text.fragment]) for text in branch.texts))
        for branch in prompt.branches
    )
    moved_issues = (replace(issue, span=bare_text.fragment.span_of(issue.span)) for issue in prompt.issues)
    issues = [*moved_issues, *bare_text.issues(prompt.source), *place_issues]
    return replace(prompt, branches=tuple(branches), issues=tuple(sorted(issues, key=lambda issue: issue.span)))


def split_and(source: str) -> tuple[AndPart, ...]:
    """Cut a prompt at the word AND and read the weight at the end of each part.

    Brackets and edits are ignored. Leading whitespace of a part is kept, trailing whitespace removed.

    >>> [(part.span, part.weight) for part in split_and("a AND b:0.5")]
    [(Span(start=0, end=1), 1.0), (Span(start=5, end=7), 0.5)]
    """
    borders = [match.span() for match in AND_WORD.finditer(source)]
    starts, ends = [0, *(end for _, end in borders)], [*(start for start, _ in borders), len(source)]
    return tuple(_and_part(source, start, end) for start, end in zip(starts, ends, strict=True))


def _and_part(source: str, start: int, end: int) -> AndPart:
    text = source[start:end].rstrip()
    before, colon, number = text.rpartition(":")
    if not colon or not _NUMBER.fullmatch(number.strip()):
        return AndPart(Span(start, start + len(text)))
    content = before.rstrip()
    weight = clamped(float(number))
    return AndPart(Span(start, start + len(content)), weight, Span(start + len(before), start + len(text)))


def schedule(
    source: str,
    steps: int,
    within: Span | None = None,
    *,
    hires_steps: int | None = None,
    old_rule: bool = False,
) -> tuple[TimedText, ...]:
    """Texts that edits and alternations make of a prompt.

    Args:
        source: The prompt.
        steps: Sampling steps of the first pass.
        within: The part of the prompt to read; all of it by default.
        hires_steps: Sampling steps of the second pass, to get its texts. Its times continue after the first pass:
            shares from 1.0 to 2.0, steps from ``steps`` on.
        old_rule: Whether numbers below 1 are shares of ``steps`` and all others steps, in both passes (the WebUI's
            setting "use old prompt editing timelines").

    Returns:
        The texts, each with its last step; a single one for a prompt without edits. Equal neighbours are not joined.

    Raises:
        ValueError: As in `read_timed`.
    """
    start, end = within or Span(0, len(source))
    parts = read_editing(source[start:end]).parts
    return _texts(source, start, parts, steps, PromptTotals(), hires_steps=hires_steps, old_rule=old_rule)


@dataclass
class PromptTotals:
    """Running totals for a prompt, over all its branches."""

    changes: int = 0
    characters: int = 0

    def add(self, count: int, steps: int, what: str) -> None:
        """Count changes to be made."""
        self.changes += count * steps
        if self.changes > MAX_CHANGES:
            raise ValueError(
                f"{count} {what} over {steps} steps are too many: their product may be {MAX_CHANGES:,} at most, in all "
                "parts of a prompt together"
            )

    def add_text(self, spans: Sequence[Span]) -> None:
        """Count the characters of a text."""
        self.characters += sum(span.end - span.start for span in spans)
        if self.characters > MAX_CHARACTERS:
            raise ValueError(
                f"edits and alternations make texts of more than {MAX_CHARACTERS:,} characters of this prompt, all "
                "together: use fewer of them, fewer steps or a shorter prompt"
            )


def _texts(
    source: str,
    start: int,
    parts: Sequence[Part],
    steps: int,
    sizes: PromptTotals,
    *,
    hires_steps: int | None = None,
    old_rule: bool = False,
) -> tuple[TimedText, ...]:
    """Texts of a part of the prompt that begins at ``start`` and is already parsed; the rest as in `schedule`."""
    edits = edits_of(parts)
    total = steps if hires_steps is None or old_rule else hires_steps
    last_steps = last_steps_of(edits, steps, None if old_rule else hires_steps, old_rule=old_rule)
    borders = {step for step in last_steps.values() if step >= 1} | {total}
    if any(isinstance(edit, Alternation) for edit in edits):
        borders |= set(range(1, total + 1))
    sizes.add(len(edits), len(borders), "edits and alternations")
    fragments: dict[tuple[Span, ...], Fragment] = {}
    pieces: dict[Span, Piece] = {}  # shared by all texts, which may be thousands
    texts: list[TimedText] = []
    for step in sorted(borders):
        spans = tuple(spans_at(parts, step, last_steps))
        if spans not in fragments:
            sizes.add_text(spans)
            fragments[spans] = Fragment(tuple(_piece(source, start, span, pieces) for span in spans))
        texts.append(TimedText(step, fragments[spans]))
    return tuple(texts)


def _piece(source: str, start: int, span: Span, pieces: dict[Span, Piece]) -> Piece:
    if span not in pieces:
        whole = Span(start + span.start, start + span.end)
        pieces[span] = Piece(source[slice(*whole)], whole)
    return pieces[span]


def last_steps_of(
    edits: Sequence[Edit | Alternation], steps: int, hires_steps: int | None = None, *, old_rule: bool = False
) -> dict[Span, int]:
    """Last step before the change of each edit, by its span; the rest as in `schedule`."""
    only_edits = (edit for edit in edits if isinstance(edit, Edit))
    return {edit.span: _last_step(edit.when, steps, hires_steps, old_rule=old_rule) for edit in only_edits}


def _last_step(when: str, steps: int, hires_steps: int | None, *, old_rule: bool) -> int:
    """Last step before a change; below 1 if the change comes before the first step."""
    total = steps if hires_steps is None else hires_steps
    number = float(when)
    is_part = number < 1 if old_rule else "." in when
    if hires_steps is not None:
        number -= 1.0 if is_part else steps
    # int() truncates towards zero; both limits protect it from infinity
    return int(max(min(number * total if is_part else number, total), -1.0))


def _issues(source: str, parts: Sequence[AndPart], editings: Sequence[Editing], steps: int) -> Iterator[Issue]:
    for part, editing in zip(parts, editings, strict=True):
        if part.weight_span is not None and len(parts) == 1:
            written = shortened(source[slice(*part.weight_span)], 40)
            message = (
                f"“{written}” at the end of a prompt is the weight of an AND part, as in A1111, not text. With "
                "something after it, such as a comma, it is text."
            )
            yield Issue("lone-and-weight", message, part.weight_span)
        if part.weight_span is not None and len(parts) > 1:
            yield from _weight_issues(source, part, part.weight_span)
        yield from _editing_issues(source[slice(*part.span)], part.span.start, editing, steps)


def _weight_issues(source: str, part: AndPart, span: Span) -> Iterator[Issue]:
    """Issues about a weight of a part that is clamped, or beyond `FAR`."""
    written = source[slice(*span)].lstrip(": \t\r\n")
    if abs(weight := float(written)) > MAX_WEIGHT:
        yield clamped_issue(weight, span)
    elif abs(weight) > FAR:
        digits = Span(span.end - len(written), span.end) if written.isdecimal() and written[0] != "0" else None
        yield far_issue(source[part.span.start : part.span.start + 200], weight, span, digits)


def _editing_issues(text: str, start: int, editing: Editing, steps: int) -> Iterator[Issue]:
    parts, culprit = editing
    if culprit is not None and (edited := _looks_edited(text)):
        what = "The backslash" if text[culprit.start] == "\\" else "The “|”"
        where = "stands before the end of a line" if text[culprit.start] == "\\" else "stands in no alternation [a|b]"
        message = f"{what} {where}, so nothing here is edited, as in A1111: “{shortened(edited)}” is text."
        yield Issue("no-editing", message, Span(start + culprit.start, start + culprit.end))
    for edit in edits_of(parts):
        if isinstance(edit, Edit) and not 1 <= (last := _last_step(edit.when, steps, None, old_rule=False)) < steps:
            which = "its second text stands from the start" if last < 1 else "its first text stands to the end"
            message = f"“{shortened(edit.when, 40)}” lies outside the {steps} steps: {which}."
            yield Issue("edit-without-change", message, Span(start + edit.span.start, start + edit.span.end))


def _looks_edited(text: str) -> str:
    """The first pair of brackets that looks like an edit or an alternation; empty if there is none."""
    for match in _BRACKETS.finditer(text):
        _, colon, when = match[1].rpartition(":")
        if "|" in match[1] or (colon and _WHEN.fullmatch(when)):
            return match[0]
    return ""


class TextRun(NamedTuple):
    """Consecutive calls that use the same text."""

    fragment: Fragment
    """The text."""
    first: int
    """The first call, counted from 0."""
    end: int
    """One past the last call."""


def runs(branch: Branch, calls: int, counter: Counter) -> list[TextRun]:
    """Texts of a branch in the order in which a sampler uses them.

    >>> branch = read_timed("[a|b]", 4).branches[0]
    >>> [(run.fragment.text, run.first, run.end) for run in runs(branch, 4, "as the WebUI counts")]
    [('a', 0, 2), ('b', 2, 3), ('a', 3, 4)]
    """
    result: list[TextRun] = []
    for call in range(calls):
        fragment = branch.at(call, counter).fragment
        if result and result[-1].fragment.text == fragment.text:
            result[-1] = result[-1]._replace(end=call + 1)
        else:
            result.append(TextRun(fragment, call, call + 1))
    return result
