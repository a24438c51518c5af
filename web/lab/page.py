"""The lab's page: the prompt, its options and its strip of tokens, and below them the tabs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from ...weighting.options import EncodeOptions
from .alone import LabBlocks, WeightsPart, keep
from .attention import AttentionTab
from .beside import BesideTab
from .components import (
    Inputs,
    Tab,
    button,
    connect_tabs,
    control,
    element_id,
    html,
    label_of,
    live,
    textbox,
    whole,
)
from .handlers import OPTIONS, Handlers, Run, run_here
from .image_tokens import TokenLab
from .model import ModelSource
from .native import Shelf
from .ranking import RankingLab
from .tabs import PROMPT_TABS, ScheduleTab
from .text_to_image import TextToImageLab

SAMPLE = "a (red:1.4) cat and a (dog:0.5) in a bowl"
"""Initial prompt."""


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
    tabs: list[Tab] = [*(tab(handlers) for tab in PROMPT_TABS), BesideTab(handlers)]
    tabs += [AttentionTab(handlers)] if is_alone else []
    tabs += [RankingLab(shelf.source)] if shelf is not None else []
    tabs += filter(None, (image_tokens, text_to_image))
    blocks = LabBlocks if is_alone else gr.Blocks
    with blocks(analytics_enabled=False, title="Prompt Lab") as page, gr.Column(elem_id=element_id("page")):
        parts = _Page(handlers, prompt, base, tabs, is_alone=is_alone, shelf=shelf)
        live(page.load, parts.reading)  # the model may have changed by then
        if is_alone:
            keep(page, {"prompt": parts.prompt, **parts.options, **parts.kept}, parts.link, parts.linked)
    return page


class _Page:
    """Builds the components in the open container."""

    def __init__(
        self,
        handlers: Handlers,
        prompt: str,
        base: EncodeOptions,
        tabs: Sequence[Tab],
        *,
        is_alone: bool,
        shelf: Shelf | None,
    ) -> None:
        self.first = [prompt, *(getattr(base, name) for name in OPTIONS)]
        model_line, tokens, effect, *_ = handlers.read(*self.first)

        model = html("model", "Model", model_line)
        weights = None if shelf is None else WeightsPart(shelf)
        self.prompt = textbox("prompt", "Prompt", value=prompt, lines=3, placeholder="Type a prompt")
        if handlers.is_in_webui:
            self._exchange()
        strip = html("strip", "Tokens of the prompt", tokens)
        note, self.options = self._options(base, effect)
        if is_alone:
            self.link = button("link", "Copy link", size="sm")
            self.linked = html("linked", "What was copied")
        told = "Which text of AND and prompt editing the parts below take"
        self.text = whole("text", "Text", int(handlers.is_in_webui), info=told, visible=False)
        self.refresh = button("refresh", "Read again", size="sm")
        outputs = [model, strip, note, self.options["from_phrases"], self.text]
        self.reading: dict[str, Any] = {"fn": handlers.read, "inputs": [], "outputs": outputs}
        if weights is not None:
            weights.connect(element_id("refresh"))
        self._build_tabs(tabs)

    def _exchange(self) -> None:
        """Buttons that ``javascript/weighted_clip_prompts.mjs`` acts on: it fetches a prompt or sends it."""
        with gr.Row(elem_id=element_id("exchange")):
            for way, label in (("from", "From"), ("to", "Send to")):
                for tab in ("txt2img", "img2img"):
                    button(f"{way}_{tab}", f"{label} {tab}", size="sm")

    def _options(self, base: EncodeOptions, effect: str) -> tuple[Any, dict[str, Any]]:
        """Component for the effect of the scheme, and one for each of `OPTIONS`."""
        made: dict[str, Any] = {}

        def row(*names: str) -> None:
            for name in names:
                is_seen = name != "from_phrases" or base.hidden_from == "the phrases below"
                made[name] = control(name, element_id(name), getattr(base, name), label=label_of(name), visible=is_seen)

        with gr.Row(elem_id=element_id("choices")):
            row("syntax", "scheme", "normalization", "chunking", "padding", "cleaning")
        note = html("scheme_note", "What the scheme does", effect)
        with gr.Accordion("Fading, hiding and binding words", open=False, elem_id=element_id("more")):
            with gr.Row():
                row("law", "mask_method", "finest_step")
            with gr.Row():
                row("hide", "hidden_from", "from_phrases")
            with gr.Row():
                row("bind", "bind_rest", "bind_strength")
            with gr.Row():
                row("bind_hide", "bind_words")
        return note, {name: made[name] for name in OPTIONS}

    def _build_tabs(self, tabs: Sequence[Tab]) -> None:
        page = Inputs(self.prompt, self.options, self.first, self.reading)
        is_open = gr.State(tabs[0].title)
        places: dict[Any, Tab] = {}
        with gr.Tabs(elem_id=element_id("tabs")):
            for tab in tabs:
                with gr.Tab(tab.title, elem_id=element_id(tab.name)) as place:
                    tab.build(page)
                places[place] = tab
        steps = next(tab.steps for tab in tabs if isinstance(tab, ScheduleTab))
        page.all += [self.prompt, *self.options.values(), self.text, steps]
        self.reading["inputs"] += page.all
        self.kept = {name: part for tab in tabs for name, part in tab.kept.items()}
        for part in page.all:
            if part is not self.text:
                live(part.change, self.reading)
            if isinstance(part, gr.Textbox):  # gradio 3.41 drops changes while it waits for an answer
                live(part.blur, self.reading)
        live(self.refresh.click, self.reading)
        connect_tabs(places, [*(part.change for part in page.all), self.refresh.click], page, is_open)
        for tab in tabs:
            tab.connect(page)
