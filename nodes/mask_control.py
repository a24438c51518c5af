"""Nodes that hide words: Down-Weight fades them, Mask Control hides them from others."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text, towers_of
from ..hosts.comfy.live_tokenizers import as_by_host
from ..weighting.convert import TARGETS
from ..weighting.options import HIDDEN_FROM, EncodeOptions, HiddenFrom
from . import common
from .common import EncodeNode, Out
from .results import encoded_result, masked_result

BLEND_SYNTAXES = common.with_first("a1111", TARGETS)
"""Syntaxes with weights, default first."""
PHRASES: dict[str, Any] = {"multiline": True, "default": ""}


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
                "hide": common.make_input(
                    "STRING",
                    "Phrases of the prompt to hide, one per line, in any case and whatever their weight.",
                    PHRASES,
                    counts=True,
                ),
                "hidden_from": common.menu(
                    HIDDEN_FROM,
                    "Who may not see them. everything: no token, not even themselves. the phrases below: only those. "
                    "padding rows only: the rows behind the prompt, which the U-Net reads too.",
                    counts=True,
                ),
                "from_phrases": common.make_input(
                    "STRING",
                    "With the phrases below: the ones that may not see the hidden phrases, one per line.",
                    PHRASES,
                    counts=True,
                ),
                "causal": common.make_input(
                    "BOOLEAN",
                    "On: a token sees only what comes before it, as CLIP was trained. Off: all of its chunk. CLIP "
                    "never learned that, so expect odd pictures.",
                    {"default": True, "label_on": "on, as trained", "label_off": "off"},
                    counts=True,
                ),
                **common.inputs("padding"),
            },
            "hidden": common.METADATA,
        }

    @staticmethod
    def options(hide: str, hidden_from: HiddenFrom, from_phrases: str, causal: bool, padding: str) -> EncodeOptions:
        """Options from the inputs."""
        return EncodeOptions(
            hide=hide, hidden_from=hidden_from, from_phrases=from_phrases, is_causal=causal, padding=padding
        )

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode with the mask, and draw it; ``choices`` are the other inputs."""
        towers_of(clip)  # raises if there is nothing to mask
        return masked_result(encode_text(clip, text, self.options(**choices)))
