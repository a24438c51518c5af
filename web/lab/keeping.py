"""State that the stand-alone lab keeps for the next visit: the prompt and all choices.

It stays in the browser: in its storage, and after the ``#`` in the page's address, which is sent to no server.
``scripts/keeping.js`` handles it. A WebUI's page keeps its own state there: this is only for the stand-alone lab.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr


def keep(page: gr.Blocks, parts: Mapping[str, Any], link: Any, told: Any) -> None:
    """Let a page start with its last values, or with those in its address.

    Args:
        page: The page, opened as a context.
        parts: Components by the name of their content.
        link: The button that copies the address.
        told: Component for the message that it was copied.
    """
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
