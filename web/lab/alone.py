"""Parts of the page only where the lab is alone: files in requests, and the state kept for the next visit.

gradio copies every file that a request names, at any place of any value, to where requests can fetch it. It asks
whether the file was uploaded only where it has launched the page itself. So only files uploaded to the lab are taken,
and only where a component takes files.

The prompt and all choices stay in the browser: in its storage, and after the ``#`` in the page's address, which is sent
to no server. ``scripts/keeping.js`` handles them. A WebUI's page keeps its own state there.

For gradio 6 only. Source: behaviour of gradio 6.31.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gradio as gr


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
