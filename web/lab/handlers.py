"""The page's prompt and options, as its tabs read them: values of components in, new values out.

In a WebUI a prompt is read as the WebUI reads it: as several texts, one of which is encoded here. Reading needs no
weights and is done while the user types. Encoding goes through ``run``, by which a WebUI separates it from image
generation. All errors are returned as text for the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, cast

import gradio as gr

from ...encoder.option import OptionError
from ...encoder.quoting import checked
from ...encoder.tokenizer import default_tokenizer
from ...weighting.options import OPTIONS as DECLARED
from ...weighting.options import EncodeOptions
from ...weighting.reading.prompt_reader import ReadPrompt, read_prompt
from ...weighting.reading.timed_view import MAX_TEXTS, TimedRead, read_as_webui, standing_texts, webui_view
from ...weighting.reading.view import view
from ...weighting.schemes import SCHEMES
from ...weighting.syntax import syntax_of
from ...weighting.text.prompt import shortened
from ...weighting.timed.schedule import COUNTERS, MAX_STEPS, Counter, read_timed
from ..inspection import MAX_BYTES
from . import markup
from .components import appearing, changed_options_line, element_id
from .model import EXPLAINED, LabError, LabModel, ModelSource, checked_number, checked_text, whole_number
from .tabs import study

OPTIONS = (
    *("syntax", "scheme", "normalization", "chunking", "padding"),
    *("law", "mask_method", "hide", "hidden_from", "from_phrases", "cleaning", "finest_step"),
    *("bind", "bind_rest", "bind_strength", "bind_hide", "bind_words", "above_one", "comments"),
)
"""Fields of `EncodeOptions` with a component on the page, in the order in which handlers take them. Their values may be
followed by the number of the text to take of a prompt with AND or prompt editing, by the sampling steps, and by how
they are counted."""

WHERE_WEIGHTS = "On this page, “Other weights” takes a file. Or start the lab with --download, which fetches one."
PROMPT_ID = "weighted_clip_prompt"

Run = Callable[..., Any]
"""Function that calls a function with arguments and returns its result."""


def run_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """`Run` of a page that has the model to itself."""
    return function(*arguments)


class Handlers:
    """Handlers of one page. ``base`` has options without a component; ``run`` calls what needs the model's weights."""

    def __init__(
        self, source: ModelSource, base: EncodeOptions, run: Run = run_here, *, is_in_webui: bool = False
    ) -> None:
        self.source = source
        """Gives the model."""
        self._base = base
        self.run = run
        """Runs what needs the model's weights."""
        self.is_in_webui = is_in_webui
        """Whether prompts are read as the WebUI reads them that the page is in."""

    def read(self, text: str, *values: Any) -> tuple[Any, ...]:
        """Model line, token strip, effect of the scheme, choice of a text, and visibility of what `appearing` is about.

        In a WebUI there is a strip for each text that it makes of the prompt.
        """
        model, model_line = self.model()
        inputs = inputs_of(text, values)
        scheme = SCHEMES.get(str(values[1]))
        chosen = dict(zip(OPTIONS, values, strict=False))
        folded = {name: value for name, value in chosen.items() if name not in ("syntax", "scheme")}
        note = "" if scheme is None else markup.note(scheme.advice)
        note += markup.note(changed_options_line("More options", folded, vars(self._base)))
        parts = [gr.update(visible=is_visible) for is_visible in appearing(chosen).values()]
        try:
            if self.is_in_webui:
                strip = markup.strips(self.webui_views(model, text, values), "", inputs)
            else:
                strip = markup.strip(view(self._read(model, text, values)), "", inputs)
        except EXPLAINED as error:
            strip = markup.strip(None, str(error), inputs)
        return model_line, strip, note, self._text_choice(text, values), *parts

    def model(self) -> tuple[LabModel | None, str]:
        """The model, or None, and a line about it."""
        try:
            model = self.source()
        except EXPLAINED as error:
            note = f"{error} Until then prompts are read as CLIP-L reads them, without embeddings."
            return None, markup.model_line("", "", note)
        return model, markup.model_line(model.title, model.warning, WHERE_WEIGHTS if model.warning else "")

    def options(self, text: str, values: Sequence[Any]) -> EncodeOptions:
        """Options, after checking that the texts can be read."""
        choices: dict[str, Any] = dict(zip(OPTIONS, values[: len(OPTIONS)], strict=True))
        checked_text("Prompt", text)
        for name, value in choices.items():
            (checked_number if DECLARED[name].kind is float else checked_text)(DECLARED[name].label, value)
        if len(text.encode()) > MAX_BYTES:
            raise LabError(f"The prompt is longer than {MAX_BYTES // 1024} KiB: shorten it.")
        try:
            return replace(self._base, **choices)
        except OptionError as error:
            raise LabError(error.on_page) from error

    def _read(self, model: LabModel | None, text: str, values: Sequence[Any]) -> ReadPrompt:
        options = self.options(text, values)
        return self.reader(model, options)(text)

    def prompt_text(self, text: str, values: Sequence[Any], model: LabModel | None = None) -> PromptText:
        """The text to take of a prompt, as read by a model: by default the loaded one, or CLIP-L if there is none."""
        model = self.model()[0] if model is None else model
        options = self.options(text, values)
        number, steps, counter = self.place(values)
        number = whole_number("Text", number, int(self.is_in_webui), MAX_TEXTS)
        if number and self._can_choose(options):
            reads, num_more = self._texts(model, text, options, steps, counter)
            index, count = min(number, len(reads)) - 1, len(reads) + num_more
            chosen, note = reads[index], ""
            if count > 1:
                sentence = f"Of the {count} texts that the WebUI makes of this prompt in {steps} steps, this is number"
                note = f"{sentence} {index + 1}: “{shortened(chosen.text)}”."
            if self.is_in_webui or note:
                return PromptText(chosen.text, _left(options), chosen.read, note)
        return PromptText(text, options, self.reader(model, options)(text))

    def place(self, values: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Number of the text to take of a prompt, 0 for all of it as it is written; the sampling steps; the counter."""
        defaults = (int(self.is_in_webui), DEFAULT_STEPS, COUNTERS[0])
        number, steps, counter = (*values[len(OPTIONS) :], *defaults[len(values) - len(OPTIONS) :])
        return number, steps, counter

    def _can_choose(self, options: EncodeOptions) -> bool:
        """Whether AND and prompt editing are read: in a WebUI in every syntax."""
        return self.is_in_webui or syntax_of(options.syntax).by_webui

    def _text_choice(self, text: str, values: Sequence[Any]) -> Any:
        """Information for choosing a text of a prompt."""
        count = 1
        with suppress(*EXPLAINED):
            options = self.options(text, values)
            if self._can_choose(options):
                _, steps, counter = self.place(values)
                steps, counter = whole_number("Sampling steps", steps, 1, MAX_STEPS), checked_counter(counter)
                prompt = read_timed(text, steps, has_comments=_marks(options))
                count = min(MAX_TEXTS, len(standing_texts(prompt, steps, counter)))
        label = f"Text, 1 to {count}" if self.is_in_webui else f"Text, 1 to {count}; 0: all as written"
        return gr.update(label=label, visible=count > 1)

    def webui_views(self, model: LabModel | None, text: str, values: Sequence[Any]) -> Sequence[dict[str, Any]]:
        """A view of each text that the WebUI makes of a prompt."""
        reads, num_more = self._texts(model, text, self.options(text, values), *self.place(values)[1:])
        views = [webui_view(timed) for timed in reads]
        views[-1]["num_more"] = num_more
        has_tags = any(not chip["ids"] for timed in views for chunk in timed["chunks"] for chip in chunk["chips"])
        return [{**timed, "notes": [TAGS_ACT]} for timed in views] if has_tags else views

    def _texts(
        self,
        model: LabModel | None,
        text: str,
        options: EncodeOptions,
        steps: object,
        counter: object,
    ) -> tuple[list[TimedRead], int]:
        """The first texts that the WebUI makes of a prompt, at least one, as read; and the number of further ones."""
        count = whole_number("Sampling steps", steps, 1, MAX_STEPS)
        counter = checked_counter(counter)
        reader = self.reader(model, _left(options))
        reads, further = read_as_webui(text, count, reader, has_comments=_marks(options), counter=counter)
        return reads, len(further)

    def reader(self, model: LabModel | None, options: EncodeOptions) -> Callable[[str], ReadPrompt]:
        """Reader of texts by a model, or as CLIP-L reads them if there is none."""
        if model is None:
            return lambda text: read_prompt(text, options, default_tokenizer())
        return lambda text: study.read(model, text, options)


def checked_counter(counter: object) -> Counter:
    """Check that a value is one of `COUNTERS`."""
    return cast(Counter, checked("Counter", counter, COUNTERS, LabError))


def inputs_of(text: str, values: Sequence[Any]) -> dict[str, str]:
    """Texts by the id of their box."""
    choices = dict(zip(OPTIONS, values[: len(OPTIONS)], strict=True))
    return {PROMPT_ID: text, **{element_id(name): value for name, value in choices.items() if DECLARED[name].is_lines}}


def choices_of(text: str, values: Sequence[Any], *left_out: str) -> dict[str, str]:
    """The prompt, and every choice except those left out, as in their fields, by the id of the field."""
    named = dict(zip((*OPTIONS, "text", "steps", "counter"), values, strict=False))
    if not named.get("text"):  # then the steps change nothing
        for name in ("steps", "counter"):
            named.pop(name, None)
    written = {name: value if isinstance(value, str) else f"{value:g}" for name, value in named.items()}
    return {PROMPT_ID: text, **{element_id(name): value for name, value in written.items() if name not in left_out}}


DEFAULT_STEPS = 20
"""Default number of sampling steps."""

TAGS_ACT = "tags act in txt2img and img2img, not here"


class PromptText(NamedTuple):
    """The encoded part of the page's prompt."""

    text: str
    """Text to encode; in a WebUI one of those that it makes of the prompt, without comments and tags."""
    options: EncodeOptions
    """Options for reading it."""
    read: ReadPrompt
    """The text as read, in positions of the whole prompt."""
    note: str = ""
    """Note on which text of the prompt it is, if there are several."""


def _left(options: EncodeOptions) -> EncodeOptions:
    """Options for reading a text from which the WebUI has removed comments and tags."""
    return replace(options, cleaning="none", has_tags=False, comments=EncodeOptions.comments)


def _marks(options: EncodeOptions) -> tuple[str, ...]:
    """Marks of comments where the WebUI reads a syntax: it has its own in all of them."""
    return replace(options, syntax="a1111").comment_marks
