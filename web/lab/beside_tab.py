"""Components of the tab for two prompts, and their handlers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from .beside import OTHER_ID, BesideHandlers
from .components import element_id, html, live
from .markup import NOT_YET

BESIDE_TAB = "Two prompts"


class BesideTab:
    """Builds the components in the open tab."""

    def __init__(self, handlers: BesideHandlers) -> None:
        self._handlers = handlers
        self.other = gr.Textbox(
            value="",
            label="Another prompt, read with the same options",
            lines=2,
            max_lines=12,
            elem_id=OTHER_ID,
            placeholder="Such as the prompt with a word changed",
        )
        self._shown = html("panes", "Tokens of both prompts", NOT_YET)
        self._start = gr.Button("Compare pooled vectors", elem_id=element_id("compare_pooled"))
        self._pooled = html("pooled", "Similarity of the pooled vectors")

    def connect(self, tab: gr.Tab, open_tab: Any, inputs: Sequence[Any], events: Sequence[Callable[..., Any]]) -> None:
        """Connect the tab's events.

        Args:
            tab: The tab.
            open_tab: State with the name of the open tab.
            inputs: Prompt and options.
            events: Events that change them, or request an update.
        """

        def show_beside(name: str, *values: Any) -> Any:
            return self._handlers.show(*values) if name == BESIDE_TAB else gr.update()

        asked = [self.other, *inputs]
        for event in (*events, self.other.change):
            live(event, {"fn": show_beside, "inputs": [open_tab, *asked], "outputs": [self._shown]})
        live(tab.select, {"fn": self._handlers.show, "inputs": asked, "outputs": [self._shown]})
        self._start.click(self._handlers.pooled, inputs=asked, outputs=[self._pooled], show_progress="minimal")
