"""Checks of timed prompts on models with noise levels of their own, without a model, and together with CLIP hooks.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from inprocess import WIDTHS, compares, issues_in, main, make_clip, ours, run_ours, stock
from inprocess_sampling import (
    COUNTERS,
    Encodings,
    assert_positives,
    encode_timed,
    entries_of,
    make_model,
    sample,
    sigmas_of,
    text_at,
)

PROMPT = "a [cat:dog:0.4] on a [mat|sofa|bed]"


def text_of(step: int, steps: int) -> str:
    """`PROMPT` at a step."""
    return f"a {'cat' if step <= int(0.4 * steps) else 'dog'} on a {('mat', 'sofa', 'bed')[(step - 1) % 3]}"


def models() -> dict[str, Any]:
    """The small model with noise levels of Stable Diffusion, and with others, by the host's own nodes."""
    from comfy_extras import nodes_model_advanced as advanced

    model = make_model()
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

    clip, model = make_clip("SD1"), make_model()
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
    assert len(positive) == 8 * 3
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
