"""Controls of the WebUI's script, in txt2img and img2img."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.context import Context

from ...weighting.options import OPTIONS
from ...weighting.schemes import SCHEMES
from . import markup
from .components import control, declared, live

_ADVANCED = (
    ("normalization", "padding", "syntax"),
    ("bind", "bind_words"),
    ("bind_hide", "bind_rest", "bind_strength"),
    ("places",),
    ("word_maps",),
)
"""Rows of the folded part."""
_ONLY_WITH = {
    name: menus
    for name, scheme in SCHEMES.items()
    if (menus := [menu for menu in scheme.options if OPTIONS[menu].label])
}
"""Menus used by only one scheme."""


class _Name(str):
    """A choice as displayed. A WebUI looks among these for saved defaults, which are values."""

    __slots__ = ("value",)
    value: str

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or self.value == other

    __hash__ = str.__hash__


def build_accordion(
    title: str, elem_id: Callable[[str], str], defaults: Mapping[str, Any], input_accordion: Any = None
) -> tuple[dict[str, Any], Any]:
    """Build the controls in the current Blocks: by the name of their setting, and the place for pasted problems.

    ``defaults`` has the initial value of each setting, ``enabled`` first, in the order of the API; the controls have
    the same order. ``input_accordion`` is the host's accordion with a switch in its title, if it has one.
    """
    if input_accordion is not None:
        with input_accordion(False, label=title, elem_id=elem_id("enabled")) as enabled:
            controls, pasted = _controls(elem_id, defaults)
    else:
        with gr.Accordion(title, open=False, elem_id=elem_id("accordion")):
            enabled = gr.Checkbox(False, label=f"Enable {title}", elem_id=elem_id("enabled"))
            controls, pasted = _controls(elem_id, defaults)
    controls["enabled"] = enabled
    return {name: controls[name] for name in defaults}, pasted


def _controls(elem_id: Callable[[str], str], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    controls: dict[str, Any] = {}

    def build(names: Iterable[str]) -> None:
        controls.update((name, _control(name, elem_id(name), defaults[name])) for name in names)

    with gr.Column(elem_classes="weighted-clip-script"):
        pasted = gr.HTML("", elem_id=elem_id("pasted"))
        build(["scheme"])
        note = gr.HTML(_note(defaults["scheme"]), elem_id=elem_id("note"))
        rows: dict[str, Any] = {}
        for only, names in _ONLY_WITH.items():
            with gr.Row(visible=only == defaults["scheme"]) as rows[only]:
                build(names)
        with gr.Accordion("Advanced", open=False, elem_id=elem_id("advanced")):
            for names in _ADVANCED:
                with gr.Row():
                    build(names)
    _follow(controls, note, rows)
    return controls, pasted


def _control(name: str, elem_id: str, value: Any) -> Any:
    """Control of a setting; a menu shows what its choices are called, if gradio can, which is from 4 on."""
    about, more = declared(name), {}
    if about.called and int(gr.__version__.partition(".")[0]) >= 4:
        more["choices"] = [(_name_of(choice, about.called[choice]), choice) for choice in about.choices]
    return control(name, elem_id, value, **more)


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
            str(control.label) if isinstance(control, (gr.Textbox, gr.Checkbox)) else f"{control.label} {value}"
            for control, value, default in zip(folded.values(), values, defaults, strict=True)
            if value != default
        ]
        told = _note(scheme, changed, cuts_off=values[list(folded).index("bind_hide")] == "cutoff")
        return told, *(gr.update(visible=only == scheme) for only in rows)

    inputs = [controls["scheme"], *folded.values()]
    page = Context.root_block
    for event in (*(part.change for part in inputs), *([page.load] if page is not None else [])):
        live(event, {"fn": shown, "inputs": inputs, "outputs": [note, *rows.values()]})


def _note(scheme: str, changed: Sequence[str] = (), *, cuts_off: bool = False) -> str:
    """Effect of a scheme, what it does not go with, and the folded controls that are not at their defaults."""
    about = SCHEMES.get(scheme)
    lines = ""
    if about is not None:
        told = (f"{about.summary} ({about.equals})", about.advice)
        lines = "".join(markup.note(sentence) for sentence in told)
    if cuts_off and (about is None or not about.bound_as_cutoff):
        *some, last = (name for name, one in SCHEMES.items() if one.bound_as_cutoff)
        lines += markup.message(
            f"cutoff does not go with {scheme}: a prompt with weights is refused. Take {', '.join(some)} or {last}, or "
            "another choice than cutoff."
        )
    if changed:
        lines += markup.note(f"Also under Advanced: {', '.join(changed)}.")
    return lines
