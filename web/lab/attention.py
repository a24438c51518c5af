"""The lab's tab for attention: the weights of one layer and head, and the mask that allowed them.

Values of the page's components in, new values out, as in ``handlers.py``. Only our own encoder returns its weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gradio as gr

from . import markup
from .attending import AttentionModel, Choice, find_attention
from .attention_chart import attention_chart
from .handlers import MAX_POSITIONS, Handlers, inputs_of
from .model import LabError
from .values import explained


class AttentionHandlers:
    """Handlers of the tab.

    Args:
        handlers: Handlers of the page, which read its components.
    """

    def __init__(self, handlers: Handlers) -> None:
        self._handlers = handlers

    def show(self, is_open: bool, *values: Any) -> tuple[Any, ...]:
        """Ranges of the numbers, in the order of `Choice`, and the weights. Nothing changes if the tab is not open.

        Args:
            is_open: Whether the tab is open.
            values: The numbers of `Choice`, the prompt, the options.
        """
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
