"""Writing CLIP's towers for other programs: with Hugging Face's keys, by the tables of ``layouts.py``.

Decides the key of each parameter. ``output/`` writes the bytes.

Source: the ``model.safetensors`` of openai/clip-vit-large-patch14. ComfyUI 0.29 recognises a text encoder by the prefix
``text_model.``: without it, it finds none of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..config import HEAD_DIM, VISION_TOWERS, TextConfig, VisionConfig
from ..rotary import ABOUT
from ..text_model import TextModel
from ..vision_model import VisionModel
from .layouts import HUGGING_FACE, HUGGING_FACE_VISION, LAYER_NUMBER, POSITION_NAME


def hugging_face_tensors(
    model: TextModel | VisionModel, parameters: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Parameters of a tower under the keys known to transformers, ComfyUI, A1111 and Forge.

    Args:
        model: The tower.
        parameters: Values by our names instead of the model's own, such as their moving averages.

    Returns:
        Contiguous tensors by key, on the CPU, in their original types. For a tower with rotary positions this includes
        a position table of width 0, which hosts refuse: without it they would use uninitialised memory as a table.
    """
    table = HUGGING_FACE if isinstance(model, TextModel) else HUGGING_FACE_VISION
    keys: dict[str, str] = {}
    for key, name in table.items():
        keys.setdefault(name, key)
    tensors: dict[str, Tensor] = {}
    for name, tensor in (dict(model.named_parameters()) if parameters is None else parameters).items():
        match = LAYER_NUMBER.search(name)
        key = keys[LAYER_NUMBER.sub("{}", name)].format(match.group() if match else "")
        tensors[key] = tensor.detach().cpu().contiguous()
    if isinstance(model, TextModel) and model.config.positions == "rotary":
        tensors[keys[POSITION_NAME]] = torch.zeros(model.config.context_length, 0)
    return tensors


def config_of(text: TextConfig, vision: VisionConfig) -> dict[str, Any] | None:
    """Contents of a ``config.json`` for both towers.

    Returns:
        The config, or None where readers of the file alone take it for a model of the same heads, activation and
        epsilon.
    """
    released = next((one for one in VISION_TOWERS.values() if one.hidden_dim == vision.hidden_dim), None)
    usual = VisionConfig() if released is None else released
    heads = vision.hidden_dim // HEAD_DIM if released is None else released.num_heads
    told = {(one.activation, one.layer_norm_eps) for one in (text, vision)}
    is_usual = told == {(usual.activation, usual.layer_norm_eps)}
    if is_usual and (text.num_heads, vision.num_heads) == (text.hidden_dim // HEAD_DIM, heads):
        return None

    def shared(config: TextConfig | VisionConfig) -> dict[str, Any]:
        return {
            "hidden_size": config.hidden_dim,
            "intermediate_size": config.mlp_dim,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
            "hidden_act": config.activation,
            "layer_norm_eps": config.layer_norm_eps,
            "projection_dim": config.projection_dim,
        }

    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": text.projection_dim,
        "text_config": {
            **shared(text),
            "model_type": "clip_text_model",
            "max_position_embeddings": text.context_length,
            "vocab_size": text.vocab_size,
        },
        "vision_config": {
            **shared(vision),
            "model_type": "clip_vision_model",
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
        },
    }


def position_metadata(config: TextConfig) -> dict[str, str]:
    """Metadata entries about a text tower's positions; empty if they are learned, as hosts expect."""
    return {"positions": "rotary", "rotary": ABOUT} if config.positions == "rotary" else {}
