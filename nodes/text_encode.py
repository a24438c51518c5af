"""The encode nodes: text in, CONDITIONING out."""

from __future__ import annotations

from typing import Any

from ..weighting.encode import EncodeOptions
from . import common

EMPHASIS: dict[str, dict[str, Any]] = {
    "Original": {"syntax": "a1111", "scheme": "a1111"},
    "No norm": {"syntax": "a1111", "scheme": "a1111_no_norm"},
    "Ignore": {"syntax": "a1111", "scheme": "unweighted"},
    "None": {"syntax": "none", "scheme": "unweighted"},
}
"""The WebUI's emphasis modes, default first."""

BLEND_SYNTAXES = ("a1111", "comfy", "compel")


class _EncodeNode:
    """Attributes that all encode nodes share."""

    RETURN_TYPES = ("CONDITIONING", "STRING")
    RETURN_NAMES = ("CONDITIONING", "report")
    OUTPUT_TOOLTIPS = (common.CONDITIONING_TOOLTIP, common.REPORT_TOOLTIP)
    FUNCTION = "encode"
    CATEGORY = common.CATEGORY


class WeightedCLIPTextEncode(_EncodeNode):
    """CLIP Text Encode with a choice of syntax, scheme, chunking and masks."""

    DESCRIPTION = (
        "Encodes a prompt with the weighting of the program you choose. With everything on comfy it gives exactly what "
        "the stock CLIP Text Encode gives."
    )
    SEARCH_ALIASES = ["prompt", "text encode", "weights", "a1111", "emphasis", "down-weight", "clip text encode"]  # noqa: RUF012

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "clip": common.CLIP_INPUT,
                "text": common.TEXT_INPUT,
                "syntax": common.SYNTAX_INPUT,
                "scheme": common.SCHEME_INPUT,
                "normalization": common.NORMALIZATION_INPUT,
                "chunking": common.CHUNKING_INPUT,
                "padding": common.PADDING_INPUT,
                "pooled": common.POOLED_INPUT,
            }
        }

    def encode(self, clip: Any, text: str, **choices: Any) -> dict[str, Any]:
        """Encode; ``choices`` are the menus, named as the fields of `EncodeOptions`."""
        return common.encode_node(clip, text, EncodeOptions(**choices))


class WeightedCLIPA1111Encode(_EncodeNode):
    """A prompt as the A1111 WebUI would encode it."""

    DESCRIPTION = "Encodes a prompt as the A1111 WebUI and Forge do: brackets, BREAK, cutting at commas, restored mean."
    SEARCH_ALIASES = ["a1111", "automatic1111", "webui", "forge", "emphasis", "break", "prompt"]  # noqa: RUF012

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "clip": common.CLIP_INPUT,
                "text": common.TEXT_INPUT,
                "emphasis": common.menu(
                    EMPHASIS,
                    "Original: rows are scaled and each chunk's mean restored. No norm: only scaled. Ignore: weights "
                    "are read and not applied. None: brackets are text.",
                ),
                "comma_backtrack": common.COMMA_BACKTRACK_INPUT,
                "padding": common.PADDING_INPUT,
            }
        }

    def encode(self, clip: Any, text: str, emphasis: str, comma_backtrack: int, padding: str) -> dict[str, Any]:
        """Encode by the WebUI's rules."""
        options = EncodeOptions(
            **EMPHASIS[emphasis], chunking="a1111", comma_backtrack=comma_backtrack, padding=padding
        )
        return common.encode_node(clip, text, options)


class WeightedCLIPMaskedBlend(_EncodeNode):
    """Words below weight 1 fade by blending in encodings without them."""

    DESCRIPTION = (
        "Turns words down so that they really fade: at 0.3 a word is 0.3 present in every row that read it. With "
        "mask_method remove it is as if it were typed 0.3 of the time. Weights above 1 act as in ComfyUI."
    )
    SEARCH_ALIASES = ["down-weight", "masked blend", "compel", "fade", "negative weight", "prompt"]  # noqa: RUF012

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "clip": common.CLIP_INPUT,
                "text": common.TEXT_INPUT,
                "syntax": common.menu(BLEND_SYNTAXES, common.SYNTAX_INPUT[1]["tooltip"]),
                "law": common.LAW_INPUT,
                "mask_method": common.MASK_METHOD_INPUT,
                "filler": common.FILLER_INPUT,
                "padding": common.PADDING_INPUT,
                "pooled": common.POOLED_INPUT,
            }
        }

    def encode(self, clip: Any, text: str, **choices: Any) -> dict[str, Any]:
        """Encode with the scheme ``masked_blend``; ``choices`` are named as the fields of `EncodeOptions`."""
        return common.encode_node(clip, text, EncodeOptions(scheme="masked_blend", **choices))
