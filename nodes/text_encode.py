"""The node in place of CLIP Text Encode."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text
from ..hosts.comfy.live_tokenizers import as_by_host
from ..weighting.options import EncodeOptions
from . import common
from .common import EncodeNode
from .results import encoded_result


class WeightedCLIPTextEncode(EncodeNode):
    """Encodes a prompt with the weighting of the program you choose. With everything on comfy it gives exactly what the
    stock CLIP Text Encode gives. A text encoder that would read weights as text, such as Qwen, gets the prompt without
    them, and the node says so.
    """

    title = "CLIP Text Encode (Weighted)"
    aliases = (
        "prompt, text encode, weights, a1111, emphasis, down-weight, clip text encode, prompt weight, "
        "weighted prompt, compel, negative weight, negpip, wildcard"
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip", "text", "syntax", "scheme"),
                **common.rare_inputs("normalization", "chunking", "padding", "pooled"),
            },
            # optional, so that requests saved before it existed stay valid
            "optional": common.rare_inputs("cleaning", "finest_step"),
            "hidden": common.METADATA,
        }

    options = EncodeOptions
    """Options from the menus, which are named like its fields."""
    reads_as = staticmethod(as_by_host)
    """Reading of prompts for T5, Qwen and others."""

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode; ``choices`` are the menus."""
        return encoded_result(encode_text(clip, text, self.options(**choices)))
