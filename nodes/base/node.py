"""Common parts of the ComfyUI nodes: their base classes and inputs.

Widgets are permanent: saved workflows store their values by position, so a node's inputs keep their order forever and
new ones are only appended. Menus list the available choices, in their final order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...encoder.cache import DEFAULT_MEBIBYTES
from ...encoder.option import with_choices
from ...encoder.quoting import checked
from ...hosts.comfy.consumers import used_in_running
from ...hosts.comfy.contract import host
from ...hosts.comfy.encoded_texts import note_texts
from ...weighting.options import OPTIONS, EncodeOptions
from ...weighting.text.problems import Problem
from ...weighting.timed.glides import GLIDES
from ...weighting.timed.joining import JOINS
from ...weighting.timed.loras import LORAS
from ...weighting.timed.schedule import COUNTERS, MAX_STEPS

if TYPE_CHECKING:
    from .node_state import NodeState

NATIVE_TYPE = "WEIGHTED_CLIP"
"""Type name of a link that carries our own encoder."""
EITHER_CLIP = f"CLIP,{NATIVE_TYPE}"

CATEGORY = "Weighted CLIP"
"""The menu of the nodes that are needed first; the others stand in those below it."""

MARK = "weighted_clip_ruler"
"""Option of an input with its role for the token ruler (web/comfyui/ruler/requests.js)."""
PROMPT = "prompt"
"""Value of `MARK`: a prompt box, which the ruler shows."""
COUNTS = "counts"
"""Value of `MARK`: an input that affects how a prompt is read."""

PLACES = "places"
"""Value of `MARK`: a conditioning whose words and placed phrases the ruler shows after a run."""
MAPS = "maps"
"""Value of `MARK`: a watch whose maps the node shows after a run."""

WORDS = "words"
"""Value of `MARK`: an input for words of a prompt, which the page offers."""
CHECKED = "weighted_clip_checked"
"""Option of the inputs of a node whose problems the page asks for, as it has no prompt box."""

Input = tuple[str | list[str], dict[str, Any]]
"""An input as described to ComfyUI: its type, or the choices of a menu, and its options."""


def make_input(kind: str | Iterable[str], tooltip: str, *, counts: bool = False, **options: Any) -> Input:
    """Make an input of a type, or a menu of choices, by default the first. ``counts`` marks it with `COUNTS`."""
    if not isinstance(kind, str):
        kind = list(kind)
        options.setdefault("default", kind[0])
    if counts:
        options[MARK] = COUNTS
    return kind, {**options, "tooltip": tooltip}


def number(default: Any, minimum: float | None, maximum: float | None, step: float | None = None) -> dict[str, Any]:
    """Options of an input for a number: its default, range and step, where there are any."""
    options = {"default": default, "min": minimum, "max": maximum, "step": step}
    return {name: value for name, value in options.items() if value is not None}


def prompt_input(tooltip: str) -> Input:
    """Make a prompt box."""
    return "STRING", {"multiline": True, "dynamicPrompts": True, MARK: PROMPT, "tooltip": tooltip}


def placed_input(tooltip: str) -> Input:
    """Make an input for a conditioning whose words, placed phrases and regions the node shows."""
    return "CONDITIONING", {MARK: PLACES, "tooltip": tooltip}


WATCH = "WEIGHTED_CLIP_WATCH"
"""Type name of a link that carries a watch."""


def words_input(tooltip: str, **options: Any) -> Input:
    """Make an input for words of the prompt that the node is connected to."""
    return "STRING", {"default": "", MARK: WORDS, **options, "tooltip": tooltip}


PROMPT_SETTINGS = "WEIGHTED_CLIP_SETTINGS"
"""Type name of a link that carries how a picture's prompt was read and weighted."""


def with_first(first: str, names: Iterable[str]) -> list[str]:
    """Move one of the names to the front: the default of a menu."""
    return [first, *(name for name in names if name != first)]


COMMENTS_AND_CHOICES = (
    "As in the stock node, // starts a comment, and of alternatives in curly brackets, separated by bars, one is "
    "picked at random."
)
_TYPES = {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}


def option_input(name: str, *, counts: bool = True, **limits: Any) -> Input:
    """Make the input of an option of `EncodeOptions`: a menu, or a value of its default's type.

    ``counts`` as in `make_input`; ``limits`` are more for the host, such as the range that its widget has.
    """
    option = OPTIONS[name]
    if option.choices:
        return make_input(option.choices, option.tooltip, counts=counts, **limits)
    options = {**number(option.default, option.minimum, option.maximum, option.step), **limits}
    if option.is_lines:
        options["multiline"] = True
    return make_input(_TYPES[type(option.default)], option.tooltip, counts=counts, **options)


RARE = (
    "normalization",
    "chunking",
    "padding",
    "pooled",
    "filler",
    "comma_backtrack",
    "cleaning",
    "finest_step",
    "comments",
)
"""Options that hardly anyone changes: in every node among the advanced inputs."""
INPUTS: dict[str, Input] = {
    "clip": make_input(
        EITHER_CLIP, "The text encoder: the checkpoint's CLIP, or one from our native loader. Clip skip belongs to it."
    ),
    "text": prompt_input(f"The prompt. {COMMENTS_AND_CHOICES}"),
    **{name: option_input(name) for name in OPTIONS if name not in RARE},
    **{name: option_input(name, advanced=True) for name in RARE},
    "comma_backtrack": option_input("comma_backtrack", min=0, max=74, advanced=True),
    "remember": make_input(
        "INT",
        "MiB of encodings to remember, so that nothing is encoded twice: the empty prompt, "
        "unchanged chunks, the beginning of an edited one. 0: none.",
        **number(DEFAULT_MEBIBYTES, 0, 65536),
    ),
}
"""Inputs shared by several nodes, and one for each option."""


def cleaning_input() -> dict[str, Input]:
    """Cleaning of a prompt that is always in A1111's syntax."""
    option = OPTIONS["cleaning"]
    tooltip = with_choices("How the prompt is cleaned first.", option.meanings)
    return {"cleaning": make_input(option.choices, tooltip, counts=True, advanced=True)}


def loras_input(choices: Sequence[str], **options: Any) -> Input:
    """Make the menu of ways of reading LoRA tags."""
    meanings = {
        LORAS[0]: "LoRAs act all the time, and LoRA Tag Loader loads them.",
        LORAS[1]: "they change with the steps, as in [<lora:a:1>:<lora:b:1>:0.5] or by strengths at steps, as hooks of "
        "ComfyUI.",
        LORAS[2]: "the same, and each acts in its own part between ANDs or COUPLEs alone, those of the prompt before a "
        "COUPLE in the whole picture. A region of COUPLE with a LoRA takes one more pass of the model.",
    }
    tooltip = " ".join(f"{choice}: {meanings[choice]}" for choice in choices)
    return make_input(choices, tooltip, counts=True, **options)


def second_pass_input() -> Input:
    """Make the switch for a pass such as hires. fix."""
    return make_input(
        "BOOLEAN",
        "On for a second pass, such as hires. fix: the strengths hr=, hrte= and hrunet= in LoRA tags count where there "
        "are any.",
        default=False,
        counts=True,
        advanced=True,
    )


def glides_input(when: str = "") -> Input:
    """Make the menu of forms that glide."""
    return make_input(
        GLIDES,
        f"{when}prompt-fusion: [cat:dog:0.2,0.8] goes from the one to the other between these parts of the steps, and "
        "(cat:0.5,1.5) from one weight to another. off: both are brackets and text, as in A1111.",
        counts=True,
        advanced=True,
    )


def joins_input(when: str = "") -> Input:
    """Make the menu of words that join prompts."""
    return make_input(
        JOINS,
        f"{when}neutral-prompt: AND_PERP, AND_SALT and AND_TOPK join prompts as in that extension of the WebUI, and "
        "square brackets hold several. AND: nothing else does.",
        counts=True,
        advanced=True,
    )


TIME_INPUTS: dict[str, Input] = {
    "steps": make_input(
        "INT",
        "The sampler's steps, which times such as [cat:dog:10] count. Not used where sigmas are connected.",
        **number(20, 1, MAX_STEPS),
        counts=True,
    ),
    "counter": make_input(
        COUNTERS,
        "When a text changes. as the WebUI counts: one step later than written, as A1111 and Forge do. as written: "
        "[cat:dog:10] is ten steps of cat.",
        counts=True,
        advanced=True,
    ),
    "sigmas": make_input(
        "SIGMAS",
        "The sampler's noise levels, as from BasicScheduler: texts then change on exactly their step.",
        counts=True,
    ),
}
"""Inputs of nodes for timed prompts, as `timing_from` takes them."""


def inputs(*names: str) -> dict[str, Input]:
    """Some of `INPUTS`, in this order."""
    return {name: INPUTS[name] for name in names}


REPORT_TOOLTIP = "The id, text and weight of each token, by chunk, and every problem."
METADATA = {"extra_pnginfo": "EXTRA_PNGINFO"}
"""Hidden input of the encode nodes: the metadata that ComfyUI writes into saved images."""


class Out(NamedTuple):
    """An output of a node."""

    kind: str
    """ComfyUI's type of the link."""
    name: str
    tooltip: str


CONDITIONING = Out("CONDITIONING", "CONDITIONING", "The encoded prompt, for the sampler.")
ENCODED_REPORT = Out("STRING", "report", f"The prompt as it was encoded. {REPORT_TOOLTIP}")

NODES: dict[str, type[Node]] = {}
"""The nodes by id, in the order of their definition."""


class Node:
    """Base of the nodes: makes of what a class declares the attributes that ComfyUI asks for.

    A subclass with a title is a node. Its name is the node's id: permanent, as saved workflows store it. Its docstring
    is the node's description.
    """

    title: str
    """Display name, which may change."""
    aliases: str
    """Words by which the search finds it too, between commas."""
    required: Mapping[str, Input] = {}
    """Inputs by name, in their permanent order."""
    optional: Mapping[str, Input] = {}
    """More inputs, which requests saved before they existed may lack."""
    hidden: Mapping[str, str] = {}
    """Values that ComfyUI adds by itself, by name."""
    outputs: tuple[Out, ...] = ()
    CATEGORY = CATEGORY
    EXPERIMENTAL = False
    """Whether ComfyUI marks it as such."""
    FUNCTION = "run"
    DESCRIPTION: str
    SEARCH_ALIASES: list[str]
    RETURN_TYPES: tuple[str, ...]
    RETURN_NAMES: tuple[str, ...]
    OUTPUT_TOOLTIPS: tuple[str, ...]

    def __init_subclass__(cls) -> None:
        if "title" not in vars(cls):
            return
        cls.DESCRIPTION = " ".join((cls.__doc__ or "").split())
        cls.SEARCH_ALIASES = cls.aliases.split(", ")
        cls.RETURN_TYPES, cls.RETURN_NAMES, cls.OUTPUT_TOOLTIPS = zip(*cls.outputs, strict=True)
        NODES[cls.__name__] = cls

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        required, optional = dict(cls.required), dict(cls.optional)
        has_prompt = any(spec[1].get(MARK) == PROMPT for spec in required.values())
        if cls.problems.__func__ is not Node.problems.__func__ and not has_prompt:
            required, optional = map(_checked_inputs, (required, optional))
        kinds = {"required": required, "optional": optional, "hidden": dict(cls.hidden)}
        return {kind: inputs for kind, inputs in kinds.items() if inputs}

    @classmethod
    def problems(cls, state: NodeState) -> Iterable[Problem]:
        """Problems of its inputs before a run: what a run refuses, found by the same functions."""
        return ()

    @classmethod
    def words(cls, state: NodeState) -> Iterable[list[str]]:
        """Words, by prompt, that its input with the mark `WORDS` takes."""
        return ()


def _checked_inputs(inputs: Mapping[str, Input]) -> dict[str, Input]:
    return {name: (kind, {**options, CHECKED: True}) for name, (kind, options) in inputs.items()}


class EncodeNode(Node):
    """Base of the encode nodes, which note the encoded texts in saved images."""

    outputs = (CONDITIONING, ENCODED_REPORT)
    hidden = METADATA
    encode: Callable[..., dict[str, Any]]
    options: Callable[..., EncodeOptions] = EncodeOptions
    """Options for reading the prompt from the inputs marked with `COUNTS`."""

    def run(self, extra_pnginfo: Any = None, **inputs: Any) -> dict[str, Any]:
        """Encode, and note the encoded texts for the metadata of images."""
        result = self.encode(**inputs)
        texts = result.pop("texts")
        boxes = {name: spec for name, spec in self.required.items() if spec[1].get(MARK) == PROMPT}
        note_texts(extra_pnginfo, {name: texts[inputs[name]] for name in boxes if inputs[name] in texts})
        return result


class DrawingNode:
    """Mixin of nodes that draw pictures only for outputs that are connected."""

    drawn: tuple[int, ...]
    """Numbers of these outputs, from 0."""

    @classmethod
    def IS_CHANGED(cls, unique_id: str | None = None, **_: Any) -> list[int]:
        """For ComfyUI's cache: with other outputs connected, others are drawn."""
        return used_in_running(cls.drawn, unique_id)


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DEVICES = ("auto", "cpu")


def loading_inputs(dtype_tooltip: str, device_tooltip: str) -> dict[str, Input]:
    """Type and device for `Loader.checked`."""
    return {"dtype": make_input(DTYPES, dtype_tooltip), "device": make_input(DEVICES, device_tooltip)}


class Loader(Node):
    """Base of the nodes that load a model from a file in some of the host's folders: the first input, ``file``."""

    folders: tuple[str, ...]
    suffix = ""
    """End of the names of the files listed."""
    file_tooltip: str
    FUNCTION = "load"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs, with the current files, as ``folder/name``."""
        list_of = host("folder_paths").get_filename_list
        files = [f"{folder}/{name}" for folder in cls.folders for name in list_of(folder)]
        listed = [file for file in files if file.lower().endswith(cls.suffix)]
        types = super().INPUT_TYPES()
        return {**types, "required": {"file": (listed, {"tooltip": cls.file_tooltip}), **types["required"]}}

    @staticmethod
    def checked(file: str, dtype: str, device: str) -> dict[str, Any]:
        """Path, type and device from the inputs."""
        checked("device", device, DEVICES)
        kind = DTYPES[checked("dtype", dtype, DTYPES)]
        folder, _, name = file.partition("/")
        return {"path": host("folder_paths").get_full_path_or_raise(folder, name), "dtype": kind, "device": device}
