"""Node that compares two CLIPs: changes to a text encoder by a LoRA or training."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip
from ..hosts.comfy.difference import encode_by_both
from ..weighting.options import EncodeOptions
from . import common
from .common import Node, Out
from .results import merged_reads, node_result, to_image, with_preview


class WeightedCLIPDifference(Node):
    """Shows what a LoRA or training has changed in a text encoder: how far each token of a prompt moves between two
    CLIPs. Weights in the prompt are read and not applied.
    """

    title = "CLIP Difference"
    aliases = "compare clip, lora, trained text encoder, finetune, debug"
    outputs = (
        Out("IMAGE", "chart", "For each text encoder the change of each token's row, in length and in direction."),
        Out(
            "STRING",
            "report",
            "The relative change of each token's row, the largest first, of the padding and of the pooled vector; and "
            "every problem.",
        ),
    )
    FUNCTION = "compare"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "clip": common.make_input(common.EITHER_CLIP, "The original text encoder."),
                "clip_changed": common.make_input(
                    common.EITHER_CLIP,
                    "The changed one: with a LoRA, or trained. It must be of the same family and have the same clip "
                    "skip, or different layers would be compared.",
                ),
                **common.inputs("text", "syntax"),
            }
        }

    @staticmethod
    def options(syntax: str) -> EncodeOptions:
        """Options for reading the text; its weights are not applied."""
        return EncodeOptions(syntax=syntax, scheme="unweighted")

    def compare(self, clip: EitherClip, clip_changed: EitherClip, text: str, syntax: str) -> dict[str, Any]:
        """Encode the text by both and compare the rows."""
        from ..web.difference import difference, difference_report, draw_differences

        pair = encode_by_both(clip, clip_changed, text, self.options(syntax))
        found = [difference(name, *prompts) for name, prompts in pair.prompts.items()]
        reads = merged_reads(one.read for one in found)
        lines = [difference_report(found), *(issue.line for read in reads for issue in read.issues)]
        lines += [f"not compared: {', '.join(pair.left_to_host)}"] if pair.left_to_host else []
        picture = draw_differences(found)
        return with_preview(node_result((to_image(picture), "\n".join(lines)), reads), picture)
