"""ComfyUI: its own loader, tokenizer and encode; and our nodes' path through the same CLIP object.

Settings: none, or ``options`` (fields of `EncodeOptions`) for our host path in the same process.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any


def open_peer(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """The weights in ComfyUI's CLIP-L, in float32 on the CPU."""
    clip, about = open_clip(job)
    return about, or_ours(clip, lambda settings, prompt: stock(clip, prompt))


def open_clip(job: dict[str, Any]) -> tuple[Any, dict[str, str]]:
    """ComfyUI's CLIP object and versions; the working directory is its checkout.

    A job may have ``sizes`` of the text encoder, if it is not CLIP-L.
    """
    from comfy.cli_args import args

    args.cpu = True
    import comfy.sd
    import comfyui_version
    import numpy
    import torch
    import transformers

    options: dict[str, Any] = {"dtype": torch.float32}
    if "sizes" in job:
        options["model_config"] = job["sizes"]
    clip = comfy.sd.load_clip(
        ckpt_paths=[job["weights"]], clip_type=comfy.sd.CLIPType.STABLE_DIFFUSION, model_options=options
    )
    about = {
        "ComfyUI": comfyui_version.__version__,
        "numpy": numpy.__version__,
        "transformers": transformers.__version__,
    }
    return clip, about


def stock(clip: Any, prompt: str) -> Any:
    """Hidden states of the host's own encode."""
    return clip.encode_from_tokens_scheduled(clip.tokenize(prompt))[0][0]


def or_ours(clip: Any, theirs: Callable[[dict[str, Any], str], Any]) -> Callable[[dict[str, Any], str], Any]:
    """A program's function, but our nodes' result with this CLIP where the settings ask for that."""

    def encode(settings: dict[str, Any], prompt: str) -> Any:
        return ours(clip, settings["options"], prompt) if "options" in settings else theirs(settings, prompt)

    return encode


def ours(clip: Any, options: dict[str, Any], prompt: str) -> Any:
    """Result of our nodes for the prompt with this CLIP."""
    from ...hosts.comfy.clip import encode_text
    from ...weighting.options import EncodeOptions

    return encode_text(clip, prompt, EncodeOptions(**options)).conditioning[0][0]


def open_unet(sizes: dict[str, Any]) -> Any:
    """A MODEL of Stable Diffusion 1 with seeded random weights, in float32."""
    import torch
    from comfy import model_patcher, supported_models

    config = supported_models.SD15({**sizes, "dtype": torch.float32})
    cpu = torch.device("cpu")
    model = config.get_model({}, device=cpu)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.diffusion_model.parameters():
        parameter.normal_(std=0.02, generator=generator)
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def commit_of(folder: Path) -> str:
    """Commit, used as the version of a pack that has no other."""
    try:
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
