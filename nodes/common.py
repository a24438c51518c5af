"""What the ComfyUI nodes share: input definitions, options from widgets, and the shape of a result.

Widgets are permanent: saved workflows store their values by position, so a node's inputs keep their order for ever and
new ones are only appended. Menus list what exists, in their final order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..hosts.comfy import Encoded, encode_text
from ..weighting.encode import CHUNKING_CHOICES, EncodeOptions, ReadPrompt
from ..weighting.normalize import NORMALIZATIONS
from ..weighting.padding import PADDINGS
from ..weighting.scheme_api import LAWS, MASK_METHODS, POOLED
from ..weighting.schemes import SCHEMES
from ..weighting.syntax import SYNTAXES
from ..weighting.view import counted, token_table, view

if TYPE_CHECKING:
    from PIL import Image

CATEGORY = "Weighted CLIP"
NATIVE_TYPE = "WEIGHTED_CLIP"
"""Type name of a link that carries our own encoder."""
EITHER_CLIP = f"CLIP,{NATIVE_TYPE}"

CLIP_INPUT = (
    EITHER_CLIP,
    {"tooltip": "The text encoder: the checkpoint's CLIP, or one from our native loader. Clip skip belongs to it."},
)
TEXT_INPUT = (
    "STRING",
    {
        "multiline": True,
        "dynamicPrompts": True,
        "tooltip": "The prompt. As in the stock node, {a|b} picks one at random and // starts a comment.",
    },
)


def menu(choices: Sequence[str] | Mapping[str, Any], tooltip: str) -> tuple[list[str], dict[str, Any]]:
    """A drop-down input; its default is the first choice."""
    names = list(choices)
    return names, {"default": names[0], "tooltip": tooltip}


SYNTAX_INPUT = menu(
    SYNTAXES,
    "How weights are written. comfy: (word:1.2) sets, (word) is 1.1. a1111: brackets multiply, [word] is 1/1.1, BREAK "
    "ends a chunk. compel: word+ and (word)1.2, .blend() and .and(). none: brackets are text.",
)
SCHEME_INPUT = menu(
    SCHEMES, "What a weight does. " + " ".join(f"{name}: {scheme.summary}" for name, scheme in SCHEMES.items())
)
NORMALIZATION_INPUT = menu(
    NORMALIZATIONS,
    "Changes the weights first. mean: shifts them so that they average to 1. length: a word of several tokens counts "
    "no more than a short one.",
)
CHUNKING_INPUT = menu(
    CHUNKING_CHOICES,
    "Where prompts over 75 tokens are cut. as syntax: as the program of that syntax does. a1111: at 75 tokens or the "
    "last comma. comfy segment, comfy word: between weighted segments, or between words.",
)
PADDING_INPUT = menu(
    PADDINGS,
    "What the text encoder may see of the padding behind a short prompt. attend: all of it, as Stable Diffusion was "
    "trained. mask: none of it. mask EOS too: not the end token either.",
)
POOLED_INPUT = menu(
    POOLED,
    "The pooled vector, which SDXL uses and SD 1.5 does not. weighted: schemes that blend encodings, such as "
    "masked_blend, blend it the same way.",
)
LAW_INPUT = menu(
    LAWS,
    "How several faded words share the result. nested: a word at 0 is gone, whatever the others weigh. compel: as the "
    "compel library; two words at 0 each survive by half.",
)
MASK_METHOD_INPUT = menu(
    MASK_METHODS,
    "What an absent word is. attention: hidden from all other tokens. token: replaced by the filler. remove: deleted, "
    "what follows moves up.",
)
FILLER_INPUT = (
    "STRING",
    {
        "default": "+",
        "tooltip": "With mask_method token: what stands in for an absent token. Exactly one token, such as +",
    },
)
COMMA_BACKTRACK_INPUT = (
    "INT",
    {
        "default": 20,
        "min": 0,
        "max": 74,
        "tooltip": "When a chunk is full, cut at a comma at most this many tokens back. 0: cut at 75 tokens exactly.",
    },
)

REPORT_TOOLTIP = "What became of each token: its id, text and weight, by chunk, and every problem."
CONDITIONING_TOOLTIP = "The encoded prompt, for the sampler."


def encode_node(clip: Any, text: str, options: EncodeOptions) -> dict[str, Any]:
    """Run an encode node.

    Args:
        clip: A host's CLIP or our native one.
        text: The prompt.
        options: From the node's widgets.

    Returns:
        ComfyUI's result: conditioning and report, and for the front end the view of the prompt and its problems.
    """
    encoded = encode_text(clip, text, options)
    read = next(iter(encoded.prompts.values())).read
    return node_result((encoded.conditioning, _report(encoded)), read)


def node_result(result: tuple[Any, ...], read: ReadPrompt) -> dict[str, Any]:
    """Outputs of a node, with the prompt's view and problems for the front end."""
    problems = [issue.message for issue in read.issues]
    return {"ui": {"weighted_clip": [view(read)], "text": problems}, "result": result}


def to_image(picture: Image.Image) -> Tensor:
    """A Pillow picture as ComfyUI's IMAGE: ``[1, height, width, 3]``, float32, 0 to 1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0).unsqueeze(0)


def _report(encoded: Encoded) -> str:
    first = next(iter(encoded.prompts.values()))
    options = first.read.options
    lines = [token_table(first.read)]
    for name, prompt in encoded.prompts.items():
        rows, dim = prompt.hidden.shape[1:]
        lines.append(
            f"{name}: {options.scheme}, {counted(prompt.num_encodings, 'chunk')} encoded -> {rows} rows of {dim}"
        )
    if encoded.left_to_host:
        lines.append(f"encoded by ComfyUI itself, without our weights: {', '.join(encoded.left_to_host)}")
    return "\n".join(lines)
