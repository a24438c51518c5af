"""The lab's tab for attention: the weights of one layer and head, and the mask that allowed them.

Values of the page's components in, new values out, as in ``handlers.py``. Only our own encoder returns its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from . import markup
from .attending import AttentionModel, Choice, attention_chart, find_attention
from .components import element_id, html
from .handlers import MAX_POSITIONS, Handlers, inputs_of
from .model import LabError
from .values import explained

LOADING = "Loading the encoder, which can take some seconds the first time."
MAX_LAYERS, MAX_HEADS = 64, 64
"""Upper limits beyond any CLIP. The sliders end at the model's."""


class AttentionTab:
    """Components and handlers of the tab. For gradio 6 only."""

    title, name = "Attention", "tab_attention"

    def __init__(self, handlers: Handlers) -> None:
        """``handlers`` read the page's components."""
        self._handlers = handlers

    def build(self) -> dict[str, Any]:
        """Build the components in the open tab, and return those whose values are kept for the next visit."""

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
        self._numbers = [layer, head, version, chunk, tower]
        loading = markup.current(markup.message(LOADING, is_problem=False), {})
        self._chart = html("attention", "Attention weights", loading)
        return {"layer": layer, "head": head}

    def connect(self, tab: gr.Tab, open_tab: Any, inputs: Sequence[Any], events: Sequence[Any]) -> None:
        """Connect the tab's events."""

        def follow(name: str, *values: Any) -> tuple[Any, ...]:
            return self.show(name == self.title, *values)

        def opened(*values: Any) -> tuple[Any, ...]:
            return self.show(True, *values)

        asked = [*self._numbers, *inputs]
        # while the encoder is busy only the last change is kept
        shared = {"outputs": [*self._numbers, self._chart], "show_progress": "hidden", "trigger_mode": "always_last"}
        tab.select(opened, inputs=asked, **shared)
        gr.on([*events, *(one.change for one in self._numbers)], follow, inputs=[open_tab, *asked], **shared)

    def show(self, is_open: bool, *values: Any) -> tuple[Any, ...]:
        """Ranges of the numbers, in the order of `Choice`, and the weights. Nothing changes if the tab is not open."""
        if not is_open:
            return (gr.update(),) * 6
        numbers, text, options = values[:5], values[5], values[6:]
        inputs = inputs_of(text, options)
        try:
            parts, shown = self._shown(Choice(*map(_number, numbers)), text, options)
        except Exception as error:  # the page is the only place where the user can see it
            return *(gr.update(),) * 5, markup.current(markup.message(explained(error)), inputs)
        return *parts, markup.current(shown, inputs)

    def _shown(self, choice: Choice, text: str, values: Sequence[Any]) -> tuple[list[Any], str]:
        model = self._handlers.source()
        if not isinstance(model, AttentionModel):
            raise LabError("This encoder does not show its attention: only those that the lab itself has loaded do.")
        given = self._handlers.given(text, values, model)
        found = find_attention(model, given.text, given.options, choice, MAX_POSITIONS)
        versions, chunks, towers = found.num_versions, found.num_chunks, found.towers
        parts = [
            _update(found.config.num_layers, choice.layer),
            _update(found.config.num_heads, choice.head),
            _hidden(f"Version, 1 to {versions}", versions),
            _hidden(f"Chunk, 1 to {chunks} ", chunks),  # not the label of the tab Masks
            _hidden("Text encoder: " + ", ".join(f"{i} {name}" for i, name in enumerate(towers, 1)), len(towers)),
        ]
        return parts, markup.message(given.note, is_problem=False) + attention_chart(found.attended)


def _number(value: Any) -> int:
    """A number from the page, or anything else in a request; NaN compares as false."""
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1e6 else 1


def _update(most: int, chosen: int) -> Any:
    """Slider up to the model's limit."""
    return gr.update(maximum=most, value=most) if chosen > most else gr.update(maximum=most)


def _hidden(label: str, count: int) -> Any:
    """Number input, visible only if there is a choice."""
    return gr.update(label=label, visible=count > 1)
