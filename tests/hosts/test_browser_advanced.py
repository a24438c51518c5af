"""Menus that are rarely needed, in a real ComfyUI: among the advanced inputs of Nodes 2.0, and saved as ever."""

from __future__ import annotations

import pytest

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

NODE = "WeightedCLIPTextEncode"
SHOWN = ["syntax", "scheme"]
RARE = ["normalization", "chunking", "padding", "pooled", "cleaning", "finest_step"]
VALUES = ["a cat", "a1111", "compel", "mean", "comfy word", "drop", "weighted", "none", "auto"]
BUTTON = "[data-testid='advanced-inputs-button']"
VISIBLE = """
const node = document.querySelector('[data-node-id]');
return args[0].filter((name) => [...node.querySelectorAll('*')].some(
    (element) => element.childElementCount === 0 && element.innerText === name && element.checkVisibility()));
"""


def open_node(page: RulerPage) -> None:
    """A node of a workflow that was saved before there were advanced inputs."""
    node = {"id": 1, "type": NODE, "pos": [300, 60], "size": [400, 500], "flags": {}, "order": 0, "mode": 0}
    slots = {"inputs": [], "outputs": [], "properties": {}, "widgets_values": VALUES}
    graph = {"last_node_id": 1, "last_link_id": 0, "nodes": [{**node, **slots}], "links": [], "version": 0.4}
    page.run("await app.loadGraphData(args[0])", graph)
    page.wait("return app.graph.nodes.length === 1 && document.querySelectorAll('.wcr-chip').length === 2")


def test_a_saved_workflow_keeps_its_values(page: RulerPage) -> None:
    open_node(page)
    assert page.run("return app.graph.serialize().nodes[0].widgets_values") == VALUES
    inputs = page.run("return Object.values((await app.graphToPrompt()).output)[0].inputs")
    assert inputs == dict(zip(["text", *SHOWN, *RARE], VALUES, strict=True))


def test_nodes_2_show_the_rare_menus_on_demand(page: RulerPage) -> None:
    if not page.is_nodes_2:
        pytest.skip("the canvas shows all")
    open_node(page)
    if not page.run(f'return Boolean(document.querySelector("{BUTTON}"))'):
        pytest.skip("this front end has no advanced inputs")
    assert page.run(VISIBLE, SHOWN + RARE) == SHOWN
    page.driver.find_element("css selector", BUTTON).click()
    page.wait(f"{VISIBLE.strip()[:-1]}.length === args[0].length", SHOWN + RARE)
