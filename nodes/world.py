"""Node of the small world, a Stable Diffusion of coloured shapes that comes with the pack."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.models.world import load_hosted_world
from ..hosts.comfy.types import Clip, ModelPatcher
from ..studio.world.model import WORLDS, trained
from .base.node import DEVICES, Node, Out, checked, make_input


class WeightedCLIPLoadWorld(Node):
    """Loads a small model, 4 MB, that draws coloured things, 32 x 32 pixels, within seconds on any computer: prompts,
    weights and the nodes of this pack can be tried without a checkpoint.
    """

    title = "Load Small World"
    aliases = "checkpoint, demo model, tiny stable diffusion, shapes, try weights, test model"
    outputs = (
        Out("MODEL", "MODEL", "The diffusion model, for KSampler: scheduler simple."),
        Out("CLIP", "CLIP", "The text encoder, for any node that encodes a prompt."),
        Out("VAE", "VAE", "The VAE."),
    )
    FUNCTION = "load"
    required = {"device": make_input(DEVICES, "auto: where the host runs such models.")}
    optional = {
        "kind": make_input(
            WORLDS,
            "unet: coloured shapes, by CLIP and a U-Net, as in Stable Diffusion. joint: coloured discs with textures, "
            "by Qwen 3 and joint attention, as in Z-Image, Flux and Qwen-Image.",
        )
    }

    def load(self, device: str, kind: str = "unet") -> tuple[ModelPatcher, Clip, Any]:
        """Read the pack's own world."""
        path = trained(checked("kind", kind, WORLDS))
        return load_hosted_world(path, checked("device", device, DEVICES))
