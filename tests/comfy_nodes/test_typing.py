"""What is said of a node while it is typed: the same that its run refuses, and nothing of what it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.hosts.comfy.fields import without_place
from weighted_clip.hosts.comfy.words import WORDS
from weighted_clip.nodes.checks import answer_check
from weighted_clip.nodes.routes import ruler_nodes
from weighted_clip.weighting.areas import area_mask, read_area

from ..typing_cases import LINKED, PLACED_RIGHT, PLACED_WRONG, Case
from .fake_comfy import defaults, encode, inputs_of, install, node

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
ENCODE = "WeightedCLIPTextEncode"


def source(kind: str, type: str = "CONDITIONING", values: dict[str, Any] | None = None, **links: Any) -> dict[str, Any]:
    """A node as the page finds it."""
    return {"type": type, "node": kind, "output": type, "values": values or {}, "links": links}


def ours(text: str, syntax: str = "comfy", kind: str = ENCODE) -> dict[str, Any]:
    values = {**defaults(kind.removeprefix("WeightedCLIP")), "text": text}
    return source(kind, values={**values, "syntax": syntax} if "syntax" in values else values)


def linked(name: str, case: Case) -> dict[str, Any]:
    """What the page finds at an input."""
    own = ours(case.text, case.syntax)
    other = ours("a green owl")
    values = {"area": "", "strength": 1.0}
    return {
        "ours": own,
        "other": other,
        "stock": source("CLIPTextEncode", values={"text": case.text}),
        "concatenated": source("ConditioningConcat", conditioning_to=own, conditioning_from=other),
        "combined": source("ConditioningCombine", conditioning_1=own, conditioning_2=other),
        "masked": source("ConditioningSetMask", conditioning=own, mask=None),
        "regional": source("WeightedCLIPRegion", values=values, base=own, region=other),
        "empty": source("SolidMask", "MASK", {"value": 0.0, "width": 64, "height": 64}),
        "right half": source("LoadImage", "MASK", {"image": "right.png"}),
    }[name]


def given(name: str, case: Case) -> Any:
    """What a run finds there."""
    own = encode("TextEncode", text=case.text, syntax=case.syntax)["result"][0]
    other = encode("TextEncode", text="a green owl")["result"][0]
    [[rows, values]] = own
    return {
        "ours": lambda: own,
        "other": lambda: other,
        "stock": lambda: [[rows, {key: value for key, value in values.items() if key != WORDS}]],
        "concatenated": lambda: [[torch.cat([rows, other[0][0]], 1), values]],
        "combined": lambda: [*own, *other],
        "masked": lambda: [[rows, {**values, "mask": torch.ones(1, 4, 4)}]],
        "regional": lambda: node("Region").place(**{**defaults("Region"), "base": own, "region": other})["result"][0],
        "empty": lambda: torch.zeros(1, 8, 8),
        "right half": lambda: torch.tensor([[[0.0, 0.0, 1.0, 1.0]] * 4]),
    }[name]()


def page_of(case: Case) -> list[dict[str, Any]]:
    """Problems on the page."""
    name = case.node.removeprefix("WeightedCLIP")
    values = {**defaults(name), **{key: value for key, value in case.inputs.items() if key not in LINKED}}
    links = {key: linked(value, case) for key, value in case.inputs.items() if key in LINKED}
    asked = {"node": case.node, "values": values, "links": links, "size": [case.size, case.size]}
    return answer_check(json.loads(json.dumps(asked)), NODE_CLASS_MAPPINGS, NODES)["problems"]


def run_of(case: Case) -> None:
    """A run, as far as our node goes, and the sampler's making of masks."""
    inputs = {key: given(value, case) if key in LINKED else value for key, value in case.inputs.items()}
    name = case.node.removeprefix("WeightedCLIP")
    node(name).place(**{**defaults(name), **inputs})
    area = None if case.inputs["area"].startswith("where") else read_area(case.inputs["area"])
    if area is not None:
        mask = area_mask(area, (4, 4), (case.size, case.size))
        if "mask" in inputs and not bool((mask * inputs["mask"]).any()):
            raise ValueError(without_place(f"“{case.inputs['phrase']}”"))


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """The host's folder of pictures, with one that is painted in its right half."""
    from PIL import Image

    install(monkeypatch, temp=str(tmp_path))
    picture = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    picture.paste((0, 0, 0, 0), (32, 0, 64, 64))
    picture.save(tmp_path / "right.png")
    Image.new("RGB", (64, 64)).save(tmp_path / "plain.png")
    return tmp_path


@pytest.mark.parametrize("case", PLACED_WRONG, ids=str)
def test_the_page_says_what_the_run_refuses(case: Case) -> None:
    problems = page_of(case)
    assert [problem["is_refused"] for problem in problems] == [True]
    (problem,) = problems
    assert case.message in problem["message"]
    with pytest.raises(ValueError) as caught:
        run_of(case)
    assert problem["message"] == str(caught.value)
    assert problem["input"] in inputs_of(case.node)


@pytest.mark.parametrize("case", PLACED_RIGHT, ids=str)
def test_nothing_is_said_of_what_the_run_takes(case: Case) -> None:
    assert page_of(case) == []
    run_of(case)
