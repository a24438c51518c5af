"""Common search terms find the right nodes, by the search of a real ComfyUI's page."""

from __future__ import annotations

import pytest

from .ruler_page import RulerPage

pytestmark = pytest.mark.host

FIND = """
const page = [...document.querySelectorAll('*')].find((element) => element.__vue_app__).__vue_app__;
const store = page.config.globalProperties.$pinia._s.get('nodeDef');
return store.nodeSearchService.searchNode(args[0], []).slice(0, 8).map(({ name }) => name);
"""


@pytest.mark.parametrize(
    ("words", "nodes"),
    [
        ("prompt weight", {"WeightedCLIPTextEncode", "WeightedCLIPMaskedBlend", "WeightedCLIPWeighAttention"}),
        ("token counter", {"WeightedCLIPInspect"}),
        ("clip skip", {"WeightedCLIPLoad"}),
        ("BREAK", {"WeightedCLIPA1111Encode"}),
        ("compel", {"WeightedCLIPTextEncode", "WeightedCLIPMaskedBlend", "WeightedCLIPConvert"}),
        ("wildcard", {"WeightedCLIPTextEncode", "WeightedCLIPA1111Encode"}),
        ("negative weight", {"WeightedCLIPTextEncode", "WeightedCLIPWeighAttention"}),
    ],
)
def test_a_search_finds_the_right_nodes(ruler_browser: RulerPage, words: str, nodes: set[str]) -> None:
    page = ruler_browser
    if "WeightedCLIPInspect" not in page.driver.execute_script(
        "return Object.keys(window.LiteGraph?.registered_node_types ?? {})"
    ):
        page.open()
    version = page.run("return window.__COMFYUI_FRONTEND_VERSION__ ?? '0.0'")
    if tuple(map(int, version.split(".")[:2])) < (1, 47):
        pytest.skip("this front end does not search by aliases")
    assert nodes <= set(page.run(FIND, words))
