"""Texts noted by our nodes for the metadata of images; in a real ComfyUI: tests/hosts/test_comfyui_metadata.py."""

from __future__ import annotations

import copy
import json
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.hosts.comfy import encoded_texts
from weighted_clip.hosts.comfy.encoded_texts import EncodedTexts, TextMemory, add_texts, with_texts

from .fake_comfy import FakeClip, defaults, node

OURS = {"WeightedCLIPTextEncode"}


@pytest.fixture(autouse=True)
def executing(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The host's word on which node runs."""
    context = SimpleNamespace(node_id="2")
    utils = ModuleType("comfy_execution.utils")
    utils.get_executing_context = lambda: context  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "comfy_execution", ModuleType("comfy_execution"))
    monkeypatch.setitem(sys.modules, "comfy_execution.utils", utils)
    sys.modules["nodes"].NODE_CLASS_MAPPINGS = {  # pyright: ignore[reportAttributeAccessIssue]
        "ById": SimpleNamespace(INPUT_TYPES=lambda: {"hidden": {"id": "UNIQUE_ID"}})
    }
    return context


def graph(kind: str = "Text", value: Any = "a", **more: Any) -> dict[str, Any]:
    """A node of another pack, and ours with its text."""
    return {
        "1": {"class_type": kind, "inputs": {"value": value}, **more},
        "2": {"class_type": "WeightedCLIPTextEncode", "inputs": {"text": ["1", 0], "syntax": "comfy"}},
    }


def request(prompt: dict[str, Any], memory: TextMemory) -> EncodedTexts:
    """A request for a graph, as the server hands it over: its entry for metadata."""
    asked = {"prompt": prompt, "extra_data": {"extra_pnginfo": {"workflow": {}}}}
    assert with_texts(asked, OURS, memory) is asked
    return asked["extra_data"]["extra_pnginfo"]["weighted_clip"]


def test_what_ran_is_found_again_when_it_does_not_run() -> None:
    memory = TextMemory()
    first = request(graph(), memory)
    assert json.dumps(first) == "{}"
    first.add("2", {"text": "a cat"})
    assert json.loads(json.dumps(first)) == {"2": {"text": "a cat"}}
    again = request(graph(), memory)
    assert json.loads(json.dumps(again)) == {"2": {"text": "a cat"}}
    assert copy.deepcopy(again) == {"2": {"text": "a cat"}} and type(copy.deepcopy(again)) is dict


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (graph(value="a"), graph(value="b")),
        (graph("Text"), graph("Other")),
        (graph(is_changed=["x"]), graph(is_changed=["y"])),
        (graph(is_changed=[float("nan")]), graph(is_changed=[float("nan")])),
        (graph(is_changed=float("nan")), graph(is_changed=float("nan"))),
    ],
    ids=["value", "class", "changed", "never the same", "failed"],
)
def test_what_depends_on_other_things_is_not(before: dict[str, Any], after: dict[str, Any]) -> None:
    memory = TextMemory()
    request(before, memory).add("2", {"text": "a cat"})
    assert json.dumps(request(after, memory)) == "{}"


def test_ids_count_where_a_class_says_so() -> None:
    moved = {"7" if name == "1" else "8": node for name, node in copy.deepcopy(graph()).items()}
    moved["8"]["inputs"]["text"] = ["7", 0]
    for kind, expected in (("Text", {"8": {"text": "a cat"}}), ("ById", {})):
        memory = TextMemory()
        request(graph(kind), memory).add("2", {"text": "a cat"})
        moved["7"]["class_type"] = kind
        assert json.loads(json.dumps(request(moved, memory))) == expected


def test_a_node_that_another_was_expanded_into_is_remembered_with_that_one() -> None:
    memory = TextMemory()
    first = request(graph(), memory)
    first.add("1.0.0.5", {"text": "a cat"})
    assert json.loads(json.dumps(first)) == {"1.0.0.5": {"text": "a cat"}}
    assert json.loads(json.dumps(request(graph(), memory))) == {"1.0.0.5": {"text": "a cat"}}


def test_several_runs_are_a_list() -> None:
    texts = request(graph(), TextMemory())
    for one in ("a cat", "a dog"):
        texts.add("2", {"text_g": one, "text_l": ""})
    assert json.loads(json.dumps(texts)) == {"2": {"text_g": ["a cat", "a dog"], "text_l": ["", ""]}}


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded_texts, "MAX_REMEMBERED", 2)
    memory = TextMemory()
    for value in "abc":
        request(graph(value=value), memory).add("2", {"text": value})
    found = [json.loads(json.dumps(request(graph(value=value), memory))) for value in "abc"]
    assert found == [{}, {"2": {"text": "b"}}, {"2": {"text": "c"}}]


@pytest.mark.parametrize(
    "asked",
    [
        None,
        [],
        {},
        {"prompt": graph()},
        {"prompt": graph(), "extra_data": {}},
        {"prompt": graph(), "extra_data": {"extra_pnginfo": None}},
        {"prompt": [], "extra_data": {"extra_pnginfo": {}}},
        {"prompt": {"1": None, "2": {"class_type": "CLIPTextEncode"}}, "extra_data": {"extra_pnginfo": {}}},
    ],
    ids=str,
)
def test_other_requests_are_left_as_they_are(asked: Any) -> None:
    before = copy.deepcopy(asked)
    assert with_texts(asked, OURS, TextMemory()) is asked
    assert asked == before


def test_broken_nodes_of_a_request_do_not_hurt() -> None:
    broken = {**graph(), "3": None, "4": {"class_type": "Text"}, "5": {"class_type": "Text", "inputs": {"a": {1, 2}}}}
    texts = request(broken, TextMemory())
    texts.add("2", {"text": "a cat"})
    texts.add("5", {"text": "a dog"})
    assert json.loads(json.dumps(texts)) == {"2": {"text": "a cat"}, "5": {"text": "a dog"}}


def test_every_node_that_encodes_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []
    server = ModuleType("server")
    server.PromptServer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        instance=SimpleNamespace(add_on_prompt_handler=handlers.append)
    )
    monkeypatch.setitem(sys.modules, "server", server)
    add_texts(NODE_CLASS_MAPPINGS)
    (handler,) = handlers
    for name, cls in NODE_CLASS_MAPPINGS.items():
        takes = {kind for kind, _ in cls.INPUT_TYPES().get("required", {}).values() if isinstance(kind, str)}
        encodes = "CONDITIONING" in cls.RETURN_TYPES and "CONDITIONING" not in takes
        encodes = encodes or name == "WeightedCLIP"  # by the boxes that it serves
        asked = {"prompt": {"1": {"class_type": name}}, "extra_data": {"extra_pnginfo": {}}}
        assert ("weighted_clip" in handler(asked)["extra_data"]["extra_pnginfo"]) == encodes, name
        assert (cls.INPUT_TYPES().get("hidden", {}).get("extra_pnginfo") == "EXTRA_PNGINFO") == encodes, name


@pytest.mark.parametrize(
    ("kind", "given", "encoded"),
    [
        ("TextEncode", {"text": "a (cat:1.2) # b", "syntax": "comfy"}, "a (cat:1.2) # b"),
        ("TextEncode", {"text": "a (cat:1.2) # b\n<lora:ink:1>c", "syntax": "a1111"}, "a (cat:1.2) \nc"),
        ("TextEncode", {"text": "a # b", "syntax": "a1111", "cleaning": "none"}, "a # b"),
        ("TextEncode", {"text": "a cat++ withLora(ink, 0.5) b", "syntax": "compel"}, "a cat++  b"),
        ("A1111Encode", {"text": "[a:b:2] # c\n<lora:x:1>", "emphasis": "Original"}, "[a:b:2] \n"),
        ("A1111Encode", {"text": "(a) # c\n<lora:x:1>", "emphasis": "None"}, "(a) \n"),
    ],
)
def test_the_text_is_without_comments_and_loras(kind: str, given: dict[str, str], encoded: str) -> None:
    info: dict[str, Any] = {}
    result = node(kind).run(clip=FakeClip(), extra_pnginfo=info, **{**defaults(kind), **given})
    assert result.keys() == {"ui", "result"}
    assert json.loads(json.dumps(info)) == {"weighted_clip": {"2": {"text": encoded}}}
    assert result["result"][1].startswith(f"prompt as encoded: “{encoded}”\n")
