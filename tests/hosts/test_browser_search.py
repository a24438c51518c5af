"""Our nodes in ComfyUI's search, and what a new one shows, in a real ComfyUI, on the canvas and in Nodes 2.0."""

from __future__ import annotations

import time

import pytest
from weighted_clip.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from weighted_clip.nodes.base.node import MARK, PROMPT
from weighted_clip.weighting.schemes import SCHEMES

from .ruler_page import ADD, RulerPage

pytestmark = pytest.mark.host

FOUND = """
return [...document.querySelectorAll('#results-list [role=option]')].map((one) => one.innerText.split('\\n')[0]);
"""
FIRST: dict[str, tuple[str, int]] = {
    "weight": ("", 1),
    "weighted": ("", 1),
    "weighted clip": ("", 1),
    "prompt weight": ("", 1),
    "weighted prompt": ("TextEncode", 1),
    "prompt": ("TextEncode", 3),
    "fade": ("MaskedBlend", 1),
    "color": ("BindPhrases", 3),
    "bleed": ("BindPhrases", 3),
    "region": ("Region", 3),
    "regional": ("Region", 1),
    "token": ("Inspect", 3),
    "tokens": ("Inspect", 3),
    "attention": ("WeighAttention", 3),
    "lora": ("LoadPromptLoras", 5),  # behind the host's own, which it ranks by how often they are used
    "a1111": ("A1111Encode", 3),
}
"""Node that a word must find, and the last place at which it may stand."""
ADD_ALONE = f"for (const node of [...app.graph.nodes]) app.graph.remove(node); {{ {ADD} }}"
"""Puts a node alone on the canvas, by an id that none had before: Nodes 2.0 keeps what it knows of widgets by id."""
HEIGHT = "return app.graph.nodes[0].size[1] + LiteGraph.NODE_TITLE_HEIGHT"
MAX_HEIGHT = 384
"""Pixels that a new node may take: half of a laptop's screen."""
EXTRA = {
    "WeightedCLIPSweep": 20,
    "WeightedCLIPBindPhrases": 20,
    "WeightedCLIPWeighAttention": 20,
    "WeightedCLIPLoadPromptLoras": 12,
}
"""Pixels that nodes may have more in Nodes 2.0, which draws a row for each of three outputs, a badge and a button."""
SCHEME_ROW = """
const node = app.graph.nodes[0];
const { y } = node.widgets.find(({ name }) => name === 'scheme');
const { left, top } = app.canvas.canvas.getBoundingClientRect();
return [left + node.pos[0] + 60, top + node.pos[1] + y + 10];
"""
TOOLTIP = """
const all = [...document.querySelectorAll('.node-tooltip, .p-tooltip-text, [role=tooltip]')];
const shown = all.find((one) => one.checkVisibility());
return shown?.innerText.trim().split('\\n') ?? null;
"""
PROMPTS = [
    name
    for name, node in NODE_CLASS_MAPPINGS.items()
    if any(spec[1].get(MARK) == PROMPT for spec in {**node.required, **node.optional}.values())
]
"""Nodes with a prompt box."""


def search(page: RulerPage, words: str) -> list[str]:
    """Names that the search lists, once they stay the same."""
    from selenium.webdriver import ActionChains

    if not page.driver.find_elements("css selector", "#results-list"):
        canvas = page.driver.find_element("css selector", "#graph-canvas")
        ActionChains(page.driver).move_to_element(canvas).double_click().perform()
        page.wait("return Boolean(document.querySelector('#results-list'))")
    page.press("a", control=True)
    page.press(words)
    before: list[str] = []
    for _ in range(50):
        time.sleep(0.4)
        found = page.run(FOUND)
        if found and found == before:
            return found
        before = found
    raise AssertionError(f"the search for {words!r} never settled: {before}")


def test_words_find_their_node_among_the_first(ruler_browser: RulerPage) -> None:
    page = ruler_browser
    page.open_drawn(is_nodes_2=False)
    version = page.run("return window.__COMFYUI_FRONTEND_VERSION__ ?? '0.0'")
    if tuple(map(int, version.split(".")[:2])) < (1, 47):
        pytest.skip("an older search")
    page.run("for (const node of [...app.graph.nodes]) app.graph.remove(node)")
    places = {}
    for words, (name, _) in FIRST.items():
        found = search(page, words)
        title = NODE_DISPLAY_NAME_MAPPINGS[f"WeightedCLIP{name}"]
        places[words] = found.index(title) + 1 if title in found else None
    late = {words: place for words, place in places.items() if place is None or place > FIRST[words][1]}
    assert late == {}, places


def height_of_new(page: RulerPage, node_id: str) -> float:
    """Height of a new node with its title, once it stays the same."""
    page.run(ADD_ALONE, node_id)
    page.wait("return document.querySelector('.wcr-box')?.offsetHeight > 0")
    before = None
    for _ in range(50):
        time.sleep(0.4)
        height = page.run(HEIGHT)
        if height == before:
            return height
        before = height
    raise AssertionError(f"never settled: {before}")


def test_a_new_node_with_a_prompt_takes_half_of_a_laptops_screen(page: RulerPage) -> None:
    found = {node_id: height_of_new(page, node_id) for node_id in PROMPTS}
    extra = EXTRA if page.is_nodes_2 else {}
    high = {node_id: height for node_id, height in found.items() if height > MAX_HEIGHT + extra.get(node_id, 0)}
    assert high == {}, found


def shown(page: RulerPage) -> list[str]:
    """Names of the widgets that the canvas shows."""
    return page.run("return app.graph.nodes[0].widgets.filter((one) => !one.hidden).map(({ name }) => name)")


def test_the_canvas_shows_advanced_inputs_on_demand_and_where_they_are_set(page: RulerPage) -> None:
    if page.is_nodes_2:
        pytest.skip("Nodes 2.0 has a button of its own: test_browser.py")
    height = height_of_new(page, "WeightedCLIPTextEncode")
    assert shown(page) == ["text", "ruler", "syntax", "scheme", "advanced"]
    values = page.run("return app.graph.serialize().nodes[0].widgets_values")
    assert values == [
        "",
        "comfy",
        "comfy",
        "none",
        "as syntax",
        "attend",
        "unweighted",
        "as Forge",
        "auto",
        "as syntax",
    ]
    button = "app.graph.nodes[0].widgets.find(({ name }) => name === 'advanced')"
    page.run(f"{button}.callback()")
    assert len(shown(page)) == 12
    assert page.run(HEIGHT) > height
    # newer inputs follow with their defaults
    assert page.run("return app.graph.serialize().nodes[0].widgets_values")[: len(values)] == values
    page.run(f"{button}.callback()")
    assert page.run(HEIGHT) == height
    # a file with a rare value shows it, and the others on demand
    reload = "const saved = app.graph.serialize(); saved.nodes[0].widgets_values[5] = args[0]; app.loadGraphData(saved)"
    for padding, number in (("drop", 6), ("attend", 5)):
        page.run(f"{reload}; await new Promise((done) => setTimeout(done, 500))", padding)
        assert len(shown(page)) == number
        assert page.run("return app.graph.serialize().nodes[0].widgets_values[5]") == padding


def test_a_tooltip_says_what_each_scheme_does_on_a_line(page: RulerPage) -> None:
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    height_of_new(page, "WeightedCLIPTextEncode")
    if page.is_nodes_2:
        label = "return [...document.querySelectorAll('[data-node-id] *')].find((one) => one.innerText === 'scheme')"
        ActionChains(page.driver).move_to_element(page.run(label)).perform()
    else:
        mouse = ActionBuilder(page.driver)
        mouse.pointer_action.move_to_location(*map(int, page.run(SCHEME_ROW)))
        mouse.perform()
    lines = page.wait(TOOLTIP)
    assert len(lines) == len(SCHEMES) + 1
    assert lines[1].startswith("comfy: ")


def test_a_workflow_of_0_2_0_keeps_the_syntax_of_fade_words(page: RulerPage) -> None:
    values = ["a [fox]", "a1111", "nested", "attention", "+", "attend", "unweighted", "as Forge"]
    node = {"id": 1, "type": "WeightedCLIPMaskedBlend", "pos": [300, 60], "size": [400, 400], "flags": {}, "mode": 0}
    slots = {"order": 0, "inputs": [], "outputs": [], "properties": {}, "widgets_values": values}
    graph = {"last_node_id": 1, "last_link_id": 0, "nodes": [{**node, **slots}], "links": [], "version": 0.4}
    page.run("await app.loadGraphData(args[0])", graph)
    page.wait("return app.graph.nodes.length === 1")
    # newer inputs follow with their defaults
    assert page.run("return app.graph.serialize().nodes[0].widgets_values")[: len(values)] == values
    inputs = page.run("return Object.values((await app.graphToPrompt()).output)[0].inputs")
    assert inputs["syntax"] == "a1111"
