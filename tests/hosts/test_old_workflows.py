"""Workflows with nodes of packs that are not installed, in a real ComfyUI: ours take their places, by API and page."""

from __future__ import annotations

from typing import Any

import pytest

from .comfy_server import ComfyServer, with_clip
from .ruler_page import RulerPage

pytestmark = pytest.mark.host

TEXT = "a (red:1.4) cat, ((old)) [house] and a (dog:0.5)"
ADV, ADV_SDXL, SMZ = "BNK_CLIPTextEncodeAdvanced", "BNK_CLIPTextEncodeSDXLAdvanced", "smZ CLIPTextEncode"
SIZES = {"width": 64, "height": 64, "crop_w": 0, "crop_h": 0, "target_width": 64, "target_height": 64}
OF_SMZ = {
    **{"mean_normalization": True, "multi_conditioning": True, "use_old_emphasis_implementation": False},
    **{"with_SDXL": False, "ascore": 6.0, **SIZES, "text_g": "", "text_l": "", "smZ_steps": 1},
}
"""Inputs of smZNodes' node, beside those that tests set, in the order of its widgets."""
CASES = [
    (ADV, {"token_normalization": "none", "weight_interpretation": "comfy"}, {}),
    (ADV, {"token_normalization": "length+mean", "weight_interpretation": "A1111"}, {"scheme": "a1111_global_norm"}),
    (ADV, {"token_normalization": "none", "weight_interpretation": "compel"}, {"scheme": "adv_compel"}),
    (ADV, {"token_normalization": "mean", "weight_interpretation": "down_weight"}, {"scheme": "down_weight"}),
    (SMZ, {"parser": "comfy", **OF_SMZ}, {}),
    (SMZ, {"parser": "A1111", **OF_SMZ}, {"syntax": "a1111", "scheme": "a1111"}),
    (SMZ, {"parser": "fixed attention", **OF_SMZ}, {"syntax": "none", "scheme": "unweighted"}),
]
"""Nodes that are missing, their inputs, and those of Weighted Prompt that give the same rows."""


@pytest.mark.parametrize(("missing", "given", "same"), CASES)
@pytest.mark.parametrize("meta", [{}, {"_meta": {"title": "old"}}], ids=["bare", "as the page writes it"])
def test_a_request_runs_with_ours(
    server: ComfyServer, missing: str, given: dict[str, Any], same: dict[str, Any], meta: dict[str, Any]
) -> None:
    graph, clip = with_clip(number=61)
    old = graph.add(missing, clip=clip, text=TEXT, **given)
    graph.nodes[old.id] |= meta
    same = {"normalization": given.get("token_normalization", "none"), **same}
    ours = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=TEXT, **same)
    plain = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=TEXT, scheme="unweighted")
    found, expected, unweighted = server.conditionings(graph, old, ours, plain)
    assert found == expected
    assert found != unweighted


def test_inputs_of_an_older_version_have_the_defaults(server: ComfyServer) -> None:
    graph, clip = with_clip(number=61)
    old = graph.add(SMZ, clip=clip, text=TEXT, parser="A1111")
    ours = server.add_ours(graph, "WeightedCLIPTextEncode", clip=clip, text=TEXT, syntax="a1111", scheme="a1111")
    found, expected = server.conditionings(graph, old, ours)
    assert found == expected


@pytest.mark.parametrize(
    ("missing", "given", "said"),
    [
        (SMZ, {"text": TEXT, "parser": "full"}, "choose A1111"),
        (SMZ, {"text": "a cat AND a dog", "parser": "comfy"}, "AND a dog"),
        (SMZ, {"text": "a [cat:dog:0.5]", "parser": "A1111"}, "a dog"),
        (SMZ, {"text": TEXT, "parser": "A1111", "with_SDXL": True}, "Weighted Prompt (SDXL)"),
        (ADV_SDXL, {"text_l": "a", "text_g": "b", "token_normalization": "none"}, "not SDXL's"),
    ],
)
def test_what_has_no_equal_is_refused_in_words(
    server: ComfyServer, missing: str, given: dict[str, Any], said: str
) -> None:
    graph, clip = with_clip(number=61)
    server.probe(graph, graph.add(missing, clip=clip, **given))
    assert said in str(server.failure(graph).details)


@pytest.mark.parametrize("missing", ["BNK_CutoffBasePrompt", "No such node"])
def test_other_missing_nodes_stay_missing(server: ComfyServer, missing: str) -> None:
    graph, clip = with_clip(number=61)
    server.probe(graph, graph.add(missing, clip=clip, text=TEXT))
    error = server.failure(graph)
    assert error.status == 400
    assert missing in str(error.details)


def test_the_page_is_told(server: ComfyServer) -> None:
    told = server.get("/node_replacements")
    for missing in (ADV, ADV_SDXL, SMZ):
        (one,) = told[missing]
        described = server.get(f"/object_info/{one['new_node_id']}")[one["new_node_id"]]
        assert [mapped["new_id"] for mapped in one["input_mapping"]] == described["input_order"]["required"]
        assert described["deprecated"]


# ---- the page


def saved(nodes: list[dict[str, Any]], links: list[list[Any]]) -> dict[str, Any]:
    """A workflow as the page saves it."""
    made = [
        {"pos": [400 * i, 100], "size": [350, 300], "flags": {}, "order": i, "mode": 0, "properties": {}, **node}
        for i, node in enumerate(nodes)
    ]
    return {
        "last_node_id": 9,
        "last_link_id": 9,
        "nodes": made,
        "links": links,
        "groups": [],
        "extra": {},
        "version": 0.4,
    }


def old_workflow() -> dict[str, Any]:
    """A loader and both missing nodes, each read by a sampler's input, with the values of its widgets by position."""
    output = [{"name": "CONDITIONING", "type": "CONDITIONING", "links": None}]
    clip = {"name": "clip", "type": "CLIP"}
    nodes = [
        {
            "id": 1,
            "type": "CLIPLoader",
            "inputs": [],
            "outputs": [{"name": "CLIP", "type": "CLIP", "links": [1, 2]}],
            "widgets_values": ["none", "stable_diffusion", "default"],
        },
        {
            "id": 2,
            "type": ADV,
            "inputs": [{**clip, "link": 1}],
            "outputs": [{**output[0], "links": [3]}],
            "widgets_values": [TEXT, "length", "comfy++"],
        },
        {
            "id": 3,
            "type": SMZ,
            "inputs": [{**clip, "link": 2}],
            "outputs": [{**output[0], "links": [4]}],
            "widgets_values": ["a dog", "A1111", *{**OF_SMZ, "mean_normalization": False}.values()],
        },
        {
            "id": 4,
            "type": "ConditioningCombine",
            "inputs": [
                {"name": "conditioning_1", "type": "CONDITIONING", "link": 3},
                {"name": "conditioning_2", "type": "CONDITIONING", "link": 4},
            ],
            "outputs": output,
        },
    ]
    links = [
        [1, 1, 0, 2, 0, "CLIP"],
        [2, 1, 0, 3, 0, "CLIP"],
        [3, 2, 0, 4, 0, "CONDITIONING"],
        [4, 3, 0, 4, 1, "CONDITIONING"],
    ]
    return saved(nodes, links)


CLICK = (
    "const button = [...document.querySelectorAll('button')].find((one) => one.checkVisibility()"
    " && (one.dataset.testid === args[0] || one.textContent.trim() === args[0]));"
    "button?.click(); return Boolean(button)"
)


def test_the_page_replaces_missing_nodes(page: RulerPage) -> None:
    workflow = old_workflow()
    page.run("app.loadGraphData(args[0])", workflow)
    page.wait(CLICK, "error-overlay-see-errors")
    page.wait(CLICK, "Replace All")
    kinds = "return app.graph.nodes.map(({ type }) => type)"
    ours = ["WeightedCLIPAdvEncode", "WeightedCLIPSmzEncode"]
    page.wait(f"return (() => {{ {kinds} }})().filter((kind) => args[0].includes(kind)).length === 2", ours)
    sent = page.run("return (await app.graphToPrompt()).output")
    clip = ["1", 0]
    assert sent["2"]["inputs"] == {
        "clip": clip,
        "text": TEXT,
        "token_normalization": "length",
        "weight_interpretation": "comfy++",
    }
    assert sent["3"]["inputs"] == {
        **{"clip": clip, "text": "a dog", "parser": "A1111", "mean_normalization": False},
        **{"use_old_emphasis_implementation": False, "with_SDXL": False},
    }
    assert sent["4"]["inputs"] == {"conditioning_1": ["2", 0], "conditioning_2": ["3", 0]}
    saved_again = page.run("return JSON.parse(JSON.stringify(app.graph.serialize()))")
    page.run("await app.loadGraphData(args[0])", saved_again)
    assert page.run("return (await app.graphToPrompt()).output") == sent
