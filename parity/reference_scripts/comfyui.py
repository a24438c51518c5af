"""ComfyUI: its own loader, tokenizer and encode; and our nodes' way through the same CLIP object.

Settings: ``{"way": "stock"}``, or ``{"way": "weighted_clip", "options": {...}}`` for our host path in the same process.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from typing import Any

from pack import PACK, load_pack


def open_reference(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """Load the weights into ComfyUI's CLIP-L in float32 on the CPU."""
    clip, about = open_clip(job)

    def encode(settings: dict[str, Any], prompt: str) -> Any:
        if settings["way"] == "weighted_clip":
            return ours(job, clip, settings["options"], prompt)
        return clip.encode_from_tokens_scheduled(clip.tokenize(prompt))[0][0]

    return about, encode


def open_clip(job: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """ComfyUI's CLIP object and versions; the working directory is its checkout."""
    from comfy.cli_args import args

    args.cpu = True
    import comfy.sd
    import comfyui_version
    import numpy
    import torch
    import transformers

    clip = comfy.sd.load_clip(
        ckpt_paths=[job["weights"]],
        clip_type=comfy.sd.CLIPType.STABLE_DIFFUSION,
        model_options={"dtype": torch.float32},
    )
    about = {
        "ComfyUI": comfyui_version.__version__,
        "numpy": numpy.__version__,
        "transformers": transformers.__version__,
    }
    return clip, about


def ours(job: dict[str, Any], clip: Any, options: dict[str, Any], prompt: str) -> Any:
    """What our nodes make of the prompt with this CLIP."""
    load_pack(job)
    host = importlib.import_module(f"{PACK}.hosts.comfy.clip")
    choices = importlib.import_module(f"{PACK}.weighting.encode").EncodeOptions(**options)
    return host.encode_text(clip, prompt, choices).conditioning[0][0]
