"""Values of nodes whose ruler stands between their widgets: saved, opened, copied and sent, in both ways of drawing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from weighted_clip.nodes import NODE_CLASS_MAPPINGS

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

OF_0_2_0: dict[str, list[Any]] = {
    "WeightedCLIPTextEncode": ["a cat", "a1111", "compel", "mean", "comfy word", "drop", "weighted", "none", "1/20"],
    "WeightedCLIPA1111Encode": ["a dog", "No norm", 7, "drop", 33, "as written", "none"],
    "WeightedCLIPMaskedBlend": ["a fox", "compel", "power", "remove", "*", "drop", "weighted", "none"],
    "WeightedCLIPMaskControl": ["a red cat", "red", "the phrases below", "cat", False, "drop"],
    "WeightedCLIPBindPhrases": [
        *["a red cat, a blue dog", "red cat\nblue dog", "neutral", 0.5, "a1111", "compel", "drop", "none", "1/20"],
        *["given words", "red\nblue"],
    ],
    "WeightedCLIPSDXLEncode": [
        *["a ship", "a sea", 512, 640, 8, 16, 768, 896, "a1111", "compel", "mean", "comfy word", "drop", "weighted"],
        *[2.5, "none", "1/20"],
    ],
    "WeightedCLIPWeighAttention": ["a bird", "a1111", "value", 0.5, "none"],
    "WeightedCLIPConvert": ["a fish", "comfy", "compel", "none"],
    "WeightedCLIPInspect": ["a mouse", "compel", "a1111", "none"],
    "WeightedCLIPLoadPromptLoras": ["a goat", "none"],
}
"""Values that differ from the defaults, by position, as version 0.2.0 saved them."""
SAVE = "return JSON.parse(JSON.stringify(app.graph.serialize()))"
SENT = """
const { output } = await app.graphToPrompt();
return Object.values(output).map(({ class_type: kind, inputs }) => [kind, inputs]);
"""


def names(node_id: str) -> list[str]:
    """The inputs with a widget, in the node's own order."""
    kinds = NODE_CLASS_MAPPINGS[node_id].INPUT_TYPES()
    inputs = {**kinds["required"], **kinds.get("optional", {})}
    widgets = ("STRING", "INT", "FLOAT", "BOOLEAN")
    return [name for name, (kind, *_) in inputs.items() if not isinstance(kind, str) or kind in widgets]


def expected(node_id: str) -> list[Any]:
    """All values of a node now; what came after 0.2.0 is at its default."""
    values = OF_0_2_0[node_id]
    inputs = NODE_CLASS_MAPPINGS[node_id].INPUT_TYPES()["optional"] if len(values) < len(names(node_id)) else {}
    return [*values, *(inputs[name][1]["default"] for name in names(node_id)[len(values) :])]


def workflow() -> dict[str, Any]:
    """A workflow as 0.2.0 saved it, with a node of each kind."""
    nodes = [
        {
            **{"id": number, "type": node_id, "pos": [30 + 450 * (number - 1), 60], "size": [400, 500], "flags": {}},
            **{"order": number, "mode": 0, "inputs": [], "outputs": [], "properties": {}, "widgets_values": values},
        }
        for number, (node_id, values) in enumerate(OF_0_2_0.items(), 1)
    ]
    return {"last_node_id": len(nodes), "last_link_id": 0, "nodes": nodes, "links": [], "version": 0.4}


def open_workflow(page: RulerPage, saved: dict[str, Any]) -> None:
    """Open a workflow, and wait until its rulers have drawn."""
    page.run("await app.loadGraphData(args[0]); app.canvas.ds.scale = 0.2; app.canvas.ds.offset = [0, 0]", saved)
    page.run("app.canvas.setDirty(true, true); await new Promise((done) => setTimeout(done, 700))")


def check(nodes: list[dict[str, Any]], times: int = 1) -> None:
    """Every node that was saved has the values that it was opened with, by position."""
    assert len(nodes) == times * len(OF_0_2_0)
    for node in nodes:
        assert node["widgets_values"] == expected(node["type"]), node["type"]


def check_sent(page: RulerPage) -> None:
    """The page sends each value under its name."""
    sent = page.run(SENT)
    assert len(sent) == len(OF_0_2_0)
    for kind, inputs in sent:
        assert inputs == dict(zip(names(kind), expected(kind), strict=True)), kind


def test_saved_and_opened_again(page: RulerPage) -> None:
    saved = workflow()
    for _ in range(3):
        open_workflow(page, saved)
        saved = page.run(SAVE)
        check(saved["nodes"])
        check_sent(page)


def test_copied(page: RulerPage) -> None:
    open_workflow(page, workflow())
    page.run("app.canvas.copyToClipboard(app.graph.nodes); app.canvas.pasteFromClipboard()")
    check(page.run(SAVE)["nodes"], times=2)


def test_in_a_subgraph(page: RulerPage) -> None:
    open_workflow(page, workflow())
    page.run("app.canvas.graph.convertToSubgraph(new Set(app.graph.nodes))")
    for _ in range(2):
        saved = page.run(SAVE)
        (subgraph,) = saved["definitions"]["subgraphs"]
        check(subgraph["nodes"])
        check_sent(page)
        open_workflow(page, saved)


def test_by_the_api(page: RulerPage) -> None:
    open_workflow(page, workflow())
    output = page.run("return (await app.graphToPrompt()).output")
    page.run("await app.loadApiJson(args[0], 'test')", json.loads(json.dumps(output)))
    check(page.run(SAVE)["nodes"])
    check_sent(page)


@pytest.mark.parametrize("node_id", OF_0_2_0)
def test_the_ruler_is_below_its_box(page: RulerPage, node_id: str) -> None:
    page.load({"class_type": node_id, "inputs": {}})
    page.wait("return document.querySelector('.wcr-box')?.offsetHeight > 0")
    page.wait(
        "const node = app.graph.nodes[0];"
        "const texts = node.widgets.filter(({ dynamicPrompts }) => dynamicPrompts).length;"
        "const boxes = [...document.querySelectorAll('textarea')].filter((box) => box.checkVisibility());"
        "const gap = document.querySelector('.wcr-box').getBoundingClientRect().top"
        " - boxes[texts - 1].getBoundingClientRect().bottom;"
        "return 0 <= gap && gap < 25"
    )
