"""Nodes that try a weight at several values, and show the pictures of all of them side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from ..hosts.comfy.clip.clip import EitherClip, encode_texts
from ..hosts.comfy.encoded_texts import note_texts
from ..weighting.options import EncodeOptions
from ..weighting.reading.sweep import Swept, read_sweep
from ..weighting.reading.view import encoded_text
from ..weighting.text.problems import Problem, refused
from .base.node import CATEGORY, METADATA, Node, Out, checked, inputs, make_input, number, prompt_input
from .base.node_state import NodeState
from .base.results import shown_result, to_image, to_picture, with_preview

SWEEP_TYPE = "WEIGHTED_CLIP_SWEEP"
"""Type name of a link that carries a prompt at all values."""
THEMES = ("light", "dark")
MOST_PIXELS = 100_000_000
"""Largest grid."""
FEW = 24
"""Most prompts that are swept unasked."""
READ_BY = ("syntax", "chunking", "cleaning", "comments")
"""Options that say what a comment is."""


class WeightedCLIPSweep(Node):
    """Tries a weight at several values: (dog:0..1:5) makes five prompts, with dog at 0 to 1. Connected nodes run once
    per value. Two such words make every pair.
    """

    title = "Sweep Weights"
    CATEGORY = f"{CATEGORY}/prompt"
    aliases = "sweep, try weights, xyz plot, grid, compare weights, range, list, prompt weight"
    outputs = (
        Out("CONDITIONING", "CONDITIONING", "A list of encoded prompts: the sampler runs once for each."),
        Out("STRING", "labels", "A list of the words and weights, for file names."),
        Out(SWEEP_TYPE, "sweep", "All values, for Sweep Grid."),
    )
    OUTPUT_IS_LIST = (True, True, False)
    required = {
        **inputs("clip"),
        "text": prompt_input(
            "The prompt, with one or two weights as a range: (dog:0..1:5) is dog at 0, 0.25, 0.5, 0.75 and 1."
        ),
        **inputs("syntax", "scheme", "normalization", "chunking", "padding", "pooled"),
    }
    optional = {
        **inputs("cleaning", "finest_step"),
        "many": make_input(
            "BOOLEAN",
            f"Allow more than {FEW} prompts, each of which draws a picture.",
            default=False,
            counts=True,
            advanced=True,
        ),
        **inputs("comments"),
    }
    hidden = METADATA
    is_swept = True

    @staticmethod
    def options(many: bool = False, **choices: Any) -> EncodeOptions:
        """Options for reading the prompts."""
        del many
        return EncodeOptions(**choices)

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its other inputs before a run."""
        if state.has("text", "many"):
            choices = {name: state.values[name] for name in READ_BY if name in state.values}
            yield from refused("many", cls._swept, state.values["text"], state.values["many"], choices)

    @staticmethod
    def _swept(text: str, many: bool, choices: Mapping[str, Any]) -> Swept:
        swept = read_sweep(text, EncodeOptions(**choices).comment_marks)
        if len(swept.labels) > FEW and not many:
            raise ValueError(
                f"these are {len(swept.labels)} prompts, each of which draws a picture: turn on many if you want more "
                f"than {FEW}, or give the ranges fewer values"
            )
        return swept

    def run(
        self, clip: EitherClip, text: str, extra_pnginfo: Any = None, many: bool = False, **choices: Any
    ) -> dict[str, Any]:
        """Encode the prompt at all values; ``choices`` are the menus."""
        options = self.options(**choices)
        swept = self._swept(text, many, {name: getattr(options, name) for name in READ_BY})
        encoded = encode_texts(clip, swept.texts, options, shares_work=True)
        for prompt in encoded:
            note_texts(extra_pnginfo, {"text": encoded_text(next(iter(prompt.prompts.values())).read)})
        return shown_result(([prompt.conditioning for prompt in encoded], list(swept.labels), swept), swept.labels)


class WeightedCLIPSweepGrid(Node):
    """Puts the pictures of Sweep Weights side by side, under their weights: a column for each value of the first word,
    rows for those of a second, and for the pictures of a batch.
    """

    title = "Sweep Grid"
    CATEGORY = f"{CATEGORY}/look"
    aliases = "sweep, grid, xyz plot, compare images, contact sheet, side by side"
    outputs = (Out("IMAGE", "grid", "All pictures with the prompt and the weights, as one."),)
    INPUT_IS_LIST = True
    OUTPUT_NODE = True
    required = {
        "images": make_input("IMAGE", "Images generated from Sweep Weights' CONDITIONING."),
        "sweep": make_input(SWEEP_TYPE, "From the same Sweep Weights."),
        "width": make_input("INT", "Width of a picture in the grid, in pixels.", **number(192, 32, 1024)),
        "theme": make_input(THEMES, "Colours of the grid."),
    }

    def run(self, images: list[Tensor], sweep: list[Swept], width: list[int], theme: list[Any]) -> dict[str, Any]:
        """Draw the grid."""
        from ..web.pictures.weight_grid import draw_sweep

        (swept,), (side,), (colors,) = sweep, width, theme
        checked("theme", colors, THEMES)
        shapes = {tuple(batch.shape) for batch in images}
        if len(images) != len(swept.labels) or len(shapes) != 1:
            sizes = ", ".join("x".join(map(str, shape)) for shape in sorted(shapes)[:4])
            raise ValueError(
                f"Sweep Grid needs one picture or batch of one size for each of {len(swept.labels)} prompts; got "
                f"{len(images)}: {sizes}. Connect the pictures made from the CONDITIONING of the same Sweep Weights"
            )
        ((num, height, wide, _),) = shapes
        if len(images) * num * side * side * height > MOST_PIXELS * wide:
            raise ValueError(
                f"Sweep Grid: {len(images) * num} pictures {side} pixels wide are too many: give it less width"
            )
        picture = draw_sweep(
            swept, [[to_picture(image) for image in batch] for batch in images], side=side, theme=colors
        )
        return with_preview(shown_result((to_image(picture),), ()), picture)
