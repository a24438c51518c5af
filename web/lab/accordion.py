"""The controls of the WebUI's script, in txt2img and img2img."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from ...weighting.normalize import NORMALIZATIONS
from ...weighting.options import BIND_HIDES, BIND_RESTS
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
"""Label, choices and help of each menu, by the name of the setting, in the order of the API."""


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
            controls = {**_menus(elem_id), **_binding(elem_id)}
    else:
        with gr.Accordion(title, open=False, elem_id=elem_id("accordion")):
            enabled = gr.Checkbox(False, label=f"Enable {title}", elem_id=elem_id("enabled"))
            controls = {**_menus(elem_id), **_binding(elem_id)}
    return {"enabled": enabled, **controls}


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


def _binding(elem_id: Callable[[str], str]) -> dict[str, Any]:
    """The controls of phrases that are kept apart, in the order of the API."""

    def menu(name: str, choices: Sequence[str], label: str, info: str) -> Any:
        return gr.Dropdown(list(choices), value=choices[0], label=label, info=info, elem_id=elem_id(name))

    def box(name: str, label: str, info: str) -> Any:
        return gr.Textbox("", lines=2, max_lines=6, label=label, info=info, elem_id=elem_id(name))

    with gr.Row():
        bind = box("bind", "Keep apart", "One phrase of the prompt a line: none of them has read another")
        words = box("bind_words", "These words", "Hidden by these words and cutoff: one a line")
    with gr.Row():
        hide = menu("bind_hide", BIND_HIDES, "They hide from each other", "cutoff: as the extension; words only")
        rest = menu("bind_rest", BIND_RESTS, "All other words", "full: have read all phrases; alone: none")
        strength = gr.Slider(
            0.0,
            1.0,
            value=1.0,
            step=0.05,
            label="Strength",
            info="How far they are kept apart; Cutoff has 0.5",
            elem_id=elem_id("bind_strength"),
        )
    return {"bind": bind, "bind_rest": rest, "bind_strength": strength, "bind_hide": hide, "bind_words": words}
