"""Controls of the WebUI's script, in txt2img and img2img."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.context import Context

from ...weighting.normalize import NORMALIZATIONS
from ...weighting.options import BIND_HIDES, BIND_RESTS
from ...weighting.padding import PADDINGS
from ...weighting.scheme import LAWS, MASK_METHODS
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.repeat import FINEST_STEPS
from ...weighting.syntax import SYNTAXES
from . import markup
from .components import live

_NAMES: dict[str, Mapping[str, str]] = {
    "scheme": {name: scheme.short for name, scheme in SCHEMES.items()},
    "law": {"nested": "one after the other", "compel": "as compel shares it"},
    "mask_method": {
        "attention": "no word can see it",
        "token": "another token in its place",
        "remove": "the prompt without it",
    },
}
_MENUS = {
    "scheme": ("Scheme", list(SCHEMES), "What a weight does"),
    "normalization": ("Normalization", list(NORMALIZATIONS), "Changes the weights first"),
    "law": ("Law", list(LAWS), "How several faded words share the result"),
    "mask_method": ("Mask method", list(MASK_METHODS), "What it means that a word is absent"),
    "padding": ("Padding", list(PADDINGS), "What becomes of it"),
    "syntax": ("Syntax", list(SYNTAXES), "How weights are written"),
    "finest_step": ("Finest step", list(FINEST_STEPS), "Steps of a weight from 0 to 1"),
}
"""Label, choices and help of each menu, by the name of the setting."""

_DEFAULTS = {"syntax": "a1111"}
"""Defaults of menus that do not start with their first choice."""
_ONLY_WITH = {
    name: menus for name, scheme in SCHEMES.items() if (menus := [menu for menu in scheme.options if menu in _MENUS])
}
"""Menus used by only one scheme."""
_ORDER = (
    *("scheme", "normalization", "law", "mask_method", "padding", "syntax", "finest_step"),
    *("bind", "bind_rest", "bind_strength", "bind_hide", "bind_words"),
)
"""Settings in the order of the API."""


class _Name(str):
    """A choice as displayed. A WebUI looks among these for saved defaults, which are values."""

    __slots__ = ("value",)
    value: str

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or self.value == other

    __hash__ = str.__hash__


def build_accordion(
    title: str, elem_id: Callable[[str], str], scheme: str, input_accordion: Any = None
) -> tuple[dict[str, Any], Any]:
    """Build the controls in the current Blocks.

    Args:
        title: Title of the accordion.
        elem_id: Function that returns each control's id in the page.
        scheme: Initial scheme of the page.
        input_accordion: The host's accordion with a switch in its title, if it has one.

    Returns:
        The controls by the name of their setting, ``enabled`` first, in the order of the API; and the place for
        problems of pasted parameters.
    """
    if input_accordion is not None:
        with input_accordion(False, label=title, elem_id=elem_id("enabled")) as enabled:
            controls, pasted = _controls(elem_id, scheme)
    else:
        with gr.Accordion(title, open=False, elem_id=elem_id("accordion")):
            enabled = gr.Checkbox(False, label=f"Enable {title}", elem_id=elem_id("enabled"))
            controls, pasted = _controls(elem_id, scheme)
    return {"enabled": enabled, **{name: controls[name] for name in _ORDER}}, pasted


def _controls(elem_id: Callable[[str], str], scheme: str) -> tuple[dict[str, Any], Any]:
    with gr.Column(elem_classes="weighted-clip-script"):
        pasted = gr.HTML("", elem_id=elem_id("pasted"))
        controls = {"scheme": _menu("scheme", elem_id, scheme)}
        note = gr.HTML(_note(scheme), elem_id=elem_id("note"))
        rows: dict[str, Any] = {}
        for only, names in _ONLY_WITH.items():
            with gr.Row(visible=only == scheme) as rows[only]:
                controls |= {name: _menu(name, elem_id) for name in names}
        with gr.Accordion("Advanced", open=False, elem_id=elem_id("advanced")):
            with gr.Row():
                controls |= {name: _menu(name, elem_id) for name in ("normalization", "padding", "syntax")}
            controls |= _binding(elem_id)
    _follow(controls, note, rows)
    return controls, pasted


def _menu(name: str, elem_id: Callable[[str], str], value: str | None = None) -> Any:
    label, choices, info = _MENUS[name]
    value = value or _DEFAULTS.get(name, choices[0])
    return gr.Dropdown(_named(name, choices), value=value, label=label, info=info, elem_id=elem_id(name))


def _named(menu: str, choices: Sequence[str]) -> Any:
    """Choices with their descriptions, if gradio can display another text than the value (from 4 on)."""
    if menu not in _NAMES or int(gr.__version__.partition(".")[0]) < 4:
        return list(choices)
    return [(_name_of(choice, _NAMES[menu][choice]), choice) for choice in choices]


def _name_of(value: str, called: str) -> _Name:
    name = _Name(f"{value}: {called}")
    name.value = value
    return name


def _follow(controls: Mapping[str, Any], note: Any, rows: Mapping[str, Any]) -> None:
    """Update the controls below the scheme when menus change, and for defaults that a WebUI has saved for its user."""
    seen = {"scheme", *(name for names in _ONLY_WITH.values() for name in names)}
    folded = {name: control for name, control in controls.items() if name not in seen}
    defaults = [control.value for control in folded.values()]

    def shown(scheme: str, *values: Any) -> tuple[Any, ...]:
        changed = [
            str(control.label) if isinstance(control, gr.Textbox) else f"{control.label} {value}"
            for control, value, default in zip(folded.values(), values, defaults, strict=True)
            if value != default
        ]
        told = _note(scheme, changed, cuts_off=values[list(folded).index("bind_hide")] == "cutoff")
        return told, *(gr.update(visible=only == scheme) for only in rows)

    inputs = [controls["scheme"], *folded.values()]
    page = Context.root_block
    for event in (*(control.change for control in inputs), *([page.load] if page is not None else [])):
        live(event, {"fn": shown, "inputs": inputs, "outputs": [note, *rows.values()]})


def _note(scheme: str, changed: Sequence[str] = (), *, cuts_off: bool = False) -> str:
    """Effect of a scheme, what it does not go with, and the folded controls that are not at their defaults."""
    about = SCHEMES.get(scheme)
    lines = ""
    if about is not None:
        told = (f"{about.summary} ({about.equals})", about.advice)
        lines = "".join(markup.message(sentence, is_problem=False) for sentence in told)
    if cuts_off and (about is None or not about.bound_as_cutoff):
        *some, last = (name for name, one in SCHEMES.items() if one.bound_as_cutoff)
        lines += markup.message(
            f"cutoff does not go with {scheme}: a prompt with weights is refused. Take {', '.join(some)} or {last}, or "
            "another choice than cutoff."
        )
    if changed:
        lines += markup.message(f"Also under Advanced: {', '.join(changed)}.", is_problem=False)
    return lines


def _binding(elem_id: Callable[[str], str]) -> dict[str, Any]:
    """Controls of bound phrases."""

    def menu(name: str, choices: Sequence[str], label: str, info: str) -> Any:
        return gr.Dropdown(list(choices), value=choices[0], label=label, info=info, elem_id=elem_id(name))

    def box(name: str, label: str, info: str) -> Any:
        return gr.Textbox("", lines=2, max_lines=6, label=label, info=info, elem_id=elem_id(name))

    with gr.Row():
        bind = box("bind", "Keep apart", "One phrase of the prompt per line: none of them has read another")
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
