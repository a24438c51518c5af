"""The script on Forge Neo's engine (fake_neo.py): with the defaults its own numbers, and the settings that it reads."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.webui.engines import engines_of, text_engine_class
from weighted_clip.hosts.webui.settings import Settings
from weighted_clip.hosts.webui.swap import arm

from . import fake_neo
from . import fake_webui as fake

COMMAS = "a (photo:1.2) of a small cat, " * 14
"""Some of its chunks end a few tokens behind a comma."""
TEXTS = ("", "a (red:1.4) cat and a (dog:0.5)", COMMAS, f"{COMMAS} BREAK a (cat:0.3), sitting BREAK a dog", "a, " * 60)


@pytest.fixture
def neo(host_options: SimpleNamespace) -> fake.ForgeModel:
    host_options.comma_padding_backtrack = 20
    return fake.ForgeModel(fake_neo.ClipEngine(fake.text_model()))


def given(model: Any, *texts: str, **settings: Any) -> Any:
    """Result of a generation with the script at these settings, or without it if there are none."""
    generation = fake.Generation(model)
    generation.cached_c, generation.cached_uc = [None, None, None], [None, None, None]
    if settings:
        arm(generation, list({**vars(Settings()), "enabled": True, **settings}.values()))
    return generation.setup_conds(*texts)


@pytest.mark.parametrize("backtrack", [0, 3, 20, 74])
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_scheme_a1111_is_what_neo_makes_itself(
    neo: fake.ForgeModel, host_options: SimpleNamespace, text: str, backtrack: int
) -> None:
    host_options.comma_padding_backtrack = backtrack
    [theirs], [ours] = given(neo, text), given(neo, text, scheme="a1111")
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def test_the_comma_setting_makes_a_difference(neo: fake.ForgeModel, host_options: SimpleNamespace) -> None:
    [before] = given(neo, COMMAS)
    host_options.comma_padding_backtrack = 0
    [after] = given(neo, COMMAS)
    assert before.shape != after.shape or not torch.allclose(before, after, atol=1e-3)


def test_both_encoders_of_sdxl(host_options: SimpleNamespace) -> None:
    host_options.comma_padding_backtrack = 20
    first = fake_neo.ClipEngine(fake.text_model())
    second = fake_neo.ClipEngine(fake.text_model(1), "clip_g", pooled=True, pad=0)
    model = fake.ForgeXLModel(first, second)
    assert list(engines_of(model)) == ["clip_l", "clip_g"]
    for text in TEXTS:
        [theirs], [ours] = given(model, text), given(model, text, scheme="a1111")
        for key in ("crossattn", "vector"):
            torch.testing.assert_close(ours[key], theirs[key], atol=2e-5, rtol=0)


def test_masks_reach_neos_transformers_and_its_engine_is_left_as_it_was(neo: fake.ForgeModel) -> None:
    text = "a cat and a (dog:0.2)"
    [plain], [faded] = given(neo, text), given(neo, text, scheme="masked_blend")
    assert not torch.allclose(plain, faded, atol=1e-2)
    assert torch.equal(given(neo, text)[0], plain)
    engine = neo.text_processing_engine
    assert not {"process_texts", "process_tokens"} & set(vars(engine))
    assert engine.embeddings.fixes is None


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("backend.text_processing.sd_engine", "ClipEngine"),
        ("backend.text_processing.classic_engine", "ClassicTextProcessingEngine"),
    ],
)
def test_the_class_of_neos_engine_is_found_before_a_model_is_loaded(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer Neo has it in another file than Forge and the older one."""
    for one in ("backend", "backend.text_processing", module):
        monkeypatch.setitem(sys.modules, one, ModuleType(one))
    sys.modules["backend"].__dict__["__path__"] = sys.modules["backend.text_processing"].__dict__["__path__"] = []
    sys.modules[module].__dict__[name] = fake_neo.ClipEngine
    assert text_engine_class() is fake_neo.ClipEngine
