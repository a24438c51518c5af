"""A Weighted CLIP put behind the loader of whole workflows, in a real ComfyUI, on the canvas and in Nodes 2.0.

A weight that is typed acts in the pictures of a run, and only as long as the node serves: undone, saved and opened
again, bypassed, and by the API. One workflow has a second sampler, as a detailer has; one an encode node of another
pack.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from weighted_clip.workshop.find_hosts import Host

from .browser import SECONDS, running_browser
from .comfy_server import ComfyServer, Graph, Node, running_server
from .parity import Figures
from .ruler_page import WEB_FOLDER, RulerPage

pytestmark = pytest.mark.host

STOCK, OTHER = "CLIPTextEncode", "PCTextEncode"
PLAIN, WEIGHTED = "a red circle and a blue square", "a (red:0.1) circle and a blue square"
FIRST, SECOND = "a green ring", "a yellow circle"
SEEDS = count(100)
"""A seed for each test: what ran before is not run again."""
SAVED = "return JSON.parse(JSON.stringify(app.graph.serialize()))"
CHIP = """
const chips = [...document.querySelectorAll('.wcr-chip')].filter((chip) => chip.checkVisibility());
return chips.find((chip) => chip.innerText.replace(/\\s+/g, ' ').trim() === args[0]) ?? null;
"""
KEEP_STATE = """
const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;
tracker.captureCanvasState ? tracker.captureCanvasState() : tracker.checkState();
"""
SET_MODE = "app.graph.nodes.find(({ type }) => type === 'WeightedCLIP').mode = args[0]"


@pytest.fixture(scope="module")
def server(
    host: Host, other_pack: Callable[[str, Figures], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ComfyServer]:
    """A server with our pack and prompt-control."""
    pack = other_pack("comfyui-prompt-control", Figures())
    models, base = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("comfyui") / "base"
    others = {pack.name: pack}
    with running_server(host, models, base, with_pack=True, folder=WEB_FOLDER, others=others) as running:
        running.request("/settings", {"Comfy.TutorialCompleted": True})
        if OTHER not in running.get("/object_info"):
            pytest.skip("prompt-control does not load in this ComfyUI, perhaps as it has no lark")
        yield running


@pytest.fixture(scope="module")
def browser(server: ComfyServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RulerPage]:
    with running_browser(tmp_path_factory.mktemp("browser")) as driver:
        yield RulerPage(driver, server.port)


@pytest.fixture(params=[False, True], ids=["canvas", "Nodes 2.0"])
def page(browser: RulerPage, request: pytest.FixtureRequest) -> RulerPage:
    browser.open_drawn(is_nodes_2=request.param)
    return browser


def workflow(text: str, seed: int, *, kind: str = STOCK, is_served: bool = True, has_second: bool = False) -> Graph:
    """The small world draws a prompt, perhaps with a second sampler whose prompts are encoded anew."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")
    clip = world[1]
    if is_served:
        clip = graph.add("WeightedCLIP", clip=clip, syntax="comfy", scheme="masked_blend", strength=1.0)

    def sample(latent: Node, denoise: float, *prompts: tuple[str, str]) -> Node:
        positive, negative = (graph.add(encode, clip=clip, text=words) for encode, words in prompts)
        return graph.add(
            "KSampler",
            **{"model": world[0], "positive": positive, "negative": negative, "latent_image": latent, "seed": seed},
            **{"steps": 4, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": denoise},
        )

    latent = graph.add("EmptyLatentImage", width=128, height=128, batch_size=1)
    if has_second:
        latent = sample(latent, 1.0, (STOCK, FIRST), (STOCK, ""))
        latent = sample(latent, 0.7, (kind, text), (STOCK, SECOND))
    else:
        latent = sample(latent, 1.0, (kind, text), (STOCK, ""))
    graph.add("PreviewImage", images=graph.add("VAEDecode", samples=latent, vae=world[2]))
    return graph


def with_our_nodes(graph: Graph) -> Graph:
    """The workflow with our own encode nodes at the loader's CLIP in place of all others."""
    result = Graph()
    result.nodes = json.loads(json.dumps(graph.nodes))
    (served,) = (number for number, node in result.nodes.items() if node["class_type"] == "WeightedCLIP")
    settings = result.nodes.pop(served)["inputs"]
    for node in result.nodes.values():
        if node["class_type"] in (STOCK, OTHER):
            node["class_type"] = "WeightedCLIPTextEncode"
            choices = {"syntax": "comfy", "scheme": settings["scheme"], "normalization": "none", "padding": "attend"}
            node["inputs"] |= {"clip": settings["clip"], **choices, "chunking": "as syntax", "pooled": "unweighted"}
    return result


def picture(server: ComfyServer, queue: Callable[[], Any]) -> np.ndarray:
    """Picture of what is queued, which may have been drawn before."""
    earlier = server.get("/history").keys()
    queue()
    (new,) = server.wait(lambda: server.get("/history").keys() - earlier, SECONDS, "nothing ran")
    result = server.result(new)
    (shown,) = (node for node, output in result.outputs.items() if "images" in output)
    return server.picture(result, Node(shown))


@pytest.mark.parametrize(
    "form", [{}, {"has_second": True}, {"kind": OTHER}], ids=["one sampler", "second sampler", "prompt-control"]
)
def test_a_weight_acts_as_long_as_the_node_serves(page: RulerPage, server: ComfyServer, form: dict[str, Any]) -> None:
    seed = next(SEEDS)

    def by_api(graph: Graph) -> np.ndarray:
        return picture(server, lambda: server.queue(graph))

    stock_kind = {**form, "is_served": False}
    plain = by_api(workflow(PLAIN, seed, **stock_kind))
    weighted = by_api(with_our_nodes(workflow(WEIGHTED, seed, **form)))
    by_stock = by_api(workflow(WEIGHTED, seed, **stock_kind))
    assert not any(np.array_equal(*pair) for pair in ((plain, weighted), (plain, by_stock), (weighted, by_stock)))

    page.load(*workflow(PLAIN, seed, **form).nodes.values(), num_rulers=5 if form.get("has_second") else 3)
    for number in page.run("return app.graph.nodes.flatMap(({ type }, at) => (type === 'KSampler' ? [at] : []))"):
        page.set_widget("control_after_generate", "fixed", node=number)
    page.wait(CHIP, "red")
    assert np.array_equal(picture(server, page.queue), plain)
    page.run(KEEP_STATE)

    page.run(f"(() => {{ {CHIP} }})().focus()", "red")
    page.press(*["ARROW_DOWN"] * 18)
    page.wait(CHIP, "red 0.1")
    assert np.array_equal(picture(server, page.queue), weighted)
    page.run(f"document.activeElement.blur(); {KEEP_STATE}")

    saved = page.run(SAVED)
    for _ in range(60):  # each key was a change, and what is pressed while one is undone is lost
        if page.run(CHIP, "red"):
            break
        page.press("z", control=True)
        time.sleep(0.3)
    assert np.array_equal(picture(server, page.queue), plain)  # undone

    page.run("await app.loadGraphData(args[0])", saved)
    page.wait(CHIP, "red 0.1")
    assert np.array_equal(picture(server, page.queue), weighted)  # saved and opened again
    sent = Graph()
    sent.nodes = page.run("return (await app.graphToPrompt()).output")
    assert np.array_equal(by_api(sent), weighted)

    page.run(SET_MODE, 4)
    assert np.array_equal(picture(server, page.queue), by_stock)  # bypassed
