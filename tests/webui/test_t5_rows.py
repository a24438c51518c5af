"""T5's rows in Flux by the rules of compel and sd_embed, on a stand-in; Forge's own classes are in tests/hosts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import arm, begin_pass
from weighted_clip.hosts.webui.model_readers import POOLED
from weighted_clip.hosts.webui.settings import Settings, take, untaken
from weighted_clip.weighting.script_settings import ACTED_BY

from . import fake_joint, fake_t5
from .test_webui_ruler import ask, chips, told

END = 1
LONG = "cat, " * 256


@pytest.fixture
def flux(models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model in memory."""
    fake_joint.install(monkeypatch)
    models.sd_model = fake_joint.flux()
    return models.sd_model


def generated(model: Any, prompt: str, negative: str = "the", **settings: Any) -> Any:
    """A generation with its texts encoded; the script is on with the settings, if there are any."""
    p = fake_joint.Generation(model)
    p.begin = begin_pass
    if settings:
        arm(p, list({**vars(Settings()), "enabled": True, **settings}.values()))
    p.conds([prompt], negative)
    return p


def rows_of(p: Any, number: int = 0) -> Tensor:
    """Rows of a text of the prompt."""
    return p.c.batch[0][0].schedules[number].cond


def ids_of(*words: str) -> list[int]:
    return [END if word == "/" else fake_t5.PIECES.index(f"▁{word}") for word in words]


def table_of(model: Any, ids: Sequence[int]) -> Tensor:
    return model.text_processing_engine_t5.text_encoder.table[list(ids)]


def test_lpw_has_an_end_behind_each_stretch_and_rows_times_weights(flux: Any) -> None:
    acted = generated(flux, "a (red:1.5) cat", scheme="lpw")
    weights = torch.tensor([1.0, 1, 1.5, 1.5, 1, 1])[:, None]
    expected = table_of(flux, ids_of("a", "/", "red", "/", "cat", "/")) * weights
    torch.testing.assert_close(rows_of(acted), expected)
    assert acted.extra_generation_params == {"Weighted CLIP": "lpw"}
    assert not acted.comments
    entries = {key: str(value) for key, value in acted.extra_generation_params.items()}
    take(entries)
    assert not untaken(entries)


def test_compel_lerps_from_its_empty_prompt_and_blends_without_what_fades(flux: Any) -> None:
    acted = generated(flux, "a (red)1.5 (cat)0.4", scheme="compel", syntax="compel")
    ids = [*ids_of("a", "red", "cat", "/"), *[0] * 508]
    empty = table_of(flux, [END, *[0] * 511])
    plain = table_of(flux, ids)
    without = plain + torch.cat([plain[:2], plain[3:]]).mean(0)
    weights = torch.tensor([1, 1.5, 0.4, *[1.0] * 509])[:, None]
    share = math.tan(0.6 * math.pi / 2)
    expected = (empty + (plain - empty) * weights + share * (empty + (without - empty) * weights)) / (1 + share)
    torch.testing.assert_close(rows_of(acted), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scheme", ["compel", "lpw"])
def test_nothing_is_left_and_the_picture_without_the_script_is_the_hosts(flux: Any, scheme: str) -> None:
    stock = generated(flux, "a (cat:0.5)")
    acted = generated(flux, "a (cat:0.5)", scheme=scheme)
    assert rows_of(acted).shape != rows_of(stock).shape
    assert torch.equal(generated(flux, "a (cat:0.5)").sample(), stock.sample())
    assert {"tokenize_line", "process_tokens"}.isdisjoint(vars(flux.text_processing_engine_t5))
    assert not flux.text_processing_engine_t5.text_encoder._forward_pre_hooks


def test_an_error_in_t5_leaves_nothing(flux: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            raise MemoryError
        return self.table[input_ids]

    with monkeypatch.context() as patched, pytest.raises(MemoryError):
        patched.setattr(fake_joint.T5, "forward", fail)
        generated(flux, "a (cat:0.5)", scheme="compel")
    assert {"tokenize_line", "process_tokens"}.isdisjoint(vars(flux.text_processing_engine_t5))
    assert {"process_texts", "process_tokens"}.isdisjoint(vars(flux.text_processing_engine_l))
    assert not flux.text_processing_engine_t5.text_encoder._forward_pre_hooks


def test_at_emphasis_none_brackets_are_text(flux: Any, host_options: SimpleNamespace) -> None:
    host_options.emphasis = "None"
    acted = generated(flux, "(cat)", scheme="lpw")
    ids = flux.text_processing_engine_t5.tokenize(["(cat)"])[0]
    torch.testing.assert_close(rows_of(acted), table_of(flux, [*ids, END]))


def test_an_infinite_weight_stops_the_generation(flux: Any) -> None:
    with pytest.raises(WebUIError, match="“cat” has the weight inf: it must be a finite number"):
        generated(flux, "a (cat)inf", scheme="compel", syntax="comfy", negative="a (cat:inf)")


def test_an_emphasis_mode_that_does_nothing_is_said(flux: Any) -> None:
    p = fake_joint.Generation(flux)
    p.override_settings = {"emphasis": "No norm"}
    arm(p, list(vars(Settings(True, "lpw")).values()))
    p.conds(["a (cat:0.5)"])
    (line,) = p.comments
    assert "emphasis 'No norm' has no effect: the scheme lpw" in line


@pytest.mark.parametrize(
    ("prompt", "settings", "words"),
    [
        (LONG, {"scheme": "compel"}, "compel takes at most 511 tokens of T5, and this prompt has 512"),
        ("a (cat:0.5)=>a", {"scheme": "lpw"}, "T5 makes 2 rows of one text and 4 of another"),
    ],
)
def test_what_no_rule_can_read_is_the_hosts_and_said(
    flux: Any, prompt: str, settings: dict[str, Any], words: str
) -> None:
    acted = generated(flux, prompt, **settings)
    (line,) = acted.comments
    assert words in line
    assert line.endswith("T5's rows of this prompt are the WebUI's own.")
    assert torch.equal(rows_of(acted), rows_of(generated(flux, prompt)))
    assert acted.extra_generation_params[ACTED_BY] == "the WebUI's own weights"
    of_negative = generated(flux, "a", negative=prompt, **settings)
    assert [line.endswith("T5's rows of the negative prompt are the WebUI's own.") for line in of_negative.comments]
    assert ACTED_BY not in of_negative.extra_generation_params
    before = told(prompt.replace("=>", " ") if "=>" not in prompt else "a [(cat:0.5)::0.5]", **settings)[1]
    assert [line.partition(": ")[2].partition(" rows")[0] for line in acted.comments] == [
        line.partition(" rows")[0] for line in before
    ]


def test_another_extensions_methods_and_an_unknown_t5_are_left_alone(flux: Any) -> None:
    engine = flux.text_processing_engine_t5
    stock = rows_of(generated(flux, "a (cat:0.5)"))
    inner = engine.tokenize_line

    def theirs(text: str) -> Any:
        return inner(text)

    engine.tokenize_line = theirs
    acted = generated(flux, "a (cat:0.5)", scheme="lpw")
    assert torch.equal(rows_of(acted), stock)
    assert any("has replaced tokenize_line of the text encoder" in line for line in acted.comments)
    assert engine.tokenize_line is theirs
    (refusal,) = told("a (cat:0.5)", scheme="lpw")[1]
    assert [f"Weighted CLIP: {refusal}"] == [line for line in acted.comments if "negative" not in line]
    del engine.tokenize_line, engine.text_encoder
    with pytest.raises(AttributeError):  # of the stand-in itself
        generated(flux, "a (cat:0.5)", scheme="lpw")


def test_the_strip_shows_what_t5_is_given(flux: Any) -> None:
    settings = {"enabled": True, "scheme": "lpw"}
    of_t5, of_clip = ask("a (red cat:1.4) dog", settings=settings)["views"]
    assert chips(of_t5) == ["a", "#1", "red 1.4", "cat 1.4", "#1 1.4", "dog"]  # #1 is the end of a stretch
    assert (of_t5["scheme"], of_t5["syntax"], of_t5["total"]) == ("lpw", "a1111", "6 tokens")
    assert chips(of_clip) == ["a", "red", "cat", "dog"]
    assert of_clip["notes"] == [POOLED.format("CLIP-L")]
    compel = {"enabled": True, "scheme": "compel", "syntax": "compel"}
    of_t5, of_clip = ask("a (red cat)1.4 🦊 BREAK", settings=compel)["views"]
    assert chips(of_t5)[:3] == ["a", "red 1.4", "cat 1.4"]
    assert (of_t5["scheme"], of_t5["syntax"]) == ("compel", "compel")
    assert of_t5["total"].endswith("/511")
    assert "unknown-to-t5" in [issue["code"] for issue in of_t5["issues"]]
    off = ask("a (red cat:1.4)", settings={**settings, "enabled": False})["views"][0]
    assert (off["scheme"], off["total"]) == ("a1111", "3/255")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"scheme": "compel"}, ()),
        ({"scheme": "lpw", "syntax": "compel", "normalization": "mean"}, ()),
        ({"scheme": "compel", "attention": "bias"}, ("compel acts in Flux only while Beyond CLIP is at as the WebUI",)),
        ({"scheme": "perp"}, ("at as the WebUI the schemes compel and lpw act as well",)),
        ({"syntax": "compel"}, ("and the scheme is not compel or lpw",)),
        ({"scheme": "compel", "syntax": "compel", "word_maps": True}, ()),
        ({"scheme": "lpw", "padding": "mask"}, ("Padding mask cannot act in Flux",)),
    ],
)
def test_what_does_not_act_is_said_before_the_generation_as_after_it(
    flux: Any, settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    prompt = '("a red cat", "a dog").and()' if settings.get("syntax") == "compel" else "a red cat"
    _, before = told(prompt, **settings)
    acted = generated(flux, prompt, **settings)
    assert [f"Weighted CLIP: {line}" for line in before] == list(acted.comments)
    assert len(before) == len(words)
    assert all(word in line for word, line in zip(words, before, strict=True))
