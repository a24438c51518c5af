"""Padding ``drop`` in a real ComfyUI: every encode node draws with it, and it draws what masked keys draw."""

from __future__ import annotations

from typing import Any

import pytest

from .comfy_server import ComfyServer, Graph, Node, add_checkpoint, add_picture, pixel_difference, with_clip
from .parity import Figures

pytestmark = pytest.mark.host

TEXT = "a photo of a (red:1.3) cat on a (mat:0.4)"
LONG = "oil painting of a dog in the rain, " * 12
TIMED = {"steps": 2, "counter": "as written"}
NODES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "text encode": ("WeightedCLIPTextEncode", {"text": TEXT}, [11]),
    "text encode, 2 chunks": ("WeightedCLIPTextEncode", {"text": LONG}, [77 + 35]),
    "a1111": ("WeightedCLIPA1111Encode", {"text": TEXT}, [11]),
    "a1111, timed": ("WeightedCLIPA1111Encode", {**TIMED, "text": f"a [cat:{LONG}:0.5]"}, [4, 77 + 36]),
    "masked blend": ("WeightedCLIPMaskedBlend", {"text": TEXT}, [11]),
    "mask control": ("WeightedCLIPMaskControl", {"text": TEXT, "hide": "cat"}, [11]),
}
"""Nodes with their inputs, and the rows of the conditioning's entries."""


@pytest.mark.parametrize("case", NODES)
def test_every_encode_node_drops_padding_and_draws(server: ComfyServer, figures: Figures, case: str) -> None:
    class_type, inputs, rows = NODES[case]
    graph, clip = with_clip()
    node = server.add_ours(graph, class_type, clip=clip, **{**inputs, "padding": "drop"})
    attended = server.add_ours(graph, class_type, clip=clip, **inputs)
    probe = server.probe(graph, node)
    saved = [add_picture(graph, one) for one in (node, attended)]
    result = server.run(graph)
    found = server.conditioning(result, probe)
    assert [found.tensors[f"{index}.hidden"].shape[1] for index in range(len(found.others))] == rows
    pictures = [server.picture(result, one) for one in saved]
    assert all(picture.std() > 10 for picture in pictures)
    pixels = pixel_difference(*pictures)
    figures.add("Pixels, padding dropped, with attended", pixels, required="different")
    assert pixels > 0


def test_dropped_padding_draws_what_masked_keys_draw(server: ComfyServer, figures: Figures) -> None:
    graph = Graph()
    model, clip, _ = add_checkpoint(graph)
    masked = graph.add("WeightedCLIPTestMaskRows", model=model, rows=11)

    def draw(model: Any, padding: str) -> Node:
        positive = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=TEXT, padding=padding)
        return add_picture(graph, positive, model=model, seed=5, steps=3)

    saved = [draw(masked, "attend"), draw(model, "drop"), draw(model, "attend")]
    result = server.run(graph)
    expected, dropped, attended = (server.picture(result, node) for node in saved)
    figures.add(
        "Pixels, padding dropped, with its keys masked", pixel_difference(dropped, expected), required="at most 2"
    )
    assert pixel_difference(dropped, expected) <= 2 < pixel_difference(attended, expected)
