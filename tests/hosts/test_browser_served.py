"""The ruler under the prompt boxes that a Weighted CLIP serves, in a real ComfyUI, on the canvas and in Nodes 2.0."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from .comfy_server import ComfyServer, Graph
from .ruler_page import RulerPage
from .test_browser_links import ALL_NODES
from .test_browser_links import MAKE as MAKE_NODES
from .test_browser_places import SEEDS, add_sampler, drawn, encoded
from .test_browser_stock import choose

pytestmark = pytest.mark.host

STOCK, SERVER = "CLIPTextEncode", "WeightedCLIP"
PROMOTE = """
const promote = async (outer, name = 'text') => {
    await new Promise((done) => setTimeout(done, 100)); // newer front ends do so by themselves
    const { subgraph } = outer;
    const [inner] = subgraph.nodes.filter(({ widgets }) => widgets.some((widget) => widget.name === name));
    const slot = inner.inputs.find((one) => one.name === name);
    if (!outer.widgets.length) subgraph.addInput(name, 'STRING').connect(slot, inner);
    outer.pos = [400, 60];
    return outer;
};
"""
"""Lets a text of a subgraph be typed on its outside."""
MAKE = (
    MAKE_NODES.split("const reader")[0].replace("graph.clear();", "app.canvas.setGraph(app.graph); graph.clear();")
    + """
const loader = make('CLIPLoader', { type: 'stable_diffusion' }, [20, 60]);
const server = make('WeightedCLIP', {}, [20, 260]);
const text = make('CLIPTextEncode', { text: 'a (red:1.3) cat' }, [400, 60]);
link(loader, server, 'clip');
"""
    + PROMOTE
)
"""Makes a loader, a Weighted CLIP behind it, and a stock prompt that is not linked yet."""
DIRECT = "link(server, text, 'clip');"
PROMOTED = f"{DIRECT} const outer = await promote(wrap(text));"
CHAIN = """
const clip = make('CLIPSetLastLayer'), options = make('T5TokenizerOptions'), hooks = make('SetClipHooks');
const reroute = make('Reroute'), lora = make('LoraLoader');
link(server, lora, 'clip'); lora.connect(1, clip, 0); link(clip, reroute, null);
link(reroute, options, 'clip'); link(options, hooks, 'clip'); link(hooks, text, 'clip');
"""
LORA = "const lora = make('LoraLoader'); link(server, lora, 'clip'); lora.connect(1, text, 0);"
WAYS = {
    "direct": DIRECT,
    "LoRA, clip skip, reroute, tokenizer options and hooks": CHAIN,
    "native reroute": "const made = link(server, text, 'clip'); graph.createReroute([350, 300], made);",
    "bypassed LoRA": f"{LORA} lora.mode = 4;",
    "switch": (
        "const other = make('ComfySwitchNode', { switch: true }); link(loader, other, 'on_false');"
        "link(server, other, 'on_true'); link(other, text, 'clip');"
    ),
    "merge": (
        "const merge = make('CLIPMergeSimple'); link(server, merge, 'clip1'); link(loader, merge, 'clip2');"
        "link(merge, text, 'clip');"
    ),
    "promoted out of a subgraph": PROMOTED,
    "promoted out of two subgraphs": (f"{PROMOTED} await promote(wrap(outer));"),
    "node in a subgraph": f"{DIRECT} wrap(loader, server);",
    "node in a subgraph, prompt in another": f"{PROMOTED} wrap(loader, server);",
    "all in one subgraph": f"{DIRECT} await promote(wrap(loader, server, text));",
}
"""Ways of a CLIP from the node to the prompt: scripts that end with it linked."""
UNSERVED = {
    "cut": "link(loader, text, 'clip');",
    "nothing": "",
    "switch": WAYS["switch"].replace("switch: true", "switch: false"),
    "merge": WAYS["merge"].replace("'clip1'", "'clip'").replace("'clip2'", "'clip1'").replace("'clip')", "'clip2')", 1),
    "muted": f"{DIRECT} server.mode = 2;",
    "bypassed": f"{DIRECT} server.mode = 4;",
    "muted LoRA": f"{LORA} lora.mode = 2;",
    "linked text": (
        f"{DIRECT} const source = make('PrimitiveStringMultiline', {{ value: 'a dog' }}); link(source, text);"
    ),
}
"""The same for a prompt that is not served, or is typed elsewhere."""
SHOWN = """
const visible = (element) => element?.checkVisibility() && element.firstChild.offsetHeight;
return app.canvas.graph.nodes.flatMap((node) => {
    const { element } = node.widgets?.find(({ name }) => name === 'ruler') ?? {};
    if (node.type === 'WeightedCLIP' || !visible(element)) return [];
    const textOf = (one) => one.innerText.replace(/\\s+/g, ' ');
    const texts = (selector) => [...element.querySelectorAll(selector)].map(textOf);
    return [[node.title, texts('.wcr-chip').join(' '), texts('.wcr-label').join(' ')]];
});
"""
"""Title, chips and labels of each ruler on a node that is not ours."""
SENT = """
const { output } = await app.graphToPrompt();
const prompts = Object.values(output).filter(({ class_type: kind }) => kind === 'CLIPTextEncode');
return prompts.map(({ inputs }) => inputs.text);
"""
SAVED = "return JSON.parse(JSON.stringify(app.graph.serialize()))"
TEXT_HEIGHTS = """
const scale = app.canvas.ds.scale;
const boxes = [...document.querySelectorAll('textarea')].filter((box) => box.checkVisibility());
return boxes.map((box) => box.getBoundingClientRect().height / scale);
"""
GAPS = """
const boxes = [...document.querySelectorAll('textarea')].filter((box) => box.checkVisibility());
const rulers = [...document.querySelectorAll('.wcr-box')].filter(({ offsetHeight }) => offsetHeight);
const [box] = boxes.map((one) => one.getBoundingClientRect());
const [ruler] = rulers.map((one) => one.getBoundingClientRect());
const hasRuler = ({ type, widgets }) => type !== 'WeightedCLIP' && widgets?.some(({ name }) => name === 'ruler');
const owner = app.canvas.graph.nodes.find(hasRuler);
const [, bottom] = app.canvasPosToClientPos([0, owner.pos[1] + owner.size[1]]);
return [ruler.top - box.bottom, bottom - ruler.bottom];
"""
"""Pixels from the box to the ruler, and from that to the end of its node."""
EVENT = "app.api.dispatchEvent(new CustomEvent('weighted_clip.served', { detail: args[0] }))"


def build(page: RulerPage, script: str) -> None:
    """Recreate a workflow."""
    page.run(MAKE + script)


def wait_for(page: RulerPage, *rulers: tuple[str, str]) -> list[list[str]]:
    """Wait until just these chips are shown on nodes that are not ours, by the titles of the nodes."""
    shown = f"(() => {{ {SHOWN} }})()"
    wanted = sorted(list(one) for one in rulers)
    page.wait(f"return JSON.stringify({shown}.map((one) => one.slice(0, 2)).sort()) === args[0]", compact(wanted))
    return page.run(SHOWN)


def compact(value: Any) -> str:
    """As the page writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def settle(page: RulerPage) -> None:
    """Wait until the rulers have looked at the links, and sizes stay."""
    before = None
    for _ in range(50):
        time.sleep(0.5)
        sizes = page.run("return app.canvas.graph.nodes.map(({ size }) => size[1])"), page.run(SHOWN)
        if sizes == before:
            return
        before = sizes
    raise AssertionError(f"never settled: {before}")


TITLE = "CLIP Text Encode (Prompt)"
OUTER = "New Subgraph"
CHIPS = "a red 1.3 cat"


def title_of(way: str) -> str:
    return OUTER if "promoted" in way or "prompt in another" in way or "all in one" in way else TITLE


@pytest.mark.parametrize("way", WAYS)
def test_the_box_is_served_where_its_text_is_typed(page: RulerPage, way: str) -> None:
    build(page, WAYS[way])
    wait_for(page, (title_of(way), CHIPS))
    between, below = page.run(GAPS)
    assert 0 <= between < 25 and 0 <= below < 50
    page.run("[...document.querySelectorAll('.wcr-chip')].at(-1).focus()")
    page.press("ARROW_UP")
    wait_for(page, (title_of(way), "a red 1.3 cat 1.05"))
    assert page.run(SENT) == ["a (red:1.3) (cat:1.05)"]


@pytest.mark.parametrize("way", UNSERVED)
def test_no_ruler_where_nothing_serves(page: RulerPage, way: str) -> None:
    build(page, UNSERVED[way])
    settle(page)
    assert page.run(SHOWN) == []
    assert page.run("return document.querySelectorAll('.weighted-clip-ruler').length") == 1  # of the node itself


@pytest.mark.parametrize("way", ["direct", "promoted out of a subgraph"])
def test_it_comes_and_goes_with_the_links_and_the_box_keeps_its_height(page: RulerPage, way: str) -> None:
    build(page, f"{WAYS[way]} server.mode = 4;")
    page.run("app.graph.nodes.at(-1).setSize([400, 201.25]); app.canvas.setDirty(true, true)")
    settle(page)
    heights, saved = page.run(TEXT_HEIGHTS), page.run(SAVED)
    server = "app.graph.nodes.find(({ type }) => type === 'WeightedCLIP')"
    for mode in (0, 4, 0, 2, 0):
        page.run(f"{server}.mode = args[0]; app.canvas.setDirty(true, true)", mode)
        settle(page)
        assert len(page.run(SHOWN)) == (mode == 0)
        assert page.run(TEXT_HEIGHTS) == pytest.approx(heights, abs=1)
        now = page.run(SAVED)
        next(node for node in now["nodes"] if node["type"] == SERVER)["mode"] = 4
        assert now == saved


@pytest.mark.parametrize("way", ["direct", "promoted out of a subgraph"])
def test_saved_and_opened_again(page: RulerPage, way: str) -> None:
    build(page, WAYS[way])
    page.run("app.graph.nodes.at(-1).setSize([400, 201.25]); app.canvas.setDirty(true, true)")
    wait_for(page, (title_of(way), CHIPS))
    settle(page)
    saved, sent = page.run(SAVED), page.run("return (await app.graphToPrompt()).output")
    foreign = [node for node in saved["nodes"] if not node["type"].startswith("WeightedCLIP")]
    assert "ruler" not in json.dumps([foreign, saved.get("definitions"), sent])
    for _ in range(2):
        page.run("await app.loadGraphData(args[0]); app.canvas.ds.scale = 1; app.canvas.ds.offset = [0, 0]", saved)
        wait_for(page, (title_of(way), CHIPS))
        settle(page)
        again = page.run(SAVED)["nodes"][-1]
        assert {**again, "order": 0} == {**saved["nodes"][-1], "order": 0}
        assert page.run("return (await app.graphToPrompt()).output") == sent


def test_two_texts_of_one_node(page: RulerPage) -> None:
    build(
        page,
        "const both = make('CLIPTextEncodeSDXL', { text_g: 'a (red:1.3) cat', text_l: 'a dog' }, [400, 60]);"
        "both.title = 'both';"
        "link(server, both, 'clip');",
    )
    (shown,) = wait_for(page, ("both", "a red 1.3 cat a dog"))
    assert shown[2] == "text_g text_l"
    page.run(
        "const both = app.graph.nodes.find(({ type }) => type === 'CLIPTextEncodeSDXL');"
        "const source = LiteGraph.createNode('PrimitiveStringMultiline'); app.graph.add(source);"
        "source.connect(0, both, both.inputs.findIndex(({ name }) => name === 'text_l'))"
    )
    wait_for(page, ("both", CHIPS))


def test_a_node_that_encodes_pictures_too(page: RulerPage) -> None:
    kind = "TextEncodeQwenImageEditPlus"
    build(
        page,
        f"const edit = make('{kind}', {{ prompt: 'a (red:1.3) cat' }}, [400, 60]); edit.title = 'edit';"
        "link(server, edit, 'clip');",
    )
    wait_for(page, ("edit", CHIPS))


def test_the_nearest_node_counts_and_each_serves_its_own(page: RulerPage) -> None:
    build(
        page,
        "const near = make('WeightedCLIP', { syntax: 'a1111' }, [20, 560]); link(server, near, 'clip');"
        "const far = make('CLIPTextEncode', { text: '[dog]' }, [400, 400]); far.title = 'far';"
        "const others = make('CLIPTextEncode', { text: '[dog]' }, [900, 60]); others.title = 'near';"
        "link(server, far, 'clip'); link(near, others, 'clip'); link(near, text, 'clip');",
    )
    wait_for(page, ("far", "[ dog ]"), ("near", "dog 0.91"), (TITLE, CHIPS))
    # a box that both read in a subgraph has no ruler
    page.run(
        "const [far, near] = ['far', 'near'].map((wanted) => app.graph.nodes.find(({ title }) => title === wanted));"
        "const { node } = app.graph.convertToSubgraph(new Set([far, near]));"
        "const made = node.subgraph.addInput('text', 'STRING');"
        "const textOf = ({ inputs }) => inputs.find(({ name }) => name === 'text');"
        "for (const inner of node.subgraph.nodes) made.connect(textOf(inner), inner);"
    )
    wait_for(page, (TITLE, CHIPS))


def test_keys_write_the_syntax_of_the_node_that_serves(page: RulerPage) -> None:
    build(page, f"{DIRECT} server.widgets[0].value = 'compel'; text.widgets[0].value = 'a cat';")
    wait_for(page, (TITLE, "a cat"))
    page.text_area().click()
    page.run("document.activeElement.setSelectionRange(3, 3)")
    page.press("ARROW_UP", control=True)
    wait_for(page, (TITLE, "a cat 1.05"))
    assert page.run(SENT) == ["a (cat)1.05"]


def test_copied_wrapped_unpacked_and_undone(page: RulerPage) -> None:
    build(page, DIRECT)
    wait_for(page, (TITLE, CHIPS))
    find = f"app.graph.nodes.find(({{ type }}) => type === '{STOCK}')"
    page.run(f"app.canvas.copyToClipboard([{find}]); app.canvas.pasteFromClipboard({{ connectInputs: true }})")
    wait_for(page, (TITLE, CHIPS), (TITLE, CHIPS))
    page.run(f"app.graph.remove(app.graph.nodes.findLast(({{ type }}) => type === '{STOCK}'))")
    wait_for(page, (TITLE, CHIPS))
    page.run(f"const wrapped = app.graph.convertToSubgraph(new Set([{find}])); {PROMOTE} await promote(wrapped.node);")
    wait_for(page, (OUTER, CHIPS))
    page.run("app.graph.unpackSubgraph(app.graph.nodes.find((node) => node.isSubgraphNode?.()))")
    wait_for(page, (TITLE, CHIPS))
    check = (
        "const tracker = app.extensionManager.workflow.activeWorkflow.changeTracker;"
        "tracker.captureCanvasState ? tracker.captureCanvasState() : tracker.checkState();"
    )
    settle(page)
    page.run(check)
    page.run(f"{find}.disconnectInput(0); {check}")
    wait_for(page)
    page.run("document.activeElement?.blur()")
    page.press("z", control=True)
    wait_for(page, (TITLE, CHIPS))


def test_other_nodes_know_its_words_while_they_are_typed(page: RulerPage) -> None:
    build(
        page,
        "const place = make('WeightedCLIPPlace', { phrase: 'dog', area: 'left' }, [900, 60]);"
        "link(text, place, 'conditioning');",
    )
    problem = "return document.querySelector('.wcr-problems p')?.innerText.includes(args[0])"
    page.wait(problem, "Put the node Weighted CLIP after the loader")
    page.run(
        "const nodeOf = (kind) => app.graph.nodes.find(({ type }) => type === kind);"
        "const [from, to] = ['WeightedCLIP', 'CLIPTextEncode'].map(nodeOf);"
        "from.connect(0, to, to.inputs.findIndex(({ name }) => name === 'clip'))"
    )
    page.wait(problem, "“dog” is not in the prompt")
    offered = "return [...document.querySelectorAll('.wcr-offered')].map((chip) => chip.innerText).join()"
    page.wait(f"return (() => {{ {offered} }})() === 'a,red,cat'")


FEEDS = """
const { output } = await app.graphToPrompt();
const readers = Object.values(output).filter(({ inputs }) => inputs.clip);
return Object.fromEntries(readers.map(({ class_type: kind, inputs }) => {
    return [inputs.text ?? kind, output[inputs.clip[0]].class_type];
}));
"""
"""Class of what the CLIP of each prompt, or of a node without one, comes from."""
OVERLAPS = """
const boxes = app.canvas.graph.nodes.map(({ pos: [x, y], size: [w, h] }) => [x, y - 30, x + w, y + h]);
const overlap = ([l, t, r, b], [L, T, R, B]) => l < R && L < r && t < B && T < b;
return boxes.filter((one) => boxes.some((other) => other !== one && overlap(one, other)));
"""


@pytest.mark.parametrize("where", [STOCK, "CLIPLoader", "in a subgraph", "outside of a subgraph"])
def test_a_menu_puts_it_before_all_prompts(page: RulerPage, where: str) -> None:
    build(page, "graph.remove(server); make('CLIPTextEncode', { text: 'a dog' }, [400, 300]);")
    kind = page.run(
        "const [loader, ...prompts] = app.graph.nodes; for (const one of prompts) loader.connect(0, one, 0);"
        "if (!args[0].includes('subgraph')) return args[0];"
        "const isInside = args[0].startsWith('in');"
        "const { node } = app.graph.convertToSubgraph(new Set(isInside ? prompts : app.graph.nodes));"
        "if (isInside) app.canvas.openSubgraph(node.subgraph, node);"
        "app.canvas.ds.scale = 1; app.canvas.ds.offset = [200, 100];"
        "return isInside ? prompts[0].type : node.type",
        where,
    )
    before = page.run(FEEDS)
    assert before == {"a (red:1.3) cat": "CLIPLoader", "a dog": "CLIPLoader"}
    item = f"Weight all prompts with {page.run('return LiteGraph.registered_node_types[args[0]].title', SERVER)}"
    choose(page, item, kind)
    page.wait(f"return Object.keys(await (async () => {{ {FEEDS} }})()).length === 3")
    assert page.run(FEEDS) == {**dict.fromkeys(before, SERVER), SERVER: "CLIPLoader"}
    page.run("app.canvas.setGraph(app.graph.rootGraph ?? app.graph)")
    page.wait(f"return (() => {{ {SHOWN} }})().map(([, chips]) => chips).join(' ') === args[0]", f"{CHIPS} a dog")
    settle(page)
    assert page.run(OVERLAPS) == []
    page.press("z", control=True)
    page.wait(f"return JSON.stringify(await (async () => {{ {FEEDS} }})()) === args[0]", compact(before))


def view_of(page: RulerPage, text: str) -> dict[str, Any]:
    """A view as a run would send it."""
    answer = page.run(
        "const body = JSON.stringify({ node: 'WeightedCLIP', text: args[0], values: { syntax: 'a1111' } });"
        "return (await app.api.fetchApi('/weighted_clip/inspect', { method: 'POST', body })).json()",
        text,
    )
    return answer["views"][0]


@pytest.mark.parametrize("way", ["direct", "promoted out of a subgraph"])
def test_what_a_run_tells_is_shown_at_the_box_and_at_the_node(page: RulerPage, way: str) -> None:
    build(page, WAYS[way])
    wait_for(page, (title_of(way), CHIPS))
    box = page.run(f"return {ALL_NODES}.find(({{ type }}) => type === '{STOCK}').id")
    outer = page.run("return app.graph.nodes.find((node) => node.isSubgraphNode?.())?.id")
    server = page.run(f"return app.graph.nodes.find(({{ type }}) => type === '{SERVER}').id")
    view = {**view_of(page, "a (red:1.3) cat"), "notes": ["of the run"]}
    problems = ["“dog” is not weighed: the text stands twice."]
    told = {"node": f"{outer}:{box}" if outer else str(box), "by": str(server), "views": [view], "problems": problems}
    page.run(EVENT, told)
    page.wait("return [...document.querySelectorAll('.wcr-extra')].some((one) => one.innerText === 'of the run')")
    page.wait(
        "return [...document.querySelectorAll('.wcr-extra')].some((one) => one.innerText === 'last run: 1 prompt')"
    )
    rows = page.run("return [...document.querySelectorAll('.wcr-problems p')].map((row) => row.innerText)")
    assert [row.endswith(problems[0]) and TITLE in row for row in rows] == [True]
    # a node may encode several times: the lines of all calls stay, each once
    page.run(EVENT, {**told, "problems": ["another line"]})
    page.run(EVENT, told)
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 2")
    # of a run with another box there is its line alone
    page.run("app.api.dispatchEvent(new CustomEvent('execution_start', { detail: {} }))")
    page.run(EVENT, {**told, "node": "999", "problems": []})
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 0")


def in_world(text: str, *, is_ours: bool) -> Graph:
    """The small world draws a prompt: of a stock node behind a Weighted CLIP, or of our own."""
    graph = Graph()
    world = graph.add("WeightedCLIPLoadWorld", device="cpu")
    clip = graph.add(SERVER, clip=world[1], syntax="comfy", scheme="auto", strength=1.0)
    prompt = encoded(graph, world, text) if is_ours else graph.add(STOCK, clip=clip, text=text)
    add_sampler(graph, world, prompt, seed=3, steps=4)
    return graph


@pytest.mark.parametrize("is_wrapped", [False, True], ids=["in the workflow", "in a subgraph"])
def test_a_click_changes_the_picture_of_a_run(page: RulerPage, ruler_server: ComfyServer, *, is_wrapped: bool) -> None:
    text = f"a red circle and a blue square{' ' * next(SEEDS)}"
    page.load(*in_world(text, is_ours=False).nodes.values(), num_rulers=2)
    if is_wrapped:
        page.run(
            f"{PROMOTE} const prompt = app.graph.nodes.find(({{ id }}) => id == 3);"
            "await promote(app.graph.convertToSubgraph(new Set([prompt])).node)"
        )
    number = page.run("return app.graph.nodes.findIndex(({ type }) => type === 'KSampler')")
    page.set_widget("control_after_generate", "fixed", node=number)
    title = OUTER if is_wrapped else TITLE
    wait_for(page, (title, "a red circle and a blue square"))
    plain = drawn(ruler_server, page.queue)
    page.wait(
        "return [...document.querySelectorAll('.wcr-extra')].some((one) => one.innerText === 'last run: 1 prompt')"
    )
    page.run("document.querySelectorAll('.wcr-chip')[1].focus()")
    page.press(*["ARROW_DOWN"] * 18)
    wait_for(page, (title, "a red 0.1 circle and a blue square"))
    weighed = drawn(ruler_server, page.queue)
    assert not np.array_equal(weighed, plain)
    page.wait("return [...document.querySelectorAll('.wcr-chip')].some((one) => one.innerText.includes('0.1'))")
    own = in_world(text.replace("red", "(red:0.1)"), is_ours=True)
    assert np.array_equal(drawn(ruler_server, lambda: ruler_server.queue(own)), weighed)


def test_a_workflow_without_the_node_is_left_alone(page: RulerPage) -> None:
    build(page, f"{DIRECT} graph.remove(server); link(loader, text, 'clip');")
    settle(page)
    assert page.run("return document.querySelectorAll('.weighted-clip-ruler').length") == 0
    assert page.run("return app.graph.nodes.flatMap(({ widgets }) => widgets.map(({ name }) => name))") == [
        *("clip_name", "type", "device", "text")
    ]
