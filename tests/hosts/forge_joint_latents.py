"""Weighted pictures of Forge's Flux, Chroma and Stable Diffusion 3.5, with all that ComfyUI needs to make them again.

Run by test_same_joint.py in Forge's own Python, with its checkout as working directory:

    python forge_joint_latents.py PACKAGE OUTCOME --always-cpu --data-dir DIR

The models are those of forge_joint.py. Writes beside the outcome, for each, its weights, rows of text, effects on them,
the first noise, the noise levels and the latents with weights and without.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from forge_joint import TEXT, WEIGHTED, make_models
from forge_places import run_cases, sampled, script
from safetensors.torch import save_file

NAMES = ("Flux", "Chroma", "Stable Diffusion 3.5")
FILE = Path(sys.argv[2]).with_suffix(".safetensors") if len(sys.argv) > 2 else Path()
kept: dict[str, torch.Tensor] = {}


def of_whole_depth() -> dict[str, Any]:
    """The models by name; Chroma has all its blocks, by whose number ComfyUI finds the last layer's modulation."""
    return {name.partition(":")[0]: model for name, model in make_models(chroma={"depth": 19, "single": 38}).items()}


def keep(model: Any, case: Mapping[str, Any]) -> list[int]:
    """Keep what a model samples."""
    name = case["name"]
    noises: list[torch.Tensor] = []

    def note(_: Any, args: Any, inputs: Any) -> None:
        noises.append(args[0].clone())

    denoised = {}
    for kind, prompt, chosen in (("plain", TEXT, ()), ("weighted", WEIGHTED, script(scheme="a1111", attention="bias"))):
        handle = model.forge_objects.unet.model.diffusion_model.register_forward_pre_hook(note, with_kwargs=True)
        p = sampled(model, prompt, script=chosen, steps=4)
        handle.remove()
        kept[f"{name}/latent {kind}"] = p.samples
        denoised[kind] = p
    p = denoised["weighted"]
    for kind, schedules in (("positive", p.c.batch[0][0].schedules), ("negative", p.uc[0])):
        cond = schedules[0].cond
        rows = cond["crossattn"] if isinstance(cond, dict) else cond
        kept[f"{name}/{kind}"] = rows[None].clone()
        if isinstance(cond, dict):
            kept[f"{name}/{kind} pooled"] = cond["vector"][None].clone()
    [text] = [text for text in p.weighted_clip_sampling.texts if not text.is_negative]
    kept[f"{name}/effects"] = torch.tensor(text.effects)
    kept[f"{name}/noise"] = noises[0][:1]
    kept[f"{name}/sigmas"] = p.sampler.get_sigmas(p, 4)
    for key, value in model.forge_objects.unet.model.diffusion_model.state_dict().items():
        kept[f"{name}/network/{key}"] = value.clone()
    save_file({key: value.contiguous() for key, value in kept.items()}, FILE)
    return list(p.samples.shape)


if __name__ == "__main__":
    names = iter(NAMES)
    run_cases(lambda _: {"": {"name": next(names)}}, keep, of_whole_depth)
