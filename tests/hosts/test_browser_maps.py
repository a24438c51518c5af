"""Word maps on ComfyUI's page, in a real ComfyUI and Chromium: over the picture, by pointer and by keyboard."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ..patience import SECONDS
from .comfy_server import ComfyServer, Graph, Node
from .ruler_page import RulerPage
from .test_browser_places import SEEDS, encoded

pytestmark = pytest.mark.host

LIGHT = """
const canvas = document.querySelector('.wcr-map');
const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
let sum = 0;
for (let i = 0; i < data.length; i += 4) sum += data[i] + data[i + 1] + data[i + 2];
return sum / (data.length / 4) / 3;
"""


def workflow(*, is_watched: bool = True) -> tuple[Graph, Node]:
    """The small world draws a prompt that is watched, or not, and the node that gives the samples."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")
    seed = next(SEEDS)
    positive = encoded(graph, world, f"a red circle and a blue square{' ' * seed}")
    watched = graph.add("WeightedCLIPWatch", conditioning=positive, words="", every=1, layers="all")
    samples = graph.add(
        "KSampler",
        model=world[0],
        positive=watched if is_watched else positive,
        negative=graph.add("CLIPTextEncode", clip=world[1], text=""),
        latent_image=graph.add("EmptyLatentImage", width=128, height=128, batch_size=2),
        **{"cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0, "seed": 7, "steps": 6},
    )
    image = graph.add("VAEDecode", samples=samples, vae=world[2])
    if is_watched:
        maps = {"scale": "one for all", "word": "red", "image": image}
        graph.add("WeightedCLIPWordMaps", watch=watched[1], latent=samples, **maps)
    return graph, graph.add("PreviewImage", images=image)


def load(page: RulerPage) -> None:
    """The workflow, with Word Maps in view."""
    graph, _ = workflow()
    page.load(*graph.nodes.values(), num_rulers=3)
    page.run(
        "const node = app.graph.nodes.find(({ comfyClass }) => comfyClass === 'WeightedCLIPWordMaps');"
        "app.graph.nodes.forEach((one) => { one.pos[0] += one === node ? 0 : 1500; });"
        "node.pos = [80, 80]; node.setSize([380, 560])"
    )


def test_a_word_shows_its_map_and_a_place_its_words(page: RulerPage) -> None:
    load(page)
    page.queue()
    page.wait("return document.querySelectorAll('.wcr-map').length === 1")
    words = page.run("return [...document.querySelectorAll('button.wcr-chip')].map((chip) => chip.innerText)")
    assert words == ["a", "red", "circle", "and", "blue", "square"]
    page.wait(f"return (() => {{ {LIGHT} }})() !== 255")  # the picture has been loaded
    whole = page.run(LIGHT)
    page.run("document.querySelectorAll('button.wcr-chip')[1].focus()")
    assert page.run(LIGHT) < 0.9 * whole
    assert page.run("return document.querySelector('.wcr-map').ariaLabel") == "Map of “red”"
    word = (
        "return app.graph.nodes.find(({ comfyClass }) => comfyClass === 'WeightedCLIPWordMaps')"
        ".widgets.find(({ name }) => name === 'word').value"
    )
    for chosen in ("blue", ""):  # a second click takes it back
        page.run("document.querySelectorAll('button.wcr-chip')[4].click()")
        assert page.run(word) == chosen
    page.run("document.querySelector('.wcr-map').focus()")
    ranked = "return [...document.querySelectorAll('.wcr-ranked span')].map((one) => one.innerText)"
    before = page.run(ranked)
    assert len(before) == 6 and all(text.endswith(" %") for text in before)
    shares = [float(text.split()[-2]) for text in before]
    assert shares == sorted(shares, reverse=True) and shares[0] > 0
    page.run(
        "const canvas = document.querySelector('.wcr-map'), down = { key: 'ArrowDown', bubbles: true };"
        "for (let i = 0; i < 7; i += 1) canvas.dispatchEvent(new KeyboardEvent('keydown', down))"
    )
    assert page.run(ranked) != before
    page.run("document.querySelectorAll('.wcr-head .wcr-button')[1].click()")
    assert page.run("return document.querySelector('.wcr-head .wcr-label').innerText") == "picture 2 of 2"
    height = page.run("return document.querySelector('.wcr-map').getBoundingClientRect().height")
    assert height > 100


def test_in_a_subgraph_words_are_watched_and_shown(page: RulerPage) -> None:
    load(page)
    page.run(
        "const nodes = app.graph.nodes.filter(({ comfyClass }) => /Watch|WordMaps/.test(comfyClass));"
        "const { node } = app.graph.convertToSubgraph(new Set(nodes));"
        "app.canvas.openSubgraph(node.subgraph, node)"
    )
    page.queue()
    page.wait("return document.querySelectorAll('.wcr-map').length === 1")
    page.wait("return document.querySelectorAll('button.wcr-chip').length === 6")


def test_a_run_that_is_remembered_has_the_same_maps(ruler_server: ComfyServer) -> None:
    graph, _ = workflow()
    (shown,) = (node_id for node_id, node in graph.nodes.items() if node["class_type"] == "WeightedCLIPWordMaps")
    first, second = ruler_server.run(graph), ruler_server.run(graph)
    assert shown in second.cached and shown not in first.cached
    assert first.outputs[shown]["weighted_clip"] == second.outputs[shown]["weighted_clip"]
    graph.nodes[shown]["inputs"]["word"] = "blue"
    third = ruler_server.run(graph)
    assert shown not in third.cached
    assert third.outputs[shown]["weighted_clip"][0]["maps"] == first.outputs[shown]["weighted_clip"][0]["maps"]


@pytest.mark.parametrize("page", [False], indirect=True, ids=["canvas"])
def test_bypassed_watch_words_passes_the_prompt_on(page: RulerPage, ruler_server: ComfyServer) -> None:
    pictures: list[Any] = []
    for is_watched in (True, False):
        graph, _ = workflow(is_watched=is_watched)
        page.load(*graph.nodes.values(), num_rulers=2 + is_watched)
        page.run("for (const node of app.graph.nodes) if (/Watch|WordMaps/.test(node.comfyClass)) node.mode = 4")
        pictures.append(drawn_pair(ruler_server, page))
    assert len(pictures[0]) == 2 and all(map(np.array_equal, *pictures))


def drawn_pair(server: ComfyServer, page: RulerPage) -> list[np.ndarray]:
    """Pictures of the workflow on the page."""
    earlier = server.get("/history").keys()
    page.queue()
    new = server.wait(lambda: server.get("/history").keys() - earlier, SECONDS, "nothing ran")
    (result,) = map(server.result, new)
    (shown,) = (node for node, output in result.outputs.items() if "images" in output)
    return server.pictures(result, Node(shown))


def test_the_picture_is_that_without_watching(ruler_server: ComfyServer) -> None:
    pictures: list[Any] = []
    for is_watched in (True, False):
        graph, shown = workflow(is_watched=is_watched)
        pictures.append(ruler_server.pictures(ruler_server.run(graph), shown))
    assert len(pictures[0]) == 2 and all(map(np.array_equal, *pictures))
