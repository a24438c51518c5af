"""Nodes that encode a prompt: by a scheme, by the WebUI's rules, with words hidden or bound, or in the attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..hosts.comfy.clip.clip import EitherClip, encode_text, is_sdxl, towers_of, zeroed
from ..hosts.comfy.clip.guidance import guide_text, report_of_guidance
from ..hosts.comfy.clip.loras import HookedClip, find_loras, hook_loras, hook_parts, lora_issues
from ..hosts.comfy.clip.timed_prompts import check_branches, encode_timed, timing_from
from ..hosts.comfy.clip.weighted_rows import check_sections, report_of, weight_text
from ..hosts.comfy.consumers import HIDDEN, is_used
from ..hosts.comfy.placing.placements import place_lines
from ..hosts.comfy.titles import READ_GENERATION_DATA, WEIGHTED_PROMPT
from ..hosts.comfy.types import ModelPatcher
from ..hosts.comfy.weighted_clip.live_tokenizers import as_by_host, as_weighted
from ..weighting.guidance import GUIDANCE, HOWS, scheme_of_rows
from ..weighting.options import OPTIONS, EncodeOptions
from ..weighting.reading.convert import TARGETS
from ..weighting.reading.prompt_reader import parse_encoded
from ..weighting.script_settings import PromptSettings
from ..weighting.text.problems import Problem, refused
from ..weighting.text.prompt import Issue, Span
from ..weighting.timed.glides import GLIDES, Glides
from ..weighting.timed.joining import JOINS, Joins
from ..weighting.timed.loras import LORAS, Loras, LoraTimes, lora_times, with_times
from ..weighting.timed.regions import REGIONS, Regions
from ..weighting.timed.schedule import COUNTERS, Counter, read_timed, untimed
from .base.node import (
    CATEGORY,
    CONDITIONING,
    ENCODED_REPORT,
    INPUTS,
    METADATA,
    PROMPT_SETTINGS,
    TIME_INPUTS,
    DrawingNode,
    EncodeNode,
    Input,
    Out,
    checked,
    cleaning_input,
    glides_input,
    inputs,
    joins_input,
    loras_input,
    make_input,
    number,
    option_input,
    prompt_input,
    second_pass_input,
    with_first,
)
from .base.node_state import NodeState
from .base.results import encoded_result, masked_result, timed_result


class TextNode(EncodeNode):
    """Base of nodes that encode one text by a scheme, with any text encoder."""

    reads_as = staticmethod(as_by_host)
    """Reading of prompts for T5, Qwen and others."""

    def encode(self, clip: EitherClip, text: str, **choices: Any) -> dict[str, Any]:
        """Encode; ``choices`` are the menus."""
        return encoded_result(encode_text(clip, text, self.options(**choices)))


class WeightedCLIPTextEncode(TextNode):
    """Encodes a prompt with the weighting of the program you choose. With everything on comfy it gives exactly what the
    stock CLIP Text Encode gives. A text encoder that would read weights as text, such as Qwen, gets the prompt without
    them, and the node says so.
    """

    title = WEIGHTED_PROMPT
    aliases = (
        "prompt, text encode, weights, a1111, emphasis, down-weight, clip text encode weighted, weighted clip, "
        "prompt weight, compel, negative weight, negpip, wildcard"
    )
    required = inputs("clip", "text", "syntax", "scheme", "normalization", "chunking", "padding", "pooled")
    optional = inputs("cleaning", "finest_step", "comments")


EMPHASIS: dict[str, dict[str, Any]] = {
    "Original": {"syntax": "a1111", "scheme": "a1111"},
    "No norm": {"syntax": "a1111", "scheme": "a1111_no_norm"},
    "Ignore": {"syntax": "a1111", "scheme": "unweighted"},
    "None": {"syntax": "none", "scheme": "unweighted"},
}
"""The WebUI's emphasis modes, default first."""


class WeightedCLIPA1111Encode(EncodeNode):
    """Reads and encodes a prompt as the A1111 WebUI and Forge do: brackets, BREAK, 75-token chunks cut at commas,
    emphasis modes, embeddings by name, prompt editing [from:to:when], alternation and AND.
    """

    title = "A1111/Forge Prompt"
    aliases = (
        "a1111 prompt, webui, emphasis, break, prompt, prompt editing, prompt scheduling, alternation, AND, "
        "composable, prompt weight, wildcard"
    )
    required = {
        **inputs("clip", "text"),
        "emphasis": make_input(
            EMPHASIS,
            "Original: rows are scaled and each chunk's mean restored. No norm: only scaled. Ignore: weights are read "
            "and not applied. None: brackets are text.",
            counts=True,
        ),
        **inputs("comma_backtrack", "padding"),
    }
    optional = {
        **TIME_INPUTS,
        "model": make_input(
            "MODEL",
            "Connect it along with sigmas if the model is not Stable Diffusion 1, 2 or XL, or its noise levels were "
            "changed.",
        ),
        **cleaning_input(),
        "regions": make_input(
            REGIONS,
            "prompt-control: MASK(x1 x2, y1 y2, weight) and AREA(…) in a part between ANDs give its area of the "
            "picture, and COUPLE joins regions, as in comfyui-prompt-control.",
            counts=True,
            advanced=True,
        ),
        "loras": loras_input(LORAS, advanced=True),
        "settings": make_input(
            PROMPT_SETTINGS,
            "How a picture's prompt was read and weighted, from Read Generation Data; emphasis and padding are then "
            "ignored.",
            counts=True,
        ),
        "glides": glides_input(),
        "joins": joins_input(),
        "second_pass": second_pass_input(),
        **inputs("comments"),
    }

    reads_as = staticmethod(as_by_host)
    """Reading of prompts for T5, Qwen and others."""

    lora_issues = staticmethod(lora_issues)
    """Issues about LoRAs before a run."""

    @staticmethod
    def options(emphasis: str, **choices: Any) -> EncodeOptions:
        """Options from the inputs, except for times."""
        mode = EMPHASIS[checked("emphasis", emphasis, EMPHASIS)]
        return EncodeOptions(**mode, chunking="a1111", **choices)

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its other inputs before a run."""
        if state.has("text", "steps", "regions", "cleaning"):
            text, steps = state.values["text"], state.values["steps"]
            reading: dict[str, Any] = {
                name: state.values[name] for name in ("regions", "glides", "joins") if name in state.values
            }
            written = {name: state.values[name] for name in ("cleaning", "comments") if name in state.values}

            def check() -> None:
                marks = EncodeOptions(syntax="a1111", **written).comment_marks
                check_branches(read_timed(text, steps, has_comments=marks, **reading))

            yield from refused("text", check)

    def encode(
        self,
        clip: EitherClip,
        text: str,
        emphasis: str,
        comma_backtrack: int,
        padding: str,
        steps: int = 20,
        counter: Counter = COUNTERS[0],
        sigmas: Tensor | None = None,
        model: ModelPatcher | None = None,
        regions: Regions = REGIONS[0],
        loras: Loras = LORAS[0],
        settings: PromptSettings | None = None,
        glides: Glides = GLIDES[0],
        joins: Joins = JOINS[0],
        second_pass: bool = False,
        **choices: Any,
    ) -> dict[str, Any]:
        """Encode by the WebUI's rules; ``choices`` are the other menus."""
        checked("counter", counter, COUNTERS)
        checked("regions", regions, REGIONS)
        checked("loras", loras, LORAS)
        checked("glides", glides, GLIDES)
        checked("joins", joins, JOINS)
        options = self.options(emphasis, comma_backtrack=comma_backtrack, padding=padding, **choices)
        # under hooks the host asks for each text several times, with other weights of the encoder
        is_hooked = loras != LORAS[0] or getattr(clip, "apply_hooks_to_conds", None) is not None
        as_webui = settings is not None and not is_hooked
        settings = PromptSettings(options) if settings is None else settings
        if not isinstance(settings, PromptSettings):
            raise ValueError(f"A1111/Forge Prompt: settings must come from {READ_GENERATION_DATA}")
        options = settings.applied(options)
        timing = timing_from(clip, steps, sigmas, model, by_calls=loras == LORAS[0])
        reading: dict[str, Any] = {"has_comments": options.comment_marks, "regions": regions}
        if settings.is_timed:
            glides = glides if settings.glides == GLIDES[0] else settings.glides
            joins = joins if settings.joins == JOINS[0] else settings.joins
            reading |= {"is_negative": settings.is_negative, "glides": glides, "joins": joins}
            prompt = read_timed(text, timing.counted, **reading, counter=counter)
        else:
            prompt = untimed(text, timing.counted)
        times: list[LoraTimes] = []
        hooked: HookedClip | None = None
        clips: list[EitherClip] = []
        by_part = loras == LORAS[2] and len(prompt.branches) > 1
        if loras != LORAS[0]:
            times = lora_times(
                *(text, timing.steps, counter),
                has_comments=options.comment_marks,
                regions=regions,
                second_pass=second_pass,
            )
            files = find_loras(times, by_part=by_part)
            if by_part and files.loras:
                clips, hooked = hook_parts(clip, files.loras, timing, model, prompt)
            else:
                hooked = hook_loras(clip, files.loras, timing, model)
            hooked = hooked._replace(issues=[*files.issues, *hooked.issues])
        hooked_clip = hooked.clip if hooked else clip
        encoded = encode_timed(hooked_clip, prompt, options, timing, counter, as_webui=as_webui, clips=clips)
        conditioning, lines = place_lines(encoded.conditioning, settings.places)
        if settings.is_negative and not text and is_sdxl(clip):
            conditioning, lines = zeroed(conditioning), ["no negative prompt: zeros, as in the WebUI for SDXL"]
        encoded = encoded._replace(conditioning=conditioning)
        prompt = with_times(prompt, times, by_part=by_part) if hooked else prompt
        result = timed_result(prompt, encoded, timing, counter, times, hooked, by_part=by_part)
        return {**result, "result": (conditioning, "\n".join([result["result"][1], *lines]))}


class WeightedCLIPMaskedBlend(TextNode):
    """Turns words down so that they really fade: at 0.3 a word is 0.3 present in every row that read it. With
    mask_method remove it is as if it were typed 0.3 of the time. Weights above 1 act as in ComfyUI.
    """

    title = "Fade Words"
    aliases = "down-weight, masked blend, compel, remove, weaken, prompt weight, prompt"
    required = {
        **inputs("clip", "text"),
        "syntax": make_input(
            with_first("a1111", TARGETS), INPUTS["syntax"][1]["tooltip"], counts=True, default=OPTIONS["syntax"].default
        ),
        **inputs("law", "mask_method", "filler", "padding", "pooled"),
    }
    optional = inputs("cleaning", "comments")

    @staticmethod
    def options(**choices: Any) -> EncodeOptions:
        """Options from the inputs, which are named like the fields of `EncodeOptions`."""
        return EncodeOptions(scheme="masked_blend", **choices)


class MaskNode(DrawingNode, EncodeNode):
    """Base of nodes for CLIP text towers that draw their masks."""

    drawn = (1,)
    hidden = {**METADATA, **HIDDEN}

    def encode(
        self, clip: EitherClip, text: str, prompt: Any = None, unique_id: str | None = None, **choices: Any
    ) -> dict[str, Any]:
        """Encode, and draw the masks if they are asked for; ``choices`` are the other inputs."""
        towers_of(clip)  # raises if there is nothing to mask
        return masked_result(encode_text(clip, text, self.options(**choices)), is_used(1, prompt, unique_id))


class WeightedCLIPMaskControl(MaskNode):
    """Encodes a prompt with phrases hidden: from everything, from other phrases only, or from the padding rows that the
    U-Net reads after the prompt. Shows the mask. With nothing hidden it gives what the stock node gives.
    """

    title = "Hide Words"
    aliases = "mask control, attention mask, causal, bleeding, concept bleed, prompt"
    CATEGORY = f"{CATEGORY}/prompt"
    outputs = (
        CONDITIONING,
        Out("IMAGE", "mask", "The mask of the first chunk: which token (row) may see which (column)."),
        ENCODED_REPORT,
    )
    required = {
        **inputs("clip", "text"),
        **inputs("hide", "hidden_from"),
        "from_phrases": option_input("from_phrases", advanced=True),
        "causal": option_input("is_causal", label_on="on, as trained", label_off="off", advanced=True),
        **inputs("padding"),
    }
    optional = inputs("comments")

    @staticmethod
    def options(causal: bool, **choices: Any) -> EncodeOptions:
        """Options from the inputs."""
        return EncodeOptions(is_causal=causal, **choices)


class WeightedCLIPBindPhrases(MaskNode):
    """Keeps phrases apart, so that the colour of one does not leak into another: each is encoded with the words of all
    the others hidden. Shows the masks. Without phrases it gives what Weighted Prompt gives.
    """

    title = "Color Bleed"
    aliases = "bind phrases, bleeding, concept bleed, colour bleed, color leak, keep colors apart, cutoff, attributes"
    outputs = (
        CONDITIONING,
        Out("IMAGE", "mask", "The masks of all passes over the first chunk: which token (row) may see which (column)."),
        ENCODED_REPORT,
    )
    required = {
        **inputs("clip", "text"),
        "phrases": option_input("bind"),
        "rest": option_input("bind_rest", advanced=True),
        "strength": option_input("bind_strength", counts=False, advanced=True),
        **inputs("syntax", "scheme", "padding", "cleaning", "finest_step"),
        "hide": option_input("bind_hide", advanced=True),
        "words": option_input("bind_words", advanced=True),
    }
    optional = inputs("comments")

    @staticmethod
    def options(phrases: str, rest: str, **choices: Any) -> EncodeOptions:
        """Options from the inputs, of which some have shorter names than the fields."""
        named = {f"bind_{name}": choices.pop(name) for name in ("strength", "hide", "words") if name in choices}
        return EncodeOptions(bind=phrases, bind_rest=rest, binds_some=True, **named, **choices)


MAX_SIZE = 16384
"""Largest size accepted by ComfyUI's nodes, in pixels."""


def size_input(tooltip: str, default: int = 1024) -> Input:
    """Make an input for a length in pixels."""
    return make_input("INT", tooltip, **number(default, 0, MAX_SIZE), advanced=True)


class WeightedCLIPSDXLEncode(EncodeNode):
    """Encodes for SDXL: a text for each of its two encoders, and the sizes it was trained with. With everything on
    comfy it gives exactly what the stock CLIP Text Encode SDXL gives, and on the refiner's CLIP what the stock node for
    the refiner gives.
    """

    title = f"{WEIGHTED_PROMPT} (SDXL)"
    aliases = "refiner, clip text encode sdxl weighted, prompt, weights, size conditioning"
    required = {
        **inputs("clip"),
        "text_g": prompt_input("The prompt for CLIP-G, the large encoder. As in the stock node, // starts a comment."),
        "text_l": prompt_input("The prompt for CLIP-L; usually the same as for CLIP-G."),
        "width": size_input("Width that SDXL should assume for the original picture, in pixels."),
        "height": size_input("Height that SDXL should assume, in pixels."),
        "crop_w": size_input("Pixels cropped at the left of the original; 0: well centred pictures.", 0),
        "crop_h": size_input("Pixels cropped at its top.", 0),
        "target_width": size_input("Width of the picture to make, in pixels."),
        "target_height": size_input("Height of the picture to make, in pixels."),
        **inputs("syntax", "scheme", "normalization", "chunking", "padding", "pooled"),
    }
    optional = {
        "aesthetic_score": make_input(
            "FLOAT",
            "For the refiner only: 6 for the prompt, 2.5 for the negative prompt.",
            **number(6.0, 0.0, 1000.0, 0.01),
            advanced=True,
        ),
        **inputs("cleaning", "finest_step", "comments"),
    }

    def encode(
        self,
        clip: EitherClip,
        text_g: str,
        text_l: str,
        width: int,
        height: int,
        crop_w: int,
        crop_h: int,
        target_width: int,
        target_height: int,
        aesthetic_score: float = 6.0,
        **choices: Any,
    ) -> dict[str, Any]:
        """Encode; ``choices`` are the menus."""
        towers = towers_of(clip)
        if "clip_g" not in towers:
            raise ValueError(
                f"This CLIP holds {' and '.join(towers)}, no clip_g: it is not SDXL's. Use {WEIGHTED_PROMPT} for this "
                "model."
            )
        values: dict[str, Any] = {"width": width, "height": height}
        issues: list[Issue] = []
        if towers == ("clip_g",):
            values["aesthetic_score"] = aesthetic_score
            if text_l.strip() and text_l != text_g:
                message = "This is the refiner's CLIP, which has no CLIP-L: text_l is not used."
                issues.append(Issue("unused-text", message, Span(0, 0)))
        else:
            values |= {"crop_w": crop_w, "crop_h": crop_h, "target_width": target_width, "target_height": target_height}
        texts = {name: text_l if name == "clip_l" else text_g for name in towers}
        return encoded_result(encode_text(clip, texts, self.options(**choices), values), issues)


class WeightedCLIPWeighAttention(EncodeNode):
    """Encodes the prompt without its weights and lets them act where the image reads it: in the diffusion model's
    attention. At weight 2 a word gets twice the share of what the image looks at, at 0 it is not read at all. For
    Stable Diffusion, Flux, Qwen-Image, Z-Image, HiDream, Wan, LTX-Video and nearly all other models.
    """

    title = "Attention Weights"
    CATEGORY = f"{CATEGORY}/prompt"
    aliases = "attention, weights, cross attention, prompt, emphasis, attention bias, prompt weight, negative weight"
    outputs = (
        Out("CONDITIONING", "CONDITIONING", "The encoded prompt, which carries the weights to the sampler."),
        Out(
            "STRING",
            "report",
            "Each weighted word with its weight and rows, what is left unweighted, and every problem.",
        ),
        Out("MODEL", "MODEL", "The connected model, ready for the weights; empty if no model was connected."),
    )
    required = {
        **inputs("clip", "text"),
        "syntax": make_input(TARGETS, INPUTS["syntax"][1]["tooltip"], counts=True),
        "how": make_input(
            HOWS,
            "What a weight does. bias: multiplies the share of the image's attention that the word gets; below "
            "zero the word is taken away instead of added. value: the share stays, and what the image takes from the "
            "word is multiplied. negpip: as ComfyUI-ppm's CLIP NegPip, for Stable Diffusion 1, 2 and XL, and Anima: "
            "rows are moved as in ComfyUI, and below zero what the image takes from the word is subtracted. krea2: as "
            "KJNodes' Krea2 Prompt Weight: value up to 1, and a stronger bias above. guidance (experimental): the "
            "picture follows the prompt with the word and without it, in shares, in any model; one more call of the "
            "model a step for each different weight.",
            counts=True,
        ),
        "strength": make_input(
            "FLOAT",
            "Strength of the weights. 0: none. 0.5: halfway to 1. 1: as written.",
            **number(1.0, 0.0, 10.0, 0.05),
        ),
    }
    optional = {
        "model": make_input(
            "MODEL",
            "Not needed. Connected, the weights act only in the MODEL output, so use that for sampling; on "
            "NVIDIA this saves the second copy of the model that ComfyUI loads for hooks.",
        ),
        **inputs("cleaning", "comments"),
    }
    hidden = {"unique_id": "UNIQUE_ID", **METADATA}

    reads_as = staticmethod(as_weighted)
    """Reading of prompts for T5, Qwen and others."""

    @staticmethod
    def options(how: str = HOWS[0], **choices: Any) -> EncodeOptions:
        """Options for the text from the inputs, which are named like the fields of `EncodeOptions`."""
        return EncodeOptions(scheme=scheme_of_rows(how), **choices)

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its other inputs before a run."""
        values = dict(state.values)
        if isinstance(text := values.pop("text", None), str):
            yield from refused("text", lambda: check_sections(parse_encoded(text, cls.options(**values)).sections))

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
        options, how = self.options(**choices), checked("how", how, HOWS)
        if how == GUIDANCE:
            weighed = guide_text(clip, text, options, strength, model)
            lines = report_of_guidance(weighed.predictions, strength)
        else:
            weighed = weight_text(clip, text, options, how, strength, model, unique_id)
            lines = report_of(weighed, how, strength)
        result = encoded_result(weighed.encoded)
        conditioning, report = result["result"]
        return {**result, "result": (conditioning, "\n".join([report, *lines]), weighed.model)}
