"""Blueprints of the pack in a real ComfyUI: they are served, open in the page as nodes, and their weights act."""

from __future__ import annotations

import json
from typing import Any

import pytest
from weighted_clip.workshop.blueprints import BLUEPRINTS

from .browser import Page
from .comfy_server import CHECKPOINT, ComfyServer, Graph, pixel_difference
from .test_templates import FOLDER, page, web_server  # noqa: F401

pytestmark = pytest.mark.host


def served(server: ComfyServer) -> dict[str, str]:
    """Our blueprints as the host serves them, by name."""
    found = server.get("/global_subgraphs")
    ours = {key: one for key, one in found.items() if one["info"]["node_pack"] == f"custom_nodes.{FOLDER}"}
    return {one["name"]: server.get(f"/global_subgraphs/{key}")["data"] for key, one in ours.items()}


def opened(page: Page, data: str, **values: Any) -> dict[str, Any]:  # noqa: F811
    """The request of a blueprint whose promoted widgets have these values."""
    page.run("await app.loadGraphData(args[0])", json.loads(data))
    page.wait("return app.graph.nodes.length === 1 && app.graph.nodes[0].isSubgraphNode?.()")
    for name, value in values.items():
        page.run("app.graph.nodes[0].widgets.find(({ name }) => name === args[0]).value = args[1]", name, value)
    return page.run("return (await app.graphToPrompt()).output")


def test_all_are_served(web_server: ComfyServer) -> None:  # noqa: F811
    assert served(web_server).keys() == BLUEPRINTS.keys()


def test_weights_act_in_a_picture(page: Page, web_server: ComfyServer) -> None:  # noqa: F811
    pictures = []
    for prompt in ("a (red:1.8) cat", "a red cat", "a (red:1.8) cat"):
        scheme = "unweighted" if len(pictures) == 2 else "auto"
        nodes = opened(page, served(web_server)["Weighted text to image"], prompt=prompt, scheme=scheme)
        graph = Graph()
        graph.nodes = nodes
        (picture,) = (key for key, node in nodes.items() if node["class_type"] == "VAEDecode")
        for node in nodes.values():
            small = {"ckpt_name": CHECKPOINT, "width": 64, "height": 64, "steps": 2, "seed": 1}
            node["inputs"] |= {name: value for name, value in small.items() if name in node["inputs"]}
        assert [node["inputs"]["text"] for node in nodes.values() if "text" in node["inputs"]] == [prompt, ""]
        save = Graph.add(graph, "SaveImage", images=[picture, 0], filename_prefix="blueprint")
        pictures += web_server.pictures(web_server.run(graph), save)
    weighted, plain, unweighted = pictures
    assert pixel_difference(weighted, plain) > 0
    assert pixel_difference(unweighted, plain) == 0


def test_prompts_are_weighted_for_any_sampler(page: Page, web_server: ComfyServer) -> None:  # noqa: F811
    data = served(web_server)["Weighted prompts"]
    nodes = opened(page, data, prompt="a (cat:1.3)", negative="(dog:0.5)", syntax="a1111", strength=0.5)
    kinds = [node["class_type"] for node in nodes.values()]
    assert sorted(kinds) == ["CLIPTextEncode", "CLIPTextEncode", "WeightedCLIP"]
    (server,) = (key for key, node in nodes.items() if node["class_type"] == "WeightedCLIP")
    assert (nodes[server]["inputs"]["syntax"], nodes[server]["inputs"]["strength"]) == ("a1111", 0.5)
    assert [node["inputs"]["clip"] for node in nodes.values() if "text" in node["inputs"]] == [[server, 0]] * 2
    ends = page.run("return app.graph.nodes[0].outputs.map(({ name, type }) => [name, type])")
    assert ends == [["positive", "CONDITIONING"], ["negative", "CONDITIONING"]]
