"""Writes a model's parameters as the files of other programs have them, by rules of its own: none of layouts.py."""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from weighted_clip.encoder.files.checkpoint import LoadReport, load_text_models
from weighted_clip.encoder.models.text_model import TextModel

Tensors = dict[str, Tensor]

OPENCLIP_NAMES = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "encoder.layers": "transformer.resblocks",
    "layer_norm1": "ln_1",
    "layer_norm2": "ln_2",
    "self_attn.out_proj": "attn.out_proj",
    "mlp.fc1": "mlp.c_fc",
    "mlp.fc2": "mlp.c_proj",
    "final_layer_norm": "ln_final",
}

OTHER_TENSORS = {
    "logit_scale": torch.tensor(4.6),
    "visual.transformer.resblocks.0.ln_1.weight": torch.zeros(3),
    "model.diffusion_model.out.weight": torch.zeros(3),
    "first_stage_model.decoder.weight": torch.zeros(3),
}
"""Other tensors in such files."""


def write(path: Path, tensors: Tensors) -> Path:
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    return path


def only_text_model(path: Path, **options: Any) -> tuple[TextModel, LoadReport]:
    """The text tower of a file that has just one."""
    models, report = load_text_models(path, **options)
    (model,) = models.values()
    return model, report


def transformers_5(tensors: Tensors, prefix: str) -> Tensors:
    return {prefix + key: tensor for key, tensor in tensors.items()}


def hugging_face(tensors: Tensors, prefix: str) -> Tensors:
    """The projection is outside the tower."""
    return {prefix + ("" if "projection" in key else "text_model.") + key: tensor for key, tensor in tensors.items()}


def old_clip_save(tensors: Tensors, prefix: str) -> Tensors:
    """As ComfyUI's CLIPSave once wrote SDXL's second encoder: Hugging Face's names, OpenCLIP's projection."""
    named = hugging_face(tensors, prefix)
    return named | {f"{prefix}text_projection": named.pop(f"{prefix}text_projection.weight").T}


def openclip_linear(tensors: Tensors, prefix: str) -> Tensors:
    """Query, key and value in one tensor; the projection a linear layer."""
    named: Tensors = {}
    for key, tensor in tensors.items():
        if ".q_proj." in key:
            stacked = torch.cat([tensor, *(tensors[key.replace("q_proj", f"{part}_proj")] for part in "kv")])
            key, tensor = re.sub(r"self_attn\.q_proj\.", "attn.in_proj_", key), stacked
        elif ".k_proj." in key or ".v_proj." in key:
            continue
        for ours, theirs in OPENCLIP_NAMES.items():
            key = key.replace(ours, theirs)
        named[prefix + key] = tensor
    return named


def openclip(tensors: Tensors, prefix: str) -> Tensors:
    """The projection a bare matrix, so the other way round."""
    named = openclip_linear(tensors, prefix)
    projection = named.pop(f"{prefix}text_projection.weight", None)
    return named if projection is None else named | {f"{prefix}text_projection": projection.T}
