"""Rows repeated by the scheme ``repeat`` in Forge's own U-Net class, compared with a bias in its cross attention.

Run by test_forge_unet.py in Forge's own Python, with its checkout as working directory:

    python forge_unet.py PACKAGE OUTCOME --always-cpu

Writes for each prompt the number of rows, the largest difference and the largest change that the weights make, both
relative to the largest number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

PACKAGE = "weighted_clip_webui"
WIDTH = 128
TEXTS = ("a (red:1.5) cat on a (mat:3)", "a (red:0.25) cat, (oil:2) painting", "a (red:1.3) cat", "a (cat:2)", "a cat")


def load_package(root: Path) -> None:
    """Load our package as scripts/weighted_clip.py does."""
    spec = importlib.util.spec_from_file_location(PACKAGE, root / "__init__.py", submodule_search_locations=[str(root)])
    assert spec and spec.loader
    sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])


def encodings() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Rows of each text without weights, the repeated rows, and the weights, by our own encoder."""
    names = ("encoder.config", "encoder.files.checkpoint", "weighting.encoders")
    config, checkpoint, door = (importlib.import_module(f"{PACKAGE}.{name}") for name in names)
    model = checkpoint.seeded_text_model(config.TextConfig(hidden_dim=WIDTH, num_heads=2, num_layers=2, mlp_dim=256))
    encoders = door.Encoders.of_models({"clip_l": model})
    found: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []
    for text in TEXTS:
        plain, many = (
            encoders.prepare([text], scheme=scheme).run()[0].prompts["clip_l"] for scheme in ("unweighted", "repeat")
        )
        found.append((plain.hidden, many.hidden, torch.tensor(plain.read.chunks[0].weights)))
    return found


def make_unet() -> torch.nn.Module:
    """A small one of Stable Diffusion 1's kind, with random weights from a fixed seed."""
    from backend.nn.unet import IntegratedUNet2DConditionModel

    unet = IntegratedUNet2DConditionModel(
        in_channels=4,
        out_channels=4,
        model_channels=32,
        num_res_blocks=[1, 1],
        channel_mult=[1, 2],
        transformer_depth=[1, 1],
        transformer_depth_middle=1,
        transformer_depth_output=[1, 1, 1, 1],
        use_spatial_transformer=True,
        context_dim=WIDTH,
        num_heads=8,
    )
    generator = torch.Generator().manual_seed(0)
    for name, parameter in sorted(unet.named_parameters()):
        values = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            parameter.data.copy_(values * parameter.shape[1:].numel() ** -0.5)
        else:
            parameter.data.copy_(float(name.endswith(".weight")) + 0.2 * values)
    return unet.eval()


def biased(weights: torch.Tensor) -> dict[str, Any]:
    """Options by which every cross attention is written out, with ``ln w`` added to the logits of every row."""

    def replace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        heads = options["n_heads"]
        queries, keys, values = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (q, k, v))
        logits = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1]) + weights.log()
        return (torch.softmax(logits, dim=-1) @ values).transpose(1, 2).flatten(2)

    blocks = [(name, number) for name in ("input", "middle", "output") for number in range(12)]
    return {"patches_replace": {"attn2": dict.fromkeys(blocks, replace)}}


def main(package: Path, outcome: Path) -> None:
    """Compare, and write what was found."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.insert(1, str(Path.cwd() / "packages_3rdparty"))
    load_package(package)
    unet = make_unet()
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(1, 4, 16, 16, generator=generator)
    found: list[tuple[int, float, float]] = []
    for plain, many, weights in encodings():

        def predicted(rows: torch.Tensor, **options: Any) -> torch.Tensor:
            return unet(noise, timesteps=torch.tensor([500]), context=rows, transformer_options=options)

        expected, unweighted, measured = predicted(plain, **biased(weights)), predicted(plain), predicted(many)
        scale = float(expected.abs().max())
        difference, change = (float((one - expected).abs().max()) / scale for one in (measured, unweighted))
        found.append((many.shape[1], difference, change))
    outcome.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
