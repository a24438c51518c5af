"""Boxes of the host's nodes as places, and what is said of bad ones before a run and in it."""

from __future__ import annotations

from typing import Any

import pytest
from weighted_clip.hosts.comfy.placing.boxes import MAX_BOXES, box_problems, read_boxes
from weighted_clip.hosts.comfy.placing.upstream import Source
from weighted_clip.weighting.placing.areas import Extent

BOX = {"x": 16, "y": 8, "width": 40, "height": 24}


def source(kind: str, **values: Any) -> Source:
    return Source("BOUNDING_BOX", kind, "bboxes", values, {})


@pytest.mark.parametrize(
    "boxes", [BOX, [BOX], [[BOX]], ({**BOX, "metadata": {"desc": "a cat"}},), [[{**BOX, "x": 16.0}]]]
)
def test_all_forms_of_a_box_are_read(boxes: Any) -> None:
    (area,) = read_boxes(boxes)
    assert (area.across, area.down) == (Extent(16, 56, True), Extent(8, 32, True))
    assert area.text == "box 16 56, 8 32"


def test_a_box_of_a_pixel_counts_pixels() -> None:
    (area,) = read_boxes({"x": 0, "y": 0, "width": 1, "height": 1})
    assert area.across.is_pixels and area.down.is_pixels


def test_no_connected_boxes_are_none() -> None:
    assert read_boxes(None) == ()


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ([], "draw the place"),
        ([[]], "draw the place"),
        ([BOX] * (MAX_BOXES + 1), "got 101"),
        ([[BOX], [BOX]], "2 frames"),
        ("left half", "left half"),
        (3, "got 3"),
        ([3], "got 3"),
        ([BOX, [BOX]], "numbers x, y, width, height"),
        ({"x": 1, "y": 2}, "numbers x, y, width, height"),
        ({**BOX, "x": "1"}, "numbers"),
        ({**BOX, "x": True}, "numbers"),
        ({**BOX, "height": float("nan")}, "numbers"),
        ({**BOX, "height": float("inf")}, "numbers"),
        ({**BOX, "x": -1}, "-1, 8 with width 40"),
        ({**BOX, "width": 0}, "width 0"),
        ({**BOX, "height": -5}, "height -5"),
        ({**BOX, "note": "x" * 100_000, "x": None}, "numbers"),
    ],
)
def test_bad_boxes_are_refused_with_a_quotation(boxes: Any, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_boxes(boxes)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("node", "size", "said"),
    [
        (source("PrimitiveBoundingBox", **BOX), (512, 512), []),
        (source("PrimitiveBoundingBox", **BOX), None, []),
        (source("PrimitiveBoundingBox", **{**BOX, "width": 600}), (512, 512), ["reaches to pixel 616"]),
        (source("PrimitiveBoundingBox", **{**BOX, "x": -1}), (512, 512), ["-1, 8"]),
        (source("CreateBoundingBoxes", width=1024, height=512), (512, 1024), []),
        (source("CreateBoundingBoxes", width=1024, height=1024), (512, 512), ["1024 x 1024 pixels"]),
        (source("CreateBoundingBoxes", width=1024, height=1024), None, []),
        (source("CreateBoundingBoxes"), (512, 512), []),
        (source("SAM3_Detect", width=1), (512, 512), []),
        (None, (512, 512), []),
    ],
)
def test_what_is_known_before_a_run_is_said(node: Source | None, size: tuple[int, int] | None, said: list[str]) -> None:
    problems = list(box_problems(node, size))
    assert len(problems) == len(said)
    assert all(
        part in problem.message and problem.input == "boxes" for part, problem in zip(said, problems, strict=True)
    )
