"""Interrupts and errors while our nodes encode in a real ComfyUI: they arrive, and leave everything as it was.

Also the memory for six hundred weighted words, on its own CLIP and on the native encoder.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .comfy_probe import ASLEEP
from .comfy_server import TEXT_ENCODER, ComfyServer, Conditioning, Graph, PromptError, add_checkpoint, with_clip
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
    graph, clip = with_clip(number=number)
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
    graph, clip = with_clip()
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
    server.wait(lambda: ASLEEP in server.log_text(), 60, "the slow layer is not in use")
    assert server.request("/interrupt", b"")[0] == 200
    with pytest.raises(PromptError) as caught:
        server.result(prompt_id)
    assert "execution_interrupted" in caught.value.details
    assert "execution_error" not in caught.value.details
    after = encode_all(server, number=11)
    assert_same(figures, "Stock and ours after an interrupt in encoding, with before", after, before)


def test_an_error_while_encoding_is_reported_and_leaves_the_host_as_it_was(
    server: ComfyServer, before: list[Conditioning], figures: Figures
) -> None:
    for name in [name for name in NODES if name != "stock"]:
        graph = faulty(server, name, error=MESSAGE)
        error = server.failure(graph)
        assert error.status == 200
        assert error.details["exception_type"] == "RuntimeError"
        assert error.details["exception_message"].strip() == MESSAGE
        assert graph.nodes[error.details["node_id"]]["class_type"] == NODES[name][0]
    after = encode_all(server, number=12)
    assert_same(figures, "Stock and ours after an error in encoding over HTTP, with before", after, before)


MANY = " ".join(f"(word{number}:{1.01 + number / 1000:.3f})" for number in range(600))
"""Sixteen chunks or so; with comfy++ an encoding for each word."""
GIBIBYTE = 2**30
WATCHED_SECONDS = 30.0
LONGEST_CALL = 10.0
"""Seconds that a call of the encoder may take at most on a slow, busy machine; Cancel waits for its end."""


def resident(server: ComfyServer) -> int:
    """Bytes of the server's own memory, without pages of files."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def workflow(server: ComfyServer, kind: str, text: str, scheme: str) -> Graph:
    graph = Graph()
    clip: Any = add_checkpoint(graph)[1]
    if kind == "native":
        clip = server.add_ours(graph, "WeightedCLIPLoad", file=f"text_encoders/{TEXT_ENCODER}")
    encode = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text, scheme=scheme)
    server.probe(graph, encode)
    return graph


def is_over(server: ComfyServer, prompt_id: str) -> bool:
    return prompt_id in server.get(f"/history/{prompt_id}")


@pytest.mark.parametrize("kind", ["native", "host"])
def test_memory_stays_and_cancel_ends_it(
    server: ComfyServer, kind: str, pytestconfig: pytest.Config, record_property: Callable[[str, object], None]
) -> None:
    server.run(workflow(server, kind, "a (cat:1.2)", "comfy"))  # loads the encoder
    idle = peak = resident(server)
    prompt_id = server.queue(workflow(server, kind, MANY, "comfy++"))
    end = time.monotonic() + (float("inf") if pytestconfig.getoption("--long") else WATCHED_SECONDS)
    while time.monotonic() < end and not is_over(server, prompt_id):
        peak = max(peak, resident(server))
        time.sleep(0.1)
    record_property("MiB beyond idle", (peak - idle) / 2**20)
    assert peak - idle < GIBIBYTE
    if is_over(server, prompt_id):
        server.result(prompt_id)
        prompt_id = server.queue(workflow(server, kind, MANY + " again", "comfy++"))
        time.sleep(5.0)
    pressed = time.monotonic()
    assert server.request("/interrupt", b"")[0] == 200
    while not is_over(server, prompt_id):
        assert time.monotonic() - pressed < LONGEST_CALL, "Cancel did nothing"
        time.sleep(0.05)
    messages = dict(server.get(f"/history/{prompt_id}")[prompt_id]["status"]["messages"])
    record_property("seconds after Cancel", time.monotonic() - pressed)
    assert "execution_interrupted" in messages, json.dumps(messages)[:2000]
