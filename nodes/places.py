"""Nodes that say where in the picture, and when, encoded prompts and words of them act."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..hosts.comfy.attention.fields import Where
from ..hosts.comfy.placing.boxes import box_problems
from ..hosts.comfy.placing.placements import place_phrase, place_region, read_place
from ..hosts.comfy.placing.placing_problems import area_problems, mask_problems, phrase_problems, region_problems
from ..hosts.comfy.placing.upstream import mask_before
from ..hosts.comfy.titles import PLACE_PHRASE, REGIONAL_PROMPT
from ..hosts.comfy.types import Conditioning
from ..weighting.placing.fields import check_times, check_weight
from ..weighting.text.phrases import without_commas
from ..weighting.text.problems import Problem, refused
from ..weighting.text.prompt import shortened
from .base.node import Node, Out, checked, make_input, number, placed_input, words_input
from .base.node_state import NodeState
from .base.results import placed_result

UNITS = ("percent", "steps")
BLOCKS = ("all", "every other")
WHERE = {
    "area": make_input(
        "STRING",
        "left half, right third, top, bottom left, center; or x1 x2, y1 y2 from the left and the top, as parts of "
        "the picture (0.5 is half) or, above 1, in pixels. ~0.1 at the end: soft edges. Or where red cat: where the "
        "picture reads these words of the prompt, from the second step on. Empty: the whole picture.",
        default="",
    ),
    "start": make_input(
        "FLOAT",
        "Start of the placement, in the unit below.",
        **number(0.0, 0.0, 10000.0, 0.01),
    ),
    "end": make_input(
        "FLOAT",
        "End of the placement. Outside this range the node has no effect. percent 1: at the end.",
        **number(1.0, 0.0, 10000.0, 0.01),
    ),
    "unit": make_input(
        UNITS,
        "percent: parts of the way from noise to picture, 0 to 1, as in ComfyUI's nodes. steps: steps of the "
        "sampler, counted from 0.",
    ),
}
"""Inputs for a place and a time."""
MASK = make_input(
    "MASK", "A painted area, instead of the area above or within it. One mask, or one for each picture or frame."
)
BOXES = make_input(
    "BOUNDING_BOX",
    "Boxes in pixels of the picture, as from Create Bounding Boxes: together they are the area, instead of the one "
    "above or within it.",
    forceInput=True,
)


def placement_of(
    area: str, start: float, end: float, unit: str, mask: Tensor | None, unique_id: str | None, boxes: Any
) -> Where:
    """Place and time from the inputs."""
    in_steps = checked("unit", unit, UNITS) == "steps"
    return read_place(area, start, end, in_steps=in_steps, mask=mask, node_id=unique_id, boxes=boxes)


class PlacingNode(Node):
    """Base of the nodes that place something, and show it after a run."""

    FUNCTION = "place"
    HAS_INTERMEDIATE_OUTPUT = True
    """For a recent ComfyUI: send what a node shows in every run, also if it need not run again."""
    hidden = {"unique_id": "UNIQUE_ID"}

    @staticmethod
    def where_problems(state: NodeState, conditioning: str, name: str, phrase: str = "") -> Iterator[Problem]:
        """Problems of the inputs `WHERE` and of the mask, of what messages call by a name."""
        values = state.values
        if state.has("start", "end", "unit"):
            yield from refused("end", check_times, values["start"], values["end"], in_steps=values["unit"] == UNITS[1])
        if state.has("area"):
            prompts = state.prompts(conditioning)
            yield from area_problems(values["area"], name, prompts, phrase=phrase, size=state.size)
        yield from mask_problems(mask_before(state.sources.get("mask")), values.get("area", ""), name)
        yield from box_problems(state.sources.get("boxes"), state.size)


class WeightedCLIPPlace(PlacingNode):
    """Limits a phrase of an encoded prompt to an area of the picture, a range of steps, or both: “red cat” in the left
    half only, or in the first steps only. The rest of the prompt acts everywhere. Chain it for more phrases. For all
    models that Attention Weights supports, with prompts that our nodes have encoded.
    """

    title = PLACE_PHRASE
    aliases = "place, region, regional prompt, area, mask, where, when, time, attention, attention mask, local"
    outputs = (
        Out("CONDITIONING", "CONDITIONING", "The prompt with its phrase in place, for the sampler or the next phrase."),
        Out("STRING", "report", "The phrase's number of rows, its area, and its time."),
    )
    required = {
        "conditioning": placed_input("A prompt from one of our encode nodes; negative prompts too."),
        "phrase": words_input("Words of the prompt, without brackets and numbers. All occurrences are placed."),
        "inside": make_input(
            "FLOAT",
            "Weight inside the area: 2 is twice the share of what the image looks at there.",
            **number(1.0, 0.0, 100.0, 0.05),
        ),
        "outside": make_input(
            "FLOAT", "Weight outside the area: at 0 the phrase is not read there.", **number(0.0, 0.0, 100.0, 0.05)
        ),
        **WHERE,
    }
    optional = {"mask": MASK, "boxes": BOXES}

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        phrase = without_commas(str(state.values.get("phrase", "")))
        if state.has("phrase"):
            yield from phrase_problems(phrase, state.prompts("conditioning"))
        for name in ("inside", "outside"):
            if state.has(name):
                yield from refused(name, check_weight, name, state.values[name])
        yield from cls.where_problems(state, "conditioning", f"“{shortened(phrase)}”" if phrase else "It", phrase)

    @classmethod
    def words(cls, state: NodeState) -> Iterator[list[str]]:
        """Words of its prompts."""
        return state.typed_words("conditioning")

    def place(
        self,
        conditioning: Conditioning,
        phrase: str,
        inside: float,
        outside: float,
        area: str,
        start: float,
        end: float,
        unit: str,
        mask: Tensor | None = None,
        boxes: Any = None,
        unique_id: str | None = None,
    ) -> dict[str, Any]:
        """Place the phrase."""
        placement = placement_of(area, start, end, unit, mask, unique_id, boxes)
        placed, report = place_phrase(conditioning, phrase, inside, outside, placement)
        return placed_result(placed, report, unique_id)


class WeightedCLIPRegion(PlacingNode):
    """Adds a separate prompt for one area: “a blue dog” in the right half of the base prompt's picture. Base and
    regions are read side by side in one pass of the model, and the base prompt fills the rest. Chain it for more
    regions. For all models that Attention Weights supports, with prompts of our nodes or of others.
    """

    title = REGIONAL_PROMPT
    aliases = "region, attention couple, couple, latent couple, area, mask, place, where, composition"
    outputs = (
        Out("CONDITIONING", "CONDITIONING", "The base with its region, for the sampler or as base of the next region."),
        Out("STRING", "report", "The region's number of rows, its area, and its time."),
    )
    required = {
        "base": placed_input("The prompt for the whole picture, perhaps with regions already; negative prompts too."),
        "region": make_input(
            "CONDITIONING",
            "The prompt of the region, by the same text encoder. Its pooled vector is not used. Its LoRAs (hooks) act "
            "in its area alone, by one more call of the model a step.",
        ),
        "strength": make_input(
            "FLOAT",
            "1: the area reads the region's prompt alone. 0.5: half of it, half of the base. Overlapping regions "
            "share.",
            **number(1.0, 0.0, 100.0, 0.05),
        ),
        **WHERE,
    }
    optional = {
        "mask": MASK,
        "blocks": make_input(
            BLOCKS,
            "every other: the region is limited to its area in every second block of the model only, so that prompts "
            "blend. It matters for models in which text and picture share an attention (Flux, Qwen-Image, Z-Image, "
            "...); in Stable Diffusion 1, 2 and XL, Anima, Wan and LTX-Video it changes nothing.",
            advanced=True,
        ),
        "boxes": BOXES,
    }

    @classmethod
    def problems(cls, state: NodeState) -> Iterator[Problem]:
        """Problems of its inputs before a run."""
        if state.has("strength"):
            yield from refused("strength", check_weight, "strength", state.values["strength"])
        number = 1 + state.prompts("base").num_regions
        yield from cls.where_problems(state, "base", f"region {number}")
        yield from region_problems(state.prompts("region"))

    def place(
        self,
        base: Conditioning,
        region: Conditioning,
        strength: float,
        area: str,
        start: float,
        end: float,
        unit: str,
        mask: Tensor | None = None,
        blocks: str = "all",
        boxes: Any = None,
        unique_id: str | None = None,
    ) -> dict[str, Any]:
        """Add the region."""
        blends = checked("blocks", blocks, BLOCKS) == "every other"
        placement = placement_of(area, start, end, unit, mask, unique_id, boxes)
        placed, report = place_region(base, region, strength, placement, blends=blends)
        return placed_result(placed, report, unique_id)
