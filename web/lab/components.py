"""Building blocks of all parts of the page: ids, markup, listeners, and the base of its tabs.

Only features common to gradio 3.41, 4.40 and 6 are used, with the same arguments, so that one page works in the WebUIs
and the stand-alone lab. Names of components are permanent: a WebUI's users refer to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import gradio as gr

from ...encoder.option import Option
from ...weighting.options import OPTIONS, PLACE_OPTIONS
from ...weighting.schemes import SCHEMES
from ...weighting.text.prompt import shortened

PREFIX = "weighted_clip_"
"""Prefix of the ids of all components."""


def element_id(name: str) -> str:
    """Id of a component."""
    return PREFIX + name


def html(name: str, label: str, value: str = "") -> gr.HTML:
    """Component with markup from ``markup.py``."""
    return gr.HTML(value, label=label, elem_id=element_id(name))


def textbox(name: str, label: str, **more: Any) -> gr.Textbox:
    """Empty box for a text of two lines and more."""
    return gr.Textbox(**{"value": "", "label": label, "lines": 2, "max_lines": 12, **more}, elem_id=element_id(name))


def whole(name: str, label: str, value: int = 1, **more: Any) -> gr.Number:
    """Box for a whole number; what reads it refuses others, which gradio would round."""
    return gr.Number(value=value, label=label, elem_id=element_id(name), **more)


def slider(name: str, label: str, info: str, span: tuple[float, float, float], value: float) -> gr.Slider:
    """Slider over a span: its ends and its step."""
    first, last, step = span
    return gr.Slider(first, last, value=value, step=step, label=label, info=info, elem_id=element_id(name))


def button(name: str, label: str, **more: Any) -> gr.Button:
    """Button."""
    return gr.Button(label, elem_id=element_id(name), **more)


def declared(name: str) -> Option:
    """Declaration of an option."""
    return {**OPTIONS, **PLACE_OPTIONS}[name]


class _Name(str):
    """A choice as displayed. A WebUI looks among these for saved defaults, which are values."""

    __slots__ = ("value",)
    value: str

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or self.value == other

    __hash__ = str.__hash__


def named_choices(shown: Mapping[str, str]) -> list[Any]:
    """Choices as displayed, each with its value; only the values where gradio cannot, which is before 4."""
    if int(gr.__version__.partition(".")[0]) < 4:
        return list(shown)
    names: list[Any] = []
    for value, words in shown.items():
        name = _Name(words)
        name.value = value
        names.append((name, value))
    return names


def menu_of(name: str) -> list[Any]:
    """Choices of a declared option as displayed."""
    about = declared(name)
    return named_choices({choice: about.shown(choice) for choice in about.choices})


def control(name: str, elem_id: str, value: Any, **changes: Any) -> Any:
    """Component for a declared option; a menu says what each of its choices does."""
    about = declared(name)
    shared = {"value": value, "label": about.label, "info": about.info, "elem_id": elem_id, **changes}
    if about.kind is bool:
        return gr.Checkbox(**shared)
    if about.is_lines:
        return gr.Textbox(lines=2, max_lines=6, **shared)
    if about.choices:
        return gr.Dropdown(**{"choices": menu_of(name), **shared})
    return gr.Slider(**{"minimum": about.least, "maximum": about.most, "step": about.step, **shared})


def messenger(elem_id: str) -> gr.Textbox:
    """Box that nobody sees, by which a script of the page sends a text."""
    box = gr.Textbox("", label="Message", elem_id=elem_id, elem_classes="weighted-clip-messenger")
    box.do_not_save_to_config = True  # pyright: ignore[reportAttributeAccessIssue] - a WebUI looks for that
    return box


def appearing(values: Mapping[str, Any]) -> dict[str, bool]:
    """Whether the controls that go with another are to be seen, by the first of them.

    They appear once a phrase is typed, and stay where they hold anything themselves.
    """

    def holds(*names: str) -> bool:
        return any(values[name] != OPTIONS[name].default for name in names)

    found = {
        "bind": holds("bind", "bind_hide", "bind_rest", "bind_strength", "bind_words"),
        "bind_words": holds("bind_hide", "bind_words"),
    }
    if "hide" in values:
        found["hidden_from"] = holds("hide", "hidden_from", "from_phrases")
        found["from_phrases"] = holds("from_phrases") or values["hidden_from"] == "the phrases below"
    return found


def told_changes(where: str, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Line about folded controls that do not hold their defaults; empty if all do."""
    changed = [(declared(name), value) for name, value in values.items() if value != defaults[name]]
    told = [
        about.label if about.is_lines or about.kind is bool else f"{about.label} {shortened(str(value))}"
        for about, value in changed
    ]
    return f"Also under {where}: {', '.join(told)}." if told else ""


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


@dataclass
class Inputs:
    """Components of the page that its tabs read."""

    prompt: Any
    options: Mapping[str, Any]
    """Component for each option."""
    first: Sequence[Any]
    """Initial prompt and options."""
    reading: dict[str, Any]
    """Listener that reads the prompt again."""
    all: list[Any] = field(default_factory=list)
    """Prompt, options, number of the text, sampling steps: what `Tab.show` takes last. Complete once all are built."""


class Tab:
    """A tab below the prompt. `show` fills it when it is open and something changes."""

    title = ""
    name = ""
    """Its id."""
    is_slow = False
    """Whether `show` waits for the encoder, in gradio's queue."""
    asked: Sequence[Any] = ()
    """Components of the tab whose values `show` takes first."""
    shown: Sequence[Any] = ()
    """Components that `show` returns values for."""
    kept: Mapping[str, Any] = MappingProxyType({})
    """Components whose values are kept for the next visit."""
    show: Callable[..., tuple[Any, ...]]
    """Method that gives values for `shown`, if there are any."""

    def build(self, page: Inputs) -> None:
        """Build the components in the open tab."""

    def connect(self, page: Inputs) -> None:
        """Connect events of the tab's own."""


def connect_tabs(tabs: Mapping[Any, Tab], events: Sequence[Callable[..., Any]], page: Inputs, is_open: Any) -> None:
    """Let each tab be filled when it is opened, and when something changes while it is open.

    Tabs are given by their component, and ``is_open`` is the state with the title of the open one. While the encoder is
    busy only the last change is kept for a slow tab.
    """
    quick = [tab for tab in tabs.values() if tab.shown and not tab.is_slow]
    for place, tab in tabs.items():
        shown = [] if tab.is_slow else tab.shown
        asked = [*tab.asked, *page.all] if shown else []
        live(
            place.select, {"fn": _opening(tab, has_content=bool(shown)), "inputs": asked, "outputs": [is_open, *shown]}
        )
    asked = [one for tab in quick for one in tab.asked]
    following = {
        "fn": _following(quick),
        "inputs": [is_open, *asked, *page.all],
        "outputs": [one for tab in quick for one in tab.shown],
    }
    for event in (*events, *(one.change for one in asked)):
        live(event, following)
    for place, tab in tabs.items():
        if tab.is_slow:
            inputs = [*tab.asked, *page.all]
            shared = {"outputs": list(tab.shown), "show_progress": "hidden", "trigger_mode": "always_last"}
            place.select(tab.show, inputs=inputs, **shared)
            changes = [*events, *(one.change for one in tab.asked)]
            gr.on(changes, _following([tab]), inputs=[is_open, *inputs], **shared)


def _opening(tab: Tab, *, has_content: bool) -> Callable[..., Any]:
    """Handler that stores which tab is open, and fills it."""

    def open_tab(*values: Any) -> Any:
        return (tab.title, *tab.show(*values)) if has_content else tab.title

    return open_tab


def _following(tabs: Sequence[Tab]) -> Callable[..., Any]:
    """Handler that fills the tab that is open, and leaves all others as they are."""

    def follow(title: str, *values: Any) -> tuple[Any, ...]:
        shown: list[Any] = []
        start, page = 0, values[sum(len(tab.asked) for tab in tabs) :]
        for tab in tabs:
            own = values[start : start + len(tab.asked)]
            start += len(tab.asked)
            shown += tab.show(*own, *page) if tab.title == title else [gr.update()] * len(tab.shown)
        return tuple(shown)

    return follow
