"""Controls of the WebUI's script, in txt2img and img2img."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import gradio as gr
from gradio.context import Context

from ...weighting.options import OPTIONS
from ...weighting.schemes import SCHEMES
from . import markup
from .components import appearing, changed_options_line, control, live, messenger
from .model import EXPLAINED

_ONLY_WITH = {
    name: menus
    for name, scheme in SCHEMES.items()
    if (menus := [menu for menu in scheme.options if OPTIONS[menu].label])
}
"""Menus used by only one scheme."""


Give = Callable[[str], tuple[Mapping[str, Any], Sequence[str]]]
"""Function from the tab's state to values of settings, and lines about omitted ones."""


def build_accordion(
    title: str,
    elem_id: Callable[[str], str],
    defaults: Mapping[str, Any],
    input_accordion: Any = None,
    give: Give | None = None,
) -> tuple[dict[str, Any], Any]:
    """Build the controls in the current Blocks: by the name of their setting, and the place for pasted problems.

    ``defaults`` has the initial value of each setting, ``enabled`` first, in the order of the API; the controls have
    the same order. ``input_accordion`` is the host's accordion with a switch in its title, if it has one. ``give``
    reads what the tab sends.
    """
    if input_accordion is not None:
        with input_accordion(False, label=title, elem_id=elem_id("enabled")) as enabled:
            controls, pasted = _controls(elem_id, defaults)
    else:
        with gr.Accordion(title, open=False, elem_id=elem_id("accordion")):
            enabled = gr.Checkbox(False, label=f"Enable {title}", elem_id=elem_id("enabled"))
            controls, pasted = _controls(elem_id, defaults)
    controls["enabled"] = enabled
    controls = {name: controls[name] for name in defaults}
    if give is not None:
        _receive(controls, pasted, messenger(elem_id("given")), give)
    return controls, pasted


def _receive(controls: Mapping[str, Any], message_box: Any, box: Any, give: Give) -> None:
    """Set the controls to what the tab sends; it is told if something cannot be set."""

    def receive(request: str) -> tuple[Any, ...]:
        try:
            values, lines = give(request)
        except EXPLAINED as error:
            values, lines = {}, [str(error)]
        changes = [gr.update(value=values[name]) if name in values else gr.update() for name in controls]
        return *changes, markup.passing(markup.problems(lines))

    live(box.change, {"fn": receive, "inputs": [box], "outputs": [*controls.values(), message_box]})


def _controls(elem_id: Callable[[str], str], defaults: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    controls: dict[str, Any] = {}

    def build(names: Iterable[str]) -> None:
        controls.update((name, control(name, elem_id(name), defaults[name])) for name in names)

    with gr.Column(elem_classes="weighted-clip-script"):
        pasted = gr.HTML("", elem_id=elem_id("pasted"))
        build(["scheme"])
        note = gr.HTML(_note(defaults["scheme"]), elem_id=elem_id("note"))
        rows: dict[str, Any] = {}
        for only, names in _ONLY_WITH.items():
            with gr.Row(visible=only == defaults["scheme"]) as rows[only]:
                build(names)
        parts: dict[str, Any] = {}
        with gr.Accordion("Advanced", open=False, elem_id=elem_id("advanced")):
            with gr.Row():
                build(["normalization", "padding"])
            build(["syntax", "bind"])
            with gr.Row(visible=False) as parts["bind"]:
                build(["bind_hide", "bind_rest", "bind_strength"])
            with gr.Row(visible=False) as parts["bind_words"]:
                build(["bind_words"])
            build(["places", "word_maps"])
            with gr.Row():
                build(["attention", "attention_strength"])
            with gr.Row():
                build(["glides", "joins", "comments"])
    _follow(controls, note, rows, parts)
    return controls, pasted


def _follow(controls: Mapping[str, Any], note: Any, rows: Mapping[str, Any], parts: Mapping[str, Any]) -> None:
    """Update the controls below the scheme when menus change, and for defaults that a WebUI has saved for its user."""
    seen = {"scheme", *(name for names in _ONLY_WITH.values() for name in names)}
    folded = {name: control for name, control in controls.items() if name not in seen}
    defaults = {name: control.value for name, control in folded.items()}

    def shown(scheme: str, *values: Any) -> tuple[Any, ...]:
        chosen = dict(zip(folded, values, strict=True))
        lines = _note(scheme, cuts_off=chosen["bind_hide"] == "cutoff")
        lines += markup.note(changed_options_line("Advanced", chosen, defaults))
        is_seen = appearing(chosen)
        is_there = [*(only == scheme for only in rows), *(is_seen[part] for part in parts)]
        return lines, *(gr.update(visible=is_visible) for is_visible in is_there)

    inputs = [controls["scheme"], *folded.values()]
    page = Context.root_block
    for event in (*(part.change for part in inputs), *([page.load] if page is not None else [])):
        live(event, {"fn": shown, "inputs": inputs, "outputs": [note, *rows.values(), *parts.values()]})


def _note(scheme: str, *, cuts_off: bool = False) -> str:
    """Effect of a scheme, and what it does not go with."""
    record = SCHEMES.get(scheme)
    lines = "" if record is None else markup.note(record.advice)
    if cuts_off and (record is None or not record.bound_as_cutoff):
        *names, last = (name for name, scheme_record in SCHEMES.items() if scheme_record.bound_as_cutoff)
        lines += markup.message(
            f"cutoff does not work with {scheme}: prompts with weights are refused. Use {', '.join(names)} or {last}, "
            "or something other than cutoff."
        )
    return lines
