"""Files in requests to the stand-alone lab: only those uploaded to it, and only where a component takes files.

gradio copies every file that a request names, at any place of any value, to where requests can fetch it. It asks
whether the file was uploaded only where it has launched the page itself. For gradio 6 only.

Source: behaviour of gradio 6.31.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    """Refuse a value with files that its component does not take, or that were not uploaded.

    Raises:
        gr.Error: With the component's label.
    """
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
