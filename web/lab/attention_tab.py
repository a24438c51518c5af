"""Components of the tab for attention, and their handler. For gradio 6 only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from .attention import AttentionHandlers
from .components import element_id, html
from .markup import current, message

ATTENTION_TAB = "Attention"
LOADING = "Loading the encoder, which can take some seconds the first time."
MAX_LAYERS, MAX_HEADS = 64, 64
"""Upper limits beyond any CLIP. The sliders end at the model's."""


class AttentionTab:
    """Builds the components in the open tab."""

    def __init__(self, handlers: AttentionHandlers) -> None:
        self._handlers = handlers

        def slider(name: str, label: str, info: str, first: int, most: int) -> gr.Slider:
            return gr.Slider(first, most, value=first, step=1, label=label, info=info, elem_id=element_id(name))

        def number(name: str, label: str) -> gr.Number:
            return gr.Number(value=1, label=label, precision=0, visible=False, elem_id=element_id(name))

        with gr.Row():
            layer = slider("layer", "Layer", "1: the first", 1, MAX_LAYERS)
            head = slider("head", "Head", "0: the mean of all", 0, MAX_HEADS)
        with gr.Row():
            version = number("version", "Version")
            chunk = number("attention_chunk", "Chunk of the prompt")
            tower = number("tower", "Text encoder")
        self.parts: dict[str, Any] = {"layer": layer, "head": head}
        """Components whose values are kept for the next visit."""
        self._numbers = [layer, head, version, chunk, tower]
        self._shown = html("attention", "Attention weights", current(message(LOADING, is_problem=False), {}))

    def connect(self, tab: gr.Tab, open_tab: Any, inputs: Sequence[Any], events: Sequence[Any]) -> None:
        """Connect the tab's events.

        Args:
            tab: The tab.
            open_tab: State with the name of the open tab.
            inputs: Prompt and options.
            events: Events that change them, or request an update.
        """

        def follow(name: str, *values: Any) -> tuple[Any, ...]:
            return self._handlers.show(name == ATTENTION_TAB, *values)

        def opened(*values: Any) -> tuple[Any, ...]:
            return self._handlers.show(True, *values)

        asked = [*self._numbers, *inputs]
        # while the encoder is busy only the last change is kept
        shared = {"outputs": [*self._numbers, self._shown], "show_progress": "hidden", "trigger_mode": "always_last"}
        tab.select(opened, inputs=asked, **shared)
        gr.on([*events, *(one.change for one in self._numbers)], follow, inputs=[open_tab, *asked], **shared)
