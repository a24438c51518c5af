"""A node pack for the tests of Weighted CLIP: a CLIP that is slow or fails, and a MODEL that cannot see some rows."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

ASLEEP = "WeightedCLIPTestFaultyClip sleeps"
"""Line in the server's log at that time."""


class WeightedCLIPTestFaultyClip:
    """A clone of a CLIP whose third layer sleeps each time it is used, or raises; the CLIP itself stays as it is."""

    RETURN_TYPES = ("CLIP",)
    FUNCTION = "patch"
    CATEGORY = "Weighted CLIP tests"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"clip": ("CLIP",), "seconds": ("FLOAT", {"default": 0.0}), "error": ("STRING", {})}}

    def patch(self, clip: Any, seconds: float, error: str) -> tuple[Any]:
        clone = clip.clone()
        path = "clip_l.transformer.text_model.encoder.layers.2.forward"
        forward = clone.patcher.get_model_object(path)

        def faulty(*arguments: Any, **options: Any) -> Any:
            if seconds:
                logging.info(ASLEEP)
                time.sleep(seconds)
            if error:
                raise RuntimeError(error)
            return forward(*arguments, **options)

        clone.patcher.add_object_patch(path, faulty)
        return (clone,)


class WeightedCLIPTestMaskRows:
    """A clone of a MODEL whose cross attention sees only the first rows of the positive prompt."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "Weighted CLIP tests"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": ("MODEL",), "rows": ("INT", {"default": 77})}}

    def patch(self, model: Any, rows: int) -> tuple[Any]:
        from comfy.ldm.modules import attention  # pyright: ignore[reportMissingImports]

        def replace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
            bias = torch.zeros(len(q), q.shape[1], k.shape[1])
            for index, which in enumerate(options["cond_or_uncond"]):
                if which == 0:
                    bias[index, :, rows:] = -torch.inf
            return attention.optimized_attention_masked(q, k, v, options["n_heads"], bias)

        clone = model.clone()
        for name, count in (("input", 12), ("middle", 1), ("output", 12)):
            for number in range(count):
                clone.set_model_attn2_replace(replace, name, number)
        return (clone,)


NODE_CLASS_MAPPINGS = {node.__name__: node for node in (WeightedCLIPTestFaultyClip, WeightedCLIPTestMaskRows)}
