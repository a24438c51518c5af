"""The controls of the WebUI's script, in txt2img and img2img."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from ...weighting.normalize import NORMALIZATIONS
from ...weighting.padding import PADDINGS
from ...weighting.schemes.api import LAWS, MASK_METHODS
from ...weighting.schemes.repeat import FINEST_STEPS
from ...weighting.schemes.table import SCHEMES
from ...weighting.syntax import SYNTAXES

_MENUS = {
    "scheme": ("Scheme", list(SCHEMES), "What a weight does"),
    "normalization": ("Normalization", list(NORMALIZATIONS), "Changes the weights first"),
    "law": ("Law", list(LAWS), "masked_blend: several faded words"),
    "mask_method": ("Mask method", list(MASK_METHODS), "masked_blend: what absent means"),
    "padding": ("Padding", list(PADDINGS), "What becomes of it"),
    "syntax": ("Syntax", list(SYNTAXES), "How weights are written"),
    "finest_step": ("Finest step", list(FINEST_STEPS), "repeat: steps of a weight from 0 to 1"),
}
"""Label, choices and help of each control, by the name of the setting, in the order of the API."""


def build_accordion(title: str, elem_id: Callable[[str], str], input_accordion: Any = None) -> dict[str, Any]:
    """Make the controls in the current Blocks.

    Args:
        title: What stands on the accordion.
        elem_id: Gives each control's id in the page.
        input_accordion: The host's accordion with a switch in its title, if it has one.

    Returns:
        The controls by the name of their setting, ``enabled`` first, in the order of the API.
    """
    if input_accordion is not None:
        with input_accordion(False, label=title, elem_id=elem_id("enabled")) as enabled:
            menus = _menus(elem_id)
    else:
        with gr.Accordion(title, open=False, elem_id=elem_id("accordion")):
            enabled = gr.Checkbox(False, label=f"Enable {title}", elem_id=elem_id("enabled"))
            menus = _menus(elem_id)
    return {"enabled": enabled, **menus}


def _menus(elem_id: Callable[[str], str]) -> dict[str, Any]:
    defaults = {"scheme": "a1111", "syntax": "a1111"}
    menus: dict[str, Any] = {}
    names = list(_MENUS)
    for first in range(0, len(names), 2):
        with gr.Row():
            for name in names[first : first + 2]:
                label, choices, info = _MENUS[name]
                value = defaults.get(name, choices[0])
                menus[name] = gr.Dropdown(choices, value=value, label=label, info=info, elem_id=elem_id(name))
    return menus
