"""The ruler of a prompt that comes by a link, in a real ComfyUI, on the canvas and in Nodes 2.0.

What a run would read is asked of ComfyUI's own page, which makes a prompt of the workflow.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

MAKE = """
const { graph } = app;
const make = (type, values = {}, at = [300, 60]) => {
    const node = LiteGraph.createNode(type);
    node.pos = at;
    graph.add(node);
    for (const [name, value] of Object.entries(values)) {
        const widget = node.widgets.find((one) => one.name === name);
        widget.value = value;
        widget.callback?.(value);
    }
    return node;
};
const input = (node, name) => node.inputs.findIndex((slot) => (slot.widget?.name ?? slot.name) === name);
const link = (from, to, name = 'text') => from.connect(0, to, name === null ? 0 : input(to, name));
const wrap = (...nodes) => {
    const { node } = app.canvas.graph.convertToSubgraph(new Set(nodes));
    return node;
};
graph.clear();
// ComfyUI keeps those in the subgraphs of the workflow that was open
for (const old of document.querySelectorAll('.weighted-clip-ruler')) old.remove();
app.canvas.ds.scale = 1;
app.canvas.ds.offset = [0, 0];
app.canvas.setDirty(true, true);
const reader = make('WeightedCLIPInspect', {}, [700, 60]);
const sink = make('PreviewImage', {}, [1200, 60]);
reader.connect(0, sink, 0);
"""
MULTILINE = "const source = make('PrimitiveStringMultiline', { value: args[0] });"
PRIMITIVE = (
    "const source = make('PrimitiveNode'); link(source, reader);"
    "source.widgets[0].value = args[0]; source.widgets[0].callback?.(args[0]);"
)
WAYS = {
    "text": "const source = make('PrimitiveString', { value: args[0] }); link(source, reader);",
    "text of several lines": f"{MULTILINE} link(source, reader);",
    "primitive": PRIMITIVE,
    "reroute": f"{MULTILINE} const one = make('Reroute'); link(source, one, null); link(one, reader);",
    "native reroute": f"{MULTILINE} const made = link(source, reader); graph.createReroute([550, 300], made);",
    "text from a text": (
        f"{MULTILINE} const one = make('PrimitiveString', {{ value: 'no' }});"
        "link(source, one, 'value'); link(one, reader);"
    ),
    "primitive through a text": (
        "const one = make('PrimitiveString', { value: args[0] }); link(one, reader);"
        "const source = make('PrimitiveNode'); link(source, one, 'value');"
    ),
    "into a subgraph": f"{MULTILINE} link(source, reader); wrap(reader);",
    "into two subgraphs": f"{MULTILINE} link(source, reader); wrap(wrap(reader));",
    "out of a subgraph": f"{MULTILINE} link(source, reader); wrap(source);",
    "out of one, into another": f"{MULTILINE} link(source, reader); wrap(source); wrap(reader);",
}
"""Ways in which a text reaches the node: scripts that end with it linked."""
READ_PROMPT = """
const { output } = await app.graphToPrompt();
let text = Object.values(output).find((node) => node.class_type === 'WeightedCLIPInspect').inputs.text;
while (Array.isArray(text)) text = output[text[0]].inputs.value;
return text;
"""
ALL_NODES = "[app.graph, ...app.graph.rootGraph.subgraphs.values()].flatMap(({ nodes }) => nodes)"
HOLDER = f"""
const holders = {ALL_NODES}.filter(({{ type }}) => /^Primitive/.test(type));
const widget = holders.map(({{ widgets }}) => widgets[0]).findLast(({{ value }}) => value === args[0]);
"""
READER = f"{ALL_NODES}.find(({{ type }}) => type === 'WeightedCLIPInspect')"
GO_TO_READER = f"""
const wanted = {READER}.graph;
const leadsTo = (node) => node.subgraph && (node.subgraph === wanted || search(node.subgraph));
const search = (graph) => graph.nodes.some((node) => leadsTo(node) && path.unshift(node));
const path = [];
if (wanted !== app.graph) search(app.graph);
for (const node of path) app.canvas.openSubgraph(node.subgraph, node);
await new Promise((done) => setTimeout(done, 100));
app.canvas.ds.scale = 1;
app.canvas.ds.offset = [0, 0];
const [x, y] = {READER}.pos;
app.canvas.ds.offset = [400 - x, 100 - y];
app.canvas.setDirty(true, true);
"""
PROMOTE = """
const outer = wrap(reader);
const { subgraph } = outer;
const inner = subgraph.nodes.find(({ type }) => type === 'WeightedCLIPInspect');
subgraph.addInput('text', 'STRING').connect(inner.inputs[input(inner, 'text')], inner);
"""
"""The node in a subgraph that has its box of text."""


def build(page: RulerPage, script: str, *values: str) -> None:
    """Recreate a workflow, and open the graph with the node that has the ruler."""
    page.run(MAKE + script, *values)
    page.run(GO_TO_READER)


def what_a_run_reads(page: RulerPage) -> str:
    """The text that ComfyUI's page would send."""
    return page.run(READ_PROMPT)


def change(page: RulerPage, old: str, new: str) -> None:
    """Change a text where it is held, as a script does."""
    page.run(f"{HOLDER} widget.value = args[1]; widget.callback?.(args[1])", old, new)


def far_box(page: RulerPage, text: str) -> Any:
    """The box on the page that can be typed in and holds a text."""
    boxes = "[...document.querySelectorAll('textarea')].filter((box) => box.checkVisibility() && !box.disabled)"
    return page.wait(f"return {boxes}.find(({{ value, readOnly }}) => value === args[0] && !readOnly)", text)


@pytest.mark.parametrize("way", WAYS)
def test_the_ruler_shows_what_a_run_would_read(page: RulerPage, way: str) -> None:
    build(page, WAYS[way], "a red cat")
    assert what_a_run_reads(page) == "a red cat"
    page.wait_for(chips=["a", "red", "cat"])
    change(page, "a red cat", "a blue dog")
    page.wait_for(chips=["a", "blue", "dog"])
    assert what_a_run_reads(page) == "a blue dog"


@pytest.mark.parametrize("way", ["text", "primitive", "primitive through a text"])
def test_comments_and_choices_are_read_as_the_page_sends_them(page: RulerPage, way: str) -> None:
    build(page, WAYS[way], "a {red} cat // no")
    read = what_a_run_reads(page)
    assert read.strip() == ("a red cat" if way == "primitive" else "a {red} cat // no")
    end = time.monotonic() + 10
    while time.monotonic() < end and "".join(page.shown()[0]["chips"]) != read.replace(" ", ""):
        time.sleep(0.05)
    assert "".join(page.shown()[0]["chips"]) == read.replace(" ", "")


def test_typing_in_another_node_is_followed(page: RulerPage) -> None:
    build(page, f"{WAYS['text of several lines']} source.pos = [250, 60];", "a")
    page.wait_for(chips=["a"])
    assert "text linked: comes from " in page.shown()[0]["bar"]
    page.run("app.graph.nodes.find(({ type }) => type === 'PrimitiveStringMultiline').title = 'My prompt'")
    page.wait("return document.querySelector('.wcr-bar')?.innerText.includes('text linked: comes from My prompt')")
    far_box(page, "a").send_keys(" (red:1.3) cat (")
    page.wait_for(chips=["a", "red 1.3", "cat", "("], problems=[])  # while the bracket is being written
    page.run("document.activeElement.blur()")
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 1")
    assert page.run("return window.numQueued") == 0


def test_a_run_of_a_linked_text_keeps_the_rest(page: RulerPage) -> None:
    build(page, WAYS["text"], "a cat")
    page.wait_for(chips=["a", "cat"])
    asked = page.run("return window.numAsked")
    page.queue()
    page.wait("return Object.keys(app.nodeOutputs ?? {}).length > 0")
    time.sleep(0.5)
    assert page.run("return window.numAsked") == asked
    shown = page.wait_for(chips=["a", "cat"])
    assert "comes from Text" in shown["bar"]
    assert "as of the last run" not in shown["bar"]
    change(page, "a cat", "a dog")
    page.wait_for(chips=["a", "dog"])


def test_links_may_change(page: RulerPage) -> None:
    build(page, f"{WAYS['reroute']} source.mode = 2;", "a cat")
    page.wait("return document.querySelector('.wcr-bar')?.innerText.includes('text linked: shown after the run')")
    source = "app.graph.nodes.find(({ type }) => type === 'PrimitiveStringMultiline')"
    page.run(f"{source}.mode = 0")
    page.wait_for(chips=["a", "cat"])
    page.run("app.graph.nodes.find(({ type }) => type === 'Reroute').disconnectInput(0)")
    page.wait_for(chips=[])
    assert what_a_run_reads(page) == ""
    page.set_widget("text", "of its own")
    page.wait_for(chips=["of", "its", "own"])
    assert what_a_run_reads(page) == "of its own"


def test_chips_change_the_text_where_it_is_held(page: RulerPage) -> None:
    build(page, f"{WAYS['text of several lines']} source.pos = [250, 60];", "a cat")
    page.wait_for(chips=["a", "cat"])
    area = far_box(page, "a cat")
    page.run("document.querySelectorAll('.wcr-chip')[1].focus()")
    page.press("ARROW_UP")
    page.wait_for(chips=["a", "cat 1.05"])
    assert what_a_run_reads(page) == "a (cat:1.05)"
    assert page.run("return document.activeElement.innerText.includes('cat')")
    area.click()
    page.press("z", control=True)
    page.wait_for(chips=["a", "cat"])


def test_keys_write_the_syntax_of_the_node_that_reads(page: RulerPage) -> None:
    syntax = "reader.widgets.find(({ name }) => name === 'syntax').value = 'compel';"
    build(page, f"{WAYS['text of several lines']} source.pos = [250, 60]; {syntax}", "a cat")
    page.wait_for(chips=["a", "cat"])
    far_box(page, "a cat").click()
    page.run("document.activeElement.setSelectionRange(3, 3)")
    page.press("ARROW_UP", control=True)
    page.wait_for(chips=["a", "cat 1.05"])
    assert what_a_run_reads(page) == "a (cat)1.05"
    # a box that is read in two syntaxes is ComfyUI's
    page.run(
        "const [source, one] = ['PrimitiveStringMultiline', 'WeightedCLIPInspect'].map("
        "(wanted) => app.graph.nodes.find(({ type }) => type === wanted));"
        "const other = LiteGraph.createNode('WeightedCLIPInspect'); app.graph.add(other);"
        "source.connect(0, other, other.inputs.findIndex(({ name }) => name === 'text'));"
        "source.widgets[0].value = 'a cat'"
    )
    page.wait("return document.querySelectorAll('.wcr-chip').length === 4")
    far_box(page, "a cat").click()
    page.run("document.activeElement.setSelectionRange(3, 3)")
    page.press("ARROW_UP", control=True)
    page.wait("return document.activeElement.value === 'a (cat:1.05)'")


def test_a_linked_prompt_is_converted_where_it_is_held(page: RulerPage) -> None:
    build(page, f"{WAYS['into a subgraph']}", "a (cat)++")
    page.wait("return document.querySelectorAll('.wcr-problems .wcr-button').length === 1")
    page.driver.find_element("css selector", ".wcr-problems .wcr-button").click()
    page.wait_for(chips=["a", "cat 1.21"])
    assert what_a_run_reads(page) == "a (cat:1.21)"


def test_the_box_of_a_subgraph_is_followed(page: RulerPage) -> None:
    build(page, f"{MULTILINE} {PROMOTE} outer.title = 'Prompt';", "unused")
    page.wait_for(count="0 / 75")
    page.run("app.canvas.setGraph(app.graph)")
    outer = "app.graph.nodes.find((node) => node.isSubgraphNode())"
    page.run(f"const [widget] = {outer}.widgets; widget.value = 'a {{red}} cat'; widget.callback?.('a {{red}} cat')")
    assert what_a_run_reads(page) == "a {red} cat"
    page.run(GO_TO_READER)
    page.wait_for(chips=["a", "{", "red", "}", "cat"])
    assert "text linked: comes from Prompt" in page.shown()[0]["bar"]
    page.run("document.querySelectorAll('.wcr-chip')[4].focus()")
    page.press("ARROW_UP")
    page.wait_for(chips=["a", "{", "red", "}", "cat 1.05"])
    assert what_a_run_reads(page) == "a {red} (cat:1.05)"


def test_a_subgraph_that_is_used_twice(page: RulerPage) -> None:
    second = "const second = LiteGraph.createNode(outer.type); second.pos = [0, 500]; graph.add(second);"
    page.run(f"{MAKE} {PROMOTE} {second}")
    set_text = "app.graph.nodes.filter((node) => node.isSubgraphNode())[args[0]].widgets[0].value = args[1]"
    page.run(set_text, 0, "a cat")
    page.run(set_text, 1, "a dog")
    page.run(GO_TO_READER)
    page.wait_for(bar="text linked: shown after the run")
    page.run(set_text, 1, "a cat")
    shown = page.wait_for(chips=["a", "cat"])
    assert "text linked: comes from 2 nodes" in shown["bar"]
    assert page.run("return document.querySelectorAll('.wcr-editable').length") == 0
