"""The Bind Phrases node: phrases of a prompt that cannot see each other."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text, towers_of
from ..weighting.options import EncodeOptions
from . import common
from .common import EncodeNode, Out
from .results import masked_result


class WeightedCLIPBindPhrases(EncodeNode):
    """Keeps phrases apart, so that the colour of one does not leak into another: each is encoded with the words of all
    others hidden. Shows the masks. With no phrases it gives what CLIP Text Encode (Weighted) gives.
    """

    title = "Bind Phrases"
    aliases = "bind, bleeding, concept bleed, colour bleed, color leak, cutoff, attributes"
    outputs = (
        common.CONDITIONING,
        Out("IMAGE", "mask", "The masks of all passes over the first chunk: which token (row) may see which (column)."),
        common.ENCODED_REPORT,
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip", "text"),
                "phrases": common.option_input("bind"),
                "rest": common.option_input("bind_rest"),
                "strength": common.option_input("bind_strength", counts=False),
                **common.inputs("syntax", "scheme", "padding", "cleaning", "finest_step"),
                "hide": common.option_input("bind_hide"),
                "words": common.option_input("bind_words"),
            },
            "hidden": common.METADATA,
        }

    @staticmethod
    def options(phrases: str, rest: str, **choices: Any) -> EncodeOptions:
        """Options from the inputs, of which some have shorter names than the fields."""
        named = {f"bind_{name}": choices.pop(name) for name in ("strength", "hide", "words") if name in choices}
        return EncodeOptions(bind=phrases, bind_rest=rest, **named, **choices)

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode with the phrases bound, and draw the masks; ``choices`` are the other inputs."""
        towers_of(clip)  # raises if there is nothing to mask
        return masked_result(encode_text(clip, text, self.options(**choices)))
