"""The nodes of DALL·E in a real ComfyUI, over HTTP, with tiny models of random weights.

Their images equal those drawn by the model directly; also the messages to the page meanwhile.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from weighted_clip.studio.dalle.full_model import DALLE, save_dalle
from weighted_clip.studio.dalle.sampling import SampleOptions

from ..dalle.models import PRIOR, TINY_SMALL, pictures, tiny_dalle
from .comfy_server import CLIENT, ComfyServer, Graph, Node, listening, template
from .make_checkpoint import WHOLE_CLIP, write_whole_clip

pytestmark = pytest.mark.host

FILE, SLOW_FILE = "checkpoints/tiny-dalle.safetensors", "checkpoints/slow-dalle.safetensors"
CAPTION = "a large red disc"
F = TINY_SMALL.downsampling
HEIGHT, WIDTH = PRIOR.rows * F, PRIOR.columns * F
SLOW = replace(PRIOR, rows=32, columns=32, hidden_dim=256, num_heads=4, num_layers=8, mlp_dim=1024)
LONGEST_TOKEN = 10.0
"""Seconds that a token of all images may take at most on a slow, busy machine; Cancel waits for its end."""


@pytest.fixture(scope="module")
def model(server: ComfyServer) -> DALLE:
    """The tiny model, which lies in the server's models with a slow one and a whole CLIP."""
    (server.base / "models" / "checkpoints").mkdir(parents=True, exist_ok=True)
    found = tiny_dalle()
    save_dalle(found, server.base / "models" / FILE)
    save_dalle(tiny_dalle(SLOW), server.base / "models" / SLOW_FILE)
    write_whole_clip(server.base / "models")
    return found


def sample(server: ComfyServer, graph: Graph, file: str = FILE, **inputs: Any) -> tuple[Node, Node]:
    """Load DALL·E, and DALL·E Sample."""
    loaded = server.add_ours(graph, "WeightedCLIPLoadDalle", file=file)
    return loaded, server.add_ours(graph, "WeightedCLIPDalleSample", dalle=loaded, **{"text": CAPTION, **inputs})


def as_bytes(images: torch.Tensor) -> list[np.ndarray]:
    """``[n, 3, h, w]`` as ComfyUI writes it: cut off, not rounded."""
    return [(image.movedim(0, -1).numpy() * np.float32(255)).astype(np.uint8) for image in images]


def same(ours: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return len(ours) == len(expected) and all(map(np.array_equal, ours, expected))


def test_images_are_those_of_the_model_and_the_page_sees_them_grow(server: ComfyServer, model: DALLE) -> None:
    graph = Graph()
    chosen = {"count": 5, "seed": 11, "temperature": 0.9, "top_k": 8, "top_p": 0.95}
    loaded, sampled = sample(server, graph, **chosen)
    drawn, report = graph.add("PreviewImage", images=sampled), graph.add("PreviewAny", source=sampled[2])
    again = server.add_ours(graph, "WeightedCLIPTokensToImage", dvae=loaded[1], tokens=sampled[1], swap="")
    decoded = graph.add("PreviewImage", images=again)
    with listening(server.port, CLIENT) as messages:
        result = server.run(graph)
    tokens = model.tokens(CAPTION, range(11, 16), SampleOptions(0.9, 8, 0.95))
    expected = as_bytes(model.images(tokens))
    assert len({picture.tobytes() for picture in expected}) == 5
    assert same(server.pictures(result, drawn), expected)
    assert same(server.pictures(result, decoded), expected)
    lines = result.outputs[report.id]["text"][0].splitlines()
    assert lines[0] == f"5 images of {WIDTH} x {HEIGHT} pixels, drawn by seeds 11 to 15"
    assert lines[2] == f"caption: {len(model.pieces(CAPTION))} pieces, of at most {PRIOR.text_length}"
    progress, end = messages.progress(sampled.id), 5 * PRIOR.num_image_tokens
    assert {last for _, last in progress} == {end}
    assert progress[0][0] == 5
    assert progress[-1][0] == end
    assert progress == sorted(progress)
    assert messages.previews
    for preview in messages.previews:
        assert preview.format == "JPEG"
        assert preview.size == (512, 512 * 2 * HEIGHT // (3 * WIDTH))  # 3 x 2 images


def test_an_image_is_completed_and_drawn_again_alone(server: ComfyServer, model: DALLE) -> None:
    pixels = (pictures(1, HEIGHT, WIDTH, 5) * 255).round().byte()
    Image.fromarray(pixels[0].movedim(0, -1).numpy()).save(server.base / "input" / "dalle.png")
    graph = Graph()
    given = {"prefix_image": graph.add("LoadImage", image="dalle.png"), "prefix_rows": 2}
    several, one = (sample(server, graph, seed=seed, count=count, **given)[1] for seed, count in ((3, 4), (5, 1)))
    nodes = [graph.add("PreviewImage", images=node) for node in (several, one)]
    result = server.run(graph)
    prefix = model.prefix(pixels[0].float() / 255, 2)
    expected = as_bytes(model.images(model.tokens(CAPTION, range(3, 7), prefix=prefix)))
    many, alone = (server.pictures(result, node) for node in nodes)
    assert same(many, expected)
    assert same(alone, expected[2:3])


def test_cancel_ends_it_within_a_token_and_the_next_prompt_runs(server: ComfyServer, model: DALLE) -> None:
    graph = Graph()
    _, sampled = sample(server, graph, SLOW_FILE, count=64)
    graph.add("PreviewImage", images=sampled)
    with listening(server.port, CLIENT) as messages:
        prompt_id = server.queue(graph)
        assert messages.has_begun.wait(120), server.log_tail()
        pressed = time.monotonic()
        assert server.request("/interrupt", b"")[0] == 200
        while prompt_id not in server.get(f"/history/{prompt_id}"):
            assert time.monotonic() - pressed < LONGEST_TOKEN, "Cancel did nothing"
            time.sleep(0.05)
    told = dict(server.get(f"/history/{prompt_id}")[prompt_id]["status"]["messages"])
    assert "execution_interrupted" in told, json.dumps(told)[:2000]
    assert told["execution_interrupted"]["node_id"] == sampled.id
    value, end = messages.progress(sampled.id)[-1]
    assert value < end == 64 * SLOW.num_image_tokens
    graph = Graph()
    drawn = graph.add("PreviewImage", images=sample(server, graph, count=1, seed=2)[1])
    expected = as_bytes(model.images(model.tokens(CAPTION, [2])))
    assert same(server.pictures(server.run(graph), drawn), expected)


@pytest.mark.parametrize(
    ("inputs", "told"),
    [
        ({"text": "xylophone xylophone"}, "has 18 pieces: this model reads at most 12"),
        ({"size": (64, 64), "prefix_rows": 1}, "64 x 64 pixels; this model draws 16 x 12. Put the node Upscale Image"),
        ({"size": (WIDTH, HEIGHT), "prefix_rows": 9}, "prefix_rows must be from 1 to 3"),
        ({"file": WHOLE_CLIP.name}, "this is no DALL·E of ours"),
    ],
)
def test_what_cannot_be_is_refused_in_words(
    server: ComfyServer, model: DALLE, inputs: dict[str, Any], told: str
) -> None:
    graph, given = Graph(), dict(inputs)
    if size := given.pop("size", None):
        width, height = size
        given["prefix_image"] = graph.add("EmptyImage", width=width, height=height, batch_size=1, color=0)
    file = FILE
    if name := given.pop("file", None):
        file = f"checkpoints/{name}"
        clip = (server.base / "models" / WHOLE_CLIP).read_bytes()
        (server.base / "models" / file).write_bytes(clip)
    graph.add("PreviewImage", images=sample(server, graph, file, **given)[1])
    error = server.failure(graph)
    assert told in error.details["exception_message"]


def test_the_template_runs(server: ComfyServer, model: DALLE) -> None:
    """Without a browser: its nodes and links as a prompt, on the tiny models."""
    graph = template("18 Text to image by DALL-E")
    files = {"WeightedCLIPLoadDalle": FILE, "WeightedCLIPLoadFull": WHOLE_CLIP.as_posix()}
    for node in graph.nodes.values():
        if node["class_type"] in files:
            node["inputs"]["file"] = files[node["class_type"]]
        elif node["class_type"] == "PrimitiveStringMultiline":
            node["inputs"]["value"] = CAPTION
    found = {node["class_type"]: Node(name) for name, node in graph.nodes.items()}
    chosen = graph.nodes[found["WeightedCLIPDalleSample"].id]["inputs"]
    assert chosen["count"] == 16
    all_of_them = graph.add("PreviewImage", images=found["WeightedCLIPDalleSample"])
    scores = graph.add("PreviewAny", source=found["WeightedCLIPRerank"][1])
    result = server.run(graph)
    options = SampleOptions(chosen["temperature"], chosen["top_k"], chosen["top_p"])
    seeds = range(chosen["seed"], chosen["seed"] + 16)
    expected = as_bytes(model.images(model.tokens(CAPTION, seeds, options)))
    assert same(server.pictures(result, all_of_them), expected)
    ranked = result.outputs[scores.id]["text"][0].splitlines()
    best = int(ranked[0].removeprefix("1. image ").partition(":")[0])
    assert same(server.pictures(result, found["PreviewImage"]), [expected[best - 1]])
    assert "pieces, of at most 12" in result.outputs[found["PreviewAny"].id]["text"][0]
