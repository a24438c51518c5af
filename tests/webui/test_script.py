"""The WebUI's entry, executed as the host executes it: as a file, again at every “Reload UI”, and never imported."""

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("gradio")

import gradio as gr

from . import fake_webui as fake

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "weighted_clip.py"
PACKAGE = "weighted_clip_webui"


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The host's modules for scripts; what is registered as a tab goes into the list."""
    tabs: list[Any] = []

    class Script:
        def elem_id(self, name: str) -> str:
            return f"script_txt2img_weighted_clip_{name}"

    contents = {
        "scripts": {"Script": Script, "AlwaysVisible": object()},
        "script_callbacks": {"on_ui_tabs": tabs.append},
        "ui_components": {},
        "sd_models": {"model_data": SimpleNamespace(sd_model=None)},
    }
    for name, names in contents.items():
        module = ModuleType(f"modules.{name}")
        module.__dict__.update(names)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr(sys.modules["modules"], name, module, raising=False)
    return tabs


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
    assert str(ROOT) not in sys.path
    other = ModuleType("encoder")
    monkeypatch.setitem(sys.modules, "encoder", other)

    again = run_script()
    assert sys.modules[PACKAGE] is package
    assert sys.modules["encoder"] is other
    assert again["swap"] is script["swap"]
    assert len(callbacks) == 2  # the host has forgotten the first one by then
    found = [value for value in again.values() if isinstance(value, type) and hasattr(value, "title")]
    assert found == [again["WeightedCLIPScript"]]


def test_file_stays_small() -> None:
    assert len(SCRIPT.read_text(encoding="utf-8").splitlines()) < 70


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
    assert [control.value for control in controls] == list(defaults.values())
    assert [control.elem_id.rpartition("clip_")[2] for control in controls] == list(defaults)
    for control, name in zip(controls[1:], list(defaults)[1:], strict=True):
        assert control.label
        for choice in getattr(control, "choices", ()):  # a box has none
            value = choice[1] if isinstance(choice, tuple) else choice
            settings.Settings(**{**defaults, name: value}).options()

    parameters = settings.Settings(True, "masked_blend", law="compel").infotext()
    values = {name: read(parameters) for name, (_, read) in zip(defaults, one.infotext_fields, strict=True)}
    assert settings.Settings(**values) == settings.Settings(True, "masked_blend", law="compel")
    assert set(parameters) <= set(one.paste_field_names)


def test_process_arms_the_generation(script: dict[str, Any], forge: fake.ForgeModel) -> None:
    one = script["WeightedCLIPScript"]()
    assert one.title() == "Weighted CLIP"
    assert one.show(True) is one.show(False)
    generation = fake.Generation(forge)
    one.process(generation, True, "masked_blend")
    generation.setup_conds("a (dog:0.5)")
    assert generation.extra_generation_params == {"Weighted CLIP": "masked_blend"}


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
