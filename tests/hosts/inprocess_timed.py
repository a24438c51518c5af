"""Checks of timed prompts: at each call of the denoiser exactly the texts of its step take part, with their weights.

The last part is about models with noise levels of their own, and CLIP hooks.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from inprocess import (
    WIDTHS,
    WORDS,
    apart,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    note,
    ours,
    run_ours,
    stock,
)
from toys import make_unet

COUNTERS = ("as the WebUI counts", "as written")
TextAt = Callable[[int, int], str]
"""Text of a part of a prompt between ANDs, from the step, counted from 1, and the number of steps."""


class Call(NamedTuple):
    """Input of the denoiser in one call."""

    sigma: float
    positives: tuple[torch.Tensor, ...]
    """Cross-attention tensor of each positive entry that took part."""
    guided: torch.Tensor
    """Result of guidance from its answers: the expected image."""
    unguided: torch.Tensor
    """Its answer for the negative prompt."""
    positive: torch.Tensor
    """Its answer for the positive prompt."""


def sigmas_of(model: Any, scheduler: str, steps: int, denoise: float = 1.0) -> torch.Tensor:
    """Output of the node BasicScheduler."""
    from comfy_extras.nodes_custom_sampler import BasicScheduler

    # in 0.3.64 it is no class method yet
    return BasicScheduler().get_sigmas(model, scheduler, steps, denoise)[0]


def sample(
    model: Any, positive: Any, negative: Any, sigmas: torch.Tensor, sampler: str = "euler", cfg: float = 7.0
) -> list[Call]:
    """Sample as the node SamplerCustom does: every call of the denoiser."""
    import comfy.sample
    import comfy.samplers

    calls: list[Call] = []
    seen: list[torch.Tensor] = []

    def spy(apply_model: Any, arguments: dict[str, Any]) -> Any:
        which = arguments["cond_or_uncond"]
        rows = arguments["c"]["c_crossattn"].chunk(len(which))
        seen.extend(row for row, index in zip(rows, which, strict=True) if index == 0)
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    def after_a_call(arguments: dict[str, Any]) -> Any:
        answers = (arguments[name].clone() for name in ("denoised", "uncond_denoised", "cond_denoised"))
        calls.append(Call(float(arguments["sigma"][0]), tuple(seen), *answers))
        seen.clear()
        return arguments["denoised"]

    spied = model.clone()
    spied.set_model_unet_function_wrapper(spy)
    spied.set_model_sampler_post_cfg_function(after_a_call)
    latent = torch.zeros(1, 4, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 1)
    chosen = comfy.samplers.sampler_object(sampler)
    comfy.sample.sample_custom(spied, noise, cfg, chosen, sigmas, positive, negative, latent, disable_pbar=True, seed=1)
    return calls


def encode_timed(clip: Any, text: str, **inputs: Any) -> Any:
    """The conditioning of our A1111 node; its information on the sampler's steps is accepted without a problem."""
    result = run_ours("WeightedCLIPA1111Encode", clip=clip, text=text, **inputs)
    codes = {issue["code"] for issue in issues_in(result)}
    assert "sigmas" not in inputs or not codes & {"no-timing", "uniform-steps"}, issues_in(result)
    return result["result"][0]


class Encodings:
    """A text alone, as our node without times encodes it; each once."""

    def __init__(self, clip: Any) -> None:
        self.clip = clip
        self.known: dict[str, torch.Tensor] = {}

    def of(self, text: str) -> torch.Tensor:
        if text not in self.known:
            ((self.known[text], _),) = ours(self.clip, text, syntax="a1111", scheme="a1111")
        return self.known[text]


def text_at(entries: Sequence[Sequence[Any]], call: int, counter: str) -> str:
    """Text used by a call of the denoiser.

    Args:
        entries: ``[last step, text]``, steps counted from 1, as in the case files.
        call: Counted from 0.
        counter: The WebUI compares its count of calls, from 0, with the steps, from 1; as written, call 0 is step 1.

    Returns:
        The text of the first entry that has not ended.
    """
    step = call if counter == "as the WebUI counts" else call + 1
    return next((text for last, text in entries if step <= last), entries[0][1])


def entries_of(text_of: TextAt, steps: int) -> list[tuple[int, str]]:
    """An entry for each step."""
    return [(step, text_of(step, steps)) for step in range(1, steps + 1)]


def assert_positives(call: Call, expected: Sequence[torch.Tensor], where: Any) -> None:
    """Exactly these encodings, bit for bit, took part in a call, one for each part between ANDs."""
    assert len(call.positives) == len(expected), (where, len(call.positives), len(expected))
    left = list(call.positives)
    for tensor in expected:
        match = next((index for index, other in enumerate(left) if torch.equal(other, tensor)), None)
        assert match is not None, (where, "an encoding is missing")
        difference(left.pop(match), tensor)


def step_of(sigma: float, sigmas: Sequence[float]) -> int:
    """The step, counted from 0, that a noise level belongs to: the last whose own level is not below it."""
    return max(index for index, level in enumerate(sigmas[:-1]) if level >= sigma * (1 - 1e-5) or index == 0)


AND_WEIGHT = re.compile(r"\bAND\b|:\s*[+-]?(\d+\.?|\d*\.\d+)\s*$")
CASES = Path(__file__).resolve().parent.parent / "cases" / "a1111_schedule.json"
PROMPTS: dict[str, tuple[TextAt, ...]] = {
    "a [cat:dog:0.4] on a [mat|sofa|bed]": (
        lambda step, steps: f"a {'cat' if step <= int(0.4 * steps) else 'dog'} on a {nth(step, 'mat', 'sofa', 'bed')}",
    ),
    "[a:b:3] AND [c|d]:0.7 AND e:0.5": (
        lambda step, steps: "a" if step <= 3 else "b",
        lambda step, steps: f" {nth(step, 'c', 'd')}",
        lambda step, steps: " e",
    ),
    "[[(cat:1.4):dog:2]:a [bird|fish]:0.5]": (
        lambda step, steps: (
            f"a {nth(step, 'bird', 'fish')}" if step > steps // 2 else "(cat:1.4)" if step <= 2 else "dog"
        ),
    ),
}
"""Prompts, and the text of each part between ANDs at each step."""


def nth(step: int, *texts: str) -> str:
    """The text of an alternation at a step."""
    return texts[(step - 1) % len(texts)]


class Bench:
    """A small CLIP and model, and the texts encoded alone."""

    def __init__(self) -> None:
        self.clip, self.model = make_clip("SD1"), make_unet()
        self.encodings = Encodings(self.clip)
        self.negative = stock(self.clip, "")

    def check(
        self,
        prompt: str,
        levels: torch.Tensor,
        counter: str,
        branches: list[Any],
        *,
        sampler: str = "euler",
        **inputs: Any,
    ) -> int:
        """Sample, and compare each call with the texts of its step; how many calls there were."""
        positive = encode_timed(self.clip, prompt, counter=counter, **inputs)
        calls = sample(self.model, positive, self.negative, levels, sampler)
        if sampler == "euler":
            assert [call.sigma for call in calls] == levels.tolist()[:-1]
        for call in calls:
            step = step_of(call.sigma, levels.tolist())
            expected = [self.encodings.of(text_at(entries, step, counter)) for entries in branches]
            assert_positives(call, expected, (prompt, sampler, counter, step, call.sigma))
        return len(calls)


@compares("Timed prompts, every scheduler: each denoiser call, with its text alone")
def check_each_step_uses_its_texts() -> None:
    import comfy.samplers

    bench = Bench()
    known = {"normal", "karras", "sgm_uniform", "exponential", "beta", "simple", "ddim_uniform"}
    assert known <= set(comfy.samplers.SCHEDULER_NAMES)
    for scheduler in comfy.samplers.SCHEDULER_NAMES:
        for wanted in (7, 20):
            sigmas = sigmas_of(bench.model, scheduler, wanted)
            steps = len(sigmas) - 1  # ddim_uniform and beta may give other numbers of them
            for prompt, branches in PROMPTS.items():
                for counter in COUNTERS:
                    entries = [entries_of(branch, steps) for branch in branches]
                    bench.check(prompt, sigmas, counter, entries, sigmas=sigmas)


@compares("Timed prompts, second half of the steps, likewise")
def check_each_step_of_a_part_of_the_way_uses_its_texts() -> None:
    bench = Bench()
    for scheduler in ("normal", "karras"):
        sigmas = sigmas_of(bench.model, scheduler, 8, denoise=0.5)
        assert len(sigmas) == 9
        assert sigmas[0] < 5
        for prompt, branches in PROMPTS.items():
            entries = [entries_of(branch, 8) for branch in branches]
            bench.check(prompt, sigmas, COUNTERS[1], entries, sigmas=sigmas)


@compares("Timed prompts, 100 with the WebUI's own texts, likewise")
def check_the_prompts_of_the_case_file_step_by_step() -> None:
    bench = Bench()
    cases = [
        case
        for case in json.loads(CASES.read_text(encoding="utf-8"))["cases"]
        if case["hires_steps"] is None
        and not case["use_old_scheduling"]
        # the file is of editing alone; the node reads weights of AND first, as the WebUI does
        and not AND_WEIGHT.search(case["prompt"])
    ]
    assert len(cases) > 100
    for case in cases:
        sigmas = sigmas_of(bench.model, "normal", case["steps"])
        assert len(sigmas) == case["steps"] + 1
        for counter in COUNTERS:
            bench.check(case["prompt"], sigmas, counter, [case["expected"]], sigmas=sigmas)


@compares("Timed prompts, samplers of second order, likewise")
def check_samplers_of_second_order_find_the_texts_of_their_step() -> None:
    bench = Bench()
    for scheduler in ("normal", "karras"):
        sigmas = sigmas_of(bench.model, scheduler, 7)
        for sampler in ("heun", "dpm_2", "dpmpp_sde", "dpmpp_2s_ancestral"):
            for prompt, branches in PROMPTS.items():
                entries = [entries_of(branch, 7) for branch in branches]
                num_calls = bench.check(prompt, sigmas, COUNTERS[1], entries, sampler=sampler, sigmas=sigmas)
                assert num_calls > 7


def check_samplers_with_levels_of_their_own_find_one_text_of_each_part() -> None:
    bench = Bench()
    sigmas = sigmas_of(bench.model, "karras", 7)
    for sampler in ("dpm_fast", "dpm_adaptive", "uni_pc"):
        for prompt, branches in PROMPTS.items():
            positive = encode_timed(bench.clip, prompt, counter=COUNTERS[1], sigmas=sigmas)
            texts = [{text for _, text in entries_of(branch, 7)} for branch in branches]
            for call in sample(bench.model, positive, bench.negative, sigmas, sampler):
                assert len(call.positives) == len(branches), (sampler, call.sigma)
                for known in texts:
                    encodings = [bench.encodings.of(text) for text in known]
                    found = [any(torch.equal(one, tensor) for one in encodings) for tensor in call.positives]
                    assert sum(found) == 1, (sampler, call.sigma)


@compares("Timed prompts, no SIGMAS, even schedulers, likewise")
def check_without_sigmas_even_steps_use_their_texts() -> None:
    bench = Bench()
    for scheduler in ("simple", "sgm_uniform"):
        for steps in (7, 20):
            sigmas = sigmas_of(bench.model, scheduler, steps)
            for prompt, branches in PROMPTS.items():
                for counter in COUNTERS:
                    entries = [entries_of(branch, steps) for branch in branches]
                    bench.check(prompt, sigmas, counter, entries, steps=steps)


def check_without_sigmas_no_step_of_any_scheduler_is_without_its_texts() -> None:
    import comfy.samplers

    bench = Bench()
    for steps in (5, 7, 20, 21):  # the middle step of an odd number lies at exactly one half in the schedule normal
        for prompt, branches in PROMPTS.items():
            positive = encode_timed(bench.clip, prompt, counter=COUNTERS[1], steps=steps)
            for scheduler in comfy.samplers.SCHEDULER_NAMES:
                sigmas = sigmas_of(bench.model, scheduler, steps)
                for call in sample(bench.model, positive, bench.negative, sigmas):
                    assert len(call.positives) == len(branches), (scheduler, steps, call.sigma, len(call.positives))


@compares("AND: guidance, with the WebUI's sum of answers, relative to the largest", limit=5e-5)
def check_and_guides_as_the_webui_does() -> None:
    bench = Bench()
    sigmas = sigmas_of(bench.model, "karras", 4)[1:]
    scale = 7.0
    for prompt, parts in (
        ("a cat AND a dog in the rain", [("a cat", 1.0), (" a dog in the rain", 1.0)]),
        (
            "a (red:1.3) cat:0.4 AND a dog:1.1 AND mist:0.25",
            [("a (red:1.3) cat", 0.4), (" a dog", 1.1), (" mist", 0.25)],
        ),
        ("a cat:1.5 AND a dog:-0.5", [("a cat", 1.5), (" a dog", -0.5)]),
    ):
        positive = encode_timed(bench.clip, prompt, sigmas=sigmas)
        cfg = scale * sum(weight for _, weight in parts)
        first = sample(bench.model, positive, bench.negative, sigmas, cfg=cfg)[0]
        expected = first.unguided.clone()
        for text, weight in parts:
            alone = sample(bench.model, [[bench.encodings.of(text), {}]], bench.negative, sigmas, cfg=2.0)[0]
            assert torch.isclose(alone.unguided, first.unguided, rtol=1e-5, atol=1e-5).all()
            assert not torch.isclose(alone.positive, first.unguided, rtol=1e-3).all()
            expected += scale * weight * (alone.positive - alone.unguided)
        note(apart(first.guided, expected) / float(expected.abs().max()))


def check_without_times_the_node_gives_one_entry_that_text_encode_gives() -> None:
    clip = make_clip("SD1")
    for text in ("a (cat:1.3)", "a [cat] here", "a|b [c:d:5]"):
        result = run_ours("WeightedCLIPA1111Encode", clip=clip, text=text)
        ((hidden, values),) = result["result"][0]
        assert values.keys() == {"pooled_output", WORDS}
        assert torch.equal(hidden, Encodings(clip).of(text))
        assert not {issue["code"] for issue in issues_in(result)} & {"uniform-steps", "no-timing"}


PROMPT = "a [cat:dog:0.4] on a [mat|sofa|bed]"


def text_of(step: int, steps: int) -> str:
    """`PROMPT` at a step."""
    return f"a {'cat' if step <= int(0.4 * steps) else 'dog'} on a {('mat', 'sofa', 'bed')[(step - 1) % 3]}"


def models() -> dict[str, Any]:
    """The small model with noise levels of Stable Diffusion, and with others, by the host's own nodes."""
    from comfy_extras import nodes_model_advanced as advanced

    model = make_unet()
    return {
        "Stable Diffusion": model,
        "zsnr": advanced.ModelSamplingDiscrete().patch(model, "v_prediction", True)[0],
        "lcm": advanced.ModelSamplingDiscrete().patch(model, "lcm", False)[0],
        "SD3": advanced.ModelSamplingSD3().patch(model, 3.0)[0],
        "AuraFlow": advanced.ModelSamplingAuraFlow().patch_aura(model, 1.73)[0],
        "Flux": advanced.ModelSamplingFlux().patch(model, 1.15, 0.5, 1024, 1024)[0],
        "EDM": advanced.ModelSamplingContinuousEDM().patch(model, "v_prediction", 120.0, 0.002)[0],
    }


@compares("Timed prompts, noise levels of other models, likewise")
def check_with_the_model_each_of_its_steps_uses_its_text() -> None:
    clip = make_clip("SD1")
    encodings, negative = Encodings(clip), stock(clip, "")
    for name, model in models().items():
        for scheduler in ("normal", "simple", "karras", "beta"):
            sigmas = sigmas_of(model, scheduler, 12)
            steps = len(sigmas) - 1
            for counter in COUNTERS:
                positive = encode_timed(clip, PROMPT, counter=counter, sigmas=sigmas, model=model)
                calls = sample(model, positive, negative, sigmas)
                assert len(calls) == steps
                for step, call in enumerate(calls):
                    text = text_at(entries_of(text_of, steps), step, counter)
                    assert_positives(call, [encodings.of(text)], (name, scheduler, counter, step, sigmas))


def check_without_the_model_levels_that_are_not_stable_diffusions_are_an_issue() -> None:
    sigmas = {name: sigmas_of(model, "simple", 12) for name, model in models().items()}
    clips = {family: make_clip(family) for family in ("SD1", "SDXL", "Flux", "SD3 without T5")}
    for family, levels, is_timed in (
        ("SD1", "Stable Diffusion", True),
        ("SDXL", "Stable Diffusion", True),
        ("SD1", "zsnr", False),
        ("SD1", "EDM", False),
        ("Flux", "Flux", False),
        ("SD3 without T5", "SD3", False),
    ):
        result = run_ours("WeightedCLIPA1111Encode", clip=clips[family], text="[a:b:0.5]", sigmas=sigmas[levels])
        messages = {issue["code"]: issue["message"] for issue in issues_in(result)}
        assert ("no-timing" not in messages) == is_timed, (family, levels)
        assert is_timed or "connect the model" in messages["no-timing"], messages


def check_keyframes_of_a_hook_and_times_of_a_prompt_go_together() -> None:
    import comfy.hooks
    import comfy.samplers
    from comfy_extras.nodes_hooks import SetClipHooks

    clip, model = make_clip("SD1"), make_unet()
    key = "lora_te_text_model_encoder_layers_1_mlp_fc1"
    generator = torch.Generator().manual_seed(4)
    lora = {
        f"{key}.lora_down.weight": torch.randn(4, WIDTHS["l"], generator=generator),
        f"{key}.lora_up.weight": torch.randn(2 * WIDTHS["l"], 4, generator=generator),
        f"{key}.alpha": torch.tensor(4.0),
    }
    hooks = comfy.hooks.create_hook_lora(lora=lora, strength_model=0.0, strength_clip=0.3)
    keyframes = comfy.hooks.HookKeyframeGroup()
    for percent, strength in ((0.0, 0.2), (0.33, 1.0), (0.71, -0.5)):
        keyframes.add(comfy.hooks.HookKeyframe(strength=strength, start_percent=percent))
    hooks.set_keyframes_on_hooks(keyframes)
    hooked = SetClipHooks().apply_hooks(clip, schedule_clip=True, apply_to_conds=True, hooks=hooks)[0]

    sigmas = sigmas_of(model, "normal", 8)
    positive = encode_timed(hooked, "a [cat|dog|bird]", counter=COUNTERS[1], sigmas=sigmas)
    assert len(positive) == 8 + 2  # two keyframes fall into a step
    percents = {"start_percent", "end_percent", "clip_start_percent", "clip_end_percent"}
    assert all(percents <= values.keys() for _, values in positive)
    entries = [{**one, "hidden": hidden, "model_conds": {}, "uuid": None} for hidden, one in positive]
    comfy.samplers.calculate_start_end_timesteps(SimpleNamespace(model_sampling=model.model.model_sampling), entries)
    alone = {animal: ours(hooked, f"a {animal}", syntax="a1111", scheme="a1111") for animal in ("cat", "dog", "bird")}
    latent = torch.zeros(1, 4, 8, 8)
    frames = [values["clip_start_percent"] for _, values in alone["cat"]]
    assert frames == [0.0, 0.33, 0.71]
    levels = [model.model.model_sampling.percent_to_sigma(percent) for percent in frames]
    for step, sigma in enumerate(sigmas[:-1]):
        (active,) = [one for one in entries if comfy.samplers.get_area_and_mult(one, latent, sigma[None])]
        frame = sum(float(sigma) < level for level in levels) - 1
        assert active["clip_start_percent"] == frames[frame]
        assert torch.equal(active["hidden"], alone[("cat", "dog", "bird")[step % 3]][frame][0])
    assert not torch.isclose(alone["cat"][0][0], alone["cat"][1][0]).all()


if __name__ == "__main__":
    main(globals())
