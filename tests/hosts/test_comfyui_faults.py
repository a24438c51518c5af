"""Interrupts and errors while our nodes encode in a real ComfyUI: they arrive, and leave everything as it was."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .comfy_probe_faults import ASLEEP
from .comfy_server import ComfyServer, Conditioning, Graph, PromptError, add_checkpoint
from .parity import Figures

pytestmark = pytest.mark.host

WORDS = ("red", "small", "old", "wet", "blue", "thin")
TEXT = "a " + " ".join(f"({word}:0.5)" for word in WORDS) + " cat on a mat, oil painting, " * 6
"""Two chunks, and with masked_blend encodings without the words."""
MESSAGE = "the third layer is on strike"
NODES: dict[str, tuple[str, dict[str, Any]]] = {
    "stock": ("CLIPTextEncode", {}),
    "text encode": ("WeightedCLIPTextEncode", {}),
    "masked blend": ("WeightedCLIPMaskedBlend", {"padding": "mask"}),
    "a1111": ("WeightedCLIPA1111Encode", {}),
    "mask control, causality off": ("WeightedCLIPMaskControl", {"causal": False}),
}


def encode_all(server: ComfyServer, number: int) -> list[Conditioning]:
    """Current result of each node for the text; with another number ComfyUI caches none of it."""
    graph = Graph()
    _, clip, _ = add_checkpoint(graph, number=number)
    nodes = [
        graph.add(class_type, clip=clip, text=TEXT)
        if class_type == "CLIPTextEncode"
        else server.add_ours(graph, class_type, clip=clip, text=TEXT, **choices)
        for class_type, choices in NODES.values()
    ]
    probes = [server.probe(graph, node) for node in nodes]
    result = server.run(graph)
    assert not result.cached & {node.id for node in nodes}
    return [server.conditioning(result, probe) for probe in probes]


def faulty(server: ComfyServer, name: str, *, seconds: float = 0.0, error: str = "") -> Graph:
    """A workflow in which a node of ours gets a CLIP that is slow or fails."""
    class_type, choices = NODES[name]
    graph = Graph()
    _, clip, _ = add_checkpoint(graph)
    clip = graph.add("WeightedCLIPTestFaultyClip", clip=clip, seconds=seconds, error=error)
    server.probe(graph, server.add_ours(graph, class_type, clip=clip, text=TEXT, **choices))
    return graph


def assert_same(figures: Figures, subject: str, measured: list[Conditioning], expected: list[Conditioning]) -> None:
    for one, other in zip(measured, expected, strict=True):
        figures.add(subject, one.difference(other))
        assert one == other


@pytest.fixture(scope="module")
def before(server: ComfyServer) -> list[Conditioning]:
    """First result of each node for the text."""
    return encode_all(server, number=10)


def test_an_interrupt_while_encoding_leaves_the_host_as_it_was(
    server: ComfyServer, before: list[Conditioning], figures: Figures
) -> None:
    prompt_id = server.queue(faulty(server, "masked blend", seconds=3.0))
    wait_until_it_sleeps(server)
    assert server.request("/interrupt", b"")[0] == 200
    with pytest.raises(PromptError) as caught:
        server.result(prompt_id)
    assert "execution_interrupted" in caught.value.details
    assert "execution_error" not in caught.value.details
    after = encode_all(server, number=11)
    assert_same(figures, "Stock and ours after an interrupt in encoding, with before", after, before)


def wait_until_it_sleeps(server: ComfyServer) -> None:
    """Wait until the slow layer is in use, in the middle of an encoding."""
    end = time.monotonic() + 60
    while ASLEEP not in server.log.read_text(encoding="utf-8", errors="replace"):
        assert time.monotonic() < end and server.alive(), server.log_tail()
        time.sleep(0.02)


def test_an_error_while_encoding_is_reported_and_leaves_the_host_as_it_was(
    server: ComfyServer, before: list[Conditioning], figures: Figures
) -> None:
    for name in [name for name in NODES if name != "stock"]:
        graph = faulty(server, name, error=MESSAGE)
        with pytest.raises(PromptError) as caught:
            server.run(graph)
        assert caught.value.status == 200
        assert caught.value.details["exception_type"] == "RuntimeError"
        assert caught.value.details["exception_message"].strip() == MESSAGE
        assert graph.nodes[caught.value.details["node_id"]]["class_type"] == NODES[name][0]
    after = encode_all(server, number=12)
    assert_same(figures, "Stock and ours after an error in encoding over HTTP, with before", after, before)
