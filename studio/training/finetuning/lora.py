"""LoRA of a text tower's layers, by peft, with key names for ComfyUI, A1111 and Forge.

Source: E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021; names as in ``model_lora_keys_clip``
of ComfyUI 0.29 and in kohya-ss/sd-scripts.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from ....encoder.models.text_model import TextModel

TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
"""Matrices of each layer that get a LoRA."""

LORA_NAMES = {"sd1": "lora_te", "sd2": "lora_te", "sdxl_l": "lora_te1", "sdxl_g": "lora_te2", "refiner": "lora_te"}
"""Key prefixes by the model that the text tower belongs to."""

_ADAPTER = "default"


def add_lora(text: TextModel, rank: int, seed: int) -> None:
    """Add a LoRA to the matrices of all layers, which is 0 at first, and freeze everything else."""
    if rank < 1:
        raise ValueError(f"the rank of a LoRA must be at least 1, got {rank}")
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        raise ValueError("a LoRA needs peft, which python run.py train installs") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(r=rank, lora_alpha=rank, target_modules=list(TARGETS))
        inject_adapter_in_model(config, text, adapter_name=_ADAPTER)


def is_lora(name: str) -> bool:
    """Whether a parameter of this name belongs to a LoRA."""
    return ".lora_" in name


def merged(text: TextModel) -> dict[str, Tensor]:
    """Parameters by their original names with the LoRA merged in, if there is one."""
    parameters = {
        name.replace(".base_layer.", "."): parameter.detach()
        for name, parameter in text.named_parameters()
        if not is_lora(name)
    }
    for name, layer in _updated(text).items():
        weight = f"{name}.weight"
        parameters[weight] = parameters[weight] + layer.get_delta_weight(_ADAPTER).detach()
    return parameters


def lora_tensors(text: TextModel, model: str) -> dict[str, Tensor]:
    """The LoRA as hosts read it: down ``[rank, in]``, up ``[out, rank]``; they multiply with ``.alpha`` / rank."""
    tensors: dict[str, Tensor] = {}
    for name, layer in _updated(text).items():
        key = f"{LORA_NAMES[model]}_text_model_{name.replace('.', '_')}"
        tensors[f"{key}.lora_down.weight"] = _plain(layer.lora_A[_ADAPTER].weight)
        tensors[f"{key}.lora_up.weight"] = _plain(layer.lora_B[_ADAPTER].weight)
        tensors[f"{key}.alpha"] = torch.tensor(float(layer.lora_alpha[_ADAPTER]))
    return tensors


def _updated(text: TextModel) -> dict[str, Any]:
    """Layers with a LoRA, by name."""
    return {name: cast("Any", layer) for name, layer in text.named_modules() if hasattr(layer, "get_delta_weight")}


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous()


def model_of(hidden_dim: int) -> str:
    """Model that a text tower of a width most likely belongs to.

    >>> model_of(768), model_of(1280)
    ('sd1', 'sdxl_g')
    """
    return {1024: "sd2", 1280: "sdxl_g"}.get(hidden_dim, "sd1")
