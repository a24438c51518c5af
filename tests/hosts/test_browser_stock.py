"""Our items in the menu of ComfyUI's own prompt nodes: the ruler there, and our node in their place."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

STOCK, OURS = "CLIPTextEncode", "WeightedCLIPTextEncode"
SETTING = "WeightedCLIP.StockRuler"
CHIPS = "return [...document.querySelectorAll('.wcr-chip')].map((chip) => chip.innerText.replace(/\\s+/g, ' '))"
SENT = """
const { output } = await app.graphToPrompt();
const node = (id) => output[id];
return Object.values(output).filter(({ class_type: kind }) => kind === 'KSampler').map(({ inputs }) =>
    ['positive', 'negative'].map((name) => {
        const { class_type: kind, inputs: own } = node(inputs[name][0]);
        const text = Array.isArray(own.text) ? node(own.text[0]).inputs.value : own.text;
        return [kind, node(own.clip[0]).class_type, text, inputs[name][1]];
    }));
"""
AT_TITLE = """
const [node] = app.canvas.graph.nodes.filter(({ type }) => type === args[0]);
return app.canvasPosToClientPos([node.pos[0] + 150, node.pos[1] - 15]);
"""


def graph() -> list[dict[str, Any]]:
    """Two prompts for a sampler, one of them by a link."""
    loader = {"class_type": "CLIPLoader", "inputs": {"clip_name": "none", "type": "stable_diffusion"}}
    text = {"class_type": "PrimitiveStringMultiline", "inputs": {"value": "a dog"}}
    prompts = [{"class_type": STOCK, "inputs": {"clip": ["1", 0], "text": one}} for one in ("a (cat:1.2)", ["2", 0])]
    links = {"positive": ["3", 0], "negative": ["4", 0]}
    sampler = {"class_type": "KSampler", "inputs": {**links, "seed": 1, "steps": 1, "cfg": 1}}
    return [loader, text, *prompts, sampler]


def choose(page: RulerPage, item: str, kind: str = STOCK) -> None:
    """Choose an item of the menu of the first node of a kind, with the mouse."""
    from selenium.webdriver import ActionChains

    page.run("app.canvas.setDirty(true, true); await new Promise((done) => setTimeout(done, 300))")
    x, y = page.run(AT_TITLE, kind)
    body = page.driver.find_element("css selector", "body")
    middle = [body.size["width"] / 2, body.size["height"] / 2]
    chain = ActionChains(page.driver).move_to_element_with_offset(body, int(x - middle[0]), int(y - middle[1]))
    chain.context_click().perform()
    find = (
        "return [...document.querySelectorAll('*')].findLast((one) => !one.children.length && one.checkVisibility()"
        " && one.textContent.trim() === args[0])"
    )
    page.wait(find.replace("return ", "return undefined !== "), item)
    page.run(find, item).click()


def sent(page: RulerPage) -> list[list[Any]]:
    """Node, loader, text and output that reach the sampler's two inputs."""
    (found,) = page.run(SENT)
    return found


def test_show_tokens(page: RulerPage) -> None:
    page.load(*graph(), num_rulers=0)
    before = sent(page)
    choose(page, "Show tokens")
    page.wait(f"return (() => {{ {CHIPS} }})().join() === 'a,cat 1.2'")
    save = "return JSON.parse(JSON.stringify(app.graph.serialize()))"
    for _ in range(2):
        saved = page.run(save)
        (node,) = (one for one in saved["nodes"] if one["type"] == STOCK and "(cat" in one["widgets_values"][0])
        assert node["widgets_values"] == ["a (cat:1.2)"]
        assert sent(page) == before
        page.run("await app.loadGraphData(args[0])", saved)
        page.wait(f"return (() => {{ {CHIPS} }})().join() === 'a,cat 1.2'")
    assert page.run("return document.querySelectorAll('.wcr-editable').length") == 0
    choose(page, "Hide tokens")
    page.wait(f"return (() => {{ {CHIPS} }})().length === 0")
    assert not any(shown["height"] for shown in page.shown())


def test_a_setting_shows_the_ruler_on_all_stock_boxes(page: RulerPage) -> None:
    page.load(*graph(), num_rulers=0)
    heights = "return app.graph.nodes.filter(({ type }) => type === args[0]).map(({ size }) => Math.round(size[1]))"
    before = page.run(heights, STOCK)
    try:
        page.set(SETTING, True)
        page.wait(f"return (() => {{ {CHIPS} }})().join() === 'a,cat 1.2,a,dog'")
        page.wait(
            "const nodes = app.graph.nodes.filter(({ type }) => type === args[0]);"
            "return nodes.every(({ size }, i) => size[1] > args[1][i] + 30)",
            STOCK,
            before,
        )
    finally:
        page.set(SETTING, False)
    page.wait(f"return (() => {{ {CHIPS} }})().length === 0")


ARE = f"const [found] = await (async () => {{ {SENT} }})(); return found.map(([kind]) => kind).join() === args[0]"


def replace(page: RulerPage, item: str, kinds: list[str]) -> None:
    """Choose an item that replaces nodes: the sampler gets these, and all else stays."""
    before = sent(page)
    title = page.run("return LiteGraph.registered_node_types[args[0]].title", OURS)
    choose(page, f"{item} with {title}")
    page.wait(ARE, ",".join(kinds))
    assert [rest for _, *rest in sent(page)] == [rest for _, *rest in before]


def note_heights(page: RulerPage) -> None:
    """Wait until all nodes have their heights, and note them in the page's history as it does at a click."""
    heights = []
    while len(heights) < 5 or len(set(heights[-5:])) > 1:
        heights.append(page.run("return app.graph.nodes.map(({ size }) => size[1]).join()"))
        time.sleep(0.2)
    page.run(
        "const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;"
        "tracker.captureCanvasState ? tracker.captureCanvasState() : tracker.checkState()"
    )


def undo(page: RulerPage, before: list[list[Any]], *, is_noted: bool = True) -> None:
    """Press one key, by default once the new nodes have their heights: all is as it was."""
    if is_noted:
        note_heights(page)
    page.press("z", control=True)
    page.wait(ARE, ",".join([STOCK, STOCK]))
    assert sent(page) == before


def test_one_is_replaced(page: RulerPage) -> None:
    page.load(*graph(), num_rulers=0)
    before = sent(page)
    replace(page, "Replace", [OURS, STOCK])
    undo(page, before)


def test_looks_and_mode_are_kept(page: RulerPage) -> None:
    page.load({"class_type": STOCK, "inputs": {"text": "a cat"}}, num_rulers=0)
    looks = {"title": "My prompt", "color": "#232", "bgcolor": "#353", "mode": 4}
    page.run("Object.assign(app.graph.nodes[0], args[0])", looks)
    choose(page, f"Replace with {page.run('return LiteGraph.registered_node_types[args[0]].title', OURS)}")
    page.wait("return app.graph.nodes[0]?.type === args[0]", OURS)
    assert page.run("const [node] = app.graph.nodes; return [...args].map((name) => node[name])", *looks) == [
        *looks.values()
    ]


def test_nodes_below_make_room(page: RulerPage) -> None:
    page.load(*graph(), num_rulers=0)
    nodes = "app.graph.nodes.filter(({ type }) => type.endsWith('TextEncode'))"
    page.run(f"{nodes}.forEach((node, at) => {{ node.pos = [400, 90 + 160 * at]; node.setSize([400, 110]); }})")
    ends = f"return {nodes}.map(({{ pos, size }}) => [pos[1], pos[1] + size[1] + 30]).sort(([a], [b]) => a - b)"
    before, ours = sent(page), page.run(ends)
    replace(page, "Replace all 2", [OURS, OURS])
    page.wait("return [...document.querySelectorAll('.wcr-box')].filter((box) => box.offsetHeight).length === 2")
    (_, end), (start, _) = page.run(ends)
    assert end <= start
    undo(page, before)
    assert page.run(ends) == ours


@pytest.mark.parametrize("where", ["beside each other", "in a subgraph", "without its neighbours in a subgraph"])
def test_all_are_replaced_by_one_change(page: RulerPage, where: str) -> None:
    page.load(*graph(), num_rulers=0)
    if "subgraph" in where:
        kinds = [STOCK] if "without" in where else [STOCK, "PrimitiveStringMultiline"]
        page.run(
            "const nodes = app.graph.nodes.filter(({ type, inputs }) => args[0].includes(type)"
            " && !(type === 'CLIPTextEncode' && inputs.find(({ name }) => name === 'text').link == null));"
            "app.canvas.graph.convertToSubgraph(new Set(nodes))",
            kinds,
        )
    before = sent(page)
    replace(page, "Replace all 2", [OURS, OURS])
    undo(page, before, is_noted="without" not in where)  # a subgraph's node grows later, on the host's own account
