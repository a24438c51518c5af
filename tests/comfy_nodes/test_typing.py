"""Problems of nodes while they are typed: those that a run refuses, and none of right inputs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.hosts.comfy.attention.fields import without_place
from weighted_clip.hosts.comfy.attention.words import WORDS
from weighted_clip.hosts.comfy.placing.upstream import UNKNOWN, prompts_before, source_of
from weighted_clip.nodes.base import checks, routes
from weighted_clip.nodes.base.checks import answer_check
from weighted_clip.nodes.base.routes import ruler_nodes
from weighted_clip.web.inspection import RequestError
from weighted_clip.weighting.placing.areas import area_mask, read_area

from ..typing_cases import LINKED, PLACE, PLACED_RIGHT, PLACED_WRONG, Case
from ..web.test_ruler_language import TABLES, matches
from .fake_comfy import FakeClip, defaults, encode, inputs_of, install, node

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
ENCODE = "WeightedCLIPTextEncode"


def source(kind: str, type: str = "CONDITIONING", values: dict[str, Any] | None = None, **links: Any) -> dict[str, Any]:
    """A node as the page finds it."""
    return {"type": type, "node": kind, "output": type, "values": values or {}, "links": links}


def ours(text: str, syntax: str = "comfy", kind: str = ENCODE) -> dict[str, Any]:
    values = {**defaults(kind.removeprefix("WeightedCLIP")), "text": text}
    return source(kind, values={**values, "syntax": syntax} if "syntax" in values else values)


def linked(name: str, case: Case) -> dict[str, Any]:
    """Nodes that the page finds at an input."""
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
    """Values that a run finds there."""
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


# Other nodes


def asked_of(name: str, values: dict[str, Any], **links: Any) -> list[dict[str, Any]]:
    """Problems of a node without a prompt box on the page."""
    kind = f"WeightedCLIP{name}"
    asked = {"node": kind, "values": {**defaults(name), **values}, "links": links}
    return answer_check(json.loads(json.dumps(asked)), NODE_CLASS_MAPPINGS, NODES)["problems"]


def watch_source(words: str, **links: Any) -> dict[str, Any]:
    values = {"words": words, "every": 1, "layers": "all"}
    return source("WeightedCLIPWatch", "WEIGHTED_CLIP_WATCH", values, **links)


INFOTEXT = "a cat\nSteps: 20, Sampler: Euler a, CFG scale: 7, Seed: 1, Size: 512x512"
CONDITIONING = {"conditioning": ours("a red cat")}
NO_SOURCE = {"text": "", "source": "CPU", "image": ""}


def run_watch(text: str = "a red cat", **values: Any) -> Any:
    conditioning = encode("A1111Encode" if "AND" in text else "TextEncode", text=text)["result"][0]
    return node("Watch").watch(**{**defaults("Watch"), "conditioning": conditioning, **values})


def run_maps(word: str) -> None:
    _, watch = run_watch(words="red\ncat")
    node("WordMaps").show(watch, {"samples": torch.zeros(1, 4, 8, 8)}, "one for all", word)


def run_sampler(**values: Any) -> None:
    noise = node("A1111Noise").run(**{**defaults("A1111Noise"), "source": "CPU"})[0]
    table = torch.linspace(0.03, 14.6, 1000)
    sampling = type("Discrete", (), {"sigmas": table, "log_sigmas": table.log()})()
    model = type("Model", (), {"get_model_object": lambda self, name: sampling, "model": None})()
    node("A1111Sampler").run(**{**defaults("A1111Sampler"), "model": model, "noise": noise, **values})


WRONG: list[tuple[str, dict[str, Any], dict[str, Any], str, Any]] = [
    ("Watch", {"words": "red\nowl"}, CONDITIONING, "“owl” is not in the prompt", lambda: run_watch(words="red\nowl")),
    ("Watch", {"every": 0}, CONDITIONING, "every must be 1 or above", lambda: run_watch(every=0)),
    ("Watch", {}, {"conditioning": ours("...")}, "has no words to watch", lambda: run_watch("...")),
    (
        *("Watch", {"layers": "as DAAM"}, {"conditioning": ours("a cat AND a dog", kind="WeightedCLIPA1111Encode")}),
        *("for one prompt only; these are 2", lambda: run_watch("a cat AND a dog", layers="as DAAM")),
    ),
    ("WordMaps", {"word": "dog"}, {"watch": watch_source("red\ncat")}, "got 'dog'", lambda: run_maps("dog")),
    ("A1111Sampler", {"denoise": 0.0}, {}, "denoise must be above 0", lambda: run_sampler(denoise=0.0)),
    (
        *("A1111Sampler", {"sampler": "DDIM", "denoise": 0.01}, {}, "no step is left"),
        lambda: run_sampler(sampler="DDIM", denoise=0.01),
    ),
    (
        *("A1111Noise", {"subseed_strength": 2.0}, {}, "subseed_strength must be from 0 to 1"),
        lambda: node("A1111Noise").run(**{**defaults("A1111Noise"), "subseed_strength": 2.0}),
    ),
    *(
        ("ReadParameters", {**NO_SOURCE, "text": text}, {}, message, lambda text=text: read_parameters_of(text))
        for text, message in (
            ("a cat", "no settings"),
            (INFOTEXT.replace("Steps: 20, ", ""), "“Steps” is missing"),
            (INFOTEXT.replace("Euler a", "Eulerian"), "“Eulerian” is not among ours"),
            (INFOTEXT.replace("CFG scale: 7", "CFG scale: seven"), "CFG scale must be a number"),
            ("", "there is no “” in it"),
        )
    ),
    (
        *("Similarity", {"texts": " \n "}, {}, "there are no texts to compare with"),
        lambda: node("Similarity").compare(None, None, " \n ", "none", 0.0, "center", "none"),
    ),
    (
        *("TokensToImage", {}, {}, "there are no tokens"),
        lambda: node("TokensToImage").decode(type("D", (), {"model": type("M", (), {"config": None})}), ""),
    ),
]


def read_parameters_of(text: str) -> None:
    node("ReadParameters").run(SimpleNamespace(model=None), **{**NO_SOURCE, "text": text})


@pytest.mark.parametrize(
    ("name", "values", "links", "message", "run"), WRONG, ids=lambda one: None if callable(one) else str(one)[:40]
)
def test_the_page_says_what_other_nodes_refuse(
    name: str, values: dict[str, Any], links: dict[str, Any], message: str, run: Any
) -> None:
    problems = asked_of(name, values, **links)
    (problem,) = problems
    assert message in problem["message"] and problem["input"] in {*inputs_of(f"WeightedCLIP{name}")}
    with pytest.raises(ValueError) as caught:
        run()
    assert problem["message"] == str(caught.value)


@pytest.mark.parametrize(
    ("name", "values", "links"),
    [
        ("Watch", {"words": "RED cat\n\nred"}, CONDITIONING),
        ("Watch", {}, {"conditioning": ours("a cat AND a dog", kind="WeightedCLIPA1111Encode")}),
        ("Watch", {"layers": "as DAAM"}, CONDITIONING),
        ("Watch", {"words": "anything"}, {"conditioning": None}),
        ("WordMaps", {"word": "Red"}, {"watch": watch_source("red\ncat")}),
        ("WordMaps", {"word": "red"}, {"watch": watch_source("", conditioning=ours("a red cat"))}),
        ("WordMaps", {"word": "red"}, {"watch": watch_source("", conditioning=None)}),
        ("A1111Sampler", {}, {}),
        ("A1111Sampler", {"sampler": "DDIM", "denoise": 0.5}, {}),
        ("A1111Noise", {}, {}),
        ("ReadParameters", {**NO_SOURCE, "text": INFOTEXT}, {}),
        ("Similarity", {"texts": "a cat"}, {}),
        ("TokensToImage", {}, {"tokens": None}),
    ],
)
def test_nothing_is_said_of_right_inputs_of_other_nodes(
    name: str, values: dict[str, Any], links: dict[str, Any]
) -> None:
    assert asked_of(name, values, **links) == []


PROMPTS: list[tuple[str, str, dict[str, Any], str]] = [
    ("MaskedBlend", "a (cat:0.5)", {"mask_method": "token", "filler": "two words"}, "exactly one token"),
    (
        *("TextEncode", '("a (red)6 cat", "a dog").blend(1, 1)'),
        *({"syntax": "compel", "scheme": "negpip", "normalization": "mean"}, "cannot blend"),
    ),
    ("BindPhrases", "a (red:1.2) cat, a dog", {"hide": "cutoff", "words": "red", "scheme": "masked_blend"}, "cutoff"),
    ("WeighAttention", '("a cat", "a dog").and()', {"syntax": "compel"}, "does not take .and"),
    ("A1111Encode", "a cat :0 AND a dog :0", {}, "sum to 0"),
    ("A1111Encode", "a cat COUPLE AREA(0 0.5) a dog", {"regions": "prompt-control"}, "AREA after COUPLE"),
    ("Sweep", "a dog", {}, "write one or two weights as a range"),
    ("Sweep", "(a:0..1:33)", {}, "must be from 2 to 32"),
    ("Sweep", "(a:0..1:5) (b:0..1:5)", {}, "these are 25 prompts"),
    ("Sweep", "((a:0..1:6) b:0..1:5)", {}, "these are 30 prompts"),
    ("Sweep", "dog:0..1:5)", {}, "has no bracket"),
]


def views_of(name: str, text: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Views of a prompt on the page."""
    kind = f"WeightedCLIP{name}"
    counts = {key: value for key, value in {**defaults(name), **values}.items() if key in NODES[kind].defaults}
    return json.loads(routes._read(json.dumps({"node": kind, "text": text, "values": counts}).encode(), NODES))["views"]


@pytest.mark.parametrize(("name", "text", "values", "message"), PROMPTS)
def test_the_ruler_says_what_a_run_would_refuse_of_a_prompt(
    name: str, text: str, values: dict[str, Any], message: str
) -> None:
    (first, *_) = views_of(name, text, values)
    messages = [issue["message"] for issue in first["issues"] if message in issue["message"]]
    assert len(messages) == 1
    run = node(name).run if name == "Sweep" else node(name).encode
    with pytest.raises(ValueError) as caught:
        run(**{**defaults(name), "clip": FakeClip(), "text": text, **values})
    assert messages[0] == str(caught.value)


def test_a_sweep_shows_each_of_its_prompts_and_how_many_pictures_they_are() -> None:
    views = views_of("Sweep", "a (red:0..1:2) cat and a (dog:2..3:2)", {})
    assert [view["label"] for view in views] == ["red 0, dog 2", "red 0, dog 3", "red 1, dog 2", "red 1, dog 3"]
    assert [chip["weight"] for chip in views[1]["chunks"][0]["chips"] if chip["weight"] != 1] == [0, 3]
    assert [view.get("notes", []) for view in views] == [["4 pictures, one for each"], [], [], []]
    many = views_of("Sweep", "(a:0..1:32)", {"many": True})
    assert many[-1]["num_more"] == 32 - len(many) and not many[0]["issues"]
    assert len(views_of("Sweep", "(a:0..1:2) # (b:0..1:9)", {"comments": "#"})) == 2


def test_a_lora_that_is_not_there_is_named_before_a_run_and_one_that_is_there_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    install(monkeypatch, {"loras": {"ink.safetensors": "ink"}}, temp=str(tmp_path))
    text = "a <lora:ink:0.5> cat <lora:gone:1> <lora:ink:0.2@0.2,1@0.5>"
    inputs = {**defaults("LoadPromptLoras"), "text": text}
    (ran,) = node("LoadPromptLoras").load([], [], **inputs)["ui"]["weighted_clip"]
    (shown,) = views_of("LoadPromptLoras", text, {})
    told = [sorted(issue["message"] for issue in view["issues"]) for view in (shown, ran)]
    assert told[0] == told[1]
    assert [(issue["code"], issue["start"]) for issue in shown["issues"] if issue["start"] < 30] == [
        ("unknown-lora", 21)
    ]
    for name in ("LoadPromptLoras", "A1111Encode"):
        issues = [issue for view in views_of(name, text, {"loras": "in time"}) for issue in view["issues"]]
        assert [issue["start"] for issue in issues if issue["code"] == "unknown-lora"] == [21]
    assert [chip["text"] for chunk in shown["chunks"] for chip in chunk["chips"]] == [
        *("a", "<lora:ink:0.5>", "cat", "<lora:gone:1>", "<lora:ink:0.2@0.2,1@0.5>"),
    ]


# The route


def test_words_of_the_prompts_are_offered() -> None:
    both = source("ConditioningCombine", conditioning_1=ours("a Red cat, art"), conditioning_2=ours("a (dog:1.2)"))
    for name, values in (("Place", {"phrase": "cat"}), ("Watch", {})):
        asked = {"node": f"WeightedCLIP{name}", "values": {**defaults(name), **values}, "links": {"conditioning": both}}
        words = answer_check(asked, NODE_CLASS_MAPPINGS, NODES)["words"]
        assert words == [["a", "Red", "cat", ",", "art"], ["a", "dog"]]
    asked["links"] = {"conditioning": ours(" ".join(["w" * 30] * 1000))}
    (words,) = answer_check(asked, NODE_CLASS_MAPPINGS, NODES)["words"]
    assert len(words) == checks.MAX_WORDS
    maps = {"node": "WeightedCLIPWordMaps", "values": {}, "links": {"watch": watch_source("red cat\ndog")}}
    assert answer_check(maps, NODE_CLASS_MAPPINGS, NODES)["words"] == [["red cat", "dog"]]


DEEP: Any = None
for _ in range(100):
    DEEP = source("ConditioningSetArea", conditioning=DEEP)


@pytest.mark.parametrize(
    "asked",
    [
        *(None, [], 3, {}, {"node": PLACE}, {"node": "KSampler", "values": {}}, {"node": ["a"], "values": {}}),
        {"node": PLACE, "values": []},
        {"node": PLACE, "values": {"colour": 1}},
        {"node": PLACE, "values": {}, "links": 3},
        {"node": PLACE, "values": {}, "links": {"conditioning": 3}},
        {"node": PLACE, "values": {}, "links": {"conditioning": {"type": "CONDITIONING", "node": 3, "output": ""}}},
        {"node": PLACE, "values": {}, "links": {"conditioning": {**source("A"), "values": 3}}},
        {"node": PLACE, "values": {}, "links": {"conditioning": DEEP}},
        *({"node": PLACE, "values": {}, "size": size} for size in (3, [1], [0, 1], [1.5, 2], ["a", 1], [10**9, 1])),
        {"node": PLACE, "values": {}, "more": 1},
    ],
    ids=lambda asked: str(asked)[:50],
)
def test_malformed_requests_are_refused_in_short(asked: Any) -> None:
    with pytest.raises(RequestError) as caught:
        answer_check(asked, NODE_CLASS_MAPPINGS, NODES)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "value",
    [None, [], {}, True, "x" * 60_000, 10**5000, float("nan"), float("inf"), -1],
    ids=lambda one: type(one).__name__,
)
@pytest.mark.parametrize("name", sorted(name for name, node in NODE_CLASS_MAPPINGS.items() if "problems" in vars(node)))
def test_any_value_of_any_input_is_answered_in_short(name: str, value: Any) -> None:
    for key in inputs_of(name):
        answer = answer_check({"node": name, "values": {key: value}}, NODE_CLASS_MAPPINGS, NODES)
        assert all(len(problem["message"]) < 1000 for problem in answer["problems"])


def test_values_of_another_type_are_named_and_nothing_else() -> None:
    values = {"phrase": 3, "inside": "much", "outside": None, "start": True, "unit": "minutes"}
    problems = asked_of("Place", values)
    assert [problem["input"] for problem in problems] == [*values]
    assert all(name in problem["message"] for name, problem in zip(values, problems, strict=True))


def test_of_what_is_not_known_nothing_is_said() -> None:
    unknown = [
        None,
        source("SomebodysEncode", values={"text": "x"}),
        ours("a {red|blue} cat") | {"values": {}},
        source("ConditioningCombine", conditioning_1=ours("a dog"), conditioning_2=None),
        source("ConditioningCombine"),
    ]
    for conditioning in unknown:
        assert asked_of("Place", {"phrase": "unicorn", "area": "where owl"}, conditioning=conditioning) == []
    assert prompts_before(source_of(unknown[1]), lambda source: None) == UNKNOWN
    for mask in (
        None,
        source("LoadImage", "MASK", {"image": "../right.png"}),
        source("LoadImage", "MASK", {"image": 3}),
    ):
        assert asked_of("Place", {"phrase": "cat", "area": "left"}, conditioning=ours("a cat"), mask=mask) == []


def served(text: Any, kind: str = "CLIPTextEncode", **settings: Any) -> dict[str, Any]:
    """A node that a Weighted CLIP serves."""
    values = {"text": text} if text is not None else {}
    return source(kind, values=values) | {"served": {"values": {**defaults(""), **settings}, "texts": ["text"]}}


def test_the_words_of_a_box_that_is_served_are_known() -> None:
    assert asked_of("Place", {"phrase": "cat", "area": "left"}, conditioning=served("a (cat:1.2)")) == []
    (problem,) = asked_of("Place", {"phrase": "dog", "area": "left"}, conditioning=served("a (cat:1.2)"))
    assert "“dog” is not in the prompt" in problem["message"]
    request = {"node": "WeightedCLIPPlace", "values": {}, "links": {"conditioning": served("a [cat]", syntax="a1111")}}
    assert answer_check(request, NODE_CLASS_MAPPINGS, NODES)["words"] == [["a", "cat"]]


def test_of_what_is_not_known_of_a_box_that_is_served_nothing_is_said() -> None:
    for unknown in (served(None), served("a cat", "SomebodysEncode"), served("a cat", syntax="nonsense")):
        assert asked_of("Place", {"phrase": "dog", "area": "left"}, conditioning=unknown) == []
    for wrong in ([], {"values": {}}, {"values": [], "texts": []}, {"values": {}, "texts": [1]}):
        with pytest.raises(RequestError, match="served must be an object"):
            asked_of("Place", {"phrase": "dog"}, conditioning=served("a cat") | {"served": wrong})


def test_the_outputs_of_a_node_that_hands_on_two_prompts_are_told_apart() -> None:
    both = source("ControlNetApplyAdvanced", positive=ours("a red cat"), negative=ours("a dog"))
    for output, phrase, count in (("positive", "cat", 0), ("positive", "dog", 1), ("negative", "dog", 0)):
        problems = asked_of("Place", {"phrase": phrase}, conditioning={**both, "output": output})
        assert len(problems) == count


def test_a_picture_without_alpha_gives_an_empty_mask(folder: Any) -> None:
    mask = source("LoadImage", "MASK", {"image": "plain.png [input]"})
    (problem,) = asked_of("Place", {"phrase": "cat"}, conditioning=ours("a cat"), mask=mask)
    assert problem["input"] == "mask" and "mask is empty" in problem["message"]


def test_a_long_prompt_with_a_long_phrase_is_answered_in_time() -> None:
    text = "a red cat, " * 2500
    start = time.monotonic()
    for phrase in (text, "red cat, a red dog"):
        asked_of("Place", {"phrase": phrase, "area": "where " + text}, conditioning=ours(text))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_problems_of_inputs_are_translated(path: Path) -> None:
    table = json.loads(path.read_text(encoding="utf-8"))
    problems = [problem["message"] for case in PLACED_WRONG for problem in page_of(case)]
    for name, values, links, *_ in WRONG:
        if name != "ReadParameters":  # whose messages are about programs' own words
            problems += [problem["message"] for problem in asked_of(name, values, **links)]
    problems += [
        issue["message"] for name, text, values, _ in PROMPTS for issue in views_of(name, text, values)[0]["issues"]
    ]
    problems += [problem["message"] for problem in asked_of("Place", {"phrase": 3, "inside": "much", "unit": "?"})]
    assert [message for message in problems if not matches(table, message)] == []
