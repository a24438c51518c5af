"""Writing CLIP's towers as other programs read them: Hugging Face's keys, by the tables of ``layouts.py``.

Owns which key a parameter gets. The bytes are written by ``output/``.

Source: the ``model.safetensors`` of openai/clip-vit-large-patch14. ComfyUI 0.29 takes a text encoder by the prefix
``text_model.``: without it, it finds none of its weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..config import TextConfig
from ..rotary import ABOUT
from ..text_model import TextModel
from ..vision_model import VisionModel
from .layouts import HUGGING_FACE, HUGGING_FACE_VISION, LAYER_NUMBER, POSITION_NAME


def hugging_face_tensors(
    model: TextModel | VisionModel, parameters: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """The parameters of a tower under the keys that transformers, ComfyUI, A1111 and Forge know.

    Args:
        model: The tower.
        parameters: By our names, in place of the model's own, such as their moving averages.

    Returns:
        By key, on the CPU, contiguous, in the type that they have. Of a tower with rotary positions also a table of
        positions that are 0 wide: a host without it would take memory as it is found for one, and refuses this.
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


def position_metadata(config: TextConfig) -> dict[str, str]:
    """What a file's metadata say of a text tower's positions; nothing where they are learned, as hosts expect."""
    return {"positions": "rotary", "rotary": ABOUT} if config.positions == "rotary" else {}
