"""A node pack for the tests of Weighted CLIP: it shows what is inside links of a running ComfyUI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch


class WeightedCLIPTestSaveConditioning:
    """Writes every tensor of a CONDITIONING to a file; all else about it goes to the file's metadata."""

    RETURN_TYPES = ()
    FUNCTION = "save"
    CATEGORY = "Weighted CLIP tests"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"conditioning": ("CONDITIONING",), "file": ("STRING", {"default": "conditioning"})}}

    def save(self, conditioning: list[list[Any]], file: str) -> dict[str, Any]:
        import folder_paths  # pyright: ignore[reportMissingImports]
        from safetensors.torch import save_file

        tensors: dict[str, torch.Tensor] = {}
        others: list[dict[str, Any]] = []
        for index, (hidden, values) in enumerate(conditioning):
            tensors[f"{index}.hidden"] = hidden.contiguous()
            others.append({})
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"{index}.{key}"] = value.contiguous()
                else:
                    others[index][key] = value if isinstance(value, (int, float, str)) else type(value).__name__
        path = Path(folder_paths.get_output_directory(), f"{file}.safetensors")
        save_file(tensors, path, metadata={"entries": json.dumps(others)})
        return {"ui": {"conditioning": [str(path)]}}


class WeightedCLIPTestShowText:
    """Sends a STRING to the history."""

    RETURN_TYPES = ()
    FUNCTION = "show"
    CATEGORY = "Weighted CLIP tests"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"text": ("STRING", {"forceInput": True})}}

    def show(self, text: str) -> dict[str, Any]:
        return {"ui": {"shown": [text]}}


class WeightedCLIPTestSameClip:
    """Hands on the very same CLIP; another number makes ComfyUI run again what comes after it."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "same"
    CATEGORY = "Weighted CLIP tests"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"clip": ("CLIP",), "number": ("INT", {"default": 0})}}

    def same(self, clip: Any, number: int) -> tuple[Any]:
        return (clip,)


NODE_CLASS_MAPPINGS = {
    node.__name__: node
    for node in (WeightedCLIPTestSaveConditioning, WeightedCLIPTestShowText, WeightedCLIPTestSameClip)
}
