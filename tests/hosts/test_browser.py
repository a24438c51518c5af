"""The token ruler (web/comfyui/ruler.js) on our nodes, in a real ComfyUI and Chromium, on the canvas and in Nodes 2.0.

What the ruler draws is tested in tests/web/test_ruler.py.
"""

from __future__ import annotations

import pytest

from .ruler_page import PALETTE, SWITCH, UNCLOSED, RulerPage, inspect_node

pytestmark = pytest.mark.host


def test_chips_follow_what_is_typed(page: RulerPage) -> None:
    page.load_inspect("")
    page.wait_for(count="0 / 75", chips=[])
    box = page.text_area()
    box.click()
    for key in "a (red:1.4) cat":
        box.send_keys(key)
    page.wait_for(chips=["a", "red 1.4", "cat"], count="3 / 75")
    box.send_keys(", (dog")
    page.wait_for(chips=["a", "red 1.4", "cat", ",", "dog 1.1"], problems=[])
    page.run("document.activeElement.blur()")
    page.wait("return document.querySelectorAll('.wcr-problems p').length === 1")
    assert page.run("return window.numQueued") == 0
    assert page.run("return window.numAsked") < 30


def test_chips_follow_the_menus(page: RulerPage) -> None:
    inputs = {"syntax": "comfy", "scheme": "comfy", "normalization": "none", "chunking": "as syntax"}
    text = {"text": "[a] cat", **inputs, "padding": "attend", "pooled": "unweighted"}
    page.load({"class_type": "WeightedCLIPTextEncode", "inputs": text})
    page.wait_for(chips=["[", "a", "]", "cat"])
    page.set_widget("syntax", "a1111")
    page.wait_for(chips=["a 0.91", "cat"])
    page.set_widget("scheme", "masked_blend")
    page.wait("return document.querySelector('.wcr-options').innerText === 'a1111 · masked_blend'")


def test_the_linked_text_encoders_own_tokens_are_shown(page: RulerPage) -> None:
    loader = {"class_type": "CLIPLoader", "inputs": {"clip_name": "none.safetensors", "type": "qwen_image"}}
    inputs = {"clip": ["1", 0], "text": "a (photorealistic:1.4) catdog", "syntax": "comfy", "how": "bias"}
    weigh = {"class_type": "WeightedCLIPWeighAttention", "inputs": {**inputs, "strength": 1.0}}
    page.load(loader, weigh)
    shown = page.wait_for(chips=["a", "phot", "oreal", "istic 1.4", "cat", "dog"], count="6 tokens")
    assert "ComfyUI's own node reads weights as text here" in shown["bar"]
    options = "return document.querySelector('.wcr-options').innerText"
    assert page.run(options) == "comfy · bias"
    page.set_widget("how", "guidance", node=1)
    page.wait(f"return (() => {{ {options} }})() === 'comfy · guidance'")
    page.set_widget("text", "a (red:2) cat", node=1)
    page.wait_for(chips=["a", "red 2", "cat"])
    page.run(
        "const detail = { node: '2', text: '1 row in 16 attention layers' };"
        "app.api.dispatchEvent(new CustomEvent('weighted_clip.weighed', { detail }))"
    )
    assert "last sampling: 1 row in 16 attention layers" in page.shown()[0]["bar"]
    page.set_widget("text", "a cat", node=1)
    shown = page.wait_for(chips=["a", "cat"])
    assert "last sampling" not in shown["bar"]
    page.set_widget("type", "wan", node=0)
    page.run("app.api.dispatchEvent(new CustomEvent('graphChanged'))")  # as a click does
    shown = page.wait_for(count="2 / 75")
    assert "These are CLIP's tokens" in shown["bar"]


def test_a_problem_says_what_it_is(page: RulerPage) -> None:
    page.load_inspect(UNCLOSED)
    (message,) = page.wait_for(count="2 / 75")["problems"]
    assert "never closed" in message
    page.run("document.querySelector('.weighted-clip-ruler [data-problem]').focus()")
    tooltip = "return document.querySelector('.weighted-clip-tooltip')?.innerText ?? ''"
    assert page.run(tooltip) == message
    page.run("document.activeElement.blur()")
    assert page.run(tooltip) == ""
    chip = page.driver.find_element("css selector", ".weighted-clip-ruler [data-problem]")
    page.point_at(chip)
    assert page.wait(tooltip) == message
    status = page.driver.find_element("css selector", ".weighted-clip-ruler [role=status]")
    assert status.get_attribute("textContent") == ""  # a workflow that is opened is not read out
    page.set_widget("text", "a ((cat")
    page.wait("return document.querySelector('.weighted-clip-ruler [role=status]').textContent.includes('2 problems')")


def test_linked_text_is_shown_after_the_run(page: RulerPage) -> None:
    convert = {"class_type": "WeightedCLIPConvert", "inputs": {"text": "((cat))", "from": "a1111", "to": "comfy"}}
    page.load(convert, inspect_node(["1", 0]))
    page.wait("return document.querySelectorAll('.wcr-bar').length === 2")
    number = next(i for i, shown in enumerate(page.shown()) if "text linked: shown after the run" in shown["bar"])
    assert page.shown()[number]["chips"] == []
    page.queue()
    shown = page.wait_for(ruler=number, chips=["cat 1.21"])
    assert "as of the last run" in shown["bar"]


def test_bound_phrases_are_underlined_and_one_that_is_not_there_is_named(page: RulerPage) -> None:
    page.load({"class_type": "WeightedCLIPBindPhrases", "inputs": {"text": "a red cat, a dog", "phrases": "red cat"}})
    bound = "[...document.querySelectorAll('.wcr-bound .wcr-text')].map((chip) => chip.innerText).join(' ')"
    page.wait(f"return {bound} === 'red cat'")
    assert "1 phrase kept apart" in page.shown()[0]["bar"]
    page.set_widget("phrases", "red cat\na dog\na fox")
    page.wait(f"return {bound} === 'red cat a dog'")
    (problem,) = page.shown()[0]["problems"]
    assert "a fox" in problem
    lines = "[...document.querySelectorAll('.wcr-bound')].map((chip) => getComputedStyle(chip).boxShadow)"
    first, *_, last = page.run(f"return {lines}")
    assert first != last


def test_the_switch_takes_effect_at_once(page: RulerPage) -> None:
    page.load_inspect(UNCLOSED)
    page.wait_for(chips=["a", "cat 1.1"])
    try:
        page.set(SWITCH, False)
        page.wait_for(chips=[], problems=[], bar="")
        asked = page.run("return window.numAsked")
        page.set_widget("text", "(")
        page.queue()
        page.wait("return document.querySelectorAll('.wcr-problems p').length === 1")
        assert page.shown()[0]["chips"] == []
        assert page.run("return window.numAsked") == asked
    finally:
        page.set(SWITCH, True)
    page.set_widget("text", UNCLOSED)
    page.wait_for(chips=["a", "cat 1.1"])


def test_themes(page: RulerPage) -> None:
    page.load_inspect("a (cat:1.4)")
    page.wait_for(chips=["a", "cat 1.4"])
    colors = (
        "const style = (element) => getComputedStyle(element);"
        "const chip = document.querySelector('.wcr-plain');"
        "return [style(document.querySelector('.wcr-box')).backgroundColor, style(chip).backgroundColor]"
    )
    dark = page.run(colors)
    try:
        page.set(PALETTE, "light")
        page.wait(
            "return getComputedStyle(document.querySelector('.wcr-box')).backgroundColor !== args[0]"
            " && getComputedStyle(document.querySelector('.wcr-plain')).backgroundColor !== args[1]",
            *dark,
        )
        light = page.run(colors)
        assert all(brightness(one) > brightness(other) for one, other in zip(light, dark, strict=True))
    finally:
        page.set(PALETTE, "dark")


def brightness(color: str) -> float:
    return sum(float(part) for part in color.split("(")[1].rstrip(")").split(",")[:3])


def test_the_widget_stays_inside_the_node(page: RulerPage) -> None:
    page.load_inspect("cat " * 400 + "(" * 40)
    page.wait_for(count="25 / 75 in chunk 6 of 6")
    page.wait(
        "const node = app.graph.nodes[0];"
        "const box = document.querySelector('.wcr-box').getBoundingClientRect();"
        "const [, bottom] = app.canvasPosToClientPos([0, node.pos[1] + node.size[1]]);"
        "return box.height > 100 && box.height < 450 && box.bottom <= bottom"
    )


def test_a_workflow_that_is_saved_and_loaded(page: RulerPage) -> None:
    page.load_inspect(UNCLOSED)
    page.queue()
    page.wait_for(count="2 / 75")
    page.run("await app.loadGraphData(JSON.parse(JSON.stringify(app.graph.serialize())))")
    page.wait("return document.querySelectorAll('.weighted-clip-ruler').length === 1")
    page.wait_for(chips=["a", "cat 1.1"])
    page.load_inspect("another text under the same id")
    page.wait_for(count="6 / 75", problems=[])


def test_a_node_of_another_workflow_under_the_same_id_has_its_own_ruler(page: RulerPage) -> None:
    page.load_inspect("a red cat")
    page.wait_for(chips=["a", "red", "cat"])
    inputs = {"syntax": "comfy", "scheme": "comfy", "normalization": "none", "chunking": "as syntax"}
    page.load({"class_type": "WeightedCLIPTextEncode", "inputs": {**inputs, "text": "a dog"}})
    page.wait_for(chips=["a", "dog"])
    page.set_widget("text", "a blue dog")
    page.wait_for(chips=["a", "blue", "dog"])
    assert page.shown()[0]["height"] > 0


def test_the_widget_is_not_saved(page: RulerPage) -> None:
    page.load_inspect(UNCLOSED)
    page.queue()
    page.wait_for(count="2 / 75")
    saved = page.run("return app.graph.serialize().nodes[0].widgets_values")
    assert saved == [UNCLOSED, "a1111", "as syntax", "as Forge", "as syntax"]
    inputs = page.run("return Object.values((await app.graphToPrompt()).output)[0].inputs")
    assert inputs == dict(zip(("text", "syntax", "chunking", "cleaning", "comments"), saved, strict=True))


def test_a_pasted_node_has_a_widget_of_its_own(page: RulerPage) -> None:
    page.load_inspect(UNCLOSED)
    page.wait_for(count="2 / 75")
    page.run(
        "const [node] = app.graph.nodes; app.canvas.selectNode(node);"
        "app.canvas.copyToClipboard([node]); app.canvas.pasteFromClipboard()"
    )
    page.wait("return document.querySelectorAll('.weighted-clip-ruler').length === 2")
    page.wait_for(ruler=1, count="2 / 75")
    page.set_widget("text", "a dog sat", node=1)
    page.wait("return [...document.querySelectorAll('.wcr-bar .wcr-count')].some((e) => e.innerText === '3 / 75')")
    assert sorted(shown["count"] for shown in page.shown()) == ["2 / 75", "3 / 75"]
    page.run("app.graph.remove(app.graph.nodes[1])")
    page.wait("return document.querySelectorAll('.weighted-clip-ruler').length === 1")


def test_the_ruler_survives_a_change_of_how_nodes_are_drawn(page: RulerPage) -> None:
    page.load_inspect(UNCLOSED)
    before = page.wait_for(count="2 / 75")
    was_on = page.is_nodes_2
    for is_on in (not was_on, was_on):
        page.set_nodes_2(is_on)
        if page.can_show():
            page.wait("return document.querySelector('.wcr-box')?.getBoundingClientRect().height > 30")
            after = page.shown()[0]
            assert {**after, "height": 0} == {**before, "height": 0}
    page.set_widget("text", "a dog")
    page.wait_for(chips=["a", "dog"])


def test_problems_and_notes_are_in_chinese(page: RulerPage) -> None:
    page.set("Comfy.Locale", "zh")
    try:
        is_nodes_2 = page.is_nodes_2
        page.open()
        page.set_nodes_2(is_nodes_2)
        page.load(inspect_node("a (cat cat++"))
        page.wait("return document.querySelectorAll('.wcr-problems p').length === 2")
        page.wait("return document.querySelector('.wcr-problems p').innerText.includes('没有闭合')")
        first, second = page.shown()[0]["problems"]
        assert first == "位置 2：“(” 没有闭合：其后全部内容的权重乘以 1.1。"
        assert "是 compel 的权重写法" in second
        assert "从 compel 转换为 a1111" in second
        page.set_widget("text", "cat " * 80)
        page.wait_for(count="5 / 75（第 2 块，共 2 块）")
        convert = {"class_type": "WeightedCLIPConvert", "inputs": {"text": "x", "from": "a1111", "to": "comfy"}}
        page.load(convert, inspect_node(["1", 0]))
        page.wait("return [...document.querySelectorAll('.wcr-bar')].some((e) => e.innerText.includes('运行后显示'))")
        labels = page.run("return app.graph.nodes[0].widgets.map((widget) => widget.label ?? widget.name)")
        assert "Token 标尺" in labels
        assert "ruler" not in labels
    finally:
        page.set("Comfy.Locale", "en")


# Menus that are rarely needed

NODE = "WeightedCLIPTextEncode"
SHOWN = ["syntax", "scheme"]
RARE = ["normalization", "chunking", "padding", "pooled", "cleaning", "finest_step", "comments"]
VALUES = ["a cat", "a1111", "compel", "mean", "comfy word", "drop", "weighted", "none", "auto", "as syntax"]
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


def test_braces_are_sent_as_typed_where_the_syntax_reads_them(page: RulerPage) -> None:
    """The page itself takes braces for its own choices."""
    text = "a {{red}} cat {b}"
    page.load(inspect_node(text, "comfy"))
    sent = "return Object.values((await app.graphToPrompt()).output)[0].inputs.text"
    assert page.run(sent) == "a red cat b"
    page.set_widget("syntax", "novelai")
    assert page.run(sent) == text
    page.wait_for(chips=["a", "red 1.1", "cat", "b 1.05"])


def test_nodes_2_show_the_rare_menus_on_demand(page: RulerPage) -> None:
    if not page.is_nodes_2:
        pytest.skip("the canvas shows all")
    open_node(page)
    if not page.run(f'return Boolean(document.querySelector("{BUTTON}"))'):
        pytest.skip("this front end has no advanced inputs")
    assert page.run(VISIBLE, SHOWN + RARE) == SHOWN
    page.driver.find_element("css selector", BUTTON).click()
    page.wait(f"{VISIBLE.strip()[:-1]}.length === args[0].length", SHOWN + RARE)


# The search for nodes
