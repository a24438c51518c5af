"""Nodes that hide words: Down-Weight fades them, Mask Control hides them from others."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text, towers_of
from ..hosts.comfy.live_tokenizers import as_by_host
from ..weighting.convert import TARGETS
from ..weighting.options import EncodeOptions
from . import common
from .common import EncodeNode, Out
from .results import encoded_result, masked_result

BLEND_SYNTAXES = common.with_first("a1111", TARGETS)
"""Syntaxes with weights, default first."""


class WeightedCLIPMaskedBlend(EncodeNode):
    """Turns words down so that they really fade: at 0.3 a word is 0.3 present in every row that read it. With
    mask_method remove it is as if it were typed 0.3 of the time. Weights above 1 act as in ComfyUI.
    """

    title = "Down-Weight (Masked Blend)"
    aliases = "down-weight, masked blend, compel, fade, prompt weight, prompt"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip", "text"),
                "syntax": common.menu(BLEND_SYNTAXES, common.INPUTS["syntax"][1]["tooltip"], counts=True),
                **common.inputs("law", "mask_method", "filler", "padding", "pooled"),
            },
            # optional, so that requests saved before it existed stay valid
            "optional": common.inputs("cleaning"),
            "hidden": common.METADATA,
        }

    reads_as = staticmethod(as_by_host)
    """Reading of prompts for T5, Qwen and others."""

    @staticmethod
    def options(**choices: Any) -> EncodeOptions:
        """Options from the inputs, which are named like the fields of `EncodeOptions`."""
        return EncodeOptions(scheme="masked_blend", **choices)

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode with the scheme ``masked_blend``."""
        return encoded_result(encode_text(clip, text, self.options(**choices)))


class WeightedCLIPMaskControl(EncodeNode):
    """Encodes a prompt with phrases hidden: from everything, from other phrases only, or from the padding rows that the
    U-Net reads after the prompt. Shows the mask. With nothing hidden it gives what the stock node gives.
    """

    title = "Mask Control"
    aliases = "mask, attention mask, hide, causal, bleeding, concept bleed, prompt"
    outputs = (
        common.CONDITIONING,
        Out("IMAGE", "mask", "The mask of the first chunk: which token (row) may see which (column)."),
        common.ENCODED_REPORT,
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip", "text"),
                **common.inputs("hide", "hidden_from", "from_phrases"),
                "causal": common.option_input("is_causal", label_on="on, as trained", label_off="off"),
                **common.inputs("padding"),
            },
            "hidden": common.METADATA,
        }

    @staticmethod
    def options(causal: bool, **choices: Any) -> EncodeOptions:
        """Options from the inputs."""
        return EncodeOptions(is_causal=causal, **choices)

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode with the mask, and draw it; ``choices`` are the other inputs."""
        towers_of(clip)  # raises if there is nothing to mask
        return masked_result(encode_text(clip, text, self.options(**choices)))
