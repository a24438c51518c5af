"""The Bind Phrases node: phrases of a prompt that cannot see each other."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, encode_text, towers_of
from ..weighting.options import BIND_HIDES, BIND_RESTS, EncodeOptions
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
                "phrases": common.make_input(
                    "STRING",
                    "Phrases of the prompt to keep apart, one per line, in any case and whatever their weight.",
                    {"multiline": True, "default": ""},
                    counts=True,
                ),
                "rest": common.menu(
                    BIND_RESTS,
                    "What all other words have read. full: every phrase, as always. alone: none of them.",
                    counts=True,
                ),
                "strength": common.make_input(
                    "FLOAT",
                    "1: the phrases are kept apart. 0.5: half way from the usual encoding. 0: not at all.",
                    {"default": 1.0, "min": 0.0, "max": 1.0, "step": 0.05},
                ),
                **common.inputs("syntax", "scheme", "padding", "cleaning", "finest_step"),
                "hide": common.menu(
                    BIND_HIDES,
                    "What phrases hide from each other. whole phrases: all of their words. these words: only those of "
                    "the words below that are in them. cutoff: as the extension Cutoff; phrases are then the parts "
                    "between commas, and _ replaces the words below. Its own strength is 0.5.",
                    counts=True,
                ),
                "words": common.make_input(
                    "STRING",
                    "With hide at these words or cutoff: the words to hide, one per line or between commas, such as "
                    "red.",
                    {"multiline": True, "default": ""},
                    counts=True,
                ),
            },
            "hidden": common.METADATA,
        }

    @staticmethod
    def options(
        phrases: str, rest: str, strength: float = 1.0, hide: str = BIND_HIDES[0], words: str = "", **choices: Any
    ) -> EncodeOptions:
        """Options from the inputs."""
        binding: dict[str, Any] = {"bind": phrases, "bind_rest": rest, "bind_strength": strength}
        return EncodeOptions(**binding, bind_hide=hide, bind_words=words, **choices)  # pyright: ignore[reportArgumentType]

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode with the phrases bound, and draw the masks; ``choices`` are the other inputs."""
        towers_of(clip)  # raises if there is nothing to mask
        return masked_result(encode_text(clip, text, self.options(**choices)))
