"""Nodes around encoding: prompts converted, inspected or read for LoRAs, and text encoders loaded or given a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..encoder.cache import DEFAULT_MEBIBYTES, MEBIBYTE
from ..encoder.tokenizer import default_tokenizer
from ..hosts.comfy.clip.clip import EitherClip, readers_of, towers_of
from ..hosts.comfy.clip.loras import find_loras, hook_loras, load_loras, lora_issues
from ..hosts.comfy.clip.timed_prompts import timing_from
from ..hosts.comfy.models.cache import with_memory
from ..hosts.comfy.models.models import NativeClip, load_native
from ..hosts.comfy.types import Clip, ModelPatcher
from ..weighting.options import EncodeOptions
from ..weighting.reading.convert import TARGETS, Converted, convert
from ..weighting.reading.prompt_reader import ReadPrompt, read_prompt
from ..weighting.reading.view import token_table, view
from ..weighting.syntax import SYNTAXES
from ..weighting.text.problems import Problem
from ..weighting.text.tags import REPEATED_LORA, TIMED_LORA, bare, comment_issues, read_loras
from ..weighting.timed.loras import LORAS, Loras, constant, lora_times, with_times, without_repeated
from ..weighting.timed.schedule import COUNTERS, Counter, read_timed
from .base.node import (
    CATEGORY,
    EITHER_CLIP,
    NATIVE_TYPE,
    REPORT_TOOLTIP,
    TIME_INPUTS,
    Loader,
    Node,
    Out,
    checked,
    cleaning_input,
    inputs,
    loading_inputs,
    loras_input,
    make_input,
    number,
    prompt_input,
    second_pass_input,
    with_first,
)
from .base.node_state import NodeState
from .base.results import node_result, timed_loras_result, to_image


class WeightedCLIPConvert(Node):
    """Rewrites a prompt for another program: every token keeps its id and its weight. Anything the target syntax cannot
    express is reported.
    """

    title = "Convert Prompt Syntax"
    aliases = "convert prompt, syntax, a1111 to comfy, compel, translate prompt"
    CATEGORY = f"{CATEGORY}/prompt"
    outputs = (
        Out("STRING", "text", "The prompt in the other syntax."),
        Out("STRING", "report", "What could not be kept, or that everything was."),
    )
    FUNCTION = "convert"
    required = {
        **inputs("text"),
        "from": make_input(with_first("a1111", SYNTAXES), "The syntax of the prompt.", counts=True),
        "to": make_input(TARGETS, "The target syntax.", counts=True),
    }
    optional = inputs("cleaning", "comments")

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Parts of the prompt that the other syntax cannot say, before a run."""
        values = dict(state.values)
        text = values.pop("text", None)
        if isinstance(text, str) and state.has("to"):
            for issue in cls._converted(text, values.pop("to"), cls.options(**values)).issues:
                yield Problem(issue.line, "text", is_refused=False)

    @staticmethod
    def _converted(text: str, to: str, options: EncodeOptions) -> Converted:
        is_cleaned = options.cleaning == "as Forge"
        marks = options.comment_marks
        return convert(text, options.syntax, to, default_tokenizer(), is_cleaned=is_cleaned, marks=marks)

    @staticmethod
    def options(to: str = "", **choices: Any) -> EncodeOptions:
        """Options for reading the prompt."""
        del to
        return EncodeOptions(**{"syntax" if name == "from" else name: value for name, value in choices.items()})

    def convert(self, text: str, to: str, **choices: Any) -> dict[str, Any]:
        """Convert; ``choices`` are the other menus, since ``from`` is not a valid Python name."""
        options = self.options(**choices)
        result = self._converted(text, to, options)
        report = "\n".join(issue.line for issue in result.issues) or "Every token keeps its id and its weight."
        parsed = read_prompt(text, options, default_tokenizer())
        return node_result((result.text, report), [parsed._replace(issues=result.issues)])


class WeightedCLIPInspect(Node):
    """Shows which tokens a prompt becomes, with which weight, in which chunk. Encodes nothing."""

    title = "Show Tokens"
    aliases = "inspect prompt, token count, token counter, tokenizer, debug"
    CATEGORY = f"{CATEGORY}/look"
    outputs = (
        Out("IMAGE", "image", "The tokens, as coloured chips."),
        Out("INT", "count", "Number of tokens, without start, end and padding."),
        Out("STRING", "report", REPORT_TOOLTIP),
    )
    FUNCTION = "inspect"
    OUTPUT_NODE = True
    required = inputs("text", "syntax", "chunking")
    optional = {
        "clip": make_input(EITHER_CLIP, "Whose tokenizer and embeddings to use. Without it: CLIP-L's, as in SD 1.5."),
        **inputs("cleaning", "comments"),
    }

    options = EncodeOptions
    """Options from the menus, which are named like its fields."""

    def inspect(self, text: str, clip: EitherClip | None = None, **choices: Any) -> dict[str, Any]:
        """Read the prompt and draw it; ``choices`` are the menus."""
        from ..web.pictures import draw_tokens

        reader = next(iter(readers_of(clip).values()))
        options = self.options(**choices)
        parsed = reader.read(text, options)
        data = view(parsed)
        picture = to_image(draw_tokens(data))
        return node_result((picture, data["num_tokens"], token_table(parsed)), [parsed])


PACKING = ("auto", "off")


class WeightedCLIPLoad(Loader):
    """Loads the CLIP text encoders of Stable Diffusion 1.x, 2.x, SDXL or its refiner as Weighted CLIP's own modules,
    from a text encoder file or out of a checkpoint. They take every mask, and
    remember what they have encoded.
    """

    title = "Load CLIP Encoder (native)"
    aliases = "load clip, text encoder, native, clip loader, clip skip"
    CATEGORY = f"{CATEGORY}/load"
    outputs = (
        Out(NATIVE_TYPE, "clip", "The encoder, for the clip input of our nodes."),
        Out("CLIP", "CLIP", "The same encoder for any node: LoRA loaders, CLIP Set Last Layer, prompt boxes."),
    )
    folders = ("text_encoders", "checkpoints")
    file_tooltip = "A .safetensors file from the text_encoders (clip) or checkpoints folder."
    required = {
        "clip_skip": make_input(
            "INT",
            "1: last layer. 2: the one before it, as many anime models want. As in the WebUI. For SD 2.x and "
            "SDXL, 1 means 2.",
            **number(1, 1, 24),
        ),
        **loading_inputs(
            "Type of the weights and the arithmetic. fp32 equals the host's numbers.",
            "auto: where the host runs text encoders.",
        ),
    }
    optional = {
        **inputs("remember"),
        "pack_weights": make_input(
            PACKING,
            "For fp32 on a CPU. auto: keep a second copy of the weights, in the order in which the processor "
            "multiplies fastest, where that gains time and there is memory for it. off: no copy.",
        ),
    }

    def load(
        self,
        file: str,
        clip_skip: int,
        dtype: str,
        device: str,
        remember: int = DEFAULT_MEBIBYTES,
        pack_weights: str = PACKING[0],
    ) -> tuple[NativeClip, Clip]:
        """Read the file."""
        native = load_native(
            **self.checked(file, dtype, device),
            clip_skip=clip_skip,
            max_bytes=remember * MEBIBYTE,
            is_packed=checked("pack_weights", pack_weights, PACKING) == "auto",
        )
        return native, native.clip


class WeightedCLIPRemember(Node):
    """Lets Weighted CLIP's nodes remember what this CLIP has encoded: the empty prompt, which most weighted prompts
    need, and chunks that have not changed. Encodings may then differ in their last digits, because batches of another
    size round differently. Stock nodes are not affected.
    """

    title = "Remember Encodings"
    aliases = "cache, memory, speed, fast, remember"
    CATEGORY = f"{CATEGORY}/load"
    outputs = (
        Out("CLIP", "CLIP", "The CLIP, for the clip input of our nodes; LoRA loaders and clip skip may follow it."),
    )
    FUNCTION = "remember"
    required = {
        "clip": make_input("CLIP", "The checkpoint's CLIP. Our native encoder remembers by itself."),
        **inputs("remember"),
    }

    def remember(self, clip: Clip, remember: int) -> tuple[Clip]:
        """Attach the cache."""
        towers_of(clip)  # raises if there is nothing to cache
        return (with_memory(clip, remember),)


class WeightedCLIPLoadPromptLoras(Node):
    """Loads the LoRAs that an A1111 prompt names, <lora:name:0.8>, from ComfyUI's loras folder, and gives the text
    without them. In time they change with the steps. A LoRA that is not there is left out and named as a problem.
    """

    title = "LoRA Tag Loader"
    aliases = "lora, lora tag, a1111, extra networks, prompt, load lora"
    CATEGORY = f"{CATEGORY}/prompt"
    outputs = (
        Out("MODEL", "MODEL", "The model with the LoRAs."),
        Out("CLIP", "CLIP", "The CLIP with the LoRAs."),
        Out("STRING", "text", "The prompt without its tags."),
        Out("STRING", "report", "What was loaded, and every problem."),
    )
    FUNCTION = "load"
    required = {
        "model": make_input("MODEL", "The diffusion model for the LoRAs."),
        "clip": make_input("CLIP", "The text encoder for the LoRAs."),
        "text": prompt_input(
            "The prompt. <lora:name:0.8> is a LoRA at 0.8, <lora:name:0.5:0.8> at 0.5 for the text encoder and "
            "0.8 for the model."
        ),
    }
    optional = {
        **cleaning_input(),
        **TIME_INPUTS,
        "loras": loras_input(LORAS[:2]),
        "second_pass": second_pass_input(),
        **inputs("comments"),
    }

    lora_issues = staticmethod(lora_issues)
    """Issues about LoRAs before a run."""

    @staticmethod
    def options(**choices: Any) -> EncodeOptions:
        """Options for reading the prompt, except for times."""
        return EncodeOptions(syntax="a1111", **choices)

    def load(
        self,
        model: ModelPatcher,
        clip: Clip,
        text: str,
        steps: int = 20,
        counter: Counter = COUNTERS[0],
        sigmas: Tensor | None = None,
        loras: Loras = LORAS[0],
        second_pass: bool = False,
        **choices: Any,
    ) -> dict[str, Any]:
        """Load the LoRAs; ``choices`` are the other menus."""
        checked("counter", counter, COUNTERS)
        checked("loras", loras, LORAS[:2])
        options = self.options(**choices)
        bare_text = bare(text, has_comments=options.comment_marks, has_tags=True)
        tags, said = read_loras(bare_text.tags, second_pass=second_pass)
        said += comment_issues(text, bare_text.comments)
        timing = timing_from(clip, steps, sigmas, model)
        times = [constant(tag) for tag in tags]
        if loras == LORAS[1]:
            times = lora_times(text, timing.steps, counter, has_comments=options.comment_marks, second_pass=second_pass)
            said = [issue for issue in said if issue.code != TIMED_LORA]
            said += [lora.issue for lora in times if not lora.acts]
        files = find_loras(times)
        said = [issue for issue in said if issue.code != REPEATED_LORA]
        loaded = load_loras(model, clip, [lora for lora in files.loras if not lora.times.changes])
        hooked = hook_loras(loaded.clip, [lora for lora in files.loras if lora.times.changes], timing, loaded.model)
        issues = [*files.issues, *loaded.issues, *hooked.issues, *(timing.issues if hooked.lines else ())]
        lines = [*loaded.lines, *hooked.lines, *([timing.note] if hooked.lines else [])]
        lines = [*(lines or ["no LoRA loaded"]), *(issue.line for issue in [*said, *issues])]
        outputs = (loaded.model, hooked.clip, bare_text.fragment.text, "\n".join(lines))

        def read(text: str) -> ReadPrompt:
            return read_prompt(text, options, default_tokenizer())

        prompt = read_timed(text, timing.steps, has_comments=options.comment_marks)
        if loras == LORAS[0]:
            prompt = without_repeated(prompt)
            return timed_loras_result(outputs, prompt, counter, read, (), issues, without=("lora",))
        prompt = with_times(prompt, times)
        return timed_loras_result(outputs, prompt, counter, read, times, issues)
