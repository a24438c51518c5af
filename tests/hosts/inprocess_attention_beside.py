"""Checks of Attention Weights beside nodes that use the model, its attention or its rows in their own way; of limits.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. Those of other packs run the packs' own
code, which is next to ComfyUI or among its custom nodes.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, pack_of, refusal, run_ours, stock
from inprocess_attention import NODE, WEIGHTS, draws_as_written_out, rel, weighed
from pack_code import package
from toys import LATENT, NEGATIVE, PLAIN, TEXT, make_model, make_text_encoder, sampled

REGION = "a dog in a forest"
Coupled = Callable[[Any, Any, Any], tuple[Any, Any]]
"""From a MODEL, a base prompt and a region's to the MODEL and the base prompt to sample with."""


in_two_steps = partial(sampled, steps=2)


# ---- what acts


@compares("Attention Weights with PAG, SAG, ToMe, likewise", limit=CLOSE)
def check_weights_act_beside_nodes_of_the_host_that_change_attention() -> None:
    from comfy_extras.nodes_pag import PerturbedAttentionGuidance
    from comfy_extras.nodes_sag import SelfAttentionGuidance
    from comfy_extras.nodes_tomesd import TomePatchModel

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    for node, inputs in (
        (PerturbedAttentionGuidance, {"scale": 3.0}),
        (SelfAttentionGuidance, {"scale": 0.5, "blur_sigma": 2.0}),
        (TomePatchModel, {"ratio": 0.3}),
    ):
        work = node.execute(model=model, **inputs).args[0]
        for batch in (1, 4):
            given = {"on": work, "name": node.__name__, "steps": 2, "batch": batch}
            draws_as_written_out(model, weighed(clip), plain, negative, (plain, WEIGHTS), **given)


@compares("Attention Weights at CFG 1, whole and in tiles, likewise", limit=CLOSE)
def check_weights_act_at_cfg_1_and_in_tiles() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain = stock(clip, PLAIN)

    def in_tiles(apply_model: Any, arguments: dict[str, Any]) -> torch.Tensor:
        halves = arguments["input"].chunk(2, dim=3)
        known = {"c_crossattn": arguments["c"]["c_crossattn"].repeat(2, 1, 1)}
        drawn = apply_model(torch.cat(halves), arguments["timestep"].repeat(2), **{**arguments["c"], **known})
        return torch.cat(drawn.chunk(2), dim=3)

    tiled = model.clone()
    tiled.set_model_unet_function_wrapper(in_tiles)
    for work in (model, tiled):
        given = {"on": work, "steps": 2, "cfg": 1.0}
        draws_as_written_out(model, weighed(clip), plain, plain, (plain, WEIGHTS), **given)


# ---- rows that have changed since they were weighed

CHANGING = ("SD1", "Flux", "Chroma", "SD 3.5", "HiDream", "Flux 2 Klein", "Anima")
"""Families of every way of reading text."""


@compares("Attention Weights, then Zero Out, seven families, small, with stock zeroed")
def check_rows_of_zeros_have_no_weights() -> None:
    import nodes

    for family in CHANGING:
        clip, model = make_text_encoder(family), make_model(family)
        plain, other = stock(clip, PLAIN), stock(clip, "a dog")
        (zeros,) = nodes.ConditioningZeroOut().zero_out(plain)
        without = sampled(model, zeros, other)
        for given in (None, model):
            ours, _, ready = run_ours(NODE, clip=clip, text=TEXT, model=given)["result"]
            (zeroed,) = nodes.ConditioningZeroOut().zero_out(ours)
            drawn = [sampled(ready or model, zeroed, other), sampled(ready or model, other, zeroed)]
            for one, expected in zip(drawn, (without, sampled(model, other, zeros)), strict=True):
                difference(one, expected)
            # the usual workflow: a weighed prompt, and the same one zeroed
            weights = sampled(ready or model, ours, zeros)
            difference(sampled(ready or model, ours, zeroed), weights)
            assert rel(weights, sampled(model, plain, zeros)) > 100 * CLOSE


def check_changed_rows_are_refused_and_others_are_not() -> None:
    import nodes

    for family in CHANGING:
        clip, model = make_text_encoder(family), make_model(family)
        plain, other = stock(clip, PLAIN), stock(clip, "a dog")
        ours = weighed(clip)
        multiplied = [[rows * 1.1, values] for rows, values in ours]
        for changed in (
            nodes.ConditioningAverage().addWeighted(ours, other, 0.5)[0],
            nodes.ConditioningConcat().concat(ours, other)[0],
            multiplied,
        ):
            message = refusal(partial(sampled, model, changed, other))
            assert "has changed them" in message, (family, message)
        expected = sampled(model, ours, other)
        (same,) = nodes.ConditioningAverage().addWeighted(ours, other, 1.0)
        assert torch.equal(sampled(model, same, other), expected)
        for kind in (torch.float16, torch.bfloat16):
            cast = [[rows.to(kind).float(), values] for rows, values in ours]
            assert 0 < rel(sampled(model, cast, other), expected) < 0.1
        # an area on one side: the host gives the other side an entry with the one's rows and the other's inputs
        area = nodes.ConditioningSetArea().append(other, 88, 112, 0, 0, 1.0)[0] + other
        without = sampled(model, area, plain)
        assert rel(sampled(model, area, ours), without) > CLOSE


# ---- weights beyond what a number type holds


def check_weights_of_any_size_give_numbers_or_an_error() -> None:
    for family in ("SD1", "Flux"):  # the second makes 0 of what is no number
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, "a dog")
        network = model.model.diffusion_model

        def drawn(how: str, weight: str) -> torch.Tensor:
            return sampled(model, weighed(clip, f"a (red:{weight}) cat", how=how), negative)  # noqa: B023

        whole = drawn("krea2", "40000")
        for kind in (torch.float32, torch.float16):
            network.to(kind).dtype = kind
            for how in ("bias", "krea2"):
                for weight in ("40000", f"{1e39:.0f}", f"{-1e39:.0f}")[: 3 if how == "bias" else 2]:
                    assert drawn(how, weight).isfinite().all(), (family, kind, how, weight)
            assert rel(drawn("krea2", "40000"), whole) < 0.02, (family, kind)
            for weight in ("60000", f"{1e39:.0f}")[kind == torch.float32 :]:
                assert "no longer made of finite numbers" in refusal(partial(drawn, "value", weight)), (family, kind)
            assert drawn("value", "100").isfinite().all()


# ---- what would act on the rows of others


def halves() -> tuple[torch.Tensor, torch.Tensor]:
    """Masks of the left part of the picture and of the rest."""
    left = torch.zeros(1, *(8 * size for size in LATENT))
    left[:, :, : 8 * 12] = 1
    return left, 1 - left


def refused_beside(coupled: Coupled) -> None:
    """Weights of the base prompt are refused, in any batch; stock is none of our business."""
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        plain, negative, region = (stock(clip, text) for text in (PLAIN, NEGATIVE, REGION))
        for how in ("bias", "negpip"):
            for given in (None, model):
                base, _, ready = run_ours(NODE, clip=clip, text=TEXT, how=how, model=given)["result"]
                for cfg, batch in ((1.0, 1), (1.0, 2), (4.0, 1), (4.0, 2)):
                    theirs, positive = coupled(ready or model, base, region)
                    message = refusal(partial(in_two_steps, theirs, positive, negative, cfg=cfg, batch=batch))
                    assert "Attention Couple" in message, (family, how, cfg, batch, message)
        theirs, positive = coupled(model, plain, region)
        without = in_two_steps(theirs, positive, negative)
        assert not torch.equal(without, in_two_steps(model, plain, negative))


def ppm_couple() -> Any:
    """Module of ComfyUI-ppm that patches a U-Net for Attention Couple."""
    package("ppm_couple", pack_of("ComfyUI-ppm") / "src" / "attention_couple")
    return importlib.import_module("ppm_couple.unet_couple")


def forge_couple() -> Any:
    """Class of sd-forge-couple that patches a U-Net, beside what it imports of Forge."""
    modules, devices = ModuleType("modules"), ModuleType("modules.devices")
    devices.device, devices.dtype = torch.device("cpu"), torch.float32
    sys.modules.update({"modules": modules, "modules.devices": devices})
    package("lib_couple", pack_of("sd-forge-couple") / "lib_couple")
    return importlib.import_module("lib_couple.attention_couple").AttentionCouple


def as_forge(apply_model: Any, arguments: dict[str, Any]) -> torch.Tensor:
    """Call a model as Forge does, which says the picture's shape."""
    arguments["c"]["transformer_options"]["original_shape"] = list(arguments["input"].shape)
    return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])


def check_regions_of_attention_couple_are_refused_beside_ppm() -> None:
    unet_couple = ppm_couple()

    def coupled(model: Any, base: Any, region: Any) -> tuple[Any, Any]:
        work = model.clone()
        cpu, kind = torch.device("cpu"), torch.float32
        work.set_model_attn2_patch(unet_couple.unet_attn2_couple_wrapper(base, [region], 2, False, cpu, kind))
        work.set_model_attn2_output_patch(unet_couple.unet_attn2_output_couple_wrapper(torch.stack(halves())))
        return work, base

    refused_beside(coupled)


def check_regions_of_attention_couple_are_refused_beside_prompt_control() -> None:
    import nodes

    package("prompt_control_couple", pack_of("comfyui-prompt-control") / "prompt_control")
    couple = importlib.import_module("prompt_control_couple.attention_couple_ppm")

    def coupled(model: Any, base: Any, region: Any) -> tuple[Any, Any]:
        node = nodes.ConditioningSetMask()
        placed = [node.append(one, mask, "default", 1.0)[0] for one, mask in zip((base, region), halves(), strict=True)]
        return model, couple.set_cond_attnmask(*placed, fill=True)

    refused_beside(coupled)
    clip, model = make_clip("SD1"), make_model("SD1")  # here the negative prompt runs apart, and its weights act
    theirs, positive = coupled(model, stock(clip, PLAIN), stock(clip, REGION))
    assert not torch.equal(
        in_two_steps(theirs, positive, weighed(clip)), in_two_steps(theirs, positive, stock(clip, PLAIN))
    )


def check_regions_of_attention_couple_are_refused_beside_forge_couple() -> None:
    couple = forge_couple()

    def coupled(model: Any, base: Any, region: Any) -> tuple[Any, Any]:
        left, right = halves()
        work = couple.patch_unet(model, left, {"cond_1": region, "mask_1": right})
        work.set_model_unet_function_wrapper(as_forge)
        return work, base

    refused_beside(coupled)


if __name__ == "__main__":
    main(globals())
