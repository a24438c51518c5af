"""The lab's page: the prompt, its options and its strip of tokens, and below them the tabs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from ...weighting.options import EncodeOptions
from . import markup
from .components import (
    Inputs,
    Tab,
    appearing,
    button,
    connect_tabs,
    control,
    element_id,
    html,
    label_of,
    live,
    messenger,
    textbox,
    whole,
)
from .handlers import OPTIONS, Handlers, Run, run_here
from .model import EXPLAINED, ModelSource
from .native import Shelf
from .standalone import LabBlocks, WeightsPart, keep
from .tabs.attention_tab import AttentionTab
from .tabs.image_tokens import TokenLab
from .tabs.prompt_tabs import PROMPT_TABS, ScheduleTab
from .tabs.ranking import RankingLab
from .tabs.text_to_image import TextToImageLab
from .tabs.two_prompts import BesideTab

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
    take: Callable[[str], EncodeOptions] | None = None,
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
        take: Function from what stands in a WebUI's script to the options by which it encodes.
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
        parts = _PageBuilder(handlers, prompt, base, tabs, is_alone=is_alone, shelf=shelf)
        live(page.load, parts.reading)  # the model may have changed by then
        if take is not None:
            parts.receive(take)
        if is_alone:
            keep(page, {"prompt": parts.prompt, **parts.options, **parts.kept}, parts.link, parts.linked)
    return page


class _PageBuilder:
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
        self.prompt = textbox("prompt", "Prompt", value=prompt, placeholder="Type a prompt")
        if handlers.is_in_webui:
            self._exchange()
        strip = html("strip", "Tokens of the prompt", tokens)
        note, self.options, parts = self._options(base, effect, is_alone=is_alone)
        info = "Which text of AND and prompt editing the parts below use"
        self.text = whole("text", "Text", int(handlers.is_in_webui), info=info, visible=False)
        self.refresh = button("refresh", "Read again", size="sm")
        outputs = [model, strip, note, self.text, *parts]
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

    def receive(self, take: Callable[[str], EncodeOptions]) -> None:
        """Set the options to what the WebUI's script sends; it is told if something cannot be set."""
        box, notice = messenger(element_id("taken")), html("taken_told", "Settings not applied")

        def receive(request: str) -> tuple[Any, ...]:
            try:
                options = take(request)
            except EXPLAINED as error:
                return *[gr.update()] * len(OPTIONS), markup.refused(error)
            return *(gr.update(value=getattr(options, name)) for name in OPTIONS), ""

        live(box.change, {"fn": receive, "inputs": [box], "outputs": [*self.options.values(), notice]})

    def _options(self, base: EncodeOptions, effect: str, *, is_alone: bool) -> tuple[Any, dict[str, Any], list[Any]]:
        """Component for the effect of the scheme, one for each of `OPTIONS`, and what `appearing` is about."""
        controls: dict[str, Any] = {}

        is_seen, parts = appearing(vars(base)), dict[str, Any]()

        def row(*names: str, part: str = "", elem_id: str | None = None) -> None:
            with gr.Row(visible=is_seen.get(part, True), elem_id=elem_id) as container:
                for name in names:
                    controls[name] = control(name, element_id(name), getattr(base, name), label=label_of(name))
            if part:
                parts[part] = container

        row("syntax", "scheme", elem_id=element_id("choices"))
        with gr.Row():
            note = html("scheme_note", "What the scheme does", effect)
            if is_alone:
                self.link = button("link", "Copy link", size="sm", scale=0, min_width=120)
        if is_alone:
            self.linked = html("linked", "What was copied")
        with gr.Accordion("More options", open=False, elem_id=element_id("more")):
            row("law", "mask_method")
            row("above_one", "finest_step")
            row("normalization", "padding")
            row("chunking", "cleaning", "comments")
            row("hide")
            row("hidden_from", part="hidden_from")
            row("from_phrases", part="from_phrases")
            row("bind")
            with gr.Column(visible=is_seen["bind"]) as parts["bind"]:
                row("bind_hide", "bind_rest")
                row("bind_strength")
            row("bind_words", part="bind_words")
        return note, {name: controls[name] for name in OPTIONS}, [parts[name] for name in is_seen]

    def _build_tabs(self, tabs: Sequence[Tab]) -> None:
        page = Inputs(self.prompt, self.options, self.first, self.reading)
        is_open = gr.State(tabs[0].title)
        places: dict[Any, Tab] = {}
        with gr.Tabs(elem_id=element_id("tabs")):
            for tab in tabs:
                with gr.Tab(tab.title, elem_id=element_id(tab.name)) as place:
                    tab.build(page)
                places[place] = tab
        schedule = next(tab for tab in tabs if isinstance(tab, ScheduleTab))
        page.all += [self.prompt, *self.options.values(), self.text, schedule.steps, schedule.counter]
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
