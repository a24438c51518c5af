"""What all parts of the page are made with: ids, markup, and listeners.

Only what gradio 3.41, 4.40 and 6 have in common is used, with the same arguments, so that one page serves the WebUIs
and the stand-alone lab. What the components are called is permanent: a WebUI's users refer to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

PREFIX = "weighted_clip_"
"""Of the id of every component."""


def element_id(name: str) -> str:
    """The id of a component."""
    return PREFIX + name


def html(name: str, label: str, value: str = "") -> gr.HTML:
    """Markup, as ``markup.py`` makes it."""
    return gr.HTML(value, label=label, elem_id=element_id(name))


def live(event: Callable[..., Any], listener: dict[str, Any]) -> None:
    """Let an event call what neither waits for others nor greys the page."""
    event(**listener, queue=False, show_progress="hidden")


def buttons(*, is_running: bool) -> tuple[Any, Any]:
    """State of the button that starts some work, and of the one that cancels it."""
    return gr.update(interactive=not is_running), gr.update(interactive=is_running)
