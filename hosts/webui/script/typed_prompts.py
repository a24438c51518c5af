"""Prompts as the WebUI and our script read them, before anything is encoded: for the page and for the X/Y/Z plot.

Source: behaviour of stable-diffusion-webui 1.10 and stable-diffusion-webui-forge dfdcbab6 (2025-06).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....weighting.chunking.t5 import T5Rule
from ....weighting.options import EncodeOptions, PlaceOptions
from ....weighting.phrases.bind import ABSENT
from ....weighting.phrases.words import words_of
from ....weighting.placing.places import MAX_PLACES, PlacedPhrase, read_places
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.timed_view import StandingText, TimedRead, read_as_webui
from ....weighting.reading.view import counted
from ....weighting.schemes import SCHEMES
from ....weighting.syntax import parse
from ....weighting.text.prompt import Issue, Issues, shortened
from ....weighting.text.tags import COMMENT_MARKS
from .. import conditioning
from ..attention.joint_models import idle_lines
from ..attention.known_texts import BLEND, Texts
from ..attention.map_recorder import WordMaps
from ..attention.placed_phrases import PlaceHooks, absent_phrase
from ..engines import WebUIError, as_emphasized, host_option
from ..joint_prompts import read_beyond_clip, reweighted, rule_in, weights_in
from ..joint_texts import BROKEN, Weights
from ..joints import is_neutral_prompt_active
from ..model_readers import ModelReaders, model_in_memory, readers_of
from ..settings import Settings
from ..t5_rows import T5Rows, as_ruled, check_equal_rows, hosts_own
from .lab import base_options

CLAMPED = "clamped-weight"
"""Code of problems about weights that are reduced."""
AND_WEIGHT = re.compile(r"\s*:\s*([-+]?(?:\d+(?:\.\d*)?|\.\d+))\s*")
"""Weight of a part between ANDs as written."""
REPLACED = (ABSENT, CLAMPED, conditioning.INFINITE)
"""Codes of problems of a text that are told otherwise of a whole prompt, or for a generation."""


@dataclass(frozen=True)
class WebUIPrompt:
    """A prompt as read for a generation."""

    readers: ModelReaders
    """Readers of the model in memory, if any."""
    settings: Settings
    """Settings of the script; the defaults if it is switched off."""
    steps: int
    """Number of sampling steps."""
    is_negative: bool
    """Whether it is a negative prompt."""
    by_encoder: Mapping[str, list[TimedRead]]
    """The first texts that the WebUI makes of it, at least one, by the name of the text encoder that reads them; those
    of encoders after the first without the problems that this finds."""
    unread_texts: list[StandingText]
    """Its further texts, which are not read."""
    absent: set[str]
    """Messages about bound phrases that are in none of its texts."""
    weights: Weights | None = None
    """Way in which weights act in the attention of a model beyond CLIP; None if they do not."""
    rule: T5Rule | None = None
    """Rule of a program by which T5's rows are made; None if they are the host's own."""
    unfit: str = ""
    """Reason why T5's rows are the host's own although a rule was asked for; empty if there is none."""

    @property
    def reads(self) -> list[TimedRead]:
        """Its texts as read by the first encoder."""
        return next(iter(self.by_encoder.values()))

    def refusals(self, *, is_part: bool = False) -> dict[str, str]:
        """Lines about what a generation with this prompt refuses, and about settings that do nothing.

        Each with the name of the setting whose lines it is about, or "". ``is_part`` says whether phrases may
        also be in text that is added to the prompt.
        """
        if not self.settings.enabled:
            return {}
        lines = {line: "" for line in (self.unfit, *map(_refusal, self._checks())) if line}
        if not self.is_negative:
            lines |= dict.fromkeys(self.settings.unread(), "")
            if self.readers.model is not None and self.readers.is_beyond_clip:
                lines |= dict.fromkeys(idle_lines(self.settings, self.readers.model), "")
            lines |= {} if is_part else dict(self.missing_phrases())
            lines |= dict.fromkeys(self._idle_places(), "places")
        return lines

    def missing_phrases(self) -> Iterator[tuple[str, str]]:
        """Lines about phrases of the settings that are in none of its texts, each with the name of the setting."""
        if self.absent:
            yield conditioning.cannot_be_bound(self.absent), "bind"
        syntax = self.reads[0].read.options.syntax
        words = [words_of(timed.read.prompt.parts) for timed in self.reads]
        words += [words_of(parse(text.fragment.text, syntax).parts) for text in self.unread_texts]
        for place in self._places()[0]:
            if not any(text.numbers_of(place.phrase) for text in words):
                yield absent_phrase(place), "places"

    def _checks(self) -> Iterator[Callable[[], object]]:
        """Functions that raise what a generation would."""
        settings, stack = self.settings, conditioning.Stack(self.settings.scheme)
        if not self.readers.is_beyond_clip:
            yield partial(stack.add, [timed.read for timed in self.reads])
            if SCHEMES[settings.scheme].is_signed or stack.is_repeating:
                yield partial(conditioning.refuse_padded_prompts, settings.scheme)
        if self.is_negative:
            return
        texts = Texts(in_pairs=False)
        all_hooks = [
            *([PlaceHooks((), texts)] if settings.places.strip() else []),
            *([WordMaps(texts)] * settings.word_maps),
        ]
        for hooks in all_hooks if self.readers.model is not None else ():
            yield partial(hooks.check, SimpleNamespace(sd_model=self.readers.model))
        for hooks in all_hooks:
            if any(len(section.prompts) > 1 for timed in self.reads for section in timed.read.sections):
                yield partial(hooks.refuse_unknown, BLEND)
            is_by_host = self.readers.t5 is not None and self.rule is None
            if is_by_host and any(len(timed.read.chunks) > 1 for timed in self.reads):
                yield partial(hooks.refuse_unknown, BROKEN)

    def _places(self) -> tuple[list[PlacedPhrase], list[str]]:
        """Lines of Places as read, and messages about those that cannot be."""
        places: list[PlacedPhrase] = []
        wrong: list[str] = []
        lines = [line for line in self.settings.places.splitlines() if line.strip()]
        # more lines than are allowed are refused together
        for text in lines if len(lines) <= MAX_PLACES else [self.settings.places]:
            try:
                places += read_places(text)
            except ValueError as error:
                wrong.append(str(error))
        return places, wrong

    def _idle_places(self) -> Iterator[str]:
        """Lines about lines of Places that cannot be read, or do nothing."""
        places, wrong = self._places()
        yield from wrong
        for place in places:
            if place.is_neutral:
                yield f"“{shortened(place.line)}” changes nothing: its weight is 1 everywhere."
            elif place.in_steps and place.start >= self.steps:
                yield f"“{shortened(place.line)}” acts in none of the {counted(self.steps, 'step')}."


def read_for_generation(
    text: str, steps: int, settings: Settings, readers: ModelReaders | None = None, *, is_negative: bool = False
) -> WebUIPrompt:
    """Read a prompt by readers, or else for the model in memory.

    Raises `WebUIError` if that is not known, or a setting is not allowed.
    """
    readers = readers or readers_of(model_in_memory())
    # each line of Places is told apart
    options = (replace(settings, places="") if isinstance(settings.places, str) else settings).options()
    options = as_emphasized(replace(options, comma_backtrack=base_options().comma_backtrack))
    if is_negative:
        options = replace(options, bind_strength=0.0)
    marks = options.comment_marks
    if host_option("enable_prompt_comments", default=False):
        marks = tuple(mark for mark in COMMENT_MARKS if mark == "#" or mark in marks)
    issues: list[Issues] = []  # of each text, of which the host's reading tells the same ones once
    reads_by_title: dict[str, list[TimedRead]] = {}
    unread_texts: list[StandingText] = []
    weights, rule, unfit = weights_in(readers, settings), rule_in(readers, settings), ""
    joins: Any = settings.joins if settings.enabled and not is_neutral_prompt_active() else PlaceOptions.joins

    def read_all() -> None:
        nonlocal unread_texts
        issues.clear()
        for title, reader in readers.by_title(rule):

            def read(part_text: str, reader: Callable[[str, EncodeOptions], ReadPrompt] = reader) -> ReadPrompt:
                if rule is not None:
                    result = reader(part_text, as_ruled(options))
                elif readers.is_beyond_clip:
                    result = read_beyond_clip(part_text, options, weights, reader)
                else:
                    result = reader(part_text, options)
                issues.append(result.issues)
                return result

            glides: Any = settings.glides if settings.enabled and not readers.is_beyond_clip else PlaceOptions.glides
            reads_by_title[title], unread_texts = read_as_webui(
                text, steps, read, is_negative=is_negative, has_comments=marks, glides=glides, joins=joins
            )

    if rule is not None:
        try:
            assert readers.t5 is not None
            T5Rows.of(readers.t5.owner, rule)
            read_all()
            check_equal_rows(timed.read for timed in next(iter(reads_by_title.values())))
        except (ValueError, WebUIError) as error:
            rule, unfit = None, hosts_own(error, is_negative=is_negative)
    if rule is None:
        read_all()
    first, *rest = reads_by_title
    told_issues = {issue for timed in reads_by_title[first] for issue in timed.read.issues}
    by_encoder = {
        first: list(map(_with_infinite_weights, reads_by_title[first])),
        **{
            title: [
                _by_further_encoder(timed, told_issues, has_weights=readers.weighs_clip)
                for timed in reads_by_title[title]
            ]
            for title in rest
        },
    }
    absent = set[str]() if unread_texts else conditioning.absent_in_all(issues)
    return WebUIPrompt(readers, settings, steps, is_negative, by_encoder, unread_texts, absent, weights, rule, unfit)


def _by_further_encoder(timed: TimedRead, told_issues: Container[Issue], *, has_weights: bool) -> TimedRead:
    """A text as read by an encoder after the first: without problems that are told already, perhaps without weights."""
    prompt = timed.read._replace(issues=tuple(issue for issue in timed.read.issues if issue not in told_issues))
    return timed._replace(read=prompt if has_weights else reweighted(prompt, lambda _: 1.0))


def _with_infinite_weights(timed: TimedRead) -> TimedRead:
    """A text with a problem for each weight that is not finite, and none for phrases that it lacks."""
    prompt = timed.read
    infinite = list(conditioning.infinite_weights(prompt.prompt, prompt.issues))
    left_out = REPLACED if infinite else (ABSENT,)
    issues = [*infinite, *(_of_part(issue, prompt) for issue in prompt.issues if issue.code not in left_out)]
    return timed._replace(read=prompt._replace(issues=tuple(sorted(issues, key=lambda issue: issue.span))))


def _of_part(issue: Issue, prompt: ReadPrompt) -> Issue:
    """A problem of a prompt; a weight of a part between ANDs that is not finite is not clamped here."""
    written = AND_WEIGHT.fullmatch(prompt.prompt.source[slice(*issue.span)])
    if issue.code != CLAMPED or written is None or math.isfinite(weight := float(written[1])):
        return issue
    return replace(issue, code=conditioning.INFINITE, message=conditioning.INFINITE_PART.format(weight))


def _refusal(check: Callable[[], Any]) -> str:
    """Message that a check raises; empty if it raises none."""
    try:
        check()
    except WebUIError as error:
        return str(error)
    return ""
