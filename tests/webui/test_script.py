"""The WebUI's entry, executed as the host executes it: as a file, again at every “Reload UI”, and never imported."""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gradio")

import gradio as gr
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.web.lab.handlers import OPTIONS as LAB_OPTIONS
from weighted_clip.weighting.options import OPTIONS
from weighted_clip.weighting.schemes import SCHEMES

from . import fake_webui as fake

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "weighted_clip.py"
PACKAGE = "weighted_clip_webui"
PATH = frozenset(sys.path)
"""Path before the script runs, with the repository in it if `python -m pytest` was started there."""


@pytest.fixture
def pasted() -> list[Any]:
    """Functions registered to look at pasted parameters."""
    return []


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch, pasted: list[Any]) -> list[Any]:
    """The host's modules for scripts; what is registered as a tab goes into the list."""
    tabs: list[Any] = []

    class Script:
        def elem_id(self, name: str) -> str:
            return f"script_txt2img_weighted_clip_{name}"

    contents = {
        "scripts": {"Script": Script, "AlwaysVisible": object()},
        "script_callbacks": {
            "on_ui_tabs": tabs.append,
            "on_before_ui": lambda _: None,
            "on_ui_settings": lambda _: None,
            "on_app_started": lambda _: None,
            "on_infotext_pasted": pasted.append,
        },
        "ui_components": {},
        "sd_models": {"model_data": SimpleNamespace(sd_model=None)},
    }
    for name, names in contents.items():
        module = ModuleType(f"modules.{name}")
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(sys.modules["modules"], name, module, raising=False)
    return tabs


def pasted_values(script: Any, parameters: dict[str, Any]) -> dict[str, Any]:
    """Values of the controls after pasting an image's parameters, and what is told about them."""
    names = [*vars(Settings()), "told"]
    return {name: read(parameters) for name, (_, read) in zip(names, script.infotext_fields, strict=True)}


def run_script() -> dict[str, Any]:
    """As A1111 and Forge do it: the file's name is the module's, and it stays out of sys.modules."""
    spec = importlib.util.spec_from_file_location(SCRIPT.name, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


@pytest.fixture
def script(callbacks: list[Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    known = {name: module for name, module in sys.modules.items() if name.split(".")[0] == PACKAGE}
    for name in known:
        monkeypatch.delitem(sys.modules, name)
    return run_script()


def test_package_is_loaded_once_under_a_name_of_its_own(
    script: dict[str, Any], callbacks: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = sys.modules[PACKAGE]
    assert not {"encoder", "nodes", "web", "weighting", "hosts"} & set(sys.modules)
    assert not set(sys.path) - PATH
    other = ModuleType("encoder")
    monkeypatch.setitem(sys.modules, "encoder", other)

    again = run_script()
    assert sys.modules[PACKAGE] is package
    assert sys.modules["encoder"] is other
    assert again["generation"] is script["generation"]
    assert len(callbacks) == 2  # the host has forgotten the first one by then
    found = [value for value in again.values() if isinstance(value, type) and hasattr(value, "title")]
    assert found == [again["WeightedCLIPScript"]]


@pytest.mark.parametrize("has_input_accordion", [True, False])
def test_controls_are_settings_in_order_and_paste_themselves(
    script: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, has_input_accordion: bool
) -> None:
    used: list[Any] = []

    @contextlib.contextmanager
    def input_accordion(value: bool, *, label: str, elem_id: str) -> Iterator[gr.Checkbox]:
        """As the host's: a switch that is a container too."""
        used.append(gr.Checkbox(value, label=label, elem_id=elem_id))
        yield used[0]

    if has_input_accordion:
        monkeypatch.setattr(sys.modules["modules.ui_components"], "InputAccordion", input_accordion, raising=False)
    settings = script["settings"]
    one = script["WeightedCLIPScript"]()
    with gr.Blocks():
        controls = one.ui(False)
    assert used == ([controls[0]] if has_input_accordion else [])
    defaults = vars(settings.Settings())
    first = {**defaults, "scheme": "masked_blend", "above_one": "as the WebUI", "attention": "bias"}
    assert [control.value for control in controls] == list(first.values())
    assert [control.elem_id.rpartition("clip_")[2] for control in controls] == list(defaults)
    for control, name in zip(controls[1:], list(defaults)[1:], strict=True):
        assert control.label
        for choice in getattr(control, "choices", ()):  # a box has none
            value = choice[1] if isinstance(choice, tuple) else choice
            settings.Settings(**{**defaults, name: value}).options()

    parameters = settings.Settings(True, "masked_blend", law="compel").infotext()
    values = pasted_values(one, parameters)
    assert values.pop("told") == ""
    assert settings.Settings(**values) == settings.Settings(True, "masked_blend", law="compel")
    assert set(parameters) <= set(one.paste_field_names)
    # Forge's API: `infotext` of a request, each value in the type of the control's
    for scheme in ("masked_blend", "compel"):
        typed = {
            name: type(control.value)(value)
            for (name, value), control in zip((values | {"scheme": scheme}).items(), controls, strict=True)
        }
        assert settings.Settings.of(list(typed.values())).scheme == scheme
        shown = OPTIONS["scheme"].shown(scheme)  # as the host's list of scripts has it
        assert shown != scheme and settings.Settings.of([True, shown]).scheme == scheme


@pytest.mark.parametrize(
    ("key", "value", "default", "words"),
    [
        ("Weighted CLIP", "quantum", "a1111", ("Scheme", "&#x27;quantum&#x27;")),
        ("Weighted CLIP padding", "<zoom>", "attend", ("Padding", "mask EOS too", "&lt;zoom&gt;")),
        ("Weighted CLIP syntax", "nai", "a1111", ("Syntax", "compel")),
        ("Weighted CLIP bind strength", "much", 1.0, ("Strength must be a number",)),
        ("Weighted CLIP bind strength", "7", 1.0, ("Strength must be 0 to 1",)),
        ("Weighted CLIP bind strength", "nan", 1.0, ("Strength must be 0 to 1",)),
        ("Weighted CLIP above one", "nan", "as ComfyUI", ("Above 1 must be one of: as ComfyUI, as the WebUI",)),
        ("Weighted CLIP above one", "<b>" * 500, "as ComfyUI", ("&lt;b&gt;",)),
        ("Weighted CLIP glow", "on" * 500, None, ("“Weighted CLIP glow: ononon", "is not a setting")),
    ],
)
def test_what_cannot_be_pasted_is_said_and_the_rest_is_pasted(
    script: dict[str, Any], pasted: list[Any], key: str, value: str, default: Any, words: tuple[str, ...]
) -> None:
    """No menu is left blank, and no control holds a value that its user does not see."""
    one = script["WeightedCLIPScript"]()
    with gr.Blocks():
        controls = one.ui(False)
    parameters = {"Steps": "2", "Weighted CLIP": "comfy", "Weighted CLIP law": "compel", key: value}
    [look] = pasted
    look("a prompt", parameters)
    values = pasted_values(one, parameters)
    told = values.pop("told")
    for word in words:
        assert word in told
    assert len(told) < 1000
    settings = Settings(**values)
    settings.options()
    assert (settings.enabled, settings.law) == (True, "compel")
    if default is not None:
        name = next(name for name in values if script["settings"].infotext_key(name) == key)
        assert values[name] == default
        assert repr(default).replace("'", "&#x27;") in told
    assert settings.scheme == ("a1111" if key == "Weighted CLIP" else "comfy")
    for control, value in zip(controls, values.values(), strict=True):
        assert type(control.value)(value) == value  # which is how the host sets it
    # the next one is without a problem
    parameters = {"Weighted CLIP": "comfy"}
    look("a prompt", parameters)
    assert pasted_values(one, parameters)["told"] == ""
    for plain in ({"Steps": "2"}, {"Steps": "2", "Weighted CLIP glow": "on"}):
        look("a prompt", before := dict(plain))
        assert before == plain


def test_cutoff_with_a_scheme_it_does_not_go_with_is_told_at_the_menu(script: dict[str, Any]) -> None:
    with gr.Blocks() as page:
        controls = script["WeightedCLIPScript"]().ui(False)
    dependency = next(one for one in page.fns.values() if (controls[1]._id, "change") in one.targets)

    def told(**changed: str) -> bool:
        names = dict(zip(vars(Settings()), controls, strict=True))
        values = [
            next((changed[name] for name in changed if names[name] is one), one.value) for one in dependency.inputs
        ]
        assert dependency.fn
        note = dependency.fn(*values)[0]
        return "role='alert'" in note and all(scheme in note for scheme in allowed)

    allowed = ("comfy", "a1111_no_norm", "unweighted", "repeat")
    for scheme in SCHEMES:
        assert told(scheme=scheme, bind_hide="cutoff") == (scheme not in allowed)
        assert not told(scheme=scheme)
        assert not told(scheme=scheme, bind_hide="these words")


def test_a_request_that_names_no_scheme_has_that_of_the_api_as_ever(
    script: dict[str, Any], forge: fake.ForgeModel
) -> None:
    """The host fills in what the menus begin with; the page's own answer comes back as plain text."""
    one = script["WeightedCLIPScript"]()
    assert one.title() == "Weighted CLIP"
    assert one.show(True) is one.show(False)
    with gr.Blocks():
        begun = [control.value for control in one.ui(False)]
    for scheme, expected in ((begun[1], "a1111"), (json.loads(json.dumps(begun[1])), "masked_blend")):
        generation = fake.Generation(forge)
        one.process(generation, True, scheme, *begun[2:])
        generation.setup_conds("a (dog:0.5)")
        assert generation.extra_generation_params == {"Weighted CLIP": expected}


def test_menus_show_names_for_people_and_hold_those_of_the_parameters(script: dict[str, Any]) -> None:
    with gr.Blocks():
        controls = script["WeightedCLIPScript"]().ui(False)
    scheme, menus = controls[1], [one for one in controls if isinstance(one, gr.Dropdown)]
    assert len(menus) == 14
    assert [value for _, value in scheme.choices] == list(SCHEMES)
    for menu in menus:
        assert len({name for name, _ in menu.choices}) == len(menu.choices)
        for name, value in menu.choices:
            assert len(name) > len(f"{value}: ")
            assert name.startswith(f"{value}: ")
            # as the host looks for a default that its user has saved, which is a value
            assert value in [choice[0] for choice in menu.choices]
            assert json.loads(json.dumps(name)) == str(name)
    assert "nothing" not in [choice[0] for choice in scheme.choices]


def test_what_only_one_scheme_reads_is_seen_with_it_alone(script: dict[str, Any]) -> None:
    with gr.Blocks() as page:
        controls = script["WeightedCLIPScript"]().ui(False)
    scheme, padding, bind = controls[1], controls[5], controls[8]
    dependency = next(one for one in page.fns.values() if (scheme._id, "change") in one.targets)
    assert any(event == "load" for one in page.fns.values() for _, event in one.targets)
    rows = [block for block in page.blocks.values() if isinstance(block, gr.Row) and block in dependency.outputs]
    forms = {tuple(child.label for child in row.children[0].children): row.visible for row in rows}
    assert forms == {
        ("Law", "Mask method", "Above 1"): True,
        ("Finest step",): False,
        ("They hide from each other", "All other words", "Strength"): False,
        ("These words",): False,
    }

    def shown(**changed: Any) -> tuple[str, list[bool]]:
        values = {control: changed.get(control.label, control.value) for control in dependency.inputs}
        assert dependency.fn
        note, *updates = dependency.fn(*values.values())
        return note, [update["visible"] for update in updates]

    assert shown()[1] == [True, False, False, False]
    assert "(dog:0.3)" in shown()[0]
    assert shown(Scheme="repeat")[1] == [False, True, False, False]
    note, visible = shown(Scheme="a1111")
    assert "nothing changes" in note
    assert visible == [False, False, False, False]
    assert "Advanced" not in note
    note, visible = shown(Padding="mask", **{"Keep apart": "red cat\nblue dog"})
    assert "Advanced: Padding mask, Keep apart." in note
    assert visible == [True, False, True, False]
    assert shown(**{"They hide from each other": "cutoff"})[1] == [True, False, True, True]
    assert shown(**{"These words": "red"})[1] == [True, False, True, True]  # nothing acts unseen
    assert {padding, bind} < set(dependency.inputs)


def test_script_and_tab_set_what_they_are_sent_and_quote_what_cannot_be(
    script: dict[str, Any], callbacks: list[Any]
) -> None:
    with gr.Blocks() as page:
        controls = script["WeightedCLIPScript"]().ui(False)
    [(tab, _, _)] = callbacks[0]()
    sent = json.dumps({"enabled": True, "scheme": "comfy", "padding": OPTIONS["padding"].shown("mask")})
    for blocks, count in ((page, len(controls)), (tab, len(LAB_OPTIONS))):
        [receive] = [one.fn for one in blocks.fns.values() if one.fn and one.fn.__name__ == "receive"]
        *changes, told = receive(sent)
        assert len(changes) == count
        assert {"comfy", "mask"} <= {one.get("value") for one in changes}
        assert told == ""
        for wrong in ('{"enabled": true, "scheme": "<b>NaN</b>"}', "no <b> JSON"):
            *changes, told = receive(wrong)
            assert not any("value" in one for one in changes)
            assert "&lt;b&gt;" in told and "<b>" not in told


def test_postprocess_writes_problems_into_the_info(script: dict[str, Any], forge: fake.ForgeModel) -> None:
    one = script["WeightedCLIPScript"]()
    generation = fake.Generation(forge)
    one.process(generation, True)
    generation.setup_conds("a (cat")
    processed = SimpleNamespace(extra_generation_params=generation.extra_generation_params)
    one.postprocess(generation, processed, True)
    [problem] = processed.extra_generation_params["Weighted CLIP problems"]
    assert "never closed" in problem


def test_tab_is_the_lab_without_a_model(script: dict[str, Any], callbacks: list[Any]) -> None:
    [(page, title, elem_id)] = callbacks[0]()
    assert isinstance(page, gr.Blocks)
    assert (title, elem_id) == ("Weighted CLIP", "weighted_clip")
    model = script["lab"].loaded_model()
    assert "no model is loaded" in model.title
    assert list(model.readers()) == ["clip_l"]
