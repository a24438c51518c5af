"""The SDXL node: a text for each of the two towers, and the sizes SDXL is conditioned on."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text, towers_of
from ..weighting.options import EncodeOptions
from ..weighting.prompt import Issue, Span
from . import common
from .common import EncodeNode
from .results import encoded_result

MAX_SIZE = 16384
"""Largest size accepted by ComfyUI's nodes, in pixels."""


def size_input(tooltip: str, default: int = 1024) -> common.Input:
    """Make an input for a length in pixels."""
    return common.make_input("INT", tooltip, {"default": default, "min": 0, "max": MAX_SIZE})


class WeightedCLIPSDXLEncode(EncodeNode):
    """Encodes for SDXL: a text for each of its two encoders, and the sizes it was trained with. With everything on
    comfy it gives exactly what the stock CLIP Text Encode SDXL gives, and on the refiner's CLIP what the stock node for
    the refiner gives.
    """

    title = "CLIP Text Encode SDXL (Weighted)"
    aliases = "sdxl, refiner, clip text encode sdxl, prompt, weights, size conditioning"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip"),
                "text_g": common.prompt_input(
                    "The prompt for CLIP-G, the large encoder. As in the stock node, // starts a comment."
                ),
                "text_l": common.prompt_input("The prompt for CLIP-L; usually the same as for CLIP-G."),
                "width": size_input("Width that SDXL should take the original picture to have had, in pixels."),
                "height": size_input("Its height."),
                "crop_w": size_input("How many pixels were cut off at its left; 0: well centred pictures.", 0),
                "crop_h": size_input("How many at its top.", 0),
                "target_width": size_input("Width of the picture wanted."),
                "target_height": size_input("Its height."),
                **common.inputs("syntax", "scheme"),
                **common.rare_inputs("normalization", "chunking", "padding", "pooled"),
            },
            "optional": {
                "aesthetic_score": common.make_input(
                    "FLOAT",
                    "For the refiner only: 6 for the prompt, 2.5 for the negative prompt.",
                    {"default": 6.0, "min": 0.0, "max": 1000.0, "step": 0.01},
                ),
                **common.rare_inputs("cleaning", "finest_step"),
            },
            "hidden": common.METADATA,
        }

    options = EncodeOptions
    """Options from the menus, which are named like its fields."""

    def encode(
        self,
        clip: EitherClip,
        text_g: str,
        text_l: str,
        width: int,
        height: int,
        crop_w: int,
        crop_h: int,
        target_width: int,
        target_height: int,
        aesthetic_score: float = 6.0,
        **choices: Any,
    ) -> dict[str, Any]:
        """Encode; ``choices`` are the menus."""
        towers = towers_of(clip)
        if "clip_g" not in towers:
            raise ValueError(
                f"This CLIP holds {' and '.join(towers)}, no clip_g: it is not SDXL's. Use CLIP Text Encode (Weighted) "
                "for this model."
            )
        values: dict[str, Any] = {"width": width, "height": height}
        issues: list[Issue] = []
        if towers == ("clip_g",):
            values["aesthetic_score"] = aesthetic_score
            if text_l.strip() and text_l != text_g:
                message = "This is the refiner's CLIP, which has no CLIP-L: text_l is not used."
                issues.append(Issue("unused-text", message, Span(0, 0)))
        else:
            values |= {"crop_w": crop_w, "crop_h": crop_h, "target_width": target_width, "target_height": target_height}
        texts = {name: text_l if name == "clip_l" else text_g for name in towers}
        return encoded_result(encode_text(clip, texts, self.options(**choices), values), issues)
