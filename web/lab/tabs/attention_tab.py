"""The lab's tab for attention: the weights of one layer and head, and the mask that allowed them.

Values of the page's components in, new values out, as in ``handlers.py``. Only our own encoder returns its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from .. import markup
from ..components import Inputs, html, slider, whole
from ..handlers import inputs_of
from ..model import LabError, explained, whole_number
from .attention_view import AttentionModel, Choice, attention_chart, find_attention
from .prompt_tabs import PromptTab
from .study import MAX_POSITIONS

LOADING = "Loading the encoder, which can take some seconds the first time."
MAX_LAYERS, MAX_HEADS = 64, 64
"""Upper limits beyond any CLIP. The sliders end at the model's."""
MAX_NUMBER = 1_000_000
"""Largest number read from a box."""


class AttentionTab(PromptTab):
    """Weights of a layer and head, in gradio 6 only."""

    title, name, is_slow = "Attention", "tab_attention", True

    def build(self, page: Inputs) -> None:
        """As in `Tab`."""
        with gr.Row():
            layer = slider("layer", "Layer", "1: the first", (1, MAX_LAYERS, 1), 1)
            head = slider("head", "Head", "0: the mean of all", (0, MAX_HEADS, 1), 0)
        with gr.Row():
            version = whole("version", "Version", visible=False)
            chunk = whole("attention_chunk", "Chunk of the prompt", visible=False)
            tower = whole("tower", "Text encoder", visible=False)
        self.asked, self.kept = [layer, head, version, chunk, tower], {"layer": layer, "head": head}
        loading = markup.current(markup.note(LOADING), {})
        self.shown = [*self.asked, html("attention", "Attention weights", loading)]

    def show(self, *values: Any) -> tuple[Any, ...]:
        """Ranges of the numbers, in the order of `Choice`, and the weights."""
        numbers, text, options = values[:5], values[5], values[6:]
        inputs = inputs_of(text, options)
        try:
            parts, shown = self._shown(Choice(*map(_number, _NUMBERS, numbers)), text, options)
        except Exception as error:  # the page is the only place where the user can see it
            return *(gr.update(),) * 5, markup.current(markup.message(explained(error)), inputs)
        return *parts, markup.current(shown, inputs)

    def _shown(self, choice: Choice, text: str, values: Sequence[Any]) -> tuple[list[Any], str]:
        model = self.handlers.source()
        if not isinstance(model, AttentionModel):
            raise LabError("This encoder does not show its attention: only those that the lab itself has loaded do.")
        given = self.handlers.given(text, values, model)
        found = find_attention(model, given.text, given.options, choice, MAX_POSITIONS)
        versions, chunks, towers = found.num_versions, found.num_chunks, found.towers
        parts = [
            _update(found.config.num_layers, choice.layer),
            _update(found.config.num_heads, choice.head),
            _hidden(f"Version, 1 to {versions}", versions),
            _hidden(f"Chunk, 1 to {chunks} ", chunks),  # not the label of the tab Masks
            _hidden("Text encoder: " + ", ".join(f"{i} {name}" for i, name in enumerate(towers, 1)), len(towers)),
        ]
        return parts, markup.note(given.note) + attention_chart(found.attended)


_NUMBERS = (("Layer", 1), ("Head", 0), ("Version", 1), ("Chunk of the prompt", 1), ("Text encoder", 1))
"""Label and least value of each number, in the order of `Choice`."""


def _number(declared: tuple[str, int], value: Any) -> int:
    """A number of the page; one beyond the model's own is that."""
    label, least = declared
    return whole_number(label, value, least, MAX_NUMBER)


def _update(most: int, chosen: int) -> Any:
    """Slider up to the model's limit."""
    return gr.update(maximum=most, value=most) if chosen > most else gr.update(maximum=most)


def _hidden(label: str, count: int) -> Any:
    """Number input, visible only if there is a choice."""
    return gr.update(label=label, visible=count > 1)
