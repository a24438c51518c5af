"""Six hundred weighted words in a real ComfyUI, on its own CLIP and on the native encoder: memory, and Cancel."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .comfy_server import TEXT_ENCODER, ComfyServer, Graph, add_checkpoint

pytestmark = pytest.mark.host

WORDS = " ".join(f"(word{number}:{1.01 + number / 1000:.3f})" for number in range(600))
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
    prompt_id = server.queue(workflow(server, kind, WORDS, "comfy++"))
    end = time.monotonic() + (float("inf") if pytestconfig.getoption("--long") else WATCHED_SECONDS)
    while time.monotonic() < end and not is_over(server, prompt_id):
        peak = max(peak, resident(server))
        time.sleep(0.1)
    record_property("MiB beyond idle", (peak - idle) / 2**20)
    assert peak - idle < GIBIBYTE
    if is_over(server, prompt_id):
        server.result(prompt_id)
        prompt_id = server.queue(workflow(server, kind, WORDS + " again", "comfy++"))
        time.sleep(5.0)
    pressed = time.monotonic()
    assert server.request("/interrupt", b"")[0] == 200
    while not is_over(server, prompt_id):
        assert time.monotonic() - pressed < LONGEST_CALL, "Cancel did nothing"
        time.sleep(0.05)
    messages = dict(server.get(f"/history/{prompt_id}")[prompt_id]["status"]["messages"])
    record_property("seconds after Cancel", time.monotonic() - pressed)
    assert "execution_interrupted" in messages, json.dumps(messages)[:2000]
