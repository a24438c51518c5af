"""Wrong and right inputs of our nodes that need no model to be told apart, for the tests of run and page.

A workflow has a prompt, perhaps other nodes behind it, and the node that is edited.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PLACE, REGION = "WeightedCLIPPlace", "WeightedCLIPRegion"
TEXT = "a red cat and a (blue:1.2) dog on a mat"
BASE = {"conditioning": "ours", "phrase": "red cat", "area": "left half"}
REGIONAL = {"base": "ours", "region": "other", "area": "left half"}
LINKED = ("conditioning", "base", "region", "mask")


@dataclass(frozen=True)
class Case:
    """A node with its inputs, as far as they are not its defaults."""

    node: str
    changes: dict[str, Any]
    message: str = ""
    """Part of the problem that is said; empty for a right one."""
    text: str = TEXT
    syntax: str = "comfy"
    size: int = 512
    """Side of the picture in pixels."""
    corrected: dict[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs, of which those with links are the names of what is linked."""
        return {**(BASE if self.node == PLACE else REGIONAL), **self.changes}

    @property
    def right(self) -> dict[str, Any]:
        """The inputs, corrected."""
        return BASE if self.node == PLACE else REGIONAL

    def __str__(self) -> str:
        return f"{self.node.removeprefix('WeightedCLIP')} {self.changes} {self.text if self.text != TEXT else ''}"


PLACED_WRONG = [
    Case(PLACE, {"phrase": " "}, "phrase is empty"),
    Case(PLACE, {"phrase": "green cat"}, "“green cat” is not in the prompt"),
    Case(PLACE, {"phrase": "cats"}, "“cats” is not in the prompt"),
    Case(PLACE, {"phrase": "(blue:1.2) dog"}, "is not in the prompt"),
    Case(PLACE, {"inside": -1.0}, "inside must be 0 or above, got -1"),
    Case(PLACE, {"outside": -0.5}, "outside must be 0 or above, got -0.5"),
    Case(PLACE, {"area": "upstairs"}, "“upstairs” is not understood"),
    Case(PLACE, {"area": "left left"}, "is not understood"),
    Case(PLACE, {"area": "-0.1 0.5, 0 1"}, "is not understood"),
    Case(PLACE, {"area": "left half ~2"}, "The soft edge of the area “left half ~2”"),
    Case(PLACE, {"area": "0.5 300, 0 1"}, "“0.5 300”"),
    Case(PLACE, {"area": "0 1.5, 0 1"}, "“0 1.5”"),
    Case(PLACE, {"area": "0.5 0.5, 0 1"}, "is empty"),
    Case(PLACE, {"area": "0.8 0.2, 0 1"}, "does not go from less to more"),
    Case(PLACE, {"area": "600 700, 0 512"}, "reaches to pixel 700, but the picture is 512 wide"),
    Case(PLACE, {"area": "where"}, "lacks a word"),
    Case(PLACE, {"area": "where unicorn"}, "“unicorn”, where “red cat” is placed, is not in the prompt"),
    Case(PLACE, {"area": "where cat"}, "the phrase would follow its own map"),
    Case(PLACE, {"start": 0.6, "end": 0.4}, "start must be before end, got 0.6 and 0.4"),
    Case(PLACE, {"start": 0.5, "end": 0.5}, "start must be before end, got 0.5 and 0.5"),
    Case(PLACE, {"end": 20.0}, "For steps, set unit to steps"),
    Case(PLACE, {"start": -1.0}, "numbers from 0, got -1"),
    Case(PLACE, {"end": 2.5, "unit": "steps"}, "count whole steps, got 0 and 2.5"),
    Case(PLACE, {"mask": "empty"}, "The mask is empty"),
    Case(PLACE, {"mask": "right half"}, "area and mask do not overlap"),
    Case(PLACE, {"conditioning": "stock"}, "does not say which of its rows are words"),
    Case(PLACE, {"conditioning": "concatenated"}, "has changed the rows"),
    Case(PLACE, {}, "a blend of several prompts", text='("a red cat", "a dog").blend(1, 1)', syntax="compel"),
    Case(REGION, {"strength": -1.0}, "strength must be 0 or above, got -1"),
    Case(REGION, {"area": "top of the world"}, "is not understood"),
    Case(REGION, {"area": "where unicorn"}, "“unicorn”, where region 1 is placed, is not in the prompt"),
    Case(REGION, {"base": "stock", "area": "where dog"}, "does not say which of its rows are words"),
    Case(REGION, {"end": 50.0}, "For steps, set unit to steps"),
    Case(REGION, {"start": 3.0, "end": 3.0, "unit": "steps"}, "start must be before end"),
    Case(REGION, {"end": 0.5, "unit": "steps"}, "count whole steps"),
    Case(REGION, {"mask": "empty"}, "The mask is empty"),
    Case(REGION, {"region": "masked"}, "comes with a mask"),
    Case(REGION, {"region": "combined"}, "2 prompts at the same time"),
    Case(REGION, {"region": "regional"}, "has regions itself"),
]
"""Inputs that Place Phrase and Regional Prompt refuse."""
PLACED_RIGHT = [
    Case(PLACE, {}),
    Case(PLACE, {"phrase": "Blue  DOG"}),
    Case(PLACE, {"phrase": "a"}),
    Case(PLACE, {"inside": 4.0, "outside": 0.25}),
    Case(PLACE, {"area": ""}),
    Case(PLACE, {"area": "bottom right third ~0.1"}),
    Case(PLACE, {"area": "0.1 0.5, 0 1"}),
    Case(PLACE, {"area": "64 320, 0 512"}),
    Case(PLACE, {"area": "where mat"}),
    Case(PLACE, {"start": 0.2, "end": 0.4}),
    Case(PLACE, {"start": 2.0, "end": 8.0, "unit": "steps"}),
    Case(PLACE, {"unit": "steps"}),
    Case(PLACE, {"mask": "right half", "area": "top half"}),
    Case(PLACE, {"mask": "right half", "area": ""}),
    Case(PLACE, {"conditioning": "combined"}),
    Case(PLACE, {"conditioning": "combined", "phrase": "green owl"}),
    Case(PLACE, {"phrase": "red cat"}, text='("a dog", "a red cat").and()', syntax="compel"),
    Case(REGION, {}),
    Case(REGION, {"strength": 0.5, "area": "where dog"}),
    Case(REGION, {"base": "stock", "region": "stock", "area": "top"}),
    Case(REGION, {"base": "masked"}),
    Case(REGION, {"base": "regional", "start": 0.0, "end": 3.0, "unit": "steps"}),
]
"""Inputs that they take."""
