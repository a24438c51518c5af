"""ComfyUI-ppm inside ComfyUI: its node CLIP NegPip, and the host's own encode with the resulting CLIP.

Settings: none, or ``options`` as in comfyui.py. Hidden states are pairs of rows, one to be read as key and one as
value.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any

from .comfyui import commit_of, open_clip, or_ours, stock
from .prompt_control import module_of_pack


def open_peer(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """ComfyUI's CLIP, as the pack's node patches it."""
    clip, about = open_clip(job)
    folder = Path(job["folder"])
    _, patched = _clip_negpip(folder).execute(model=_model(), clip=clip).args
    encode = or_ours(patched, lambda settings, prompt: stock(patched, prompt))
    return {**about, "ComfyUI-ppm": commit_of(folder)}, encode


def _clip_negpip(folder: Path) -> Any:
    """Their node. It imports a function for another model that ComfyUI 0.29.0 no longer has, and gets None instead."""
    from comfy.ldm.cosmos import predict2

    if not hasattr(predict2, "apply_rotary_pos_emb"):
        predict2.apply_rotary_pos_emb = None
    return module_of_pack(folder, "src.nodes_ppm.clip_negpip").CLIPNegPip


def _model() -> Any:
    """A MODEL of Stable Diffusion's class without the U-Net, as their node checks the class."""
    import torch
    from comfy.model_base import BaseModel
    from comfy.model_patcher import ModelPatcher

    model = BaseModel.__new__(BaseModel)
    torch.nn.Module.__init__(model)
    model.diffusion_model = torch.nn.Identity()
    cpu = torch.device("cpu")
    return ModelPatcher(model, cpu, cpu)
