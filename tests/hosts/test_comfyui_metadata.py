"""Metadata of saved images in a real ComfyUI: the prompts as our nodes encoded them, and nothing else new."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from .comfy_server import ComfyServer, Graph, Result, add_checkpoint, add_picture, with_clip

pytestmark = pytest.mark.host

WORKFLOW = {"id": "test", "nodes": [], "links": [], "version": 0.4}
POSITIVE = "a (red:1.3) cat # my notes\n, in a bowl<lora:ink:0.8>"
ENCODED = "a (red:1.3) cat \n, in a bowl"


def run(server: ComfyServer, graph: Graph) -> Result:
    """Run a workflow as the page does, with its workflow for metadata."""
    return server.run(graph, {"extra_pnginfo": {"workflow": WORKFLOW}})


def texts_of(server: ComfyServer, result: Result) -> list[dict[str, str]]:
    """The metadata of each image that a run saved."""
    found: list[dict[str, str]] = []
    for output in result.outputs.values():
        for image in output.get("images", ()):
            with Image.open(server.base / "output" / image["subfolder"] / image["filename"]) as opened:
                found.append(dict(opened.text))  # pyright: ignore[reportAttributeAccessIssue]
    return found


def encoded_in(server: ComfyServer, result: Result) -> dict[str, Any]:
    """Encoded texts in the metadata of a run's image."""
    (texts,) = texts_of(server, result)
    assert json.loads(texts["workflow"]) == WORKFLOW
    return json.loads(texts["weighted_clip"])


def picture(server: ComfyServer, graph: Graph, text: Any, negative: Any = "blurry") -> dict[str, str]:
    """Two prompts that are encoded by our nodes, and an image from them: the ids of the nodes."""
    clip = add_checkpoint(graph)[1]
    first = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=text, syntax="a1111", scheme="a1111")
    second = server.add_ours(graph, "WeightedCLIPMaskedBlend", clip=clip, text=negative)
    save = add_picture(graph, first, second, steps=1)
    decoded, _ = graph.nodes[save.id]["inputs"]["images"]
    return {"positive": first.id, "negative": second.id, "decoded": decoded, "save": save.id}


def test_images_hold_both_prompts_as_they_were_encoded(server: ComfyServer) -> None:
    graph = Graph()
    ids = picture(server, graph, POSITIVE)
    result = run(server, graph)
    expected = {ids["positive"]: {"text": ENCODED}, ids["negative"]: {"text": "blurry"}}
    assert encoded_in(server, result) == expected
    (texts,) = texts_of(server, result)
    assert texts.keys() == {"prompt", "workflow", "weighted_clip"}
    assert json.loads(texts["prompt"]) == graph.nodes

    graph.nodes[ids["save"]]["inputs"]["filename_prefix"] = "second"
    again = run(server, graph)
    assert ids["decoded"] in again.cached  # so that nothing before it ran
    assert encoded_in(server, again) == expected

    history = server.get("/history")
    kept = [
        entry["prompt"][3]["extra_pnginfo"]["weighted_clip"]
        for entry in history.values()
        if "extra_pnginfo" in entry["prompt"][3]
    ]
    assert expected in kept


def test_a_workflow_with_other_ids_finds_its_texts_again(server: ComfyServer) -> None:
    graph = Graph()
    ids = picture(server, graph, "a cat with other ids")
    run(server, graph)
    moved = {
        f"3:{node_id}": {
            **node,
            "inputs": {
                name: [f"3:{value[0]}", value[1]] if isinstance(value, list) else value
                for name, value in node["inputs"].items()
            },
        }
        for node_id, node in graph.nodes.items()
    }
    moved[f"3:{ids['save']}"]["inputs"]["filename_prefix"] = "moved"
    graph.nodes = moved
    result = run(server, graph)
    assert f"3:{ids['decoded']}" in result.cached
    assert encoded_in(server, result)[f"3:{ids['positive']}"] == {"text": "a cat with other ids"}


def test_texts_by_a_link_are_those_of_their_run(server: ComfyServer, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    graph = Graph()
    lines = graph.add("WeightedCLIPTestLines", file=str(file))
    ids = picture(server, graph, lines)
    for number, text in enumerate(("a cat in the rain", "a dog in the rain", "a cat in the rain")):
        file.write_text(text)
        graph.nodes[ids["save"]]["inputs"]["filename_prefix"] = f"linked-{number}"
        result = run(server, graph)
        assert encoded_in(server, result)[ids["positive"]] == {"text": text}


def test_a_list_of_texts_is_told_in_its_order(server: ComfyServer, tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("a cat # one\na dog\na cat")
    graph = Graph()
    ids = picture(server, graph, graph.add("WeightedCLIPTestLines", file=str(file)))
    for prefix in ("first", "second"):
        graph.nodes[ids["save"]]["inputs"]["filename_prefix"] = prefix
        images = texts_of(server, run(server, graph))
        assert len(images) == 3
        for texts in images:
            assert json.loads(texts["weighted_clip"])[ids["positive"]] == {"text": ["a cat ", "a dog", "a cat"]}


def test_a_workflow_without_our_nodes_is_saved_as_ever(server: ComfyServer) -> None:
    graph, clip = with_clip()
    add_picture(graph, graph.add("CLIPTextEncode", clip=clip, text="a stock cat"))
    (texts,) = texts_of(server, run(server, graph))
    assert texts == {"prompt": json.dumps(graph.nodes), "workflow": json.dumps(WORKFLOW)}


def test_a_request_without_metadata_gets_none(server: ComfyServer) -> None:
    graph = Graph()
    ids = picture(server, graph, "a cat by a program")
    (texts,) = texts_of(server, server.run(graph))
    assert texts == {"prompt": json.dumps(graph.nodes)}
    graph.nodes[ids["positive"]]["inputs"]["text"] = "a cat by another program"
    (texts,) = texts_of(server, server.run(graph, {"extra_pnginfo": {}}))
    assert json.loads(texts["weighted_clip"])[ids["positive"]] == {"text": "a cat by another program"}
