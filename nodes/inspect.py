"""The Inspect node: a prompt's tokens, without encoding it."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip, readers_of
from ..weighting.options import EncodeOptions
from ..weighting.reading import read_prompt
from ..weighting.view import token_table, view
from . import common
from .common import Node, Out
from .results import node_result, to_image


class WeightedCLIPInspect(Node):
    """Shows which tokens a prompt becomes, with which weight, in which chunk. Encodes nothing."""

    title = "Inspect Prompt"
    aliases = "tokens, token count, token counter, tokenizer, prompt, debug"
    outputs = (
        Out("IMAGE", "image", "The tokens, as coloured chips."),
        Out("INT", "count", "Number of tokens, without start, end and padding."),
        Out("STRING", "report", common.REPORT_TOOLTIP),
    )
    FUNCTION = "inspect"
    OUTPUT_NODE = True

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("text", "syntax", "chunking"),
            },
            "optional": {
                "clip": common.make_input(
                    common.EITHER_CLIP, "Whose tokenizer and embeddings to use. Without it: CLIP-L's, as in SD 1.5."
                ),
                **common.inputs("cleaning"),
            },
        }

    options = EncodeOptions
    """Options from the menus, which are named like its fields."""

    def inspect(self, text: str, clip: EitherClip | None = None, **choices: Any) -> dict[str, Any]:
        """Read the prompt and draw it; ``choices`` are the menus."""
        from ..web.pictures import draw_tokens

        reader = next(iter(readers_of(clip).values()))
        options = self.options(**choices)
        read = read_prompt(text, options, reader.tokenize, reader.layout, embeddings=reader.embeddings)
        data = view(read)
        picture = to_image(draw_tokens(data))
        return node_result((picture, data["num_tokens"], token_table(read)), [read])
