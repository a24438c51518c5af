"""Common parts of the ComfyUI nodes: their base classes and inputs.

Widgets are permanent: saved workflows store their values by position, so a node's inputs keep their order forever and
new ones are only appended. Menus list the available choices, in their final order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from ..encoder.remember import DEFAULT_MEBIBYTES
from ..hosts.comfy.encoded_texts import note_texts
from ..weighting.normalize import NORMALIZATIONS
from ..weighting.options import CHUNKING_CHOICES, CLEANINGS
from ..weighting.padding import PADDINGS
from ..weighting.scheme import LAWS, MASK_METHODS, POOLED
from ..weighting.schemes import SCHEMES
from ..weighting.schemes.repeat import FINEST_STEPS
from ..weighting.syntax import SYNTAXES

NATIVE_TYPE = "WEIGHTED_CLIP"
"""Type name of a link that carries our own encoder."""
EITHER_CLIP = f"CLIP,{NATIVE_TYPE}"

MARK = "weighted_clip_ruler"
"""Option of an input with its role for the token ruler (web/comfyui/ruler/requests.js)."""
PROMPT = "prompt"
"""Value of `MARK`: a prompt box, which the ruler shows."""
COUNTS = "counts"
"""Value of `MARK`: an input that affects how a prompt is read."""

Input = tuple[str | list[str], dict[str, Any]]
"""An input as described to ComfyUI: its type, or the choices of a menu, and its options."""


def make_input(
    kind: str | list[str], tooltip: str, options: Mapping[str, Any] | None = None, *, counts: bool = False
) -> Input:
    """Make an input of a type, or a menu of choices. ``counts`` marks it with `COUNTS`."""
    return kind, {**(options or {}), **({MARK: COUNTS} if counts else {}), "tooltip": tooltip}


def prompt_input(tooltip: str) -> Input:
    """Make a prompt box."""
    return make_input("STRING", tooltip, {"multiline": True, "dynamicPrompts": True, MARK: PROMPT})


def menu(choices: Iterable[str], tooltip: str, *, counts: bool = False) -> Input:
    """Make a drop-down input; its default is the first choice. ``counts`` as in `make_input`."""
    names = list(choices)
    return make_input(names, tooltip, {"default": names[0]}, counts=counts)


def with_first(first: str, names: Iterable[str]) -> list[str]:
    """Move one of the names to the front: the default of a menu."""
    return [first, *(name for name in names if name != first)]


def checked(name: str, value: Any, choices: Collection[str]) -> Any:
    """Value of a drop-down input without other checks; the host accepts any value from a link.

    Raises:
        ValueError: If it is not one of the choices, e.g. from a workflow of a newer version.
    """
    if value not in list(choices):
        raise ValueError(f"{name} must be one of: {', '.join(choices)}; got {value!r}")
    return value


COMMENTS_AND_CHOICES = (
    "As in the stock node, // starts a comment, and of alternatives in curly brackets, separated by bars, one is "
    "picked "
    "at random."
)

INPUTS: dict[str, Input] = {
    "clip": make_input(
        EITHER_CLIP, "The text encoder: the checkpoint's CLIP, or one from our native loader. Clip skip belongs to it."
    ),
    "text": prompt_input(f"The prompt. {COMMENTS_AND_CHOICES}"),
    "syntax": menu(
        SYNTAXES,
        "How weights are written. " + " ".join(f"{name}: {syntax.summary}" for name, syntax in SYNTAXES.items()),
        counts=True,
    ),
    "scheme": menu(
        SCHEMES,
        "What a weight does. " + " ".join(f"{name}: {scheme.summary}" for name, scheme in SCHEMES.items()),
        counts=True,
    ),
    "normalization": menu(
        NORMALIZATIONS,
        "Changes the weights first. mean: shifts them so that they average to 1. length: a word of several tokens "
        "counts no more than a short one.",
        counts=True,
    ),
    "chunking": menu(
        CHUNKING_CHOICES,
        "Where prompts over 75 tokens are cut. as syntax: as the program of that syntax does. a1111: at 75 tokens or "
        "the last comma. comfy segment, comfy word: between weighted segments, or between words.",
        counts=True,
    ),
    "padding": menu(
        PADDINGS,
        "What the text encoder may see of the padding after a short prompt. attend: all of it, as Stable Diffusion "
        "was trained. mask: none of it. mask EOS too: not the end token either. drop: its rows are left out, so the "
        "U-Net does not see them either. clean: its rows are those of the empty prompt, which carry nothing of your "
        "words. clean EOS too: so is the end token's row.",
        counts=True,
    ),
    "pooled": menu(
        POOLED,
        "The pooled vector, which SDXL uses and SD 1.5 does not. weighted: schemes that blend encodings, such as "
        "masked_blend, blend it the same way. raw text: of the text as typed, as the compel library does.",
        counts=True,
    ),
    "law": menu(
        LAWS,
        "How several faded words share the result. nested: a word at 0 is gone, whatever the others weigh. compel: as "
        "the compel library; two words at 0 each survive by half.",
        counts=True,
    ),
    "mask_method": menu(
        MASK_METHODS,
        "What an absent word is. attention: hidden from all tokens. token: replaced by the filler. remove: deleted, "
        "what follows moves up.",
        counts=True,
    ),
    "filler": make_input(
        "STRING",
        "With mask_method token: what stands in for an absent token. Exactly one token, such as +",
        {"default": "+"},
        counts=True,
    ),
    "finest_step": menu(
        FINEST_STEPS,
        "With scheme repeat: how many steps there are from weight 0 to 1, because a row can only be repeated a "
        "whole number of times. auto: the fewest that fit the weights. 1: whole weights only. More steps mean more "
        "rows and slower sampling.",
        counts=True,
    ),
    "comma_backtrack": make_input(
        "INT",
        "When a chunk is full, cut at a comma at most this many tokens back. 0: cut at 75 tokens exactly.",
        {"default": 20, "min": 0, "max": 74},
        counts=True,
    ),
    "cleaning": menu(
        CLEANINGS,
        "With syntax a1111: as Forge: # starts a comment to the end of its line, curly quotes become straight ones, "
        "&amp; becomes &. none: the text stays as it is.",
        counts=True,
    ),
    "remember": make_input(
        "INT",
        "MiB of encodings to remember, so that nothing is encoded twice: the empty prompt, "
        "unchanged chunks, the beginning of an edited one. 0: none.",
        {"default": DEFAULT_MEBIBYTES, "min": 0, "max": 65536},
    ),
}
"""Inputs shared by several nodes, or named like fields of `EncodeOptions`."""


def inputs(*names: str) -> dict[str, Input]:
    """Some of `INPUTS`, in this order."""
    return {name: INPUTS[name] for name in names}


def rare_inputs(*names: str) -> dict[str, Input]:
    """Some of `INPUTS`, in this order, which Nodes 2.0 shows only among the advanced inputs."""
    return {name: (kind, {**options, "advanced": True}) for name, (kind, options) in inputs(*names).items()}


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
    outputs: tuple[Out, ...] = ()
    CATEGORY = "Weighted CLIP"
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
        raise NotImplementedError


class EncodeNode(Node):
    """Base of the encode nodes, which note the encoded texts in saved images."""

    outputs = (CONDITIONING, ENCODED_REPORT)
    encode: Callable[..., dict[str, Any]]

    def run(self, extra_pnginfo: Any = None, **inputs: Any) -> dict[str, Any]:
        """Encode, and note the encoded texts for the metadata of images."""
        result = self.encode(**inputs)
        texts = result.pop("texts")
        boxes = {name: spec for name, spec in self.INPUT_TYPES()["required"].items() if spec[1].get(MARK) == PROMPT}
        note_texts(extra_pnginfo, {name: texts[inputs[name]] for name in boxes if inputs[name] in texts})
        return result
