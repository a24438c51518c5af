"""Sizes of our nodes with a prompt box and the ruler below it, in a real ComfyUI, on the canvas and in Nodes 2.0."""

from __future__ import annotations

import time
from typing import Any

import pytest
from weighted_clip.web.inspection import inspect

from .ruler_page import ADD as ADD_NEW
from .ruler_page import RulerPage, inspect_node

pytestmark = pytest.mark.host

TEXT_HEIGHTS = (84, 40)
"""Pixels of text that each box of a new node shows if it has one, or two."""
LONG = "a red cat sat on the mat, " * 5
HALF = 384
"""Half of a screen of 1366 x 768, in pixels."""
WITH_PROMPTS = (
    *("WeightedCLIPTextEncode", "WeightedCLIPA1111Encode", "WeightedCLIPMaskedBlend", "WeightedCLIPMaskControl"),
    *("WeightedCLIPBindPhrases", "WeightedCLIPSDXLEncode", "WeightedCLIPWeighAttention", "WeightedCLIPConvert"),
    *("WeightedCLIPInspect", "WeightedCLIPLoadPromptLoras"),
)
SIZES = """
const node = app.graph.nodes[args[0]];
const boxes = [...document.querySelectorAll('textarea')].filter((box) => box.checkVisibility());
return {
    node: node.size[1],
    texts: boxes.map((box) => {
        const { paddingTop, paddingBottom } = getComputedStyle(box);
        return box.clientHeight - parseFloat(paddingTop) - parseFloat(paddingBottom);
    }),
    ruler: document.querySelectorAll('.wcr-box')[args[0]].offsetHeight,
};
"""
ADD = f"app.graph.clear(); {ADD_NEW}"
ADD_SLOWLY = f"""
const {{ fetchApi }} = app.api;
let show;
const shown = new Promise((done) => (show = done));
const hold = () => shown.then(() => ({{ ok: true, json: async () => args[2] }}));
app.api.fetchApi = (path, ...others) =>
    path === '/weighted_clip/inspect' ? hold() : fetchApi.call(app.api, path, ...others);
let frame = 0;
const draw = () => {{
    const end = performance.now() + 80;
    while (performance.now() < end);
    frame += 1;
    if (frame === args[1]) show();
    if (frame < args[1] + 9) requestAnimationFrame(draw);
    else app.api.fetchApi = fetchApi;
}};
requestAnimationFrame(draw);
{ADD}
"""
"""`ADD` on a slow page, where a given answer comes to the ruler at the beginning of a given frame."""


def add(page: RulerPage, node_id: str) -> None:
    """Put a new node alone on the canvas, as a double click and a choice do."""
    page.run(ADD, node_id)
    page.wait_for(count="0 / 75")


def settled(page: RulerPage, number: int = 0) -> dict[str, Any]:
    """Sizes that have stayed the same for a while."""
    before: Any = None
    for _ in range(100):
        sizes = page.run(SIZES, number)
        if sizes == before:
            return sizes
        before = sizes
        time.sleep(0.3)
    raise AssertionError(f"never settled: {before}")


def are_enough(texts: list[float]) -> bool:
    """Whether each box shows as much as that of a new node."""
    return min(texts) >= TEXT_HEIGHTS[len(texts) - 1]


def reload_workflow(page: RulerPage, change: str = "") -> None:
    """Save the workflow and load it again; ``change`` is what to do to the node in the file."""
    page.run(
        "const saved = JSON.parse(JSON.stringify(app.graph.serialize())); const [node] = saved.nodes;"
        f"{change}; await app.loadGraphData(saved);"
        "app.canvas.ds.scale = 1; app.canvas.ds.offset = [0, 0]; app.canvas.setDirty(true, true)"
    )


@pytest.mark.parametrize("node_id", WITH_PROMPTS)
def test_the_boxes_of_a_new_node_show_enough_text_and_it_fits_half_a_screen(page: RulerPage, node_id: str) -> None:
    page.run(ADD, node_id)
    page.wait("return document.querySelector('.wcr-box')?.offsetHeight > 0")
    sizes = settled(page)
    texts = sizes["texts"]
    assert are_enough(texts)
    assert page.run("return LiteGraph.NODE_TITLE_HEIGHT") + sizes["node"] <= HALF
    assert max(texts) <= TEXT_HEIGHTS[len(texts) - 1] + 40


@pytest.mark.parametrize("frame", (3, 4, 5))
def test_a_ruler_that_comes_while_the_boxes_are_measured_takes_none_of_their_room(page: RulerPage, frame: int) -> None:
    page.run(ADD_SLOWLY, "WeightedCLIPBindPhrases", frame, inspect({"text": "", "syntax": "comfy"}))
    page.wait_for(count="0 / 75")
    assert are_enough(settled(page)["texts"])


@pytest.mark.parametrize("node_id", ["WeightedCLIPTextEncode", "WeightedCLIPBindPhrases"])
def test_the_node_grows_by_the_ruler_and_shrinks_again(page: RulerPage, node_id: str) -> None:
    add(page, node_id)
    before = settled(page)
    assert are_enough(before["texts"])
    box = page.text_area()
    box.click()
    box.send_keys(LONG)
    page.wait_for(count="40 / 75")
    long = settled(page)
    assert long["ruler"] > before["ruler"] + 60
    assert long["texts"] == before["texts"]
    assert long["node"] - before["node"] == long["ruler"] - before["ruler"]
    page.set_widget("text", "")
    page.wait_for(count="0 / 75")
    assert settled(page) == before


def test_a_box_that_its_user_made_small_stays_as_it_is(page: RulerPage) -> None:
    add(page, "WeightedCLIPTextEncode")
    (text,) = settled(page)["texts"]
    page.run(
        "const [node] = app.graph.nodes; node.setSize([node.size[0], node.size[1] - args[0]]);"
        "node.setDirtyCanvas(true, true)",
        text - 80,
    )
    before = settled(page)
    assert not are_enough(before["texts"])
    page.set_widget("text", LONG)
    page.wait_for(count="40 / 75")
    assert settled(page)["texts"] == before["texts"]
    page.set_widget("text", "a")
    page.wait_for(count="1 / 75")
    assert settled(page)["texts"] == before["texts"]


def test_a_saved_workflow_keeps_its_sizes(page: RulerPage) -> None:
    add(page, "WeightedCLIPTextEncode")
    page.set_widget("text", LONG)
    page.wait_for(count="40 / 75")
    before = settled(page)
    for _ in range(3):
        reload_workflow(page)
        page.wait_for(count="40 / 75")
        assert settled(page) == before
    # the file does not change with what the ruler shows
    height = "return app.graph.serialize().nodes[0].size[1]"
    saved = page.run(height)
    page.set_widget("text", "a cat")
    page.wait_for(count="2 / 75")
    settled(page)
    assert page.run(height) == saved


def test_a_workflow_of_an_older_version_keeps_its_sizes(page: RulerPage) -> None:
    add(page, "WeightedCLIPTextEncode")
    page.set_widget("text", LONG)
    page.wait_for(count="40 / 75")
    settled(page)
    reload_workflow(page, "node.properties = {}; node.size = [400, 700]")
    page.wait_for(count="40 / 75")
    before = settled(page)
    assert before["node"] == 700
    page.set_widget("text", LONG * 3)
    page.wait_for(count="45 / 75 in chunk 2 of 2")
    longer = settled(page)
    assert longer["texts"] == before["texts"]
    assert longer["node"] > 700
    reload_workflow(page)
    page.wait_for(count="45 / 75 in chunk 2 of 2")
    assert settled(page) == longer


def test_a_pasted_node_is_as_high_as_the_first(page: RulerPage) -> None:
    page.load(inspect_node(LONG))
    page.wait_for(count="40 / 75")
    before = settled(page)["node"]
    page.run(
        "const [node] = app.graph.nodes; app.canvas.selectNode(node);"
        "app.canvas.copyToClipboard([node]); app.canvas.pasteFromClipboard()"
    )
    page.wait("return app.graph.nodes.length === 2")
    page.wait_for(ruler=1, count="40 / 75")
    assert settled(page, 1)["node"] == before


def test_a_narrower_node_takes_the_room_from_the_box(page: RulerPage) -> None:
    """As while a corner is dragged: the height is the pointer's."""
    page.load(inspect_node(LONG))
    page.wait_for(count="40 / 75")
    page.run("const [node] = app.graph.nodes; node.setSize([700, 600]); node.setDirtyCanvas(true, true)")
    before = settled(page)
    page.run("const [node] = app.graph.nodes; node.setSize([420, 600]); node.setDirtyCanvas(true, true)")
    after = settled(page)
    assert after["ruler"] > before["ruler"]
    assert after["node"] == 600


def test_a_node_with_the_id_of_the_one_before_shows_enough_text(page: RulerPage) -> None:
    """Nodes 2.0 shows the boxes of the other one for a few frames."""
    for node_id in ("WeightedCLIPTextEncode", "WeightedCLIPBindPhrases", "WeightedCLIPInspect"):
        add(page, node_id)
        assert are_enough(settled(page)["texts"]), node_id
