"""Models beyond CLIP in the WebUI, on a stand-in for Forge's Chroma; Forge's own classes are in tests/hosts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.generation import arm, begin_pass
from weighted_clip.hosts.webui.joint_texts import SEVERAL, SPACED, Weights, as_plain
from weighted_clip.hosts.webui.script.routes import UNKNOWN
from weighted_clip.hosts.webui.settings import Settings, take, untaken
from weighted_clip.weighting.options import AS_HOST, EncodeOptions
from weighted_clip.weighting.script_settings import ACTED_BY

from . import fake_joint, fake_t5
from . import fake_webui as fake
from .test_webui_ruler import ask

TEXT = "a red cat and a dog"
ROWS = {"red": 1, "cat": 2, "dog": 5}
"""Rows of words of `TEXT`; T5 has no start token."""


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The host's module with the function for each attention."""
    monkeypatch.setitem(sys.modules, "modules.shared", sys.modules["modules.shared"])
    sys.modules["modules.shared"].__dict__["state"] = SimpleNamespace(
        interrupted=False, skipped=False, sampling_steps=4
    )
    return fake_joint.install(monkeypatch)


@pytest.fixture
def model(host: ModuleType) -> Any:
    return fake_joint.model()


def generated(host_model: Any, *prompts: str, negative: str = "the", **settings: Any) -> Any:
    """A generation with what was sampled; the script is on with the settings, if there are any."""
    p = fake_joint.Generation(host_model)
    p.begin = begin_pass
    if settings:
        chosen = {**vars(Settings()), "enabled": True, "attention": "bias", **settings}
        arm(p, list(chosen.values()))
    p.conds(list(prompts), negative)
    p.result = p.sample()
    return p


def read_by(host: ModuleType, weigh: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    """A function of the host by which all is read in float64; ``weigh`` changes shares and values."""

    def attention(q: Tensor, k: Tensor, v: Tensor, heads: int, *, skip_reshape: bool) -> Tensor:
        q, k, v = q.double(), k.double(), v.double()
        shares = torch.exp(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]))
        shares, v = weigh(shares, v)
        return ((shares / shares.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2).float()

    return attention


@pytest.mark.parametrize(
    ("typed", "choices", "keeps", "text", "weights"),
    [
        ("a (red:1.5) cat", {}, False, "a red cat", {"red": 1.5}),
        ("a (red:1.5) [cat]", {}, True, "a (red:1.5) cat", {"cat": 1 / 1.1}),
        ("a \\(red\\) (c(a:2)t:0.5)", {}, False, "a \\(red\\) cat", {"c": 0.5, "a": 1.0, "t": 0.5}),
        ("a (b)1.5 [", {"syntax": "compel"}, False, "a b \\[", {"b": 1.5}),
        ("a ((b))", {}, True, "a (b:1.2100000000000002)", {}),
        ("BREAK (b:0.5)", {"syntax": "comfy"}, False, "B\\REAK b", {}),
        ("(a:1.2)(b:1.2)", {}, True, "(ab:1.2)", {}),
    ],
)
def test_the_host_is_given_texts_without_weights(
    typed: str, choices: dict[str, Any], keeps: bool, text: str, weights: dict[str, float]
) -> None:
    options = EncodeOptions(**{"syntax": "a1111", "has_tags": False, "cleaning": "none", **choices})
    found = as_plain(typed, options, Weights("bias", 1.0, keeps))
    assert found.text == text
    assert len(found.weights) == len(text)
    for word, weight in weights.items():
        assert found.weights[text.rindex(word)] == pytest.approx(weight)


def test_what_cannot_be_one_text_is_said() -> None:
    options = EncodeOptions(syntax="compel", cleaning="none")
    found = as_plain('("a cat", "a dog").blend(1, 1)', options, Weights("bias", 1.0, False))
    assert [issue.message for issue in found.issues] == [SEVERAL]
    options = EncodeOptions(syntax="a1111", cleaning="none")
    found = as_plain("a BREAK (b:0.5)", options, Weights("bias", 1.0, False))
    assert (found.text, [issue.message for issue in found.issues]) == ("a b", [SPACED])
    with pytest.raises(WebUIError, match="must be a finite number"):
        as_plain("(a:1e999)", EncodeOptions(syntax="comfy"), Weights("bias", 1.0, False))
    literal = as_plain("a (b)1.5 [", EncodeOptions(syntax="compel"), Weights("bias", 1.0, True), is_literal=True)
    assert (literal.text, literal.weights[2]) == ("a b [", 1.5)


@pytest.mark.parametrize(
    ("prompt", "settings", "factors"),
    [
        ("a (red:1.5) (cat:0.5) and a (dog:-2)", {}, {"red": (1.5, 1), "cat": (0.5, 1), "dog": (2, -1)}),
        ("a (red:1.5) cat and a dog", {"attention": "value"}, {"red": (1, 1.5)}),
        ("a (red:1.5) cat and a (dog:0.2)", {"attention": "krea2"}, {"red": (math.e, 1), "dog": (1, 0.2)}),
        ("a (red:3) cat and a (dog:0)", {"attention_strength": 0.5}, {"red": (2, 1), "dog": (0.5, 1)}),
        ("a red (cat:0) and a dog", {}, {"cat": (0, 1)}),
    ],
)
def test_weights_equal_a_softmax_written_out(
    model: Any, host: ModuleType, prompt: str, settings: dict[str, Any], factors: dict[str, tuple[float, float]]
) -> None:
    stock = generated(model, TEXT)
    acted = generated(model, prompt, **{"scheme": "a1111", **settings})
    assert acted.extra_generation_params[ACTED_BY] == f"attention {settings.get('attention', 'bias')}"
    assert torch.equal(generated(model, TEXT).result, stock.result)

    def weigh(shares: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for word, (share, factor) in factors.items():  # rows of seven, which the host may have repeated
            for row in range(ROWS[word], acted.c.batch[0][0].schedules[0].cond.shape[0], 7):
                shares[0, :, :, row] *= share
                v[0, :, row] *= factor
        return shares, v

    host.__dict__["attention_function"] = read_by(host, weigh)
    expected = generated(model, TEXT, negative="a red cat and a dog").result
    host.__dict__["attention_function"] = fake_joint.attention_pytorch
    equal_lengths = generated(model, prompt, negative="a red cat and a dog", **{"scheme": "a1111", **settings}).result
    torch.testing.assert_close(equal_lengths, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert not torch.allclose(acted.result, stock.result, atol=1e-3)


def test_another_prompt_of_hires_fix_leaves_the_first_pass_alone(model: Any) -> None:
    """The host encodes it before the first pass."""
    p = fake_joint.Generation(model)
    p.begin = begin_pass
    arm(p, list(vars(Settings(True, "a1111", attention="bias", places="red cat: left half")).values()))
    p.conds(["a (red:1.5) cat and a dog"])
    caches = [[None, None]]
    p.get_conds_with_caching(fake_joint.scheduled, fake.SdConditioning(["a red (cat:0.5)"]), 20, caches, 4)
    alone = generated(model, "a (red:1.5) cat and a dog", scheme="a1111", places="red cat: left half")
    assert torch.equal(p.sample(), alone.result)
    assert not [line for line in p.comments if "did not act" in line]


def test_places_and_maps_act_and_nothing_is_left(model: Any, host: ModuleType) -> None:
    stock = generated(model, TEXT, negative=TEXT)
    acted = generated(
        model, TEXT, negative=TEXT, scheme="a1111", places="red cat: left half", word_maps=True, attention=AS_HOST
    )
    assert any("acted in 4 of 4 steps" in line for line in acted.comments)

    def weigh(shares: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        left = torch.tensor([[1.0] * 3 + [0.0] * 3] * 4).flatten()
        for row in (1, 2):
            shares[0, :, 7:, row] *= left
            shares[0, :, :7, row] = 0.0
        return shares, v

    host.__dict__["attention_function"] = read_by(host, weigh)
    expected = generated(model, TEXT, negative=TEXT).result
    host.__dict__["attention_function"] = fake_joint.attention_pytorch
    torch.testing.assert_close(acted.result, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert torch.equal(generated(model, TEXT, negative=TEXT).result, stock.result)
    (maps,) = acted.weighted_clip_sampling.word_maps.pictures
    assert {one.word for one in maps} == {"a", "red", "cat", "and", "dog"}
    by_word = {one.word: one.shares for one in maps}
    assert by_word["red"].shape == (8, 12)
    assert float(by_word["red"][:, 8:].max()) < 1e-6 < float(by_word["red"][:, :4].min())
    network = model.forge_objects.unet.model.diffusion_model
    modules = [*network.modules(), acted.sampler.model_wrap_cfg]
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in modules)
    assert host.__dict__["attention_function"] is fake_joint.attention_pytorch


def test_rows_that_the_host_repeats_are_weighed_and_placed_each_time(model: Any, host: ModuleType) -> None:
    """Three rows beside six of the negative prompt."""
    settings = {"negative": "a red cat and dog", "scheme": "a1111", "places": "cat: left half"}
    acted = generated(model, "a (cat:0.5)", **settings)

    def weigh(shares: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        for row in (1, 4):
            shares[0, :, 6:, row] *= 0.5 * torch.tensor([[1.0] * 3 + [0.0] * 3] * 4).flatten()
            shares[0, :, :6, row] = 0.0
        return shares, v

    host.__dict__["attention_function"] = read_by(host, weigh)
    expected = generated(model, "a cat", negative=settings["negative"]).result
    torch.testing.assert_close(acted.result, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_texts_with_equal_rows_have_their_own_weights(model: Any) -> None:
    """In a batch, in prompt editing, and as the negative of a prompt."""
    settings = {"scheme": "a1111"}
    alone = [generated(model, f"a (cat:{weight})", f"a (cat:{weight})", **settings).result for weight in (0.3, 1.7)]
    both = generated(model, "a (cat:0.3)", "a (cat:1.7)", **settings).result
    for image in (0, 1):
        torch.testing.assert_close(both[:, image], alone[image][:, image])
    edited = generated(model, "a (cat:0.3)=>a (cat:1.7)", **settings).result
    single = [generated(model, f"a (cat:{weight})", **settings).result for weight in (0.3, 1.7)]
    torch.testing.assert_close(edited[:2], single[0][:2])
    torch.testing.assert_close(edited[2:], single[1][2:])
    turned = generated(model, "a (cat:0.3)", negative="a (cat:1.7)", **settings).result
    torch.testing.assert_close(turned[:, 0], generated(model, "a (cat:0.3)", negative="a cat", **settings).result[:, 0])
    torch.testing.assert_close(turned[:, 1], generated(model, "a cat", negative="a (cat:1.7)", **settings).result[:, 1])


@pytest.mark.parametrize(
    ("prompt", "settings"),
    [
        (TEXT, {"scheme": "a1111"}),
        ("a (red:1.0) cat", {"scheme": "a1111"}),
        ("a ((red)) (cat:1.3)", {"scheme": "a1111", "above_one": "as the WebUI"}),
        ("a (red:0.5) cat", {"scheme": "a1111", "attention": AS_HOST}),
        ("a (red:0.5) cat", {"scheme": "masked_blend", "attention": AS_HOST}),
        ("", {"scheme": "a1111"}),
    ],
)
def test_without_weights_the_picture_is_the_hosts(model: Any, prompt: str, settings: dict[str, Any]) -> None:
    assert torch.equal(generated(model, prompt, **settings).result, generated(model, prompt).result)


def test_what_cannot_act_is_said_and_the_generation_runs(model: Any) -> None:
    settings = {"scheme": "compel", "syntax": "compel", "padding": "mask", "normalization": "mean", "bind": "red cat"}
    acted = generated(model, TEXT, attention=AS_HOST, **settings)
    told = " ".join(acted.comments)
    for words in (
        "scheme compel cannot act in Chroma",
        "syntax compel is not read",
        "Padding mask",
        "Keep apart cannot",
    ):
        assert words in told
    assert acted.extra_generation_params[ACTED_BY] == "the WebUI's own weights"
    assert torch.equal(acted.result, generated(model, TEXT).result)


def test_glides_are_text_there_and_it_is_said(model: Any) -> None:
    text = "a [cat:dog:0.2,0.8]"
    acted = generated(model, text, scheme="a1111", glides="prompt-fusion")
    assert "Weighted CLIP: Glides are not read in Chroma, but text." in acted.comments
    assert torch.equal(acted.result, generated(model, text, scheme="a1111").result)


def test_an_unknown_model_is_the_hosts_own(model: Any) -> None:
    model.forge_objects.unet.model.diffusion_model = network = fake_joint.Network()
    network.__class__ = type("QwenImage", (fake_joint.Network,), {"__module__": "backend.nn.qwen"})
    known = generated(model, "a (red:0.5) cat", scheme="a1111")
    assert "attention" in known.extra_generation_params[ACTED_BY]  # by what it is, not by its name
    other = fake_t5.model("QwenImage", text_processing_engine_qwen=object(), forge_objects=model.forge_objects)
    other.get_learned_conditioning = model.get_learned_conditioning
    other.forge_objects = SimpleNamespace(
        unet=SimpleNamespace(model=SimpleNamespace(diffusion_model=torch.nn.Linear(1, 1)))
    )
    p = fake_joint.Generation(other)
    arm(p, list({**vars(Settings()), "enabled": True, "places": "red cat: left half"}.values()))
    p.conds([TEXT])
    assert any("does not know this WebUI's QwenImage" in line for line in p.comments)


@pytest.mark.parametrize("places", ["", "red cat: left half"])
def test_a_text_encoder_of_an_unknown_kind_leaves_a_known_network_as_it_is(
    model: Any, models: SimpleNamespace, places: str
) -> None:
    """As in Forge Neo, whose T5 engine has other parts, and whose Flux 2 has Flux's network and another encoder."""
    models.sd_model = model
    del model.text_processing_engine_t5.min_length
    settings = {"scheme": "masked_blend", "padding": "mask", "places": places, "word_maps": bool(places)}
    acted = generated(model, "a (red:0.5) cat", **settings)
    assert torch.equal(acted.result, generated(model, "a (red:0.5) cat").result)
    assert acted.extra_generation_params[ACTED_BY] == "the WebUI's own weights"
    (line,) = acted.comments
    own = "so this picture is the WebUI's own, as without it."
    assert line == f"Weighted CLIP: Weighted CLIP does not know this WebUI's Chroma, {own}"
    asked = {"enabled": True, "attention": "bias", **settings}
    assert ask("a (red:0.5) cat", settings=asked)["notes"] == [UNKNOWN, line.partition(": ")[2]]


def test_phrases_that_are_nowhere_are_refused(model: Any) -> None:
    with pytest.raises(WebUIError, match="“bird” is in none of the prompts"):
        generated(model, TEXT, scheme="a1111", places="bird: left half")
    with pytest.raises(WebUIError, match="has a weight below 0"):
        generated(model, "a red (cat:-1)", scheme="a1111", places="red cat: left half")
    with pytest.raises(WebUIError, match="another text behind BREAK"):
        generated(model, "a red cat BREAK a dog", scheme="a1111", attention=AS_HOST, places="red cat: left half")


def test_an_error_and_another_extensions_function_leave_the_host_as_it_is(model: Any, host: ModuleType) -> None:
    def broken(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("out of memory")

    broken.__name__ = "attention_pytorch"  # which takes a mask
    host.__dict__["attention_function"] = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        generated(model, "a (cat:0.5)", scheme="a1111")
    assert host.__dict__["attention_function"] is broken
    host.__dict__["attention_function"] = fake_joint.attention_pytorch
    p = fake_joint.Generation(model)
    p.begin = begin_pass
    arm(p, list({**vars(Settings()), "enabled": True, "attention": "bias"}.values()))
    p.conds(["a (cat:0.5)"])
    inner = p.sample

    def theirs(*inputs: Any, **choices: Any) -> Tensor:
        return theirs.wrapped(*inputs, **choices)  # pyright: ignore[reportFunctionMemberAccess]

    def wrapping(*_: Any) -> None:  # as an extension that comes while the picture is made
        theirs.wrapped = host.__dict__["attention_function"]  # pyright: ignore[reportFunctionMemberAccess]
        host.__dict__["attention_function"] = theirs

    p.begin = lambda p, latent: (begin_pass(p, latent), wrapping())
    acted = inner()
    assert host.__dict__["attention_function"] is theirs
    stock = generated(model, "a (cat:0.5)")
    host.__dict__["attention_function"] = fake_joint.attention_pytorch
    assert torch.equal(stock.result, generated(model, "a (cat:0.5)").result)
    torch.testing.assert_close(acted, generated(model, "a (cat:0.5)", scheme="a1111").result)


def prepared(host_model: Any, prompt: str, **settings: Any) -> Any:
    """A generation with the script, whose prompts are encoded."""
    p = fake_joint.Generation(host_model)
    p.begin = begin_pass
    arm(p, list({**vars(Settings()), "enabled": True, "attention": "bias", **settings}.values()))
    p.conds([prompt])
    return p


def test_rows_that_another_extension_changes_are_read_without_weights_and_it_is_said(model: Any) -> None:
    change = fake_joint.Generation(model)
    change.conds(["a cat"])
    acted = prepared(model, "a (cat:0.5)")
    for p in (acted, change):
        (entry,) = p.c.batch[0][0].schedules
        entry.cond = entry.cond * 1.25
    assert torch.equal(acted.sample(), change.sample())
    assert any("did not act in 4 readings of a prompt" in line for line in acted.comments)
    placed = prepared(model, TEXT, places="red cat: left half")
    (entry,) = placed.c.batch[0][0].schedules
    entry.cond = entry.cond * 1.25
    with pytest.raises(WebUIError, match="has changed the rows of the prompt"):
        placed.sample()


def test_a_network_that_reads_by_another_function_is_said_to_read_without_weights(model: Any) -> None:
    class Other(fake_joint.Network):
        """Whose blocks call no function of the host's module."""

        def forward(self, x: Tensor, timestep: Tensor, context: Tensor, **_: Any) -> Tensor:
            return self.img_in(torch.nn.functional.pixel_unshuffle(x, 2).flatten(2).transpose(1, 2))

    model.forge_objects.unet.model.diffusion_model = Other()
    acted = prepared(model, "a (cat:0.5)")
    acted.sample()
    assert any("no attention of this model has read the text" in line for line in acted.comments)


def test_weights_that_leave_the_numbers_are_refused_and_nothing_is_left(model: Any, host: ModuleType) -> None:
    acted = prepared(model, f"a (cat:3{'0' * 38})", attention="value")
    with pytest.raises(WebUIError, match="no longer made of finite numbers"):
        acted.sample()
    assert host.__dict__["attention_function"] is fake_joint.attention_pytorch


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (lambda p, latent: begin_pass(p, latent[..., :4]), "cuts the picture into parts"),
        (lambda p, latent: None, "does not tell its scripts before it samples"),
    ],
)
def test_places_need_to_know_the_whole_picture(model: Any, begin: Callable[[Any, Tensor], None], message: str) -> None:
    placed = prepared(model, TEXT, places="red cat: left half")
    placed.begin = begin
    with pytest.raises(WebUIError, match=message):
        placed.sample()


def test_a_function_that_takes_no_mask_reads_all_but_what_is_weighed(model: Any, host: ModuleType) -> None:
    expected = generated(model, "a (cat:0.5)", negative="the dog", scheme="a1111", word_maps=True)
    num_calls = 0

    def attention_sage(q: Tensor, k: Tensor, v: Tensor, heads: int, *, skip_reshape: bool = False) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return fake_joint.attention_pytorch(q, k, v, heads, skip_reshape=skip_reshape)

    host.__dict__["attention_function"] = attention_sage
    acted = generated(model, "a (cat:0.5)", negative="the dog", scheme="a1111", word_maps=True)
    assert torch.equal(acted.result, expected.result)
    assert num_calls == 0
    unweighted = generated(model, "a (cat:1.0)", scheme="a1111")
    host.__dict__["attention_function"] = fake_joint.attention_pytorch
    assert num_calls == 4 * 2  # steps, blocks
    assert torch.equal(unweighted.result, generated(model, "a (cat:1.0)").result)


def test_parameters_come_back_when_pasted(model: Any) -> None:
    acted = generated(model, "a (cat:0.5)", scheme="a1111", attention="value", attention_strength=0.5)
    entries = {key: str(value) for key, value in acted.extra_generation_params.items()}
    assert entries == {
        **{"Weighted CLIP": "a1111", "Weighted CLIP attention": "value", "Weighted CLIP attention strength": "0.5"},
        ACTED_BY: "attention value",
    }
    take(entries)
    assert not untaken(entries)


def test_a_model_of_clip_has_none_of_it_in_its_parameters(forge: fake.ForgeModel) -> None:
    generation = fake.armed(forge, attention="bias", attention_strength=0.5)
    assert generation.extra_generation_params == {"Weighted CLIP": "a1111"}


def test_with_another_checkpoint_weights_are_the_hosts_and_it_is_said(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake_joint.Generation, "enable_hr", True, raising=False)
    monkeypatch.setattr(fake_joint.Generation, "hr_checkpoint_name", "other", raising=False)
    acted = generated(model, "a (cat:0.5)", scheme="a1111")
    assert any("act with one checkpoint" in line and "change to other" in line for line in acted.comments)
    assert acted.extra_generation_params[ACTED_BY] == "the WebUI's own weights"
    assert torch.equal(acted.result, generated(model, "a (cat:0.5)").result)
    with pytest.raises(WebUIError, match="Places works with one checkpoint"):
        generated(model, TEXT, scheme="a1111", places="red cat: left half")
