"""Placed phrases on ComfyUI's page: words, areas, times and where they acted, in a real ComfyUI and Chromium."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from ..patience import SECONDS
from .comfy_server import CLIENT, ComfyServer, Graph, Node, PromptError, Result, listening
from .ruler_page import SWITCH, RulerPage

pytestmark = pytest.mark.host

PLACE, REGION = "WeightedCLIPPlace", "WeightedCLIPRegion"
DENOISE = 0.5
"""The sampler begins in the middle of the way, and what ends before that never acts."""
PLACES = """
return [...document.querySelectorAll('.weighted-clip-ruler')].map((ruler) => ({
    chips: [...ruler.querySelectorAll('.wcr-placed .wcr-text')].map((chip) => chip.innerText),
    rows: [...ruler.querySelectorAll('.wcr-place')].map((row) => {
        const canvas = row.querySelector('canvas');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        const filled = Array.from({ length: data.length / 4 }, (_, i) => data[4 * i + 3] === 255);
        return {
            text: row.innerText.replace(/\\s+/g, ' ').trim(),
            corners: [filled[0], filled[canvas.width - 1], filled.at(-canvas.width), filled.at(-1)],
            isShown: canvas.checkVisibility() && canvas.getBoundingClientRect().height > 10,
            isRed: Boolean(row.querySelector('.wcr-message')),
        };
    }),
    isStale: ruler.firstChild.classList.contains('wcr-stale'),
}))
"""


SEEDS = itertools.count()
"""ComfyUI does not sample the same twice."""
CHOICES = {"syntax": "comfy", "scheme": "comfy", "normalization": "none", "chunking": "as syntax"}
ALWAYS = {"start": 0.0, "end": 1.0, "unit": "percent"}


def workflow() -> Graph:
    """The small world draws two placed phrases, of which the second ends before the sampling begins."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")
    seed = next(SEEDS)
    positive = encoded(graph, world, f"a Red circle and a blue square, {seed}")
    weights = {"inside": 1.0, "outside": 0.0}
    first = graph.add(PLACE, conditioning=positive, phrase="red circle", area="left half", **weights, **ALWAYS)
    placed = {"phrase": "blue square", "area": "bottom half", **ALWAYS, "end": 0.2}
    second = graph.add(PLACE, conditioning=first, **placed, **weights)
    add_sampler(graph, world, second, seed=seed, steps=4, denoise=DENOISE)
    return graph


def encoded(graph: Graph, world: Node, text: str) -> Node:
    """A prompt by our Text Encode."""
    return graph.add(
        "WeightedCLIPTextEncode", clip=world[1], text=text, **CHOICES, padding="attend", pooled="unweighted"
    )


def add_sampler(graph: Graph, world: Node, positive: Node, **choices: Any) -> None:
    """Sample a prompt, decode, and show the picture."""
    samples = graph.add(
        "KSampler",
        model=world[0],
        positive=positive,
        negative=graph.add("CLIPTextEncode", clip=world[1], text=""),
        latent_image=graph.add("EmptyLatentImage", width=128, height=128, batch_size=1),
        **{"cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": 1.0, **choices},
    )
    graph.add("PreviewImage", images=graph.add("VAEDecode", samples=samples, vae=world[2]))


def load(page: RulerPage) -> None:
    """The workflow, with its two Place Phrase nodes in view."""
    page.load(*workflow().nodes.values(), num_rulers=3)
    page.run(
        "const nodes = app.graph.nodes.filter(({ comfyClass }) => comfyClass === 'WeightedCLIPPlace');"
        "nodes.forEach((node, at) => { node.pos = [80 + 460 * at, 80]; node.setSize([440, 300]); });"
        "app.graph.nodes.filter((node) => !nodes.includes(node)).forEach((node) => { node.pos[0] += 1000; })"
    )


def places(page: RulerPage) -> list[dict[str, Any]]:
    return [shown for shown in page.run(PLACES) if shown["rows"]]


def test_placed_phrases_are_shown_with_their_areas_and_where_they_acted(page: RulerPage) -> None:
    load(page)
    page.queue()
    page.wait("return document.querySelectorAll('.wcr-message').length === 1")
    page.wait("return document.querySelectorAll('.wcr-acted').length === 2")
    one, both = sorted(places(page), key=lambda shown: len(shown["rows"]))
    assert one["chips"] == ["Red", "circle"]
    assert both["chips"] == ["Red", "circle", "blue", "square"]
    (circle,) = one["rows"]
    assert circle == both["rows"][0]
    assert circle["text"] == "“red circle” left half weight 1, outside 0 acted in 4 of 4 steps"
    assert (circle["corners"], circle["isShown"], circle["isRed"]) == ([True, False, True, False], True, False)
    square = both["rows"][1]
    assert (
        square["text"] == "“blue square” bottom half weight 1, outside 0 from 0 to 0.2 of the way acted in 0 of 4 steps"
    )
    assert (square["corners"], square["isShown"], square["isRed"]) == ([False, False, True, True], True, True)
    page.wait(
        "return [...document.querySelectorAll('[role=status]')].some((one) => one.innerText.includes('acted in 0'))"
    )

    page.run("document.querySelector('.wcr-placed').focus()")
    tooltip = page.run("return document.querySelector('.weighted-clip-tooltip')?.innerText")
    assert tooltip == "“red circle”: left half, weight 1, outside 0, acted in 4 of 4 steps"
    page.run("document.activeElement.blur()")
    number = page.run("return app.graph.nodes.findLastIndex(({ comfyClass }) => comfyClass === 'WeightedCLIPPlace')")
    page.set_widget("area", "top", node=number)
    page.wait("return document.querySelectorAll('.wcr-stale').length === 1")
    page.set_widget("area", "bottom half", node=number)
    page.wait("return document.querySelectorAll('.wcr-stale').length === 0")


def test_off_the_ruler_names_only_what_never_acted(page: RulerPage) -> None:
    load(page)
    page.set(SWITCH, False)
    try:
        page.queue()
        message = page.wait("return document.querySelector('.wcr-message')?.innerText")
        assert message.endswith("acted in 0 of 4 steps") and places(page) == []
    finally:
        page.set(SWITCH, True)


# With a region, in whole workflows


def with_region(*, is_placed: bool = True, steps: int = 4) -> Graph:
    """The small world draws a placed phrase and a region, or the base prompt alone."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")
    positive = encoded(graph, world, f"a red circle and a blue square{' ' * next(SEEDS)}")
    if is_placed:
        weights = {"inside": 4.0, "outside": 0.25, "area": "left half ~0.1", **ALWAYS, "end": 0.6}
        placed = graph.add(PLACE, conditioning=positive, phrase="red circle", **weights)
        prompt = encoded(graph, world, "a green triangle")
        chosen = {"strength": 0.8, "area": "0.5 1, 0 1", "start": 1.0, "end": 3.0, "unit": "steps"}
        positive = graph.add(REGION, base=placed, region=prompt, blocks="every other", **chosen)
    add_sampler(graph, world, positive, seed=7, steps=steps)
    return graph


def drawn(server: ComfyServer, queue: Callable[[], Any]) -> np.ndarray:
    """Picture of a workflow that is queued."""
    earlier = server.get("/history").keys()
    queue()
    new = server.wait(lambda: server.get("/history").keys() - earlier, SECONDS, "nothing ran")
    (result,) = map(server.result, new)
    return picture_of(server, result)


def picture_of(server: ComfyServer, result: Result) -> np.ndarray:
    (shown,) = (node for node, output in result.outputs.items() if "images" in output)
    assert shown not in result.cached
    return server.picture(result, Node(shown))


@pytest.fixture(scope="module")
def pictures(ruler_server: ComfyServer) -> dict[bool, np.ndarray]:
    """Picture with the phrase and the region, and without."""
    return {
        is_placed: drawn(ruler_server, partial(ruler_server.queue, with_region(is_placed=is_placed)))
        for is_placed in (True, False)
    }


ON_CANVAS = pytest.mark.parametrize("page", [False], indirect=True, ids=["canvas"])


@ON_CANVAS
def test_a_workflow_saved_and_opened_again_draws_the_same(
    page: RulerPage, ruler_server: ComfyServer, pictures: dict[bool, np.ndarray]
) -> None:
    graph = with_region()
    page.load(*graph.nodes.values(), num_rulers=4)
    page.run("await app.loadGraphData(JSON.parse(JSON.stringify(app.graph.serialize())))")
    opened = page.run("return (await app.graphToPrompt()).output")
    for node_id, node in graph.nodes.items():
        assert {**opened[node_id]["inputs"], **node["inputs"]} == opened[node_id]["inputs"]
    assert np.array_equal(drawn(ruler_server, page.queue), pictures[True])
    graph.nodes = opened
    opened["2"]["inputs"]["text"] += " " * 100  # the same words, which are not remembered
    assert np.array_equal(drawn(ruler_server, partial(ruler_server.queue, graph)), pictures[True])


def test_in_a_subgraph_they_act_and_are_shown(
    page: RulerPage, ruler_server: ComfyServer, pictures: dict[bool, np.ndarray]
) -> None:
    page.load(*with_region().nodes.values(), num_rulers=4)
    page.run(
        "const nodes = app.graph.nodes.filter(({ comfyClass }) => args.includes(comfyClass));"
        "const { node } = app.graph.convertToSubgraph(new Set(nodes));"
        "app.canvas.openSubgraph(node.subgraph, node)",
        *(PLACE, REGION),
    )
    assert np.array_equal(drawn(ruler_server, page.queue), pictures[True])
    page.wait("return document.querySelectorAll('.wcr-acted').length === 3")
    one, both = sorted(places(page), key=lambda shown: len(shown["rows"]))
    assert one["rows"] == both["rows"][:1]
    assert [row["text"] for row in both["rows"]] == [
        "“red circle” left half ~0.1 weight 4, outside 0.25 from 0 to 0.6 of the way acted in 3 of 4 steps",
        "region 1 “a green triangle” 0.5 1, 0 1 strength 0.8 from step 1 to before step 3 acted in 2 of 4 steps",
    ]
    assert all(row["isShown"] for row in both["rows"])


@ON_CANVAS
def test_nodes_that_are_not_run_again_are_shown(page: RulerPage, ruler_server: ComfyServer) -> None:
    if not ruler_server.get(f"/object_info/{PLACE}")[PLACE].get("has_intermediate_output"):
        pytest.skip("this ComfyUI does not send what nodes show unless it runs them")
    graph = with_region()
    ruler_server.run(graph)
    page.load(*graph.nodes.values(), num_rulers=4)
    page.queue()
    page.wait("return document.querySelectorAll('.wcr-place').length === 3")
    assert page.run("return document.querySelectorAll('.wcr-acted').length") == 0
    page.open_drawn(is_nodes_2=False)
    (sampler,) = (node for node in graph.nodes.values() if node["class_type"] == "KSampler")
    sampler["inputs"]["seed"] += 1
    page.load(*graph.nodes.values(), num_rulers=4)
    page.queue()
    page.wait("return document.querySelectorAll('.wcr-acted').length === 3")


@ON_CANVAS
def test_bypassed_they_pass_the_prompt_on(
    page: RulerPage, ruler_server: ComfyServer, pictures: dict[bool, np.ndarray]
) -> None:
    page.load(*with_region().nodes.values(), num_rulers=4)
    page.run("for (const node of app.graph.nodes) if (args.includes(node.comfyClass)) node.mode = 4", PLACE, REGION)
    assert np.array_equal(drawn(ruler_server, page.queue), pictures[False])
    assert not np.array_equal(pictures[False], pictures[True])


def test_an_interrupt_while_sampling_leaves_nothing(
    ruler_server: ComfyServer, pictures: dict[bool, np.ndarray]
) -> None:
    with listening(ruler_server.port, CLIENT) as messages:
        prompt_id = ruler_server.queue(with_region(steps=10_000))
        assert messages.has_begun.wait(SECONDS)
        ruler_server.request("/interrupt", b"")
        with pytest.raises(PromptError) as caught:
            ruler_server.result(prompt_id)
    assert "execution_interrupted" in caught.value.details
    for is_placed in (False, True):
        result = ruler_server.run(with_region(is_placed=is_placed))
        assert np.array_equal(picture_of(ruler_server, result), pictures[is_placed])
