"""The ruler in the page's language, in a real ComfyUI, on the canvas and in Nodes 2.0."""

from __future__ import annotations

import pytest

from .ruler_page import RulerPage, inspect_node

pytestmark = pytest.mark.host


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
