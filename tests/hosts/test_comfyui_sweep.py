"""Sweep Weights and Sweep Grid in a real ComfyUI: each prompt as if typed, and all of them as one picture."""

from __future__ import annotations

import pytest

from .comfy_server import ComfyServer, read_conditioning, template, with_clip
from .test_comfyui_world import pictures_of, share_of

pytestmark = pytest.mark.host

CLOSE = 1e-6


@pytest.mark.parametrize("scheme", ["comfy", "a1111", "masked_blend"])
def test_each_equals_the_typed_prompt(server: ComfyServer, scheme: str) -> None:
    graph, clip = with_clip()
    text = "a (red:1.3) cat and a (dog:{}) on a mat"
    swept = server.add_ours(graph, "WeightedCLIPSweep", clip=clip, text=text.format("0..1:5"), scheme=scheme)
    saved = graph.add("WeightedCLIPTestSaveConditioning", conditioning=swept, file=swept[1])
    typed = [
        server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text.format(value), scheme=scheme)
        for value in ("0", "0.25", "0.5", "0.75", "1")
    ]
    probes = [server.probe(graph, node) for node in typed]
    result = server.run(graph)
    found = [read_conditioning(path) for path in result.outputs[saved.id]["conditioning"]]
    expected = [server.conditioning(result, probe) for probe in probes]
    assert [one.difference(other) <= CLOSE for one, other in zip(found, expected, strict=True)] == [True] * 5
    assert all(one.difference(expected[0]) > 0.1 for one in expected[1:])


def test_a_sweep_is_one_picture_in_which_a_weight_shows(server: ComfyServer) -> None:
    [picture] = pictures_of(server, template("20 Sweep a weight"))
    side, gap, margin = 96, 4, 22
    ends = [picture.shape[1] - margin - number * (side + gap) for number in range(5)][::-1]
    blue = [share_of("blue", picture[:, end - side : end]) for end in ends]
    assert blue[0] < 0.001 and blue[4] > 0.01, blue
