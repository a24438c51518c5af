"""Parts of the stand-alone lab only: other weights, and ranking of pictures. Components and handlers, for gradio 6."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

from . import markup
from .components import element_id, html
from .native import Shelf
from .ranking import MAX_PICTURES, MAX_TEXTS, SOFTMAX, RankingLab
from .values import explained

PICTURES_TAB = "Pictures"


class WeightsPart:
    """Chooses weights: from a list, or a dropped file."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        with gr.Accordion("Other weights", open=False, elem_id=element_id("other_weights")), gr.Row():
            self._names = gr.Dropdown(
                shelf.names,
                value=shelf.name,
                label="Weights",
                info="Of the folder that --models names; all open pages use the same",
                elem_id=element_id("weights"),
            )
            self._file = gr.File(
                label="Drop a .safetensors file here",
                file_types=[".safetensors"],
                height=140,
                elem_id=element_id("dropped_weights"),
            )
        self._told = html("weights_told", "What became of the weights")

    def connect(self, refresh: str) -> None:
        """Connect the events; ``refresh`` is the id of the button that rereads everything."""
        read_again = f"() => {{ document.getElementById('{refresh}').click(); }}"
        outputs = [self._names, self._told]
        chosen = self._names.input(self._choose, inputs=[self._names], outputs=outputs, show_progress="minimal")
        dropped = self._file.upload(self._drop, inputs=[self._file], outputs=outputs, show_progress="minimal")
        for event in (chosen, dropped):
            event.then(None, js=read_again, show_progress="hidden")

    def _choose(self, name: str) -> tuple[Any, str]:
        return self._done(lambda: self._shelf.choose(name))

    def _drop(self, path: str | None) -> tuple[Any, str]:
        return self._done(lambda: self._shelf.drop(Path(path or "")))

    def _done(self, act: Callable[[], None]) -> tuple[Any, str]:
        told = markup.message(f"Weights: {self._shelf.name}", is_problem=False)
        try:
            act()
            told = markup.message(f"Weights: {self._shelf.source().title}", is_problem=False)
        except Exception as error:  # the page is the only place where the user can see it
            told = markup.message(explained(error))
        return gr.update(choices=self._shelf.names, value=self._shelf.name), told


class PicturesTab:
    """Builds the components in the open tab."""

    def __init__(self, lab: RankingLab) -> None:
        self._lab = lab
        with gr.Row():
            self._files = gr.File(
                label=f"Pictures, up to {MAX_PICTURES}",
                file_count="multiple",
                file_types=["image"],
                height=160,
                elem_id=element_id("pictures"),
            )
            with gr.Column():
                self.others = gr.Textbox(
                    value="",
                    label="Other texts to compare with",
                    info=f"One a line, up to {MAX_TEXTS - 1}; the prompt is the first",
                    lines=2,
                    max_lines=8,
                    elem_id=element_id("other_texts"),
                )
                self.softmax = gr.Radio(
                    list(SOFTMAX), value=next(iter(SOFTMAX)), label="Matrix", elem_id=element_id("softmax")
                )
        self._start = gr.Button("Rank", variant="primary", elem_id=element_id("rank"))
        self._ranked = html("ranked", "Pictures, best first")

    def connect(self, prompt: Any, syntax: Any) -> None:
        """Connect the events to the page's prompt."""
        asked = [self._files, self.others, self.softmax, prompt, syntax]
        self._start.click(self._lab.rank, inputs=asked, outputs=[self._ranked], show_progress="minimal")
