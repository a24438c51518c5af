"""Prompts joined by AND_PERP and its like in the WebUI, on its functions written out: against neutral-prompt's own
results, in A1111's way and in Forge's, and what is refused."""

import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.hosts.webui.engines import WebUIError
from weighted_clip.hosts.webui.joints import A1111, FORGE, Joints, is_neutral_prompt_active
from weighted_clip.hosts.webui.model_readers import readers_of
from weighted_clip.hosts.webui.script.typed_prompts import read_for_generation
from weighted_clip.hosts.webui.settings import Settings

from .fake_webui import SdConditioning

WEIGHT = re.compile(r"^((?:\s|.)*?)(?:\s*:\s*([-+]?(?:\d+\.?|\d*\.\d+)))?\s*$")
SCALE = 7.0


def get_multicond_prompt_list(prompts: Any) -> list[list[tuple[str, float]]]:
    """As the host's function of that name: texts and weights of each prompt."""
    matches = [[WEIGHT.search(part) for part in re.split(r"\bAND\b", prompt)] for prompt in prompts]
    return [[(match[1], float(match[2] or 1)) for match in each if match] for each in matches]


def get_multicond_learned_conditioning(prompts: Any) -> Any:
    """As the host's function of that name, without encoding."""
    return get_multicond_prompt_list(prompts)


class CFGDenoiser:
    """A1111's, as far as it combines predictions."""

    def combine_denoised(self, x_out: Tensor, conds_list: Any, uncond: Tensor, cond_scale: float) -> Tensor:
        without = x_out[-uncond.shape[0] :]
        denoised = torch.clone(without)
        for number, conds in enumerate(conds_list):
            for index, weight in conds:
                denoised[number] += (x_out[index] - without[number]) * (weight * cond_scale)
        return denoised


def a1111() -> ModuleType:
    module = ModuleType(A1111)
    module.CFGDenoiser = CFGDenoiser  # type: ignore[attr-defined]
    return module


def forge() -> ModuleType:
    """Forge's functions: a prediction by name of a prompt stands in the entry, and options decide as there."""
    module: Any = ModuleType(FORGE)

    def calc_cond_uncond_batch(model: Any, cond: Any, uncond: Any, x_in: Tensor, timestep: Any, options: Any) -> Any:
        total = sum(entry["strength"] for entry in cond)
        alone = sum(entry["strength"] * entry["prediction"] for entry in cond) / total
        return alone, torch.zeros_like(x_in) if uncond is None else uncond

    def sampling_function_inner(
        model: Any, x: Tensor, timestep: Any, uncond: Any, cond: Any, scale: float, model_options: Any, seed: Any = None
    ) -> Tensor:
        strength = sum(entry["strength"] for entry in cond)
        skips = scale == 1 and not model_options.get("disable_cfg1_optimization", False)
        alone, without = module.calc_cond_uncond_batch(model, cond, None if skips else uncond, x, timestep, {})
        return without + (alone - without) * scale * strength

    module.calc_cond_uncond_batch, module.sampling_function_inner = calc_cond_uncond_batch, sampling_function_inner
    return module


def predicted(case: dict) -> tuple[list[Tensor], Tensor, Tensor]:
    """Predictions of a case's prompts, that without one, and what neutral-prompt makes of them."""
    *each, without = (torch.tensor(one, dtype=torch.float64).view(1, 2, 4, 4) for one in case["predictions"])
    return each, without, torch.tensor(case["expected"]["denoised"], dtype=torch.float64).view(1, 2, 4, 4)


def entries(weights: list[float], each: list[Tensor]) -> list[dict[str, Any]]:
    return [{"strength": weight, "prediction": one} for weight, one in zip(weights, each, strict=True)]


def cut(joints: Joints, *prompts: str) -> list[list[tuple[str, float]]]:
    """What the host makes of prompts."""
    listed = SdConditioning(prompts)
    return joints.cutting(get_multicond_learned_conditioning, get_multicond_learned_conditioning)(listed)


@pytest.mark.cases("neutral_prompt")
def test_the_host_gets_the_texts_that_neutral_prompt_gives_it(case: dict) -> None:
    ((*parts,),) = cut(Joints(), case["prompt"])
    if all(word == "AND" and not inner for word, _, inner in case["expected"]["tree"]):
        assert parts == get_multicond_prompt_list([case["prompt"]])[0]
    else:
        assert [text.strip() for text, _ in parts] == [text.strip() for text in case["expected"]["texts"]]
    assert get_multicond_learned_conditioning.__globals__["get_multicond_prompt_list"] is get_multicond_prompt_list


@pytest.mark.cases("neutral_prompt")
@pytest.mark.parametrize("host", [a1111, forge])
def test_predictions_are_combined_as_by_neutral_prompt(case: dict, host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if "predictions" not in case:
        return
    module = host()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    each, without, expected = predicted(case)
    joints, p = Joints(), SimpleNamespace(prompts=[case["prompt"]], is_hr_pass=False)
    ((*parts,),) = cut(joints, case["prompt"])
    weights = [weight for _, weight in parts]
    assert sum(weights) == 1
    with joints.acting(p):  # type: ignore[arg-type]
        if host is a1111:
            conds = [list(enumerate(weights))]
            found = CFGDenoiser().combine_denoised(torch.cat([*each, without]), conds, without, SCALE)
        else:
            found = module.sampling_function_inner(None, without, None, without, entries(weights, each), SCALE, {})
            at_one = module.sampling_function_inner(None, without, None, without, entries(weights, each), 1.0, {})
            torch.testing.assert_close(at_one, without + (expected - without) / SCALE, rtol=0, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_pictures_of_a_batch_and_the_second_pass_have_their_own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, A1111, a1111())
    joints = Joints()
    p: Any = SimpleNamespace(prompts=["a AND_PERP b", "a AND b:0.5"], hr_prompts=["a", "a"], is_hr_pass=False)
    cut(joints, *p.prompts)
    x_out = torch.randn(6, 2, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    conds = [[(0, 1.0), (1, 0.0)], [(2, 1.0), (3, 0.5)]]
    plain = CFGDenoiser().combine_denoised(x_out, conds, x_out[:2], SCALE)
    with joints.acting(p):
        first = CFGDenoiser().combine_denoised(x_out, conds, x_out[:2], SCALE)
        p.is_hr_pass = True
        second = CFGDenoiser().combine_denoised(x_out, conds, x_out[:2], SCALE)
    normal, vector = x_out[0] - x_out[4], x_out[1] - x_out[4]
    added = vector - normal * (normal * vector).sum() / normal.square().sum()
    torch.testing.assert_close(first[0], x_out[4] + SCALE * (normal + added))
    assert torch.equal(first[1], plain[1]) and torch.equal(second, plain)
    assert torch.equal(CFGDenoiser().combine_denoised(x_out, conds, x_out[:2], SCALE), plain)  # nothing is left behind


def test_what_cannot_be_joined_is_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    module = forge()
    monkeypatch.setitem(sys.modules, FORGE, module)
    inner, x = module.sampling_function_inner, torch.zeros(2, 1, 2, 2)
    three = entries([1.0, 0.0, 0.0], [x, x, x])
    for prompts, uncond, conds, message in (
        (["a AND_PERP b", "a AND_PERP b"], None, three[:2], "CFG scale 1"),
        (["a AND_PERP b", "a"], x, three[:2], "batch size to 1"),
        (["a AND_PERP b", "a AND_PERP b AND_SALT c"], x, three[:2], "batch size to 1"),
        (["a AND_PERP b", "a AND_PERP b"], x, three, "how many prompts"),
        (["a AND_PERP b"], x, three[:2], "how many pictures"),
    ):
        joints = Joints()
        with pytest.raises(WebUIError, match=message), joints.acting(SimpleNamespace(prompts=prompts)):  # type: ignore[arg-type]
            module.sampling_function_inner(None, x, None, uncond, conds, SCALE, {})
        assert module.sampling_function_inner is inner
    joints = Joints()
    cut(joints, "a AND_PERP b")
    with pytest.raises(WebUIError, match="did not act"), joints.acting(SimpleNamespace(prompts=["a AND_PERP b"])):  # type: ignore[arg-type]
        pass
    with pytest.raises(WebUIError, match="Joins must be one of"):
        Settings(joins="on").options()


def test_the_ruler_shows_what_joins() -> None:
    settings = Settings(enabled=True, joins="neutral-prompt")
    text = "a cat AND_PERP [a dog AND_SALT fur]:-0.5"
    assert [(one.joint, one.text) for one in read_for_generation(text, 20, settings, readers_of(None)).reads] == [
        ("AND", "a cat"),
        ("AND_PERP", "a dog"),
        ("AND_SALT", " fur"),
    ]
    assert len(read_for_generation(text, 20, Settings(enabled=True), readers_of(None)).reads) == 1


def test_the_extension_joins_its_own_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_neutral_prompt_active()
    parser = ModuleType("modules.prompt_parser")
    setattr(parser, "__neutral_prompt_hijacker", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "modules.prompt_parser", parser)
    assert is_neutral_prompt_active()
    settings = Settings(enabled=True, joins="neutral-prompt")
    assert len(read_for_generation("a AND_PERP b", 20, settings, readers_of(None)).reads) == 1
