"""The lab's page: its components and their handlers. ``image_tabs.py`` has the tabs about images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from ...weighting.convert import TARGETS
from ...weighting.options import EncodeOptions
from ...weighting.schemes import SCHEMES
from ...weighting.timed.schedule import COUNTERS
from .alone import LabBlocks, keep
from .attention import AttentionTab
from .beside import BesideTab
from .components import control, element_id, html, label_of, live
from .handlers import OPTIONS, PROMPT_ID, TABS, Handlers, Run, run_here
from .image_tabs import DRAWING_TAB, TOKENS_TAB, image_tokens_tab, text_to_image_tab
from .image_tokens import TokenLab
from .markup import NOT_YET
from .model import ModelSource
from .native import Shelf
from .own_tabs import PICTURES_TAB, PicturesTab, WeightsPart
from .ranking import RankingLab
from .text_to_image import TextToImageLab

SAMPLE = "a (red:1.4) cat and a (dog:0.5) in a bowl"
"""Initial prompt."""

TIMED_EXAMPLE = "a [cat:dog:0.5] in a bowl"
"""Prompt with a change, suggested in the tab for schedules."""

COMPARED = ("unweighted", "comfy", "a1111", "masked_blend")
"""Schemes compared by default."""

TARGET = "compel"
"""Default target syntax of a conversion."""


def build_page(
    source: ModelSource,
    *,
    run: Run = run_here,
    prompt: str = SAMPLE,
    options: EncodeOptions | None = None,
    image_tokens: TokenLab | None = None,
    text_to_image: TextToImageLab | None = None,
    is_alone: bool = False,
    is_in_webui: bool = False,
    shelf: Shelf | None = None,
) -> gr.Blocks:
    """Build the page.

    Args:
        source: Function that returns the model; it is called at every change and may report that there is none.
        run: Calls functions that need the model's weights, as ``run(function, *arguments)``; a WebUI puts them into its
            queue.
        prompt: Initial prompt.
        options: Initial choices, and options without a component on the page; by default syntax and scheme ``a1111``.
        image_tokens: Handlers of the tab for images as tokens; None for no such tab.
        text_to_image: The same for the tab that draws images of a caption.
        is_alone: Whether it is a page of our own, by gradio 6: then the browser keeps prompt and options for the next
            visit, and there is a tab that needs our own encoder.
        is_in_webui: Whether the page is a WebUI's tab: prompts are read as the WebUI reads them, and can be exchanged
            with its prompt boxes.
        shelf: Choice of weights, for a page of our own; with the tab that ranks pictures.

    Returns:
        The page, to be launched, mounted, or passed to a WebUI as a tab. Its comparison needs gradio's queue.
    """
    base = EncodeOptions(syntax="a1111", scheme="a1111") if options is None else options
    handlers = Handlers(source, base, run, is_in_webui=is_in_webui)
    blocks = LabBlocks if is_alone else gr.Blocks
    with blocks(analytics_enabled=False, title="Prompt Lab") as page, gr.Column(elem_id=element_id("page")):
        drawn = (image_tokens, text_to_image)
        parts = _Page(handlers, prompt, base, *drawn, is_alone=is_alone, is_in_webui=is_in_webui, shelf=shelf)
        live(page.load, parts.reading)  # the model may have changed by then
        if is_alone:
            kept = {"prompt": parts.prompt, **parts.options, "schemes": parts.schemes, "target": parts.target}
            keep(page, {**kept, **parts.more}, parts.link, parts.linked)
    return page


class _Page:
    """Builds the components in the open container."""

    def __init__(
        self,
        handlers: Handlers,
        prompt: str,
        base: EncodeOptions,
        image_tokens: TokenLab | None,
        text_to_image: TextToImageLab | None,
        *,
        is_alone: bool = False,
        is_in_webui: bool = False,
        shelf: Shelf | None = None,
    ) -> None:
        self.handlers = handlers
        self.is_in_webui = is_in_webui
        values = [getattr(base, name) for name in OPTIONS]
        model, strip, note, *_ = handlers.read(prompt, *values)
        table = handlers.details(TABS[0], 1, TARGET, prompt, *values)[0]

        self.model = html("model", "Model", model)
        self.weights = None if shelf is None else WeightsPart(shelf)
        self.prompt = gr.Textbox(
            value=prompt, label="Prompt", lines=3, max_lines=12, elem_id=PROMPT_ID, placeholder="Type a prompt"
        )
        if is_in_webui:
            self._exchange()
        self.strip = html("strip", "Tokens of the prompt", strip)
        self.options = self._options(base, note)
        if is_alone:
            self.link = gr.Button("Copy link", elem_id=element_id("link"), size="sm")
            self.linked = html("linked", "What was copied")
        self.text = gr.Number(
            value=int(is_in_webui),
            label="Text",
            info="Which text of AND and prompt editing the parts below take",
            precision=0,
            visible=False,
            elem_id=element_id("text"),
        )
        self.refresh = gr.Button("Read again", elem_id=element_id("refresh"), size="sm")
        self.tab = gr.State(TABS[0])
        fillers = (lambda: self._tokens(table), self._masks, self._compare, self._convert, self._export, self._schedule)
        self.tabs: list[tuple[str, gr.Tab]] = []
        with gr.Tabs(elem_id=element_id("tabs")):
            for name, fill in zip(TABS, fillers, strict=True):
                with gr.Tab(name, elem_id=element_id(f"tab_{name.split()[0].lower()}")) as tab:
                    fill()
                self.tabs.append((name, tab))
            self.following = [BesideTab(handlers), *([AttentionTab(handlers)] if is_alone else [])]
            self.more: dict[str, Any] = {}
            for part in self.following:
                with gr.Tab(part.title, elem_id=element_id(part.name)) as tab:
                    self.more |= part.build()
                self.tabs.append((part.title, tab))
            self.pictures = None
            if shelf is not None:
                with gr.Tab(PICTURES_TAB, elem_id=element_id("tab_pictures")):
                    self.pictures = PicturesTab(RankingLab(shelf.source))
                self.more |= {"other_texts": self.pictures.others, "softmax": self.pictures.softmax}
            if image_tokens is not None:
                with gr.Tab(TOKENS_TAB, elem_id=element_id("tab_image")):
                    image_tokens_tab(image_tokens)
            if text_to_image is not None:
                with gr.Tab(DRAWING_TAB, elem_id=element_id("tab_drawing")):
                    text_to_image_tab(text_to_image)
        self._connect()

    def _exchange(self) -> None:
        """Buttons that ``javascript/weighted_clip_prompts.mjs`` acts on: it fetches a prompt or sends it."""
        with gr.Row(elem_id=element_id("exchange")):
            for way, label in (("from", "From"), ("to", "Send to")):
                for tab in ("txt2img", "img2img"):
                    gr.Button(f"{label} {tab}", elem_id=element_id(f"{way}_{tab}"), size="sm")

    def _options(self, base: EncodeOptions, note: str) -> dict[str, Any]:
        """Component for each of `OPTIONS`."""
        made: dict[str, Any] = {}

        def row(*names: str) -> None:
            for name in names:
                is_seen = name != "from_phrases" or base.hidden_from == "the phrases below"
                made[name] = control(name, element_id(name), getattr(base, name), label=label_of(name), visible=is_seen)

        with gr.Row(elem_id=element_id("choices")):
            row("syntax", "scheme", "normalization", "chunking", "padding", "cleaning")
        self.note = html("scheme_note", "What the scheme does", note)
        with gr.Accordion("Fading, hiding and binding words", open=False, elem_id=element_id("more")):
            with gr.Row():
                row("law", "mask_method", "finest_step")
            with gr.Row():
                row("hide", "hidden_from", "from_phrases")
            with gr.Row():
                row("bind", "bind_rest", "bind_strength")
            with gr.Row():
                row("bind_hide", "bind_words")
        return {name: made[name] for name in OPTIONS}

    def _tokens(self, table: str) -> None:
        self.table = html("tokens", "Token table", table)

    def _masks(self) -> None:
        self.chunk = gr.Number(value=1, label="Chunk", precision=0, visible=False, elem_id=element_id("chunk"))
        self.masks = html("masks", "Attention masks", NOT_YET)

    def _compare(self) -> None:
        self.job = gr.State({"is_cancelled": False})
        self.schemes = gr.CheckboxGroup(
            list(SCHEMES), value=list(COMPARED), label="Schemes to compare", elem_id=element_id("schemes")
        )
        with gr.Row():
            self.start = gr.Button("Compare", variant="primary", elem_id=element_id("compare"))
            self.stop = gr.Button("Cancel", interactive=False, elem_id=element_id("cancel"))
        self.progress = html("progress", "Progress")
        self.comparison = html("comparison", "Comparison")

    def _convert(self) -> None:
        self.target = gr.Radio(list(TARGETS), value=TARGET, label="Target syntax", elem_id=element_id("target"))
        self.converted = gr.Textbox(
            value="",
            label="Converted prompt",
            lines=3,
            max_lines=12,
            interactive=False,
            elem_id=element_id("converted"),
        )
        self.lost = html("conversion_problems", "Problems of the conversion", NOT_YET)
        self.use = gr.Button("Use this as the prompt", elem_id=element_id("use_converted"))

    def _export(self) -> None:
        self.save = gr.Button("Encode and save", variant="primary", elem_id=element_id("export"))
        self.exported = html("export_report", "What was exported")
        self.file = gr.File(label="Exported safetensors file", interactive=False, elem_id=element_id("file"))

    def _schedule(self) -> None:
        with gr.Row():
            self.steps = gr.Number(
                value=20,
                label="Sampling steps",
                info=f"A prompt that changes halfway: {TIMED_EXAMPLE}",
                precision=0,
                elem_id=element_id("steps"),
            )
            self.counter = gr.Dropdown(
                list(COUNTERS),
                value=COUNTERS[0],
                label="Counter",
                info="The WebUI is a step late",
                elem_id=element_id("counter"),
            )
        self.schedule = html("schedule", "Texts and their steps", NOT_YET)

    def _connect(self) -> None:
        handlers, options = self.handlers, list(self.options.values())
        inputs = [self.prompt, *options, self.text, self.steps]
        self.reading = reading = {
            "fn": handlers.read,
            "inputs": inputs,
            "outputs": [self.model, self.strip, self.note, self.options["from_phrases"], self.text],
        }
        asked = [self.chunk, self.target, *inputs]
        shown = [self.table, self.chunk, self.masks, self.converted, self.lost]
        details = {"fn": handlers.details, "inputs": [self.tab, *asked], "outputs": shown}

        times = [self.steps, self.counter, self.prompt, *options]
        schedule = {"fn": handlers.schedule, "inputs": [self.tab, *times], "outputs": [self.schedule]}

        for part in (self.prompt, *options):
            live(part.change, reading)
            live(part.change, details)
            live(part.change, schedule)
            if isinstance(part, gr.Textbox):  # gradio 3.41 drops changes while it waits for an answer
                live(part.blur, reading)
        for part in (self.chunk, self.target, self.text, self.steps):
            live(part.change, details)
        live(self.refresh.click, reading)
        live(self.refresh.click, details)
        for event in (self.steps.change, self.counter.change, self.refresh.click):
            live(event, schedule)
        live(self.steps.change, reading)
        for name, tab in self.tabs:
            live(tab.select, {"fn": _opening(name, handlers.details), "inputs": asked, "outputs": [self.tab, *shown]})

        def open_schedule(*values: Any) -> Any:
            return handlers.schedule(TABS[-1], *values)

        tabs = dict(self.tabs)
        live(tabs[TABS[-1]].select, {"fn": open_schedule, "inputs": times, "outputs": [self.schedule]})
        events = [*(part.change for part in inputs), self.refresh.click]
        for part in self.following:
            part.connect(tabs[part.title], self.tab, inputs, events)
        if self.weights is not None:
            self.weights.connect(element_id("refresh"))
        if self.pictures is not None:
            self.pictures.connect(self.prompt, self.options["syntax"])

        compared = self.start.click(
            handlers.compare,
            inputs=[self.job, self.schemes, *inputs],
            outputs=[self.start, self.stop, self.progress, self.comparison],
            show_progress="hidden",
        )
        live(self.stop.click, {"fn": handlers.cancel, "inputs": [self.job], "outputs": [self.stop]})
        syntax = self.options["syntax"]
        used = {
            "fn": _used,
            "inputs": [self.converted, self.target, self.prompt, syntax],
            "outputs": [self.prompt, syntax],
        }
        live(self.use.click, used)
        saved = self.save.click(
            handlers.export, inputs=inputs, outputs=[self.file, self.exported], show_progress="minimal"
        )
        for work in (compared, saved):  # a WebUI may have loaded a model for it
            live(work.then, reading)


def _opening(name: str, details: Callable[..., Any]) -> Callable[..., Any]:
    """Handler that stores which tab is open and fills it."""

    def open_tab(*values: Any) -> Any:
        return (name, *details(name, *values))

    return open_tab


def _used(converted: str, target: str, prompt: str, syntax: str) -> tuple[str, str]:
    """The converted prompt in the prompt box, in its syntax; unchanged if there is none."""
    is_there = isinstance(converted, str) and converted.strip()  # a request may hold anything
    return (converted, target) if is_there else (prompt, syntax)
