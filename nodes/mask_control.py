"""The Mask Control node: visibility of a prompt's tokens for each other."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text, towers_of
from ..weighting.encode import EncodeOptions
from ..weighting.options import HIDDEN_FROM, HiddenFrom
from . import common
from .results import masked_result

PHRASES: dict[str, Any] = {"multiline": True, "default": ""}


class WeightedCLIPMaskControl(common.MaskedEncodeNode):
    """Hides phrases of a prompt from others, or lets tokens see what comes later."""

    DESCRIPTION = (
        "Encodes a prompt with phrases hidden: from everything, from other phrases only, or from the padding rows "
        "that the U-Net reads after the prompt. Shows the mask. With nothing hidden it gives what the stock node "
        "gives."
    )
    SEARCH_ALIASES = ["mask", "attention mask", "hide", "causal", "bleeding", "concept bleed", "prompt"]  # noqa: RUF012
    OUTPUT_TOOLTIPS = (
        common.CONDITIONING_TOOLTIP,
        "The mask of the first chunk: which token (row) may see which (column).",
        common.ENCODED_TOOLTIP,
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
