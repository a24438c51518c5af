"""What the stand-alone lab keeps for the next time the page is opened: the prompt and all that is chosen.

It stays in the browser: in its storage, and behind the ``#`` of the page's address, which is sent to no server.
``scripts/keeping.js`` does it. A WebUI's page keeps its own things there: this is for the stand-alone lab alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr


def keep(page: gr.Blocks, parts: Mapping[str, Any], link: Any, told: Any) -> None:
    """Let a page begin with the values that it had last, or that its address has.

    Args:
        page: The page, which is open.
        parts: The components by the name of what they hold.
        link: The button that copies the address.
        told: Where it is said that it was copied.
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
    """What a component can hold, as the script has it."""
    if isinstance(part, gr.Slider):
        return {"from": part.minimum, "to": part.maximum, "step": part.step}
    if isinstance(part, gr.Textbox):
        return "text"
    choices = [value for _, value in part.choices]
    return {"several": choices} if isinstance(part, gr.CheckboxGroup) else choices
