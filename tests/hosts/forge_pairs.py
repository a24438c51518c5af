"""Rows in pairs in Forge's own U-Net class, compared with explicit signs in its cross attention.

Run by test_forge_negpip.py in Forge's own Python, with its checkout as working directory:

    python forge_pairs.py PACKAGE OUTCOME --always-cpu

Writes for each prompt its text, the largest difference and the largest change that the signs make, both relative to the
largest number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from forge_unet import PACKAGE, WIDTH, load_package, make_unet

TEXTS = ("a (red:1.5) cat, (oil painting:-1.2)", "a (red:-1) cat on a (mat:0.4)", "a (red:1.5) cat")


def signed(signs: torch.Tensor) -> dict[str, Any]:
    """Options by which every cross attention is written out, with the values of rows multiplied by signs."""

    def replace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        heads = options["n_heads"]
        queries, keys, values = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (q, k, v))
        logits = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])
        return (torch.softmax(logits, dim=-1) @ (values * signs[:, None])).transpose(1, 2).flatten(2)

    blocks = [(name, number) for name in ("input", "middle", "output") for number in range(12)]
    return {"patches_replace": {"attn2": dict.fromkeys(blocks, replace)}}


def main(package: Path, outcome: Path) -> None:
    """Compare, and write what was found."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.insert(1, str(Path.cwd() / "packages_3rdparty"))
    load_package(package)
    names = ("encoder.config", "encoder.files.checkpoint", "weighting.encoders", "hosts.webui.pairs")
    config, checkpoint, door, pairs = (importlib.import_module(f"{PACKAGE}.{name}") for name in names)
    negpip = importlib.import_module(f"{PACKAGE}.weighting.schemes.negpip")
    model = checkpoint.seeded_text_model(config.TextConfig(hidden_dim=WIDTH, num_heads=2, num_layers=2, mlp_dim=256))
    encoders = door.Encoders.of_models({"clip_l": model})
    unet = make_unet()
    host_model = SimpleNamespace(forge_objects=SimpleNamespace(unet=SimpleNamespace(model=SimpleNamespace())))
    host_model.forge_objects.unet.model.diffusion_model = unet
    noise = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))
    found: list[tuple[str, float, float]] = []

    def predicted(rows: torch.Tensor, **options: Any) -> torch.Tensor:
        return unet(noise, timesteps=torch.tensor([500]), context=rows, transformer_options=options)

    for text in TEXTS:
        ours = encoders.prepare([text], scheme="negpip").run()[0].prompts["clip_l"]
        plain = encoders.prepare([text.replace(":-", ":")], scheme="comfy").run()[0].hidden
        weights = torch.tensor(ours.read.chunks[0].weights)
        expected = predicted(plain, **signed(torch.where(weights < 0, -1.0, 1.0)))
        with pairs.reading_pairs(host_model):
            measured = predicted(negpip.paired(ours.hidden, ours.signs))
        scale = float(expected.abs().max())
        difference, change = (float((one - expected).abs().max()) / scale for one in (measured, predicted(plain)))
        found.append((text, difference, change))
    outcome.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
