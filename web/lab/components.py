"""Building blocks of all parts of the page: ids, markup, and listeners.

Only features common to gradio 3.41, 4.40 and 6 are used, with the same arguments, so that one page works in the WebUIs
and the stand-alone lab. Names of components are permanent: a WebUI's users refer to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from ...weighting.options import OPTIONS
from ...weighting.schemes import SCHEMES

PREFIX = "weighted_clip_"
"""Prefix of the ids of all components."""


def element_id(name: str) -> str:
    """Id of a component."""
    return PREFIX + name


def html(name: str, label: str, value: str = "") -> gr.HTML:
    """Component with markup from ``markup.py``."""
    return gr.HTML(value, label=label, elem_id=element_id(name))


def control(name: str, elem_id: str, value: Any, **changes: Any) -> Any:
    """Component for a declared option."""
    about = OPTIONS[name]
    shared = {"value": value, "label": about.label, "info": about.info, "elem_id": elem_id, **changes}
    if about.is_lines:
        return gr.Textbox(lines=2, max_lines=6, **shared)
    if about.choices:
        return gr.Dropdown(**{"choices": list(about.choices), **shared})
    return gr.Slider(**{"minimum": about.least, "maximum": about.most, "step": about.step, **shared})


def label_of(name: str) -> str:
    """Label of an option's control, with the scheme it counts with if that is only one."""
    only = [f" of {scheme}" for scheme, about in SCHEMES.items() if name in about.options]
    return OPTIONS[name].label + "".join(only)


def live(event: Callable[..., Any], listener: dict[str, Any]) -> None:
    """Attach a listener to an event without queueing or greying out the page."""
    event(**listener, queue=False, show_progress="hidden")


def buttons(*, is_running: bool) -> tuple[Any, Any]:
    """States of the buttons that start and cancel some work."""
    return gr.update(interactive=not is_running), gr.update(interactive=is_running)
