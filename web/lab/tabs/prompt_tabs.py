"""The lab's tabs about the prompt alone: tokens, masks, comparison, conversion, file and schedule, each a class.

All errors are returned as text for the page.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import gradio as gr

from ....encoder.tokenizer import default_tokenizer
from ....weighting.options import EncodeOptions
from ....weighting.reading.convert import TARGETS, convert
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.timed_view import read_standing, standing_texts, timed_view
from ....weighting.reading.view import counted
from ....weighting.schemes import SCHEMES
from ....weighting.timed.schedule import COUNTERS, MAX_STEPS, read_timed
from ...inspection import MAX_VIEWS
from .. import markup
from ..components import (
    Inputs,
    Tab,
    button,
    buttons,
    declared,
    element_id,
    html,
    live,
    menu_of,
    named_choices,
    textbox,
    whole,
)
from ..handlers import DEFAULT_STEPS, Handlers, PromptText, checked_counter, choices_of, inputs_of
from ..markup import NOT_YET
from ..model import EXPLAINED, checked_text, entry_number, explained, whole_number
from . import study
from .comparison import Comparison, compare, comparison_chart, comparison_title
from .study import MAX_POSITIONS, export, mask_pictures

TIMED_EXAMPLE = "a [cat:dog:0.5] in a bowl"
"""Prompt with a change, suggested in the tab for schedules."""

COUNTED = {
    "as the WebUI counts": "as the WebUI counts: each change comes one step late",
    "as written": "as written: each change comes at its step",
}
"""Ways of counting steps, as displayed."""
STRIPS_ABOVE = "Each text is shown above with its steps, by these two."
"""Line of the schedule's tab when the prompt's own strips already show its texts."""

EXPORT_USE = (
    "For diffusers or code of your own: the file holds the tensors “hidden” and “pooled”, which diffusers takes as "
    "prompt_embeds and, in SDXL, pooled_prompt_embeds."
)
"""Line of the export's tab until something is exported."""

COMPARED = ("comfy", "a1111", "masked_blend")
"""Schemes compared by default, with the unweighted encoding."""

TARGET = "compel"
"""Default target syntax of a conversion."""

MAX_ROWS = 1000
"""Maximum number of rows in the token table."""

MAX_CHARTS = 4
"""Maximum number of chunks drawn in a comparison."""


class PromptTab(Tab):
    """A tab about the prompt, which handlers read."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers = handlers


class TokensTab(PromptTab):
    """Table of the prompt's tokens."""

    title, name = "Tokens", "tab_tokens"

    def build(self, page: Inputs) -> None:
        """As in `Tab`; it is the tab that is open at first."""
        self.shown = [html("tokens", "Token table", self.show(*page.first)[0])]

    def show(self, text: str, *values: Any) -> tuple[Any, ...]:
        """The table."""
        try:
            chosen = self.handlers.prompt_text(text, values)
            content = markup.note(chosen.note) + _token_table(chosen.read)
        except EXPLAINED as error:
            content = markup.message(str(error))
        return (markup.current(content, inputs_of(text, values)),)


class MasksTab(PromptTab):
    """Attention masks of one chunk."""

    title, name = "Masks", "tab_masks"

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        chunk = whole("chunk", "Chunk", visible=False)
        self.asked, self.shown = [chunk], [chunk, html("masks", "Attention masks", NOT_YET)]

    def show(self, chunk: float | None, text: str, *values: Any) -> tuple[Any, ...]:
        """Information for choosing a chunk, and the masks of the chosen one."""
        number = gr.update()
        try:
            chosen = self.handlers.prompt_text(text, values)
            count = len(chosen.read.chunks)
            number = gr.update(label=f"Chunk, 1 to {count}", visible=count > 1)
            index = entry_number("Chunk", chunk, count) - 1
            pictures = markup.figures(mask_pictures(chosen.read, MAX_POSITIONS, index))
            content = markup.note(chosen.note) + pictures
        except EXPLAINED as error:
            content = markup.message(str(error))
        return number, markup.current(content, inputs_of(text, values))


class Cancelled(Exception):
    """Raised to end a comparison whose user has pressed Cancel."""


class CompareTab(PromptTab):
    """Schemes compared by the changes they make to a prompt's rows."""

    title, name = "Compare schemes", "tab_compare"

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        self._job = gr.State({"is_cancelled": False})
        self._schemes = gr.CheckboxGroup(
            menu_of("scheme"),
            value=list(COMPARED),
            label="Schemes to compare",
            elem_id=element_id("schemes"),
        )
        with gr.Row():
            self._start = button("compare", "Compare", variant="primary")
            self._stop = button("cancel", "Cancel", interactive=False)
        self._progress = html("progress", "Progress")
        self._comparison = html("comparison", "Comparison")
        self.kept = {"schemes": self._schemes}

    def connect(self, page: Inputs) -> None:
        """As in `Tab`."""
        compared = self._start.click(
            self.compare,
            inputs=[self._job, self._schemes, *page.all],
            outputs=[self._start, self._stop, self._progress, self._comparison],
            show_progress="hidden",
        )
        live(self._stop.click, {"fn": self.cancel, "inputs": [self._job], "outputs": [self._stop]})
        live(compared.then, page.reading)  # a WebUI may have loaded a model for it

    def compare(
        self, job: dict[str, Any], schemes: Sequence[str], text: str, *values: str
    ) -> Iterator[tuple[Any, ...]]:
        """Encode a prompt by several schemes, until `cancel` sets ``is_cancelled`` in this user's job."""
        job["is_cancelled"] = False
        running, ended = buttons(is_running=True), buttons(is_running=False)
        selected = schemes if isinstance(schemes, (list, tuple)) else (schemes,)  # a request may hold anything
        names = [name for name in SCHEMES if name in selected]
        if not names:
            no_such = f"There is no such scheme; allowed: {', '.join(SCHEMES)}"
            yield *ended, markup.refused(no_such if schemes else "Choose at least one scheme."), gr.update()
            return
        total = len(names)

        def check() -> None:
            if job["is_cancelled"]:
                raise Cancelled

        comparisons: list[Comparison] = []
        yield *running, _progress(0, total, f"encoding with {names[0]}"), ""
        try:
            model = self.handlers.source()
            chosen = self.handlers.prompt_text(text, values, model)
            steps = compare(model, chosen.text, chosen.options, names, check)
            while len(comparisons) < total and not job["is_cancelled"]:
                comparisons.append(self.handlers.run(next, steps))
                status = f"encoding with {names[len(comparisons)]}" if len(comparisons) < total else ""
                yield (
                    *running,
                    _progress(len(comparisons), total, status),
                    _chart(comparisons, chosen, self.handlers.options(text, values), text, values),
                )
        except Cancelled:
            pass
        except Exception as error:  # the page is the only place where the user can see it
            yield *ended, markup.refused(explained(error)), gr.update()
            return
        status = "done" if len(comparisons) == total else "cancelled"
        yield *ended, _progress(len(comparisons), total, status), gr.update()

    def cancel(self, job: dict[str, Any]) -> Any:
        """End a comparison after the encoder's current call: state of the button Cancel.

        It shows nothing else, as its answer may reach the page after the comparison's own last line.
        """
        job["is_cancelled"] = True
        return gr.update(interactive=False)


class ConvertTab(PromptTab):
    """The prompt in another syntax."""

    title, name = "Convert", "tab_convert"

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        choices = named_choices({name: declared("syntax").shown(name) for name in TARGETS})
        target = gr.Radio(choices, value=TARGET, label="Target syntax", elem_id=element_id("target"))
        converted = textbox("converted", "Converted prompt", lines=3, interactive=False)
        lost = html("conversion_problems", "Problems of the conversion", NOT_YET)
        self._use = button("use_converted", "Use this as the prompt")
        self.asked, self.shown, self.kept = [target], [converted, lost], {"target": target}

    def connect(self, page: Inputs) -> None:
        """As in `Tab`."""
        outputs = [page.prompt, page.options["syntax"]]
        live(self._use.click, {"fn": _used, "inputs": [self.shown[0], *self.asked, *outputs], "outputs": outputs})

    def show(self, target: str, text: str, *values: Any) -> tuple[Any, ...]:
        """The converted prompt, and the losses."""
        converted, inputs = "", inputs_of(text, values)
        try:
            options = self.handlers.options(text, values)
            target = checked_text("Target syntax", target)
            is_cleaned, marks = options.cleaning == "as Forge", options.comment_marks
            result = convert(text, options.syntax, target, default_tokenizer(), is_cleaned=is_cleaned, marks=marks)
        except EXPLAINED as error:
            return converted, markup.current(markup.message(str(error)), inputs)
        lines = [study.in_lab_words(issue.line) for issue in result.issues]
        message = f"Nothing is lost: the {target} syntax reads the same tokens with the same weights."
        lost = markup.problems(lines) if lines else markup.note(message)
        return result.text, markup.current(lost, inputs)


class ExportTab(PromptTab):
    """The prompt's conditioning as a file."""

    title, name = "Export", "tab_export"

    def __init__(self, handlers: Handlers) -> None:
        super().__init__(handlers)
        self._lock = threading.Lock()

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        self._save = button("export", "Encode and save", variant="primary")
        self._exported = html("export_report", "What was exported", markup.note(EXPORT_USE))
        self._file = gr.File(label="Exported safetensors file", interactive=False, elem_id=element_id("file"))

    def connect(self, page: Inputs) -> None:
        """As in `Tab`."""
        outputs = [self._file, self._exported]
        saved = self._save.click(self.export, inputs=page.all, outputs=outputs, show_progress="minimal")
        live(saved.then, page.reading)  # a WebUI may have loaded a model for it

    def export(self, text: str, *values: Any) -> tuple[Any, str]:
        """Encode a prompt into a file: the file, and its contents."""
        try:
            model = self.handlers.source()
            chosen = self.handlers.prompt_text(text, values, model)
            options = chosen.options
            with self._lock:  # since Python 3.12 concurrent calls would each create one
                folder = self._folder.name
            path = Path(tempfile.mkdtemp(dir=folder)) / "prompt.safetensors"
            self.handlers.run(export, model, chosen.text, options, path)
        except Exception as error:  # the page is the only place where the user can see it
            return None, markup.refused(explained(error))
        size = f"{path.stat().st_size / 1024:,.0f} KiB"
        line = f"Encoded with {options.scheme} by {model.title}, {size}. The file names prompt, options and model."
        line = f"{line} {chosen.note}".rstrip()
        return str(path), markup.note(line)

    @cached_property
    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        """Folder for files that gradio then copies; it is removed when the program ends."""
        return tempfile.TemporaryDirectory(prefix="weighted-clip-", ignore_cleanup_errors=True)


class ScheduleTab(PromptTab):
    """All texts of a prompt in A1111's syntax over the sampling steps."""

    title, name = "Schedule", "tab_schedule"

    def build(self, page: Inputs) -> None:
        """As in `Tab`; the page's other tabs read the steps, too."""
        with gr.Row():
            info = f"A prompt that changes halfway: {TIMED_EXAMPLE}"
            self.steps = whole("steps", "Sampling steps", DEFAULT_STEPS, info=info)
            self.counter = gr.Dropdown(
                named_choices(COUNTED),
                value=COUNTERS[0],
                label="Counter",
                info="When a change comes",
                elem_id=element_id("counter"),
            )
        content = markup.note(STRIPS_ABOVE) if self.handlers.is_in_webui else NOT_YET
        schedule = html("schedule", "Texts and their steps", content)
        self.shown = [] if self.handlers.is_in_webui else [schedule]

    def show(self, text: str, *values: Any) -> tuple[Any, ...]:
        """A strip for each text."""
        inputs = inputs_of(text, values)
        try:
            return (markup.strips(self._views(text, values), "", inputs),)
        except EXPLAINED as error:
            return (markup.strips([], str(error), inputs),)

    def _views(self, text: str, values: Sequence[Any]) -> Sequence[dict[str, Any]]:
        _, steps, counter = self.handlers.place(values)
        model = self.handlers.model()[0]
        options = replace(self.handlers.options(text, values), syntax="a1111")
        count = whole_number("Sampling steps", steps, 1, MAX_STEPS)
        prompt = read_timed(text, count, has_comments=options.comment_marks)
        texts = standing_texts(prompt, count, checked_counter(counter))
        reads = read_standing(prompt, texts[:MAX_VIEWS], self.handlers.reader(model, options))
        views = [timed_view(timed) for timed in reads]
        views[-1]["num_more"] = len(texts) - len(reads)
        for issue in (issue for view in views for issue in view["issues"]):
            issue["message"] = study.in_lab_words(issue["message"])
        return views


PROMPT_TABS = (TokensTab, MasksTab, CompareTab, ConvertTab, ExportTab, ScheduleTab)
"""Tabs of every page, in order."""


def _used(converted: str, target: str, prompt: str, syntax: str) -> tuple[str, str]:
    """The converted prompt in the prompt box, in its syntax; unchanged if there is none."""
    is_there = isinstance(converted, str) and converted.strip()  # a request may hold anything
    return (converted, target) if is_there else (prompt, syntax)


def _token_table(parsed: ReadPrompt) -> str:
    rows, num_more = study.token_rows(parsed, MAX_ROWS)
    note = f"{counted(num_more, 'more token')} not listed" if num_more else ""
    if not rows:
        return markup.note("No tokens: the prompt is empty.")
    header = [name.capitalize() for name in study.HEADERS]
    lines = [list(map(_cell, row)) for row in rows]
    if not any(line[-1] for line in lines):  # most prompts are of whole characters
        header, lines = header[:-1], [line[:-1] for line in lines]
    table = "\n".join("\t".join(" ".join(cell.split()) for cell in line) for line in (header, *lines))
    copies = {"Copy ids": study.ids_text(parsed), "Copy table": table}
    # a phone has room for what says something
    columns = [bool(column) or len(parsed.chunks) > 1 for column in range(len(header))]
    columns = [is_wide and any(line[column] for line in lines) for column, is_wide in enumerate(columns)]
    visible = [list(compress(line, columns)) for line in (header, *lines)]
    return markup.copies(study.totals(parsed), copies) + markup.table(visible[0], visible[1:], note)


def _cell(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _progress(num_done: int, total: int, status: str) -> str:
    """Progress of a comparison."""
    return markup.progress(num_done / total, f"{num_done} of {total} schemes: {status}")


def _chart(
    comparisons: Sequence[Comparison], chosen: PromptText, options: EncodeOptions, text: str, values: Sequence[Any]
) -> str:
    """Effects of schemes on the rows of a prompt: a chart for each of its first chunks, and a table."""
    parsed = chosen.read
    count = len(parsed.chunks)
    charts = [comparison_chart(comparisons, parsed, chunk) for chunk in range(min(count, MAX_CHARTS))]
    notes = [" ".join(filter(None, (comparison.message, *comparison.issues))) for comparison in comparisons]
    names = [comparison.scheme for comparison in comparisons]
    columns = [("Scheme", names), ("What a weight does", [SCHEMES[name].advice for name in names])]
    columns += [("Notes", notes)] if any(notes) else []
    header, cells = zip(*columns, strict=True)
    left = f"Of {counted(count, 'chunk')} the first {MAX_CHARTS} are drawn." if count > MAX_CHARTS else ""
    content = (
        comparison_title(text, options)
        + markup.note(chosen.note)
        + "".join(charts)
        + markup.table(header, zip(*cells, strict=True), left)
    )
    return markup.greyed_when_changed(content, choices_of(text, values, "scheme"))
