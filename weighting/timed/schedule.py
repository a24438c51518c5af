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
from .editing import SPACE, Alternation, Edit, Editing, Glide, Line, Part, edits_of, mixture_at, read_editing, standing
from .glides import GLIDES, Clock, Glides, glide_problems, shares_at, unread_glides, weight_at, written
from .joining import JOINS, Joined, Joins, Joint, cut_at_joints
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

MAX_GLIDING = 1000
"""Maximum number of mixtures and weights by which a prompt glides: each is kept encoded for its steps."""

AND_WORD = re.compile(r"\bAND\b")
"""Separator of a prompt's parts."""

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_WHEN = re.compile(r"[ \t]*[0-9.]+[ \t]*")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?|\d*\.\d+)")


class Mixed(NamedTuple):
    """A text that is mixed with others."""

    share: float
    """Its share of the mixture; the shares have the sum 1."""
    fragment: Fragment
    """The text."""


class TimedText(NamedTuple):
    """A text and its duration."""

    last_step: int
    """Its last step, counted from 1; 0 for the first call as the WebUI counts, if it differs from the second."""
    fragment: Fragment
    """The text, made of pieces of the prompt; the first one of several that are mixed."""
    mixture: tuple[Mixed, ...] = ()
    """Texts that are mixed; none if there is one text."""

    @property
    def text(self) -> str:
        """Text to encode."""
        return self.fragment.text

    @property
    def fragments(self) -> tuple[Fragment, ...]:
        """All texts to encode."""
        return tuple(mixed.fragment for mixed in self.mixture) or (self.fragment,)


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
    glides: tuple[Span, ...] = ()
    """Its glides, outermost ones only."""
    joint: Joint = "AND"
    """Word before it."""

    @property
    def all_texts(self) -> tuple[str, ...]:
        """All texts to encode, in order of time, each once."""
        return tuple(dict.fromkeys(fragment.text for text in self.texts for fragment in text.fragments))

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
    joined: Joined | None = None
    """How the parts are joined, if by more than AND; their weights are in it too."""


class AndPart(NamedTuple):
    """A part of a prompt between ANDs."""

    span: Span
    """Its text, without the weight and trailing whitespace."""
    weight: float = 1.0
    """The weight, 1.0 if none is written; one that is too large to be used is clamped."""
    weight_span: Span | None = None
    """Position of the weight, including the colon."""


def read_timed(
    source: str,
    steps: int,
    *,
    has_comments: bool | tuple[str, ...] = True,
    is_negative: bool = False,
    regions: Regions = "off",
    glides: Glides = GLIDES[0],
    counter: Counter = COUNTERS[0],
    joins: Joins = JOINS[0],
) -> TimedPrompt:
    """Read a prompt with edits, alternations and ANDs.

    Args:
        source: Any string. Tags such as ``<lora:name:0.8>`` are removed first.
        steps: Number of sampling steps, 1 to `MAX_STEPS`.
        has_comments: Whether ``#`` starts a comment, which is removed as well; or all marks of comments, as of `bare`.
        is_negative: Whether to read it as the WebUI reads a negative prompt, in which tags and AND are text.
        regions: Whether to read places of its parts, and whose.
        glides: Whether to read forms that glide, and whose.
        counter: Way of counting calls, for weights that follow a line; as of `runs`.
        joins: Words that join parts.

    Returns:
        The prompt.

    Raises:
        ValueError: If ``steps`` is out of range, a place is not understood or is beside AND_PERP and its like, edits or
            parts times steps are more than `MAX_CHANGES`, all texts together longer than `MAX_CHARACTERS`, or glides
            more than their bounds.

    >>> [(text.last_step, text.text) for text in read_timed("a [cat:dog:0.5]", 20).branches[0].texts]
    [(10, 'a cat'), (20, 'a dog')]
    >>> text = read_timed("[cat:dog:0.2,0.8]", 20, glides="prompt-fusion").branches[0].at(7, COUNTERS[0])
    >>> [(mixed.share, mixed.fragment.text) for mixed in text.mixture]
    [(0.75, 'cat'), (0.25, 'dog')]
    """
    bare_text, parts, places, issues, joined = cut_parts(
        source, steps, has_comments=has_comments, is_negative=is_negative, regions=regions, joins=joins
    )
    text = bare_text.fragment.text
    is_gliding = glides != GLIDES[0]
    editings = [read_editing(text[slice(*part.span)], glides=is_gliding) for part in parts]
    sizes = PromptTotals()
    lags = counter == COUNTERS[0]
    joints: list[Joint] = list(joined.joints) if joined else ["AND"] * len(parts)
    branches = tuple(
        Branch(
            _weight(part, place),
            _texts(text, part.span.start, editing.parts, steps, sizes, lags=lags),
            place,
            bare_text.fragment.span_of(Span(part.span.start - 1, part.span.start)).end if part.span.start else 0,
            tuple(
                bare_text.fragment.span_of(Span(part.span.start + glide.span.start, part.span.start + glide.span.end))
                for glide in editing.parts
                if isinstance(glide, Glide)
            ),
            joint,
        )
        for part, editing, place, joint in zip(parts, editings, places or [None] * len(parts), joints, strict=True)
    )
    prompt = TimedPrompt(
        source, branches, steps, tuple(_issues(text, parts, editings, steps, is_gliding=is_gliding)), joined
    )
    return _in_whole_text(prompt, bare_text, issues) if bare_text.spans or places or joined else prompt


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
    joined: Joined | None = None
    """How they are joined, if by more than AND."""


def cut_parts(
    source: str,
    steps: int,
    *,
    has_comments: bool | tuple[str, ...],
    is_negative: bool,
    regions: Regions,
    joins: Joins = JOINS[0],
) -> CutParts:
    """Take out comments and tags, and cut at AND; arguments and errors as in `read_timed`."""
    if not 1 <= steps <= MAX_STEPS:
        raise ValueError(f"steps must be 1 to {MAX_STEPS}, got {steps}")
    bare_text = bare(source, has_comments=has_comments, has_tags=not is_negative)
    places: Sequence[RegionPlace | None] = ()
    issues: list[Issue] = []
    joined = None
    if joins != JOINS[0] and not is_negative and (cut := cut_at_joints(bare_text.fragment.text)) is not None:
        if regions != "off":
            raise ValueError("AND_PERP, AND_SALT, AND_TOPK and their brackets have no places: set regions to off.")
        bare_text, joined = bare_text._replace(fragment=bare_text.fragment.part(cut.fragment)), cut.joined
        parts = tuple(AndPart(span, weight) for span, weight in zip(cut.spans, joined.weights, strict=True))
    elif regions == "off":
        text = bare_text.fragment.text
        parts = (AndPart(Span(0, len(text))),) if is_negative else split_and(text)
    else:
        placed = cut_at_places(bare_text.fragment.text)
        issues = [replace(issue, span=bare_text.fragment.span_of(issue.span)) for issue in placed.issues]
        bare_text = bare_text._replace(fragment=bare_text.fragment.part(placed.fragment))
        places = placed.places
        parts = tuple(_and_part(placed.fragment.text, *span) for span in placed.spans)
    PromptTotals().add(len(parts), steps, "parts between ANDs")
    return CutParts(bare_text, parts, places, issues, joined)


def _weight(part: AndPart, place: RegionPlace | None) -> float:
    """Weight of a part; an area has its own."""
    return place.area_weight if place is not None and place.has_area else part.weight


def _in_whole_text(prompt: TimedPrompt, bare_text: Bare, place_issues: Sequence[Issue]) -> TimedPrompt:
    """The prompt in positions of the whole text, with issues about the removed parts, and others."""
    # thousands of steps may share a few texts
    texts = [text for branch in prompt.branches for text in branch.texts]
    fragments = {fragment: None for text in texts for fragment in (text.fragment, *text.fragments)}
    moved = {fragment: bare_text.fragment.part(fragment) for fragment in fragments}

    def whole(text: TimedText) -> TimedText:
        mixture = tuple(Mixed(mixed.share, moved[mixed.fragment]) for mixed in text.mixture)
        return TimedText(text.last_step, moved[text.fragment], mixture)

    branches = (replace(branch, texts=tuple(map(whole, branch.texts))) for branch in prompt.branches)
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
    glides: Glides = GLIDES[0],
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
        glides: As in `read_timed`.

    Returns:
        The texts, each with its last step; a single one for a prompt without edits. Equal neighbours are not joined.

    Raises:
        ValueError: As in `read_timed`.
    """
    start, end = within or Span(0, len(source))
    parts = read_editing(source[start:end], glides=glides != GLIDES[0]).parts
    return _texts(source, start, parts, steps, PromptTotals(), hires_steps=hires_steps, old_rule=old_rule)


@dataclass
class PromptTotals:
    """Running totals for a prompt, over all its branches."""

    changes: int = 0
    characters: int = 0
    gliding: int = 0

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

    def add_gliding(self) -> None:
        """Count a mixture, or a weight of a line."""
        self.gliding += 1
        if self.gliding > MAX_GLIDING:
            raise ValueError(
                f"glides and lines change this prompt more than {MAX_GLIDING:,} times: let them take fewer steps"
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
    lags: bool = True,
) -> tuple[TimedText, ...]:
    """Texts of a part of the prompt that begins at ``start`` and is already parsed; the rest as in `schedule`."""
    edits = edits_of(parts)
    total = steps if hires_steps is None or old_rule else hires_steps
    last_steps = last_steps_of(edits, steps, None if old_rule else hires_steps, old_rule=old_rule)
    borders = {step for step in last_steps.values() if step >= 1} | {total}
    if any(isinstance(edit, Alternation) for edit in edits):
        borders |= set(range(1, total + 1))
    gliding = [edit for edit in edits if isinstance(edit, Glide | Line)]
    clock = Clock(total, hires_steps is not None, old_rule, lags)
    times = standing(parts, total, clock.step_of) if gliding else {}
    if gliding:
        borders = set(range(total + 1))
    sizes.add(len(edits), len(borders), "edits and alternations")
    fragments: dict[tuple[Span | Piece, ...], Fragment] = {}
    pieces: dict[Span, Piece] = {}  # shared by all texts, which may be thousands
    mixtures: dict[tuple[tuple[float, Fragment], ...], tuple[Mixed, ...]] = {}
    texts: list[TimedText] = []

    def fragment_of(spans: Sequence[Span | Piece]) -> Fragment:
        if (key := tuple(spans)) not in fragments:
            sizes.add_text([span for span in key if isinstance(span, Span)])
            fragments[key] = _fragment(source, start, key, pieces)
        return fragments[key]

    for step in sorted(borders):
        shares = {
            glide.span: shares_at(glide.ending, len(glide.options), step, *times[glide.span], clock)
            for glide in gliding
            if isinstance(glide, Glide)
        }
        weights = {
            line.span: written(weight_at(line.ending, step, *times[line.span], clock))
            for line in gliding
            if isinstance(line, Line)
        }
        mixture: dict[Fragment, float] = {}
        for share, spans in mixture_at(parts, max(step, 1), last_steps, shares, weights):
            fragment = fragment_of(spans)
            mixture[fragment] = mixture.get(fragment, 0.0) + share
        key = tuple((share, fragment) for fragment, share in mixture.items() if share)
        if key not in mixtures:
            mixtures[key] = tuple(Mixed(*each) for each in key) if len(key) > 1 else ()
            if gliding:
                sizes.add_gliding()
        text = TimedText(step, next(fragment for _, fragment in key), mixtures[key])
        if gliding and texts and texts[-1][1:] == text[1:]:
            texts.pop()
        texts.append(text)
    return tuple(texts)


def _fragment(source: str, start: int, spans: Sequence[Span | Piece], pieces: dict[Span, Piece]) -> Fragment:
    """A text of stretches of the prompt, with a space at borders of glides where words would grow together."""
    result: list[Piece] = []
    is_border = False
    for span in spans:
        if isinstance(span, Piece):
            if span is SPACE:
                is_border = True
                continue
            piece = Piece(span.text, Span(start + span.span.start, start + span.span.start))
        else:
            piece = _piece(source, start, span, pieces)
        if is_border and piece.text:
            if result and _grow_together(result[-1].text[-1], piece.text[0]):
                at = piece.span.start
                result.append(Piece(" ", Span(at, at)))
            is_border = False
        if piece.text:
            result.append(piece)
    return Fragment(tuple(result))


def _grow_together(before: str, behind: str) -> bool:
    """Whether two characters may be read as one word, or as one run of marks."""
    if before.isspace() or behind.isspace() or {before, behind} & set("()[]"):
        return False
    return before.isalnum() == behind.isalnum()


def _piece(source: str, start: int, span: Span, pieces: dict[Span, Piece]) -> Piece:
    if span not in pieces:
        whole = Span(start + span.start, start + span.end)
        pieces[span] = Piece(source[slice(*whole)], whole)
    return pieces[span]


def last_steps_of(
    edits: Sequence[Edit | Alternation | Glide | Line],
    steps: int,
    hires_steps: int | None = None,
    *,
    old_rule: bool = False,
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


def _issues(
    source: str, parts: Sequence[AndPart], editings: Sequence[Editing], steps: int, *, is_gliding: bool
) -> Iterator[Issue]:
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
        text = source[slice(*part.span)]
        yield from _editing_issues(text, part.span.start, editing, steps)
        if is_gliding:
            yield from _glide_issues(text, part.span.start, editing.parts, steps)


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


def _glide_issues(text: str, start: int, parts: Sequence[Part], steps: int) -> Iterator[Issue]:
    read: list[Span] = []
    times = standing(parts, steps, Clock(steps).step_of)
    for part in edits_of(parts):
        if isinstance(part, Glide | Line):
            read.append(part.span)
        if isinstance(part, Glide):
            for code, message in glide_problems(part.ending, len(part.options), *times[part.span], Clock(steps)):
                where = Span(start + part.span.start, start + part.span.end)
                yield Issue(code, f"“{shortened(text[slice(*part.span)])}” {message}", where)
    for span in unread_glides(text, read):
        message = (
            f"“{shortened(text[slice(*span)])}” is no glide, but text: a glide is like [a:b:0.2,0.8], with "
            "a step for each of two texts or more, and a weight on a line like (a:0.2@0,1.2@0.5)."
        )
        yield Issue("unread-glide", message, Span(start + span.start, start + span.end))


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
    mixture: tuple[Mixed, ...] = ()
    """Texts that are mixed; none if there is one text."""

    @property
    def shares(self) -> tuple[Mixed, ...]:
        """All texts to encode, with their shares."""
        return self.mixture or (Mixed(1.0, self.fragment),)


def runs(branch: Branch, calls: int, counter: Counter) -> list[TextRun]:
    """Texts of a branch in the order in which a sampler uses them.

    >>> branch = read_timed("[a|b]", 4).branches[0]
    >>> [(run.fragment.text, run.first, run.end) for run in runs(branch, 4, "as the WebUI counts")]
    [('a', 0, 2), ('b', 2, 3), ('a', 3, 4)]
    """
    result: list[TextRun] = []
    for call in range(calls):
        text = branch.at(call, counter)
        if result and result[-1].fragment.text == text.text and result[-1].mixture == text.mixture:
            result[-1] = result[-1]._replace(end=call + 1)
        else:
            result.append(TextRun(text.fragment, call, call + 1, text.mixture))
    return result
