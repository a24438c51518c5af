"""Rows repeated or in pairs in Forge's own U-Net class, compared with its cross attention written out.

The rows of the scheme ``repeat`` are compared with a bias, those of ``negpip`` with signs. Run by test_webui_python.py
in Forge's own Python, with its checkout as working directory:

    python forge_unet.py PACKAGE OUTCOME --always-cpu

Writes for each prompt of each scheme its text, the number of rows, the largest difference and the largest change that
the weights make, both relative to the largest number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from webui_engines import load_package, ours

WIDTH = 128
REPEATED = (
    *("a (red:1.5) cat on a (mat:3)", "a (red:0.25) cat, (oil:2) painting", "a (red:1.3) cat", "a (cat:2)", "a cat"),
)
PAIRED = ("a (red:1.5) cat, (oil painting:-1.2)", "a (red:-1) cat on a (mat:0.4)", "a (red:1.5) cat")
Found = tuple[str, int, float, float]


def make_encoders() -> Any:
    """Our own encoder with two narrow layers."""
    config = ours("encoder.models.config").TextConfig(hidden_dim=WIDTH, num_heads=2, num_layers=2, mlp_dim=256)
    model = ours("encoder.files.checkpoint").seeded_text_model(config)
    return ours("weighting.encoders").Encoders.of_models({"clip_l": model})


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


def written_out(bias: torch.Tensor | float = 0.0, signs: torch.Tensor | float = 1.0) -> dict[str, Any]:
    """Options by which every cross attention is written out, with a bias of every row's logits, and signs of values."""

    def replace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        heads = options["n_heads"]
        queries, keys, values = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (q, k, v))
        logits = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1]) + bias
        return (torch.softmax(logits, dim=-1) @ (values * signs)).transpose(1, 2).flatten(2)

    blocks = [(name, number) for name in ("input", "middle", "output") for number in range(12)]
    return {"patches_replace": {"attn2": dict.fromkeys(blocks, replace)}}


def compared(text: str, rows: int, measured: torch.Tensor, expected: torch.Tensor, unweighted: torch.Tensor) -> Found:
    """Record written for a prompt."""
    scale = float(expected.abs().max())
    difference, change = (float((one - expected).abs().max()) / scale for one in (measured, unweighted))
    return text, rows, difference, change


def repeated(encoders: Any, predicted: Callable[..., torch.Tensor]) -> list[Found]:
    """Results for the scheme ``repeat``: ``ln w`` is added to the logits of every row."""
    found: list[Found] = []
    for text in REPEATED:
        plain, many = (
            encoders.prepare([text], scheme=scheme).run()[0].prompts["clip_l"] for scheme in ("unweighted", "repeat")
        )
        weights = torch.tensor(plain.read.chunks[0].weights)
        expected = predicted(plain.hidden, **written_out(bias=weights.log()))
        rows = many.hidden.shape[1]
        found.append(compared(text, rows, predicted(many.hidden), expected, predicted(plain.hidden)))
    return found


def paired(encoders: Any, predicted: Callable[..., torch.Tensor], unet: torch.nn.Module) -> list[Found]:
    """Results for the scheme ``negpip``: the values of rows are multiplied by signs."""
    host_model = SimpleNamespace(forge_objects=SimpleNamespace(unet=SimpleNamespace(model=SimpleNamespace())))
    host_model.forge_objects.unet.model.diffusion_model = unet
    found: list[Found] = []
    for text in PAIRED:
        prompt = encoders.prepare([text], scheme="negpip").run()[0].prompts["clip_l"]
        plain = encoders.prepare([text.replace(":-", ":")], scheme="comfy").run()[0].hidden
        weights = torch.tensor(prompt.read.chunks[0].weights)
        expected = predicted(plain, **written_out(signs=torch.where(weights < 0, -1.0, 1.0)[:, None]))
        pairs = ours("weighting.schemes.negpip").paired(prompt.hidden, prompt.signs)
        with ours("hosts.webui.attention.pairs").reading_pairs(host_model):
            measured = predicted(pairs)
        found.append(compared(text, pairs.shape[1], measured, expected, predicted(plain)))
    return found


def main(package: Path, outcome: Path) -> None:
    """Compare, and write what was found."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.insert(1, str(Path.cwd() / "packages_3rdparty"))
    load_package(package)
    encoders, unet = make_encoders(), make_unet()
    noise = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(1))

    def predicted(rows: torch.Tensor, **options: Any) -> torch.Tensor:
        return unet(noise, timesteps=torch.tensor([500]), context=rows, transformer_options=options)

    found = {"repeat": repeated(encoders, predicted), "negpip": paired(encoders, predicted, unet)}
    outcome.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    with torch.no_grad():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
