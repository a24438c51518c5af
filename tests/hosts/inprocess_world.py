"""Checks of the small world's U-Net against ComfyUI's own, with the same weights.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from typing import Any

import torch
from inprocess import CLOSE, OURS, compares, difference, main


def world_part(name: str) -> Any:
    """A module of the pack's room ``world``."""
    import nodes

    package = nodes.NODE_CLASS_MAPPINGS[OURS].__module__.partition(".nodes")[0]
    return importlib.import_module(f"{package}.world.{name}")


@compares("U-Net of the small world, random weights, with the host's", limit=CLOSE)
def check_the_hosts_unet_gives_the_small_worlds_numbers() -> None:
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    unet = world_part("unet")
    config = unet.UNetConfig()
    ours = unet.UNet(config).eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in ours.parameters():
        parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    theirs = UNetModel(
        **config.for_host(), dtype=torch.float32, device="cpu", operations=comfy.ops.disable_weight_init
    ).eval()
    theirs.load_state_dict(ours.state_dict(), strict=True)
    latents = torch.randn(3, 12, 16, 20, generator=generator)
    times, rows = torch.tensor([1.0, 500.0, 999.0]), torch.randn(3, 77, 128, generator=generator)
    with torch.no_grad():
        found, expected = ours(latents, times, unet.Text(rows)), theirs(latents, timesteps=times, context=rows)
    assert expected.abs().max() > 0.1
    difference(found, expected)


if __name__ == "__main__":
    main(globals())
