"""The lab on the model that is loaded in the WebUI, and the host's queue."""

import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.conditioning import swapped
from weighted_clip.hosts.webui.engines import WebUIError, engines_of
from weighted_clip.hosts.webui.script.lab import LoadedModel, base_options, run_in_queue
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.weighting.options import EncodeOptions

from . import fake_webui as fake
from .test_webui import PROMPT, expected, native


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    parser, queue = ModuleType("modules.prompt_parser"), ModuleType("modules.call_queue")
    parser.__dict__["SdConditioning"] = list
    lock = threading.Lock()

    def wrap_queued_call(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            with lock:
                return function(*arguments)

        return call

    queue.__dict__["wrap_queued_call"] = wrap_queued_call
    for module in (parser, queue):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys.modules["modules.devices"], "autocast", nullcontext, raising=False)


@pytest.mark.parametrize("kind", ["forge", "a1111"])
@pytest.mark.parametrize("scheme", ["comfy", "masked_blend", "a1111"])
def test_lab_encodes_with_the_loaded_model(
    kind: str, scheme: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    model = LoadedModel(request.getfixturevalue(kind))
    assert list(model.readers()) == ["clip_l"]
    encoded = model.encode(PROMPT, EncodeOptions(syntax="a1111", scheme=scheme))
    theirs = expected(native(tmp_path), PROMPT, scheme=scheme)
    torch.testing.assert_close(encoded["clip_l"].hidden, theirs, atol=2e-5, rtol=0)


def test_both_encoders_are_given_and_the_checkpoint_named(forge_xl: fake.ForgeXLModel) -> None:
    forge_xl.__dict__["sd_checkpoint_info"] = SimpleNamespace(name_for_extra="juggernaut")
    model = LoadedModel(forge_xl)
    assert model.title == "juggernaut, as loaded in the WebUI"
    encoded = model.encode(PROMPT, EncodeOptions(padding="drop"))
    assert list(encoded) == list(model.readers()) == ["clip_l", "clip_g"]
    assert encoded["clip_l"].hidden.shape == encoded["clip_g"].hidden.shape


@pytest.mark.parametrize("kind", ["forge", "a1111"])
def test_it_reads_while_a_generation_encodes(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    with swapped(engines_of(model), EncodeOptions()):
        assert list(LoadedModel(model).readers()) == ["clip_l"]


def test_without_a_model_it_reads_and_says_why_it_does_not_encode() -> None:
    model = LoadedModel(None)
    assert model.readers()["clip_l"].tokenize("a cat")
    with pytest.raises(WebUIError, match="No model is loaded yet: make an image once"):
        model.encode("a cat", EncodeOptions())


def test_what_is_raised_in_forges_thread_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> None:
        raise ValueError(text)

    def swallow(function: Any) -> Any:
        try:
            return function()
        except Exception:
            return None

    for name in ("modules_forge", "modules_forge.main_thread"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["modules_forge.main_thread"].__dict__["run_and_wait_result"] = swallow
    assert run_in_queue(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ValueError, match="a bad day"):
        run_in_queue(fail, "a bad day")


def test_a1111_without_that_thread_uses_its_queue_alone() -> None:
    assert run_in_queue(lambda a, b: a + b, 1, 2) == 3
    with pytest.raises(ZeroDivisionError):
        run_in_queue(lambda: 1 / 0)


def test_page_reads_as_the_script_does(host_options: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a model is loaded, too: the class of the host's text encoder says whether the setting counts."""
    host_options.comma_padding_backtrack = 5
    options = base_options()
    assert (options.syntax, options.scheme, options.quirks, options.comma_backtrack) == ("a1111", "a1111", True, 20)
    for name, class_name, engine, backtrack in (
        ("modules.sd_hijack_clip", "FrozenCLIPEmbedderWithCustomWordsBase", fake.A1111Engine, 5),
        ("backend.text_processing.classic_engine", "ClassicTextProcessingEngine", fake.ForgeEngine, 20),
        ("backend.text_processing.classic_engine", "ClassicTextProcessingEngine", fake.ReadingForgeEngine, 5),
    ):
        module = ModuleType(name)
        module.__dict__[class_name] = engine
        monkeypatch.setitem(sys.modules, name, module)
        assert base_options().comma_backtrack == backtrack, engine


def test_the_hosts_setting_says_whether_there_are_comments(host_options: SimpleNamespace) -> None:
    assert base_options().cleaning == "none"  # an older host, which knows no comments
    for is_on, cleaning in ((True, "as Forge"), (False, "none")):
        host_options.enable_prompt_comments = is_on
        assert base_options().cleaning == cleaning


def test_the_script_reads_a_prompt_as_the_host_gave_it() -> None:
    """The host has taken comments out by then, or its user wants them to be text."""
    assert Settings().options().cleaning == "none"
