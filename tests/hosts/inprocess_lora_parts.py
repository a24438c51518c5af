"""Checks of LoRA tags that say where: strengths by block, LoRAs of a second pass, and of one part of the picture.

Block strengths are those of sd-webui-lora-block-weight's own functions (tests/cases/lora_blocks.json), added to the
weights by hand; the passes of regions are mixed by hand from whole predictions. Run by test_comfyui_inprocess.py in
ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from inprocess import (
    compares,
    difference,
    issues_in,
    lora_folder,
    main,
    make_clip,
    make_lora,
    note,
    refusal,
    run_ours,
    stock,
)
from inprocess_loras import ATTENTION, LAYERS
from inprocess_loras_in_time import AS_WRITTEN, NEGATIVE, Bench, loaded
from inprocess_places import result_of
from toys import LATENT, make_model, sampled

CASES = json.loads((Path(__file__).parents[1] / "cases" / "lora_blocks.json").read_text(encoding="utf-8"))["cases"]
WEIGHTS = r"(attn\d\.to_(q|v|out\.0)|proj_in|proj_out|emb_layers\.1|time_embed\.0|label_emb\.0\.0)\.weight"
ENCODE = "WeightedCLIPA1111Encode"
BY_PART = "in time, by part"


def deltas(lora: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Update of each weight at strength 1, by the host's name of it."""
    names = [key.removesuffix(".lora_down.weight") for key in lora if key.endswith(".lora_down.weight")]
    return {
        f"{name.removeprefix('text_encoders.')}.weight": lora[f"{name}.lora_up.weight"]
        @ lora[f"{name}.lora_down.weight"]
        for name in names
    }


def of_case(model: str, tag: str) -> dict[str, float]:
    """The extension's strengths of a tag, by weight."""
    (case,) = (case for case in CASES if case["model"] == model)
    return dict(zip(case["weights"], case["expected"][case["tags"].index(tag)], strict=True))


def block(name: str) -> str:
    """Beginning of a weight's name by which the extension tells its block."""
    first, *parts = name.split(".")
    return ".".join(parts[:2]) if first == "diffusion_model" and "blocks" in parts[0] else parts[0]


@compares("LoRAs by block on SD1 and SDXL, small: weights, with the extension's strengths added by hand", limit=1e-6)
def check_weights_by_block_are_those_of_the_extension() -> None:
    for family, model in (("SD1", "SD 1"), ("SDXL", "SDXL")):
        clip, patcher = make_clip(family), make_model(family)
        lora = make_lora(patcher.model, WEIGHTS) | make_lora(clip.cond_stage_model, LAYERS)
        (case,) = (case for case in CASES if case["model"] == model)
        known = {block(weight): weight for weight in case["weights"]}
        state = {key: value.clone() for key, value in patcher.model.state_dict().items()}
        text_state = {key: value.clone() for key, value in clip.cond_stage_model.state_dict().items()}
        seen = set[float]()
        with lora_folder({"x": lora}):
            for tag in case["tags"]:
                if "stop=" in tag:
                    continue
                answers = of_case(model, tag)
                of_model, of_clip = loaded(patcher, clip, f"a cat {tag}", loras="as A1111")["result"][:2]
                for one, patches, before in (
                    (of_model, of_model.patches, state),
                    (of_clip.patcher, of_clip.patcher.patches, text_state),
                ):
                    found = patched(one, before)
                    for weight, delta in deltas(lora).items():
                        if weight not in before or block(weight) not in known:
                            continue
                        strength = answers[known[block(weight)]] if weight in state else answers[case["weights"][0]]
                        seen.add(strength)
                        expected = before[weight] + strength * delta
                        note(float((found[weight] - expected).abs().max() / expected.abs().max()))
                    assert patches
        assert len(seen) > 30, (family, seen)
        assert all(torch.equal(value, state[key]) for key, value in patcher.model.state_dict().items())


def patched(patcher: Any, before: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Weights of a model with its patches, by the host's own function."""
    import comfy.lora

    return {
        key: comfy.lora.calculate_weight(patches, before[key].clone(), key)
        for key, patches in patcher.patches.items()
        if isinstance(key, str)
    } | {key: value for key, value in before.items() if key not in patcher.patches}


@compares("LoRAs by block in time, as hooks: weights at each step, with those loaded for good", limit=2e-6)
def check_blocks_in_time_are_those_of_loaded_ones() -> None:
    bench = Bench("SD1")
    with bench.files():
        for blocks in ("INS", "OUTALL", ",".join(str(number / 10) for number in range(26))):
            tag = f"<lora:a:0.8:lbw={blocks}>"
            still = bench.calls(
                *(
                    stock(loaded(bench.model, bench.clip, f"a cat {tag}", loras="as A1111")["result"][1], text)
                    for text in ("a cat ", NEGATIVE)
                ),
                loaded(bench.model, bench.clip, f"a cat {tag}", loras="as A1111")["result"][0],
            )
            moving = bench.ours(f"a cat {tag.replace(':lbw', ':stop=8:lbw')}")
            plain = bench.weight()
            for step, ((one, _), (other, _)) in enumerate(zip(moving, still, strict=True)):
                expected = other.weight if step < 7 else plain
                note(float((one.weight - expected).abs().max() / expected.abs().max()))
                note(float((one.texts[0] - other.texts[0]).abs().max() / other.texts[0].abs().max()))


def check_lists_of_blocks_that_do_not_fit_are_said() -> None:
    clip, model = make_clip("SDXL"), make_model("SDXL")
    lora = make_lora(model.model, ATTENTION)
    with lora_folder({"x": lora}):
        for written, parts in (
            ("ALL", ("17 numbers", "OUT00", "count 0")),
            ("FLUXALL", ("61 numbers", "no block of this model")),
            (",".join("1" * 26), ()),
        ):
            for loras, more in (("as A1111", ""), ("in time", ":stop=3")):
                said = [
                    one["message"]
                    for one in issues_in(loaded(model, clip, f"<lora:x:1{more}:lbw={written}>", loras=loras))
                    if one["code"] == "other-blocks"
                ]
                assert len(said) == bool(parts) and all(part in said[0] for part in parts), (written, said)


def check_a_second_pass_has_its_own_strengths() -> None:
    bench = Bench("SD1")
    with bench.files():
        for text, first, second in (
            ("a cat <lora:a:0.5:hr=1>", 0.5, 1.0),
            ("a cat <lora:a:te=0.5:unet=0.25:hrunet=-1>", 0.25, -1.0),
            ("a cat <lora:a:0.7>", 0.7, 0.7),
        ):
            for second_pass, strength in ((False, first), (True, second)):
                for loras in ("as A1111", "in time"):
                    result = loaded(bench.model, bench.clip, text, loras=loras, second_pass=second_pass)
                    assert {patches[0][0] for patches in result["result"][0].patches.values()} == {strength}
                    assert not {one["code"] for one in issues_in(result)} - {"uniform-steps"}


# ---- one part of the picture


@compares(
    "A LoRA of a region of SD1, SDXL and Flux, small: drawn, with two whole predictions mixed by hand", limit=1e-5
)
def check_a_regions_lora_draws_its_area_by_a_pass_of_its_own() -> None:
    import comfy.hooks

    for family in ("SD1", "SDXL", "Flux"):
        clip, model = make_clip(family), make_model(family)
        lora = make_lora(model.model, ATTENTION if family != "Flux" else r"(img_attn\.qkv|linear1)\.weight")
        base, dog, negative = (stock(clip, text) for text in ("a cat in the snow", "a blue dog", NEGATIVE))
        hooks = comfy.hooks.create_hook_lora(lora=lora, strength_model=1.0, strength_clip=0.0)
        hooked = comfy.hooks.set_hooks_for_conditioning(dog, hooks)
        placed, report = result_of("WeightedCLIPRegion", base, hooked, area="left half")
        assert "1 LoRA: one more pass" in report and len(placed) == 2
        plain, _ = result_of("WeightedCLIPRegion", base, dog, area="left half")
        whole = comfy.hooks.set_hooks_for_conditioning(plain, hooks)
        by_mask = halves(plain, whole)
        drawn = sampled(model, placed, negative, cfg=2.0)
        difference(drawn, sampled(model, by_mask, negative, cfg=2.0))
        assert float((drawn - sampled(model, plain, negative, cfg=2.0)).abs().max()) > 1e-3
        assert float((drawn - sampled(model, whole, negative, cfg=2.0)).abs().max()) > 1e-3


def halves(one: Any, other: Any) -> Any:
    """Two conditionings by the host's own masks: ``other`` in the left half, ``one`` in the right."""
    import nodes

    mask = torch.zeros(1, *LATENT)
    mask[:, :, : LATENT[1] // 2] = 1
    append = nodes.ConditioningSetMask().append
    return [*append(other, mask, "default", 1.0)[0], *append(one, 1 - mask, "default", 1.0)[0]]


@compares("LoRAs by part where no tag is found, SD1, small: pictures, with those without LoRAs")
def check_unused_nothing_changes() -> None:
    bench = Bench("SD1")
    with bench.files():
        for text in ("a cat AND a dog", "a cat COUPLE(0.5 1) a dog", "a [cat:dog:0.5] <lora:gone:1> AND a dog"):
            ways = [
                run_ours(ENCODE, clip=bench.clip, text=text, regions="prompt-control", loras=loras)["result"][0]
                for loras in ("as A1111", BY_PART)
            ]
            assert len(ways[0]) == len(ways[1])
            difference(*(sampled(bench.model, way, stock(bench.clip, NEGATIVE)) for way in ways))


@compares(
    "A LoRA of one part between ANDs, small: weights and text of each part, with those loaded for good", limit=2e-6
)
def check_a_lora_of_a_part_acts_on_that_part_alone() -> None:
    bench = Bench("SD1")
    plain = bench.weight()
    with bench.files():
        model, clip, *_ = loaded(bench.model, bench.clip, "<lora:a:0.8>", loras="as A1111")["result"]
        of_model = patched(model, bench.model.model.state_dict())[bench.layer]
        for text, parts in (
            ("a cat AND a dog <lora:a:0.8>", (False, True)),
            ("<lora:a:0.8> a cat AND a dog", (True, False)),
            ("a cat <lora:a:0.8> AND a dog <lora:a:0.8>", (True, True)),
        ):
            inputs = {"counter": AS_WRITTEN, "sigmas": bench.sigmas, "model": bench.model, "loras": BY_PART}
            result = run_ours(ENCODE, clip=bench.clip, text=text, **inputs)
            assert not issues_in(result), issues_in(result)
            entries = result["result"][0]
            texts = [part.replace("<lora:a:0.8>", "").strip() for part in text.split("AND")]
            seen = watched(bench, entries)
            assert len(entries) == len(texts) == 2
            for part, acts, (rows, values) in zip(texts, parts, entries, strict=True):
                assert ("hooks" in values) == acts
                expected, other = (
                    run_ours(ENCODE, clip=one, text=part)["result"][0][0][0]
                    for one in ((clip, bench.clip) if acts else (bench.clip, clip))
                )
                note(float((rows - expected).abs().max() / rows.abs().max()))
                assert float((rows - other).abs().max()) > 1e-4
                (weights,) = [weight for found, weight in seen if torch.equal(found, rows)]
                wanted = of_model if acts else plain
                note(float((weights - wanted).abs().max() / wanted.abs().max()))
            assert torch.equal(bench.weight(), plain)


def watched(bench: Bench, positive: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Text and watched weight of each entry in the first call of the model."""
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    spied = bench.model.clone()

    def spy(apply_model: Any, arguments: dict[str, Any]) -> Any:
        for row, side in zip(arguments["c"]["c_crossattn"], arguments["cond_or_uncond"], strict=True):
            if side == 0 and len(found) < len(positive):
                found.append((row[None].clone(), spied.model.state_dict()[bench.layer].clone()))
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    spied.set_model_unet_function_wrapper(spy)
    sampled(spied, positive, stock(bench.clip, NEGATIVE))
    return found


@compares("A LoRA after COUPLE, small: drawn, with Regional Prompt of a hooked prompt", limit=1e-5)
def check_a_lora_of_a_coupled_part_is_that_of_regional_prompt() -> None:
    bench = Bench("SD1")
    negative = stock(bench.clip, NEGATIVE)
    with bench.files():
        text = "a cat in snow FILL() COUPLE(0.5 1) a dog <lora:a:0.8>"
        inputs = {"regions": "prompt-control", "loras": BY_PART, "model": bench.model}
        positive, report = run_ours(ENCODE, clip=bench.clip, text=text, **inputs)["result"]
        assert len(positive) == 2 and "part 2: a.safetensors" in report and "one more pass" in report
        base = run_ours(ENCODE, clip=bench.clip, text="a cat in snow")["result"][0]
        dog = run_ours(ENCODE, clip=bench.clip, text="a dog <lora:a:0.8>", loras="in time")["result"][0]
        mask = torch.zeros(1, 512, 512)
        mask[:, :, 256:] = 1
        placed, _ = result_of("WeightedCLIPRegion", base, dog, mask=mask)
        drawn = sampled(bench.model, positive, negative)
        difference(drawn, sampled(bench.model, placed, negative))
        without = run_ours(ENCODE, clip=bench.clip, text=text, regions="prompt-control")["result"][0]
        assert float((drawn - sampled(bench.model, without, negative)).abs().max()) > 1e-3


def check_a_region_takes_a_pass_where_and_when_its_lora_acts() -> None:
    bench = Bench("SD1")
    base, dog, house = (stock(bench.clip, text) for text in ("a cat", "a dog", "a house"))
    hooked = hooked_by(dog, bench, 1.0)
    calls: list[int] = []
    spied = bench.model.clone()

    def spy(apply_model: Any, arguments: dict[str, Any]) -> Any:
        calls[-1] += arguments["cond_or_uncond"].count(0)
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    spied.set_model_unet_function_wrapper(spy)

    def number(positive: Any) -> int:
        calls.append(0)
        sampled(spied, positive, stock(bench.clip, NEGATIVE))
        return calls[-1]

    plain = number(base)
    one, _ = result_of("WeightedCLIPRegion", base, hooked, area="left half")
    assert number(one) == 2 * plain
    with_house, _ = result_of("WeightedCLIPRegion", one, house, area="right third")
    assert len(with_house) == 2 and number(with_house) == 2 * plain
    two, _ = result_of("WeightedCLIPRegion", one, hooked, area="right half")
    assert len(two) == 3 and number(two) == 2 * plain  # nothing is left for the base
    later, _ = result_of("WeightedCLIPRegion", base, hooked, area="left", start=90, end=99, unit="steps")
    assert number(later) == plain
    everywhere, _ = result_of("WeightedCLIPRegion", base, hooked)
    assert number(everywhere) == plain


def hooked_by(conditioning: Any, bench: Bench, strength: float) -> Any:
    """A conditioning with the host's hook for a LoRA of the model."""
    import comfy.hooks

    hooks = comfy.hooks.create_hook_lora(lora=bench.of_model, strength_model=strength, strength_clip=0.0)
    return comfy.hooks.set_hooks_for_conditioning(conditioning, hooks)


def check_what_cannot_be_is_refused_in_words() -> None:
    import comfy.model_management as management

    import nodes

    bench = Bench("SD1")
    base, dog = stock(bench.clip, "a cat"), stock(bench.clip, "a dog")
    hooked, other = (hooked_by(dog, bench, strength) for strength in (1.0, 0.5))
    with bench.files():
        coupled = {"clip": bench.clip, "text": "a cat COUPLE(0.5 1) a dog <lora:a:1>", "regions": "prompt-control"}
        for state, flag in (("LOW_VRAM", "--lowvram"), ("NO_VRAM", "--novram")):
            with patch.object(management, "vram_state", management.VRAMState[state]):
                for refused in (
                    lambda: result_of("WeightedCLIPRegion", base, hooked, area="left"),
                    lambda: run_ours(ENCODE, **coupled, loras=BY_PART),
                ):
                    message = refusal(refused)
                    assert f"with {flag} they are not on the graphics card" in message, message
                run_ours(ENCODE, **coupled)
    set_times = nodes.ConditioningSetTimestepRange().set_range
    in_turn = [*set_times(hooked, 0.0, 0.5)[0], *set_times(other, 0.5, 1.0)[0]]
    assert "have different LoRAs" in refusal(lambda: result_of("WeightedCLIPRegion", base, in_turn, area="left"))


if __name__ == "__main__":
    main(globals())
