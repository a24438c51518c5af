"""Placed phrases on ComfyUI's page: words, areas, times and where they acted, in a real ComfyUI and Chromium."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from .comfy_server import Graph
from .ruler_page import SWITCH, RulerPage

pytestmark = pytest.mark.host

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


def workflow() -> Graph:
    """The small world draws two placed phrases, of which the second ends before the sampling begins."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")
    choices = {"syntax": "comfy", "scheme": "comfy", "normalization": "none", "chunking": "as syntax"}
    choices |= {"padding": "attend", "pooled": "unweighted"}
    seed = next(SEEDS)
    text = {"text": f"a Red circle and a blue square, {seed}", **choices}
    positive = graph.add("WeightedCLIPTextEncode", clip=world[1], **text)
    negative = graph.add("CLIPTextEncode", clip=world[1], text="")
    weights = {"inside": 1.0, "outside": 0.0, "unit": "percent"}
    placed = {"phrase": "red circle", "area": "left half", "start": 0.0, "end": 1.0}
    first = graph.add("WeightedCLIPPlace", conditioning=positive, **placed, **weights)
    placed = {"phrase": "blue square", "area": "bottom half", "start": 0.0, "end": 0.2}
    second = graph.add("WeightedCLIPPlace", conditioning=first, **placed, **weights)
    samples = graph.add(
        "KSampler",
        model=world[0],
        positive=second,
        negative=negative,
        latent_image=graph.add("EmptyLatentImage", width=128, height=128, batch_size=1),
        **{"seed": seed, "steps": 4, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple", "denoise": DENOISE},
    )
    graph.add("PreviewImage", images=graph.add("VAEDecode", samples=samples, vae=world[2]))
    return graph


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


def test_places_in_the_text_have_small_pictures(page: RulerPage) -> None:
    inputs = {"emphasis": "Original", "comma_backtrack": 20, "padding": "attend", "steps": 20, "counter": "as written"}
    text = {"text": "a cat MASK(0 0.5) AND a dog MASK(0 1, 0.5 1)", **inputs, "regions": "prompt-control"}
    page.load({"class_type": "WeightedCLIPA1111Encode", "inputs": text})
    page.wait_for(chips=["a", "cat", "a", "dog"], count="2 texts")
    (shown,) = places(page)
    assert [row["text"] for row in shown["rows"]] == ["MASK(0 0.5)", "MASK(0 1, 0.5 1)"]
    assert [row["corners"] for row in shown["rows"]] == [[True, False, True, False], [False, False, True, True]]
    page.set_widget("text", "a cat MASK(0.5")
    page.wait("return document.querySelector('.wcr-message')?.innerText.includes('its bracket is never closed')")
    page.set_widget("regions", "off")
    page.wait("return document.querySelectorAll('.wcr-place').length === 0")


def test_off_the_ruler_names_only_what_never_acted(page: RulerPage) -> None:
    load(page)
    page.set(SWITCH, False)
    try:
        page.queue()
        message = page.wait("return document.querySelector('.wcr-message')?.innerText")
        assert message.endswith("acted in 0 of 4 steps") and places(page) == []
    finally:
        page.set(SWITCH, True)
