"""Boxes of ComfyUI's own nodes give places to phrases and regions, in a running server."""

from __future__ import annotations

from typing import Any

import pytest

from .comfy_server import ComfyServer, Graph, add_picture, pixel_difference, with_clip

pytestmark = pytest.mark.host

BOX = {"x": 0, "y": 16, "width": 32, "height": 48}
AREA = "0 32, 16 64"


def drawn_box(graph: Graph) -> Any:
    """Boxes of the canvas, in whose editor one was drawn."""
    return graph.add("CreateBoundingBoxes", width=64, height=64, editor_state={"__value__": [BOX]})[1]


def typed_box(graph: Graph) -> Any:
    return graph.add("PrimitiveBoundingBox", **BOX)


@pytest.mark.parametrize("make", [drawn_box, typed_box])
def test_a_box_is_an_area_in_pixels(server: ComfyServer, make: Any) -> None:
    if "CreateBoundingBoxes" not in server.get("/object_info"):
        pytest.skip("this ComfyUI has no canvas for boxes")
    pictures = []
    for has_box in (True, False, None):
        graph, clip = with_clip(number=62)
        words = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a red cat")
        region = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a blue house")
        where = {"boxes": make(graph)} if has_box else {"area": AREA} if has_box is False else {}
        placed = server.add_ours(graph, "WeightedCLIPPlace", conditioning=words, phrase="red", **where)
        placed = server.add_ours(graph, "WeightedCLIPRegion", base=placed, region=region, **where)
        picture = add_picture(graph, placed, number=62)
        pictures += server.pictures(server.run(graph), picture)
    boxed, typed, everywhere = pictures
    assert pixel_difference(boxed, typed) == 0
    assert pixel_difference(boxed, everywhere) > 0


def test_a_box_outside_the_picture_is_refused(server: ComfyServer) -> None:
    graph, clip = with_clip(number=62)
    words = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text="a red cat")
    box = graph.add("PrimitiveBoundingBox", **{**BOX, "width": 80})
    placed = server.add_ours(graph, "WeightedCLIPPlace", conditioning=words, phrase="red", boxes=box)
    add_picture(graph, placed, number=62)
    assert "reaches to pixel 80, but the picture is 64 wide" in str(server.failure(graph).details)
