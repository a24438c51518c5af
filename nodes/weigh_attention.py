"""The Weigh Attention node: weights that act where the image reads the text."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.clip import EitherClip
from ..hosts.comfy.live_tokenizers import as_weighed
from ..hosts.comfy.types import ModelPatcher
from ..hosts.comfy.weighing import report_of, weigh_text
from ..weighting.attention import WAYS
from ..weighting.convert import TARGETS
from ..weighting.options import EncodeOptions
from . import common
from .common import EncodeNode, Out
from .results import encoded_result


class WeightedCLIPWeighAttention(EncodeNode):
    """Encodes the prompt without its weights and lets them act where the image reads it: in the diffusion model's
    attention. At weight 2 a word gets twice the share of what the image looks at, at 0 it is not read at all. For
    Stable Diffusion 1, 2, XL and 3, Flux 1 and 2, Chroma, Qwen-Image, Z-Image, Lumina 2, HiDream, Krea 2, Anima and
    Wan.
    """

    title = "Weigh Attention"
    aliases = "attention, weights, cross attention, prompt, emphasis, attention bias, prompt weight, negative weight"
    outputs = (
        Out("CONDITIONING", "CONDITIONING", "The encoded prompt, in which the weights travel to the sampler."),
        Out("STRING", "report", "Each weighed word with its weight and rows, what is not weighed, and every problem."),
        Out("MODEL", "MODEL", "The model that came in, ready for the weights; nothing if none came in."),
    )

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                **common.inputs("clip", "text"),
                "syntax": common.menu(
                    common.with_first("comfy", TARGETS), common.INPUTS["syntax"][1]["tooltip"], counts=True
                ),
                "how": common.menu(
                    WAYS,
                    "What a weight does. bias: multiplies the share of the image's attention that the word gets; below "
                    "zero the word is taken away instead of added. value: shares stay, and what is read of the word is "
                    "multiplied. negpip: as ComfyUI-ppm's CLIP NegPip, for Stable Diffusion 1, 2 and XL, and Anima: "
                    "rows are moved as by ComfyUI, and below zero what is read of the word is taken away. krea2: as "
                    "KJNodes' Krea2 Prompt Weight: value up to 1, and a stronger bias above.",
                ),
                "strength": common.make_input(
                    "FLOAT",
                    "How far weights are taken. 0: not at all. 0.5: half way from 1. 1: as written.",
                    {"default": 1.0, "min": 0.0, "max": 10.0, "step": 0.05},
                ),
            },
            "optional": {
                "model": common.make_input(
                    "MODEL",
                    "Not needed. Connected, the weights act only in the MODEL output, so use that for sampling; on "
                    "NVIDIA this saves the second copy of the model that ComfyUI loads for hooks.",
                ),
                **common.inputs("cleaning"),
            },
            "hidden": {"unique_id": "UNIQUE_ID", **common.METADATA},
        }

    reads_as = staticmethod(as_weighed)
    """Reading of prompts for T5, Qwen and others."""

    @staticmethod
    def options(**choices: Any) -> EncodeOptions:
        """Options for the text from the inputs, which are named like the fields of `EncodeOptions`."""
        return EncodeOptions(scheme="unweighted", **choices)

    def encode(
        self,
        clip: EitherClip,
        text: str,
        how: str,
        strength: float,
        model: ModelPatcher | None = None,
        unique_id: str | None = None,
        **choices: Any,
    ) -> dict[str, Any]:
        """Encode, and attach the weights; ``choices`` are the other menus."""
        options, how = self.options(**choices), common.checked("how", how, WAYS)
        weighed = weigh_text(clip, text, options, how, strength, model, unique_id)
        result = encoded_result(weighed.encoded)
        conditioning, report = result["result"]
        report = "\n".join([report, *report_of(weighed, how, strength)])
        return {**result, "result": (conditioning, report, weighed.model)}
