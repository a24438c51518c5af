"""The node after the loader that gives every prompt box of a workflow weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..hosts.comfy.models.cache import with_memory
from ..hosts.comfy.titles import WEIGHTED_CLIP
from ..hosts.comfy.types import Clip
from ..hosts.comfy.weighted_clip.encoder_call import EncodingReport
from ..hosts.comfy.weighted_clip.live_tokenizers import as_by_host, as_weighted
from ..hosts.comfy.weighted_clip.served_texts import tell_served
from ..hosts.comfy.weighted_clip.settings import ATTENTION, AUTO, CHOICES, ClipSettings
from ..hosts.comfy.weighted_clip.wrapped_clip import settings_of, weighted_clip
from ..weighting.guidance import GUIDANCE, scheme_of_rows
from ..weighting.options import EncodeOptions
from ..weighting.reading.prompt_reader import ReadPrompt
from ..weighting.timed.glides import GLIDES, Glides
from ..weighting.timed.joining import JOINS, Joins
from ..weighting.timed.schedule import COUNTERS, MAX_STEPS, Counter
from .base.node import (
    METADATA,
    TIME_INPUTS,
    Node,
    Out,
    checked,
    glides_input,
    inputs,
    joins_input,
    make_input,
    number,
    option_input,
)
from .base.results import encoded_result, shown_result

TWICE = "There is another Weighted CLIP before this one: the settings of this one count."


class WeightedCLIP(Node):
    """Put it after the loader, and every prompt box of the workflow takes weights: (word:1.3) makes a word stronger,
    (word:0.5) weaker, with any model and any node that takes this CLIP, also in subgraphs. A prompt without weights
    gives exactly what it gave before.
    """

    title = f"{WEIGHTED_CLIP} (Prompt Weights)"  # the search ranks by the title: "prompt weight" finds it first
    aliases = (
        "weight, prompt weight, weighted clip, weights, emphasis, prompt, clip text encode, a1111, attention weights, "
        "down-weight"
    )
    outputs = (
        Out(
            "CLIP",
            "CLIP",
            "The CLIP for all prompt boxes. LoRA loaders and CLIP Set Last Layer can come before or after it.",
        ),
    )
    required = {
        "clip": make_input("CLIP", "The text encoder, as from Load Checkpoint or Load CLIP."),
        **inputs("syntax"),
        "scheme": make_input(
            CHOICES,
            "What a weight does. auto: in Stable Diffusion 1, 2 and XL as in ComfyUI, in all others in the attention, "
            "where the picture reads the words. A scheme: as in the program of that name. attention: the "
            "picture reads more or less of a word, in any model. guidance (experimental): the picture follows the "
            "prompt with and without the word, in shares, in any model; one more call of the model a step for each "
            "different weight.",
            counts=True,
        ),
        "strength": make_input(
            "FLOAT",
            "In the attention: strength of the weights. 0: none. 0.5: halfway to 1. 1: as written.",
            **number(1.0, 0.0, 10.0, 0.05),
        ),
    }
    optional = {
        **inputs("normalization", "chunking", "padding", "pooled"),
        "law": option_input("law", advanced=True),
        "mask_method": option_input("mask_method", advanced=True),
        **inputs("filler", "comma_backtrack", "cleaning", "finest_step"),
        "timed": make_input(
            "BOOLEAN",
            "Whether prompts may change while the picture is sampled, as [cat:dog:0.5], and have parts joined by AND.",
            counts=True,
            default=False,
            advanced=True,
        ),
        "steps": make_input(
            "INT",
            "With timed: the sampler's steps, which times such as [cat:dog:10] count.",
            counts=True,
            **number(20, 1, MAX_STEPS),
            advanced=True,
        ),
        "counter": TIME_INPUTS["counter"],
        "remember": make_input(
            "INT",
            "MiB of encodings to remember, so that nothing is encoded twice. 0: none.",
            **number(0, 0, 65536),
            advanced=True,
        ),
        "glides": glides_input("With timed: "),
        "joins": joins_input("With timed: "),
        **inputs("comments"),
    }
    hidden = {"unique_id": "UNIQUE_ID", **METADATA}

    @staticmethod
    def options(scheme: str = AUTO, timed: bool = False, **choices: Any) -> EncodeOptions:
        """Options for reading a prompt from the inputs that are named like them."""
        del timed
        checked("scheme", scheme, CHOICES)
        if scheme == AUTO:
            return EncodeOptions(**choices)
        if scheme == GUIDANCE or scheme.startswith(ATTENTION):
            scheme = scheme_of_rows(scheme.removeprefix(ATTENTION))
        return EncodeOptions(scheme=scheme, **choices)

    @staticmethod
    def times(values: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs by which a prompt that changes is read; none if it may not change."""
        names = ("steps", "counter", "glides", "joins")
        return {name: values[name] for name in names if name in values} if values.get("timed") else {}

    @staticmethod
    def reader_for(values: Mapping[str, Any]) -> Callable[[Clip, str, EncodeOptions], ReadPrompt]:
        """Reading of prompts for T5, Qwen and others."""
        scheme = str(values.get("scheme", AUTO))
        return as_weighted if scheme in (AUTO, GUIDANCE) or scheme.startswith(ATTENTION) else as_by_host

    def run(
        self,
        clip: Clip,
        scheme: str,
        strength: float,
        timed: bool = False,
        steps: int = 20,
        counter: Counter = COUNTERS[0],
        remember: int = 0,
        glides: Glides = GLIDES[0],
        joins: Joins = JOINS[0],
        unique_id: str | None = None,
        extra_pnginfo: Any = None,
        **choices: Any,
    ) -> dict[str, Any]:
        """Make the CLIP; ``choices`` are the options for reading."""
        del extra_pnginfo  # its being asked for tells the host that texts of a request are noted
        checked("scheme", scheme, CHOICES)
        checked("counter", counter, COUNTERS)
        checked("glides", glides, GLIDES)
        checked("joins", joins, JOINS)
        settings = ClipSettings(EncodeOptions(**choices), scheme, strength, timed, steps, counter, glides, joins)
        lines = [] if clip is None or settings_of(clip) is None else [TWICE]
        served = weighted_clip(clip, settings, partial(_tell, unique_id))
        return shown_result((with_memory(served, remember) if remember else served,), lines)


def _tell(by: str | None, report: EncodingReport) -> None:
    """Show what became of a prompt under its box."""
    views: list[dict[str, Any]] = []
    texts: dict[str, str] = {}
    problems = list(report.lines)
    if report.encoded.prompts:
        result = encoded_result(report.encoded)
        views, texts = result["ui"]["weighted_clip"], result["texts"]
        problems += result["ui"]["text"]
    tell_served(by, texts, views, problems)
