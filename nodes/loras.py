"""Node that loads the LoRAs a prompt names."""

from __future__ import annotations

from typing import Any

from ..encoder.tokenizer import default_tokenizer
from ..hosts.comfy.loras import load_loras
from ..hosts.comfy.types import Clip, ModelPatcher
from ..weighting.options import EncodeOptions
from ..weighting.reading import read_prompt
from ..weighting.tags import bare, comment_issues, read_loras
from . import common
from .common import Node, Out
from .results import node_result


class WeightedCLIPLoadPromptLoras(Node):
    """Loads the LoRAs that an A1111 prompt names, <lora:name:0.8>, from ComfyUI's loras folder, and gives the text
    without them. A LoRA that is not there is left out and named as a problem.
    """

    title = "Load LoRAs from Prompt"
    aliases = "lora, lora tag, a1111, extra networks, prompt, load lora"
    outputs = (
        Out("MODEL", "MODEL", "The model with the LoRAs."),
        Out("CLIP", "CLIP", "The CLIP with the LoRAs."),
        Out("STRING", "text", "The prompt without its tags."),
        Out("STRING", "report", "What was loaded, and every problem."),
    )
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "model": common.make_input("MODEL", "The diffusion model for the LoRAs."),
                "clip": common.make_input("CLIP", "The text encoder for the LoRAs."),
                "text": common.prompt_input(
                    "The prompt. <lora:name:0.8> is a LoRA at 0.8, <lora:name:0.5:0.8> at 0.5 for the text encoder and "
                    "0.8 for the model."
                ),
            },
            # optional, so that requests saved before it existed stay valid
            "optional": common.inputs("cleaning"),
        }

    @staticmethod
    def options(**choices: Any) -> EncodeOptions:
        """Options for reading the prompt."""
        return EncodeOptions(syntax="a1111", **choices)

    def load(self, model: ModelPatcher, clip: Clip, text: str, **choices: Any) -> dict[str, Any]:
        """Load the LoRAs; ``choices`` are the menus."""
        options = self.options(**choices)
        found = bare(text, has_comments=options.is_cleaned, has_tags=True)
        loras, issues = read_loras(found.tags)
        issues += comment_issues(text, found.comments)
        loaded = load_loras(model, clip, loras)
        issues += loaded.issues
        lines = [*(loaded.lines or ["no LoRA loaded"]), *(issue.line for issue in issues)]
        read = read_prompt(text, options, default_tokenizer())._replace(issues=tuple(issues))
        return node_result((loaded.model, loaded.clip, found.fragment.text, "\n".join(lines)), [read])
