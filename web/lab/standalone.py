"""Parts of the page only where the lab is alone: files in requests, state kept for the next visit, other weights.

gradio copies every file that a request names, at any place of any value, to where requests can fetch it. It asks
whether the file was uploaded only where it has launched the page itself. So only files uploaded to the lab are taken,
and only where a component takes files.

The prompt and all choices stay in the browser: in its storage, and after the ``#`` in the page's address, which is sent
to no server. ``scripts/keeping.js`` handles them. A WebUI's page keeps its own state there.

For gradio 6 only. Source: behaviour of gradio 6.31.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from . import markup
from .components import element_id, html
from .model import explained
from .native import Shelf


class LabBlocks(gr.Blocks):
    """Page that is mounted on a server of our own."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.has_launched = True

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *arguments: Any, **named: Any) -> list[Any]:
        """As gradio does, but a file that may not be there is refused."""
        for part, value in zip(block_fn.inputs, inputs, strict=False):  # gradio reports a wrong number of them
            if not part.stateful:  # gradio takes those from the session
                check_files(part, value)
        return await super().preprocess_data(block_fn, inputs, *arguments, **named)


def check_files(part: Any, value: object) -> None:
    """Refuse a value with files that its component does not take, or that were not uploaded."""
    takes_files = isinstance(part, (gr.File, gr.Image))
    for one in _dicts(value):
        if not takes_files:
            raise gr.Error(f"{part.label} takes no file and no object", print_exception=False)
        if "path" in one and not _is_in(Path(part.GRADIO_CACHE), one["path"]):
            raise gr.Error(f"{part.label}: choose a file, or drop one; no other can be named", print_exception=False)


def _dicts(value: object) -> Iterator[dict[str, Any]]:
    """All objects in a value of JSON."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            yield one
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


def _is_in(folder: Path, path: object) -> bool:
    """Whether a file is in a folder."""
    try:
        return isinstance(path, str) and Path(path).resolve().is_relative_to(folder.resolve())
    except ValueError:  # a NUL
        return False


def keep(page: gr.Blocks, parts: Mapping[str, Any], link: Any, told: Any) -> None:
    """Let a page start with its last values, or with those in its address."""
    fields = json.dumps([(name, _allowed(part)) for name, part in parts.items()])
    values = list(parts.values())

    def script(function: str) -> str:
        return f"(...values) => weightedClipKeeping.{function}({fields}, values)"

    page.load(None, inputs=values, outputs=values, js=script("restore"), queue=False, show_progress="hidden")
    for part in values:
        part.change(None, inputs=values, outputs=[], js=script("save"), queue=False, show_progress="hidden")
    link.click(None, inputs=values, outputs=[told], js=script("copyLink"), queue=False, show_progress="hidden")


def _allowed(part: Any) -> Any:
    """Values a component can hold, in the script's form."""
    if isinstance(part, gr.Slider):
        return {"from": part.minimum, "to": part.maximum, "step": part.step}
    if isinstance(part, gr.Textbox):
        return "text"
    choices = [value for _, value in part.choices]
    return {"several": choices} if isinstance(part, gr.CheckboxGroup) else choices


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
        told = markup.note(f"Weights: {self._shelf.name}")
        try:
            act()
            told = markup.note(f"Weights: {self._shelf.source().title}")
        except Exception as error:  # the page is the only place where the user can see it
            told = markup.refused(explained(error))
        return gr.update(choices=self._shelf.names, value=self._shelf.name), told
