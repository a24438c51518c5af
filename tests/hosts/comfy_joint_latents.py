"""Pictures of forge_joint_latents.py made again by ComfyUI's Euler and networks, and by our weights in its attention.

Run by test_same_joint.py in ComfyUI's own Python, with its checkout as working directory:

    python comfy_joint_latents.py PACK FILE OUTCOME

Writes for each model the largest difference of the latents without weights, which is that of the two hosts, of those
with weights, and the change that the weights make; all relative to the largest number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from inprocess import load_pack
from safetensors.torch import load_file
from toys import build

SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "Flux": ("Flux", {"guidance_embed": True, "in_channels": 16, "out_channels": 16}),
    "Chroma": (
        "Chroma",
        {
            **{"in_channels": 64, "out_channels": 64, "in_dim": 64, "out_dim": 64, "hidden_dim": 64, "n_layers": 2},
            **{"depth": 19, "depth_single_blocks": 38},
        },
    ),
    "Stable Diffusion 3.5": (
        "SD3",
        {
            **{"depth": 2, "num_blocks": 2, "input_size": None, "adm_in_channels": 256, "qk_norm": "rms"},
            "context_embedder_config": {
                "target": "torch.nn.Linear",
                "params": {"in_features": 4096, "out_features": 128},
            },
            **{"pos_embed_max_size": 32, "num_patches": 1024, "x_block_self_attn_layers": [0]},
        },
    ),
}
JOINT = {
    **{"axes_dim": [4, 6, 6], "num_heads": 4, "hidden_size": 64, "mlp_ratio": 2.0, "theta": 10_000, "qkv_bias": True},
    **{"txt_ids_dims": [], "patch_size": 2, "depth": 2, "depth_single_blocks": 2, "context_in_dim": 64},
    "vec_in_dim": 128,
}


def made_again(name: str, kept: dict[str, torch.Tensor]) -> tuple[float, float, float]:
    """Differences of a model's latents."""
    import comfy.sample
    import comfy.samplers

    config, sizes = SIZES[name]
    model = build(config, sizes if config == "SD3" else {**JOINT, **sizes})
    network = model.model.diffusion_model
    known, state = network.state_dict(), dict[str, torch.Tensor]()
    for key, value in kept.items():
        own = key.partition(f"{name}/network/")[2]
        if own:  # newer ComfyUIs have another name for the weights of a norm
            state[own if own in known else f"{own.removesuffix('.scale')}.weight"] = value
    missing, unexpected = network.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    pack = sys.modules["nodes"].NODE_CLASS_MAPPINGS["WeightedCLIPPlace"].__module__.rpartition(".nodes.")[0]
    attention, effects = (
        importlib.import_module(f"{pack}.{one}") for one in ("hosts.comfy.attention.attention", "weighting.attention")
    )

    def conditioning(kind: str) -> Any:
        values = {"guidance": 3.5} if name == "Flux" else {}
        if f"{name}/{kind} pooled" in kept:
            values["pooled_output"] = kept[f"{name}/{kind} pooled"]
        return [[kept[f"{name}/{kind}"], values]]

    def sampled(positive: Any) -> torch.Tensor:
        latent = torch.zeros_like(kept[f"{name}/noise"])
        sampler = comfy.samplers.sampler_object("euler")
        named = {"latent_image": latent, "seed": 0, "disable_pbar": True}
        noise, sigmas = kept[f"{name}/noise"], kept[f"{name}/sigmas"]
        negative = conditioning("negative")
        result = comfy.sample.sample_custom(model, noise, 3.0, sampler, sigmas, positive, negative, **named)
        return model.model.process_latent_in(result)

    positive = conditioning("positive")
    of_rows = [effects.RowEffect(*map(float, own)) for own in kept[f"{name}/effects"]]
    weighted, _ = attention.with_effects(positive, of_rows)
    plain, acted = sampled(positive), sampled(weighted)
    expected, other = kept[f"{name}/latent weighted"], kept[f"{name}/latent plain"]
    scale = float(other.abs().max())
    pairs = ((plain, other), (acted, expected), (other, expected))
    own, difference, change = (float((one - two).abs().max()) / scale for one, two in pairs)
    return own, difference, change


def main(pack: Path, file: Path, outcome: Path) -> None:
    """Compare, and write what was found."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.remove(str(Path(__file__).resolve().parent))
    from comfy.cli_args import args

    args.cpu = True
    with torch.inference_mode():
        load_pack()
        kept = load_file(file)
        found = {name: made_again(name, kept) for name in SIZES}
    outcome.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
