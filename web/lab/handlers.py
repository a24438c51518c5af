"""Event handlers of the lab's page: values of its components in, new values out.

Reading needs no weights and is done while the user types. Encoding goes through ``run``, by which a WebUI separates it
from image generation. All errors are returned as text for the page.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import gradio as gr

from ...encoder.tokenizer import default_tokenizer
from ...weighting.convert import convert
from ...weighting.options import OPTIONS as DECLARED
from ...weighting.options import EncodeOptions
from ...weighting.reading import ReadPrompt, read_prompt
from ...weighting.schemes import SCHEMES
from ...weighting.syntax import syntax_of
from ...weighting.timed.schedule import COUNTERS, MAX_STEPS, read_timed
from ...weighting.timed.view import MAX_TEXTS, read_standing, standing_texts, timed_view
from ...weighting.view import counted, view
from ..inspection import MAX_BYTES, MAX_VIEWS
from . import markup, study, webui
from .comparing import Comparison, compare, comparison_chart, told_of
from .components import buttons, element_id
from .model import LabError, LabModel, ModelSource
from .study import export, mask_pictures
from .values import EXPLAINED, checked_number, checked_text, explained, whole_number
from .webui import Given

OPTIONS = (
    *("syntax", "scheme", "normalization", "chunking", "padding"),
    *("law", "mask_method", "hide", "hidden_from", "from_phrases", "cleaning", "finest_step"),
    *("bind", "bind_rest", "bind_strength", "bind_hide", "bind_words"),
)
"""Fields of `EncodeOptions` with a component on the page, in the order in which handlers take them. Their values may be
followed by the number of the text to take of a prompt with AND or prompt editing, and by the sampling steps."""

TABS = ("Tokens", "Masks", "Compare schemes", "Convert", "Export", "Schedule")
"""Parts of the page below the prompt."""

DETAILS = ("tokens", "chunk", "masks", "converted", "problems")
"""Contents of the tabs: token table; the chunk shown, its masks; converted prompt, losses."""

MAX_ROWS = 1000
"""Maximum number of rows in the token table."""

MAX_POSITIONS = 77
"""Maximum number of positions in a mask."""

MAX_CHARTS = 4
"""Maximum number of chunks drawn in a comparison."""

WHERE_WEIGHTS = "On this page, “Other weights” takes a file. Or start the lab with --download, which fetches one."
PROMPT_ID = "weighted_clip_prompt"

Run = Callable[..., Any]
"""Function that calls a function with arguments and returns its result."""


def run_here(function: Callable[..., Any], *arguments: Any) -> Any:
    """`Run` of a page that has the model to itself."""
    return function(*arguments)


class Cancelled(Exception):
    """Raised to end a comparison whose user has pressed Cancel."""


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
        self._is_in_webui = is_in_webui
        self._lock = threading.Lock()

    def read(self, text: str, *values: Any) -> tuple[str, str, str, Any, Any]:
        """Model line, token strip, effect of the scheme, visibility of the box for other phrases, and choice of a text.

        In a WebUI there is a strip for each text that it makes of the prompt.
        """
        model, model_line = self._model()
        inputs = inputs_of(text, values)
        scheme = SCHEMES.get(str(values[1]))
        note = "" if scheme is None else markup.message(f"{scheme.summary} ({scheme.equals})", is_problem=False)
        others = gr.update(visible=values[OPTIONS.index("hidden_from")] == "the phrases below")
        try:
            if self._is_in_webui:
                steps = self._place(values)[1]
                strip = markup.strips(self._webui_views(model, steps, COUNTERS[0], text, values), "", inputs)
            else:
                strip = markup.strip(view(self._read(model, text, values)), "", inputs)
        except EXPLAINED as error:
            strip = markup.strip(None, str(error), inputs)
        return model_line, strip, note, others, self._text_choice(text, values)

    def details(self, tab: str, chunk: float | None, target: str, text: str, *values: Any) -> tuple[Any, ...]:
        """Content of the open tab, in the order of `DETAILS`; all others remain unchanged."""
        shown: dict[str, Any] = dict.fromkeys(DETAILS, gr.update())
        place = {"Tokens": "tokens", "Masks": "masks", "Convert": "problems"}.get(str(tab))
        if place is None:
            return tuple(shown.values())
        try:
            if tab in ("Tokens", "Masks"):
                given = self.given(text, values)
                if tab == "Tokens":
                    content = _token_table(given.read)
                else:
                    shown["chunk"], content = _masks(given.read, chunk)
                content = markup.message(given.note, is_problem=False) + content
            else:
                shown["converted"], content = self._converted(target, text, values)
        except EXPLAINED as error:
            content = markup.message(str(error))
            shown["converted"] = "" if tab == "Convert" else shown["converted"]
        shown[place] = markup.current(content, inputs_of(text, values))
        return tuple(shown.values())

    def schedule(self, tab: str, steps: float, counter: str, text: str, *values: Any) -> Any:
        """All texts of a prompt in A1111's syntax over the steps, if that tab is open."""
        if tab != "Schedule":
            return gr.update()
        inputs = inputs_of(text, values)
        try:
            if counter not in COUNTERS:
                raise LabError(f"counter must be one of: {', '.join(COUNTERS)}; got {counter!r:.80}")
            if self._is_in_webui:
                return markup.strips(self._webui_views(self._model()[0], steps, counter, text, values), "", inputs)
            options = replace(self.options(text, values), syntax="a1111")
            count = whole_number("steps", steps, 1, MAX_STEPS)
            prompt = read_timed(text, count, has_comments=options.is_cleaned)
            texts = standing_texts(prompt, count, counter)
            reads = read_standing(prompt, texts[:MAX_VIEWS], self._reader(self._model()[0], options))
        except EXPLAINED as error:
            return markup.strips([], str(error), inputs)
        views = [timed_view(one) for one in reads]
        views[-1]["num_more"] = len(texts) - len(reads)
        return markup.strips(views, "", inputs)

    def compare(
        self, job: dict[str, Any], schemes: Sequence[str], text: str, *values: str
    ) -> Iterator[tuple[Any, ...]]:
        """Encode a prompt by several schemes, until `cancel` sets ``is_cancelled`` in this user's job."""
        job["is_cancelled"] = False
        running, ended = buttons(is_running=True), buttons(is_running=False)
        wanted = schemes if isinstance(schemes, (list, tuple)) else (schemes,)  # a request may hold anything
        names = [name for name in SCHEMES if name in wanted]
        if not names:
            no_such = f"There is no such scheme; allowed: {', '.join(SCHEMES)}"
            yield *ended, markup.message(no_such if schemes else "Choose at least one scheme."), gr.update()
            return
        total = len(names)

        def check() -> None:
            if job["is_cancelled"]:
                raise Cancelled

        found: list[Comparison] = []
        yield *running, _progress(0, total, f"encoding with {names[0]}"), ""
        try:
            model = self.source()
            given = self.given(text, values, model)
            steps = compare(model, given.text, given.options, names, check)
            while len(found) < total and not job["is_cancelled"]:
                found.append(self.run(next, steps))
                told = f"encoding with {names[len(found)]}" if len(found) < total else ""
                yield (
                    *running,
                    _progress(len(found), total, told),
                    _chart(found, given, self.options(text, values), text, values),
                )
        except Cancelled:
            pass
        except Exception as error:  # the page is the only place where the user can see it
            yield *ended, markup.message(explained(error)), gr.update()
            return
        told = "done" if len(found) == total else "cancelled"
        yield *ended, _progress(len(found), total, told), gr.update()

    def cancel(self, job: dict[str, Any]) -> Any:
        """End a comparison after the encoder's current call: state of the button Cancel.

        It shows nothing else, as its answer may reach the page after the comparison's own last line.
        """
        job["is_cancelled"] = True
        return gr.update(interactive=False)

    def export(self, text: str, *values: Any) -> tuple[Any, str]:
        """Encode a prompt into a file: the file, and its contents."""
        try:
            model = self.source()
            given = self.given(text, values, model)
            options = given.options
            with self._lock:  # since Python 3.12 concurrent calls would each create one
                folder = self._folder.name
            path = Path(tempfile.mkdtemp(dir=folder)) / "prompt.safetensors"
            self.run(export, model, given.text, options, path)
        except Exception as error:  # the page is the only place where the user can see it
            return None, markup.message(explained(error))
        size = f"{path.stat().st_size / 1024:,.0f} KiB"
        line = f"Encoded with {options.scheme} by {model.title}, {size}. The file names prompt, options and model."
        line = f"{line} {given.note}".rstrip()
        return str(path), markup.message(line, is_problem=False)

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        """Folder for files that gradio then copies; it is removed when the program ends."""
        return tempfile.TemporaryDirectory(prefix="weighted-clip-", ignore_cleanup_errors=True)

    def _model(self) -> tuple[LabModel | None, str]:
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
        for name, value in (("prompt", text), *choices.items()):
            is_number = name in DECLARED and isinstance(DECLARED[name].default, float)
            (checked_number if is_number else checked_text)(name, value)
        if len(text.encode()) > MAX_BYTES:
            raise LabError(f"The prompt is longer than {MAX_BYTES // 1024} KiB: shorten it.")
        return replace(self._base, **choices)

    def _read(self, model: LabModel | None, text: str, values: Sequence[Any]) -> ReadPrompt:
        options = self.options(text, values)
        return self._reader(model, options)(text)

    def given(self, text: str, values: Sequence[Any], model: LabModel | None = None) -> Given:
        """The text to take of a prompt, as read by a model: by default the loaded one, or CLIP-L if there is none."""
        model = self._model()[0] if model is None else model
        options = self.options(text, values)
        number, steps = self._place(values)
        number = whole_number("text", number, int(self._is_in_webui), MAX_TEXTS)
        if number and self._can_choose(options):
            texts = webui.texts_of(text, options, partial(self._reader, model), steps)
            chosen = webui.given_of(texts, options, number, steps)
            if self._is_in_webui or chosen.note:
                return chosen
        return Given(text, options, self._reader(model, options)(text))

    def _place(self, values: Sequence[Any]) -> tuple[Any, Any]:
        """Number of the text to take of a prompt, 0 for all of it as it is written; and the sampling steps."""
        defaults = (int(self._is_in_webui), webui.DEFAULT_STEPS)
        number, steps = (*values[len(OPTIONS) :], *defaults[len(values) - len(OPTIONS) :])
        return number, steps

    def _can_choose(self, options: EncodeOptions) -> bool:
        """Whether AND and prompt editing are read: in a WebUI in every syntax."""
        return self._is_in_webui or syntax_of(options.syntax).by_webui

    def _text_choice(self, text: str, values: Sequence[Any]) -> Any:
        """Information for choosing a text of a prompt."""
        count = 1
        with suppress(*EXPLAINED):
            options = self.options(text, values)
            count = webui.num_texts(text, options, self._place(values)[1]) if self._can_choose(options) else 1
        label = f"Text, 1 to {count}" if self._is_in_webui else f"Text, 1 to {count}; 0: all as written"
        return gr.update(label=label, visible=count > 1)

    def _webui_views(
        self, model: LabModel | None, steps: object, counter: Any, text: str, values: Sequence[Any]
    ) -> Sequence[dict[str, Any]]:
        options = self.options(text, values)
        return webui.views_of(webui.texts_of(text, options, partial(self._reader, model), steps, counter))

    def _reader(self, model: LabModel | None, options: EncodeOptions) -> Callable[[str], ReadPrompt]:
        if model is None:
            return lambda text: read_prompt(text, options, default_tokenizer())
        return lambda text: study.read(model, text, options)

    def _converted(self, target: str, text: str, values: Sequence[Any]) -> tuple[str, str]:
        options = self.options(text, values)
        is_cleaned = options.cleaning == "as Forge"
        target = checked_text("target syntax", target)
        converted = convert(text, options.syntax, target, default_tokenizer(), is_cleaned=is_cleaned)
        lines = [issue.line for issue in converted.issues]
        if lines:
            return converted.text, markup.problems([webui.told(line) if self._is_in_webui else line for line in lines])
        told = f"Nothing is lost: the {target} syntax reads the same tokens with the same weights."
        return converted.text, markup.message(told, is_problem=False)


def inputs_of(text: str, values: Sequence[Any]) -> dict[str, str]:
    """Texts by the id of their box."""
    given = dict(zip(OPTIONS, values[: len(OPTIONS)], strict=True))
    return {PROMPT_ID: text, **{element_id(name): one for name, one in given.items() if DECLARED[name].is_lines}}


def choices_of(text: str, values: Sequence[Any], *left_out: str) -> dict[str, str]:
    """The prompt, and every choice except those left out, as in their fields, by the id of the field."""
    named = dict(zip((*OPTIONS, "text", "steps"), values, strict=False))
    if not named.get("text"):  # then the steps change nothing
        named.pop("steps", None)
    written = {name: value if isinstance(value, str) else f"{value:g}" for name, value in named.items()}
    return {PROMPT_ID: text, **{element_id(name): one for name, one in written.items() if name not in left_out}}


def _token_table(read: ReadPrompt) -> str:
    rows, num_more = study.token_rows(read, MAX_ROWS)
    note = f"{counted(num_more, 'more token')} not listed" if num_more else ""
    if not rows:
        return markup.message("No tokens: the prompt is empty.", is_problem=False)
    header = [name.capitalize() for name in study.HEADERS]
    lines = [list(map(_cell, row)) for row in rows]
    if not any(line[-1] for line in lines):  # most prompts are of whole characters
        header, lines = header[:-1], [line[:-1] for line in lines]
    table = "\n".join("\t".join(" ".join(cell.split()) for cell in line) for line in (header, *lines))
    copies = {"Copy ids": study.ids_text(read), "Copy table": table}
    return markup.copies(study.totals(read), copies) + markup.table(header, lines, note)


def _cell(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _masks(read: ReadPrompt, chunk: float | None) -> tuple[Any, str]:
    """Information for choosing a chunk, and the masks of the chosen one."""
    count = len(read.chunks)
    # a number from the page's box, or anything else in a request; NaN compares as false
    number = int(min(count, chunk)) if isinstance(chunk, (int, float)) and chunk >= 1 else 1
    pictures = mask_pictures(read, MAX_POSITIONS, number - 1)
    return gr.update(label=f"Chunk, 1 to {count}", visible=count > 1), markup.figures(pictures)


def _progress(done: int, total: int, told: str) -> str:
    """Progress of a comparison."""
    return markup.progress(done / total, f"{done} of {total} schemes: {told}")


def _chart(found: Sequence[Comparison], given: Given, options: EncodeOptions, text: str, values: Sequence[Any]) -> str:
    """Effects of schemes on the rows of a prompt: a chart for each of its first chunks, and a table."""
    read = given.read
    count = len(read.chunks)
    charts = [comparison_chart(found, read, chunk) for chunk in range(min(count, MAX_CHARTS))]
    notes = [" ".join(filter(None, (one.message, *one.issues))) for one in found]
    names = [one.scheme for one in found]
    columns = [("Scheme", names), ("What a weight does", [SCHEMES[name].summary for name in names])]
    columns += [("Notes", notes)] if any(notes) else []
    header, cells = zip(*columns, strict=True)
    left = f"Of {counted(count, 'chunk')} the first {MAX_CHARTS} are drawn." if count > MAX_CHARTS else ""
    shown = (
        told_of(text, options)
        + markup.message(given.note, is_problem=False)
        + "".join(charts)
        + markup.table(header, zip(*cells, strict=True), left)
    )
    return markup.kept(shown, choices_of(text, values, "scheme"))
