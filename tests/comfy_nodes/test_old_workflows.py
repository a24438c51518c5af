"""Nodes in the place of other packs': requests are mended, and what has no equal is refused, on a fake host."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip.hosts.comfy.clip.clip import EncodedText
from weighted_clip.hosts.comfy.old_nodes import add_replacements, balanced, with_replaced
from weighted_clip.nodes.base.node_state import NodeState
from weighted_clip.nodes.old_workflows import INTERPRETATIONS, OLD_NODES, WeightedCLIPSmzEncode

from ..weighting.test_schemes import OURS

ADV, SMZ = "BNK_CLIPTextEncodeAdvanced", "smZ CLIPTextEncode"


def request(kind: Any, **inputs: Any) -> dict[str, Any]:
    return {"prompt": {"1": {"class_type": kind, "inputs": inputs}}}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Nodes of a host that lacks the other packs."""
    nodes: dict[str, Any] = {"CLIPTextEncode": object}
    monkeypatch.setitem(sys.modules, "nodes", SimpleNamespace(NODE_CLASS_MAPPINGS=nodes, LoraLoader=None))
    return nodes


@pytest.mark.parametrize("name", INTERPRETATIONS)
def test_interpretations_are_the_schemes_whose_numbers_were_compared(name: str) -> None:
    assert INTERPRETATIONS[name] == OURS[f"adv_{name}"]


def test_a_missing_node_is_replaced_with_its_inputs(installed: dict[str, Any]) -> None:
    told = {"text": "a (cat:1.2)", "clip": ["4", 1], "token_normalization": "mean", "weight_interpretation": "A1111"}
    found = with_replaced(request(ADV, **told, affect_pooled="disable"), OLD_NODES)
    assert found == request("WeightedCLIPAdvEncode", **told)


def test_inputs_that_an_older_version_lacked_have_defaults(installed: dict[str, Any]) -> None:
    (node,) = with_replaced(request(SMZ, text="a", parser="A1111"), OLD_NODES)["prompt"].values()
    assert node["inputs"]["mean_normalization"] is True
    assert node["inputs"]["parser"] == "A1111"
    assert "clip" not in node["inputs"]  # the host says that it is missing


def test_an_installed_node_stays(installed: dict[str, Any]) -> None:
    installed[SMZ] = object
    asked = request(SMZ, text="a", parser="A1111")
    assert with_replaced(copy.deepcopy(asked), OLD_NODES) == asked


@pytest.mark.parametrize(
    "asked",
    [
        request("CLIPTextEncode", text="a"),
        request("BNK_CutoffBasePrompt", text="a"),
        request(["no", "text"]),
        {"prompt": {"1": {"class_type": SMZ, "inputs": "none"}, "2": None, "3": {}}},
        *({"prompt": []}, {}, [], None),
    ],
)
def test_other_and_broken_requests_stay(installed: dict[str, Any], asked: Any) -> None:
    assert with_replaced(copy.deepcopy(asked), OLD_NODES) == asked


def test_an_older_host_has_its_requests_mended_alone(
    installed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers: list[Any] = []
    instance = SimpleNamespace(add_on_prompt_handler=handlers.append)
    monkeypatch.setitem(sys.modules, "server", SimpleNamespace(PromptServer=SimpleNamespace(instance=instance)))
    add_replacements(OLD_NODES)
    (handler,) = handlers
    assert handler(request(SMZ, text="a"))["prompt"]["1"]["class_type"] == "WeightedCLIPSmzEncode"


@pytest.mark.parametrize(
    ("balance", "low", "high"), [(0.0, 1.0, 0.0), (0.25, 1.0, 0.5), (0.5, 1.0, 1.0), (0.9, 0.2, 1.0)]
)
def test_a_balance_scales_the_towers_rows(balance: float, low: float, high: float) -> None:
    towers: Any = {
        "clip_l": SimpleNamespace(hidden=torch.ones(1, 3, 2)),
        "clip_g": SimpleNamespace(hidden=torch.ones(1, 3, 4)),
    }
    encoded = EncodedText([[torch.ones(1, 3, 6), {"pooled_output": torch.ones(1, 4)}]], towers, ())
    ((rows, values),) = balanced(encoded, balance)
    expected = torch.tensor([low] * 2 + [high] * 4).expand(1, 3, 6)
    torch.testing.assert_close(rows, expected)
    assert values["pooled_output"].min() == 1


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"text": "a", "parser": "full"}, "parser"),
        ({"text": "a", "parser": "comfy", "with_SDXL": True}, "with_SDXL"),
        ({"text": "a", "parser": "A1111", "use_old_emphasis_implementation": True}, "use_old_emphasis_implementation"),
        ({"text": "a AND b", "parser": "comfy"}, "text"),
        ({"text": "[a:b:0.5]", "parser": "A1111"}, "text"),
        ({"text": "[a|b]", "parser": "fixed attention"}, "text"),
        ({"text": "[a:b:0.5]", "parser": "comfy"}, None),  # read as text there, too
        ({"text": "SAND and ANDROID [a]", "parser": "A1111"}, None),
        ({"parser": "A1111"}, None),
        ({}, None),
    ],
)
def test_what_has_no_equal_is_said_while_typing(values: dict[str, Any], name: str | None) -> None:
    problems = list(WeightedCLIPSmzEncode.problems(NodeState(values)))
    assert [problem.input for problem in problems] == ([] if name is None else [name])
