"""ComfyUI and packs of nodes in it: its own loader, tokenizer and encode, and our nodes' path through the same CLIP.

Settings of ComfyUI_ADV_CLIP_emb and comfyui-prompt-control are ``style`` and ``normalization``, by their own names; the
others have none.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any


def open_peer(job: dict[str, Any]) -> tuple[dict[str, str], Any, Any]:
    """The weights in ComfyUI's CLIP-L, in float32 on the CPU."""
    clip, versions = open_clip(job)
    return versions, partial(stock, clip), partial(ours, clip)


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
    versions = {
        "ComfyUI": comfyui_version.__version__,
        "numpy": numpy.__version__,
        "transformers": transformers.__version__,
    }
    return clip, versions


def stock(clip: Any, settings: dict[str, Any], prompt: str) -> Any:
    """Hidden states of the host's own encode."""
    return clip.encode_from_tokens_scheduled(clip.tokenize(prompt))[0][0]


def ours(clip: Any, options: dict[str, Any], prompt: str) -> Any:
    """Result of our nodes for the prompt with this CLIP."""
    from ...hosts.comfy.clip.clip import encode_text
    from ...weighting.options import EncodeOptions

    return encode_text(clip, prompt, EncodeOptions(**options)).conditioning[0][0]


# ---- packs


def open_adv_clip_emb(job: dict[str, Any]) -> tuple[dict[str, str], Any, Any]:
    """ComfyUI's CLIP, and the single module of ComfyUI_ADV_CLIP_emb."""
    clip, versions = open_clip(job)
    versions["ADV_CLIP_emb"] = commit_of(Path(job["folder"]))
    return versions, encode_with(clip, job["folder"]), partial(ours, clip)


def encode_with(clip: Any, folder: str) -> Callable[[dict[str, Any], str], Any]:
    """The function that the pack's node CLIP Text Encode (Advanced) calls, with a CLIP."""
    advanced_encode = runpy.run_path(str(Path(folder, "adv_encode.py")))["advanced_encode"]
    return lambda settings, prompt: advanced_encode(clip, prompt, settings["normalization"], settings["style"])[0]


def open_prompt_control(job: dict[str, Any]) -> tuple[dict[str, str], Any, Any]:
    """ComfyUI's CLIP, and the encoder of comfyui-prompt-control without its nodes."""
    clip, versions = open_clip(job)
    folder = Path(job["folder"])
    prompts = module_of_pack(folder, "prompt_control.prompts")
    match = re.search(r'^version = "(.+)"', (folder / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    versions["prompt-control"] = match[1] if match else "unknown"

    def encode(settings: dict[str, Any], prompt: str) -> Any:
        text = f"STYLE({settings['style']}, {settings['normalization']}){prompt}"
        return prompts.encode_prompt(clip, text, 0.0, 1.0, {}, None)[0][0]

    return versions, encode, partial(ours, clip)


def open_ppm(job: dict[str, Any]) -> tuple[dict[str, str], Any, Any]:
    """ComfyUI's CLIP as the node CLIP NegPip of ComfyUI-ppm patches it.

    Hidden states are pairs of rows, one to be read as key and one as value.
    """
    clip, versions = open_clip(job)
    from comfy.ldm.cosmos import predict2  # not before the host is told to run on the CPU

    folder = Path(job["folder"])
    if not hasattr(predict2, "apply_rotary_pos_emb"):
        predict2.apply_rotary_pos_emb = None  # the pack imports it for another model; ComfyUI 0.29.0 no longer has it
    node = module_of_pack(folder, "src.nodes_ppm.clip_negpip").CLIPNegPip
    _, patched = node.execute(model=_model(), clip=clip).args
    return {**versions, "ComfyUI-ppm": commit_of(folder)}, partial(stock, patched), partial(ours, patched)


def _model() -> Any:
    """A MODEL of Stable Diffusion's class without the U-Net, as that node checks the class."""
    import torch
    from comfy.model_base import BaseModel
    from comfy.model_patcher import ModelPatcher

    model = BaseModel.__new__(BaseModel)
    torch.nn.Module.__init__(model)
    model.diffusion_model = torch.nn.Identity()
    cpu = torch.device("cpu")
    return ModelPatcher(model, cpu, cpu)


def module_of_pack(folder: Path, name: str) -> Any:
    """A module of a node pack, imported without the pack's own ``__init__``."""
    parent = sys.modules["reference_pack"] = ModuleType("reference_pack")
    parent.__path__ = [str(folder)]
    return importlib.import_module(f"reference_pack.{name}")


def commit_of(folder: Path) -> str:
    """Commit, used as the version of a pack that has no other."""
    try:
        command = ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
