"""ComfyUI: its own loader, tokenizer and encode; and our nodes' path through the same CLIP object.

Settings: ``{"way": "stock"}``, or ``{"way": "weighted_clip", "options": {...}}`` for our host path in the same process.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any


def open_reference(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """Load the weights into ComfyUI's CLIP-L in float32 on the CPU."""
    clip, about = open_clip(job)

    def encode(settings: dict[str, Any], prompt: str) -> Any:
        if settings["way"] == "weighted_clip":
            return ours(clip, settings["options"], prompt)
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


def ours(clip: Any, options: dict[str, Any], prompt: str) -> Any:
    """Result of our nodes for the prompt with this CLIP."""
    from ...hosts.comfy.clip import encode_text
    from ...weighting.options import EncodeOptions

    return encode_text(clip, prompt, EncodeOptions(**options)).conditioning[0][0]


def commit_of(folder: Path) -> str:
    """Commit, used as the version of a pack that has no other."""
    try:
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
