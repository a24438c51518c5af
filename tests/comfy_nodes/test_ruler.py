"""The ruler reads prompts as the nodes do: what it makes of a node's inputs is what the node itself makes of them."""

from typing import Any

import pytest
import torch
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.nodes import similarity as clip_nodes
from weighted_clip.nodes.base.routes import ruler_nodes
from weighted_clip.web.inspection import inspect, request_of
from weighted_clip.weighting import pipeline
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.plan import Ask
from weighted_clip.weighting.reading import prompt_reader as reading
from weighted_clip.weighting.reading.features import text_features
from weighted_clip.weighting.schemes import SCHEMES
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT, ChunkContext

from .fake_comfy import FakeClip, inputs_of

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
TEXT = "a (red:1.4) cat, [dog] and a [fox:owl:0.5] by (the sea:0.5), " * 8
OTHERS = {
    **{"hide": "cat", "from_phrases": "the sea", "phrases": "the sea", "causal": False},
    **{
        "filler": "cat",
        "comma_backtrack": 3,
        "steps": 7,
        "words": "sea",
        "mean_normalization": False,
        "second_pass": True,
    },
}
"""Other values of inputs that are no menus."""


def choices() -> list[Any]:
    """Every node as it is placed, and with each other value of each of its inputs that count."""
    found: list[Any] = []
    for name, node in NODES.items():
        # several prompts: tests/comfy_nodes/test_typing.py; other nodes' boxes: tests/hosts/inprocess_weighted_clip.py
        if node.is_swept or not node.texts:
            continue
        inputs = inputs_of(name)
        changes: list[dict[str, Any]] = [{}]
        for key in node.defaults:
            kind = inputs[key][0]
            changes += [{key: value} for value in (kind[1:] if isinstance(kind, list) else [OTHERS[key]])]
        # smZNodes' parser full, which has no equal, is refused: tests/comfy_nodes/test_old_workflows.py
        found += [
            pytest.param(name, change, id=f"{name} {change}") for change in changes if change != {"parser": "full"}
        ]
    return found


def text_of(name: str) -> str:
    """A prompt that a node takes: in some, none that changes with the steps."""
    return TEXT.replace("[fox:owl:0.5]", "fox") if name == "WeightedCLIPSmzEncode" else TEXT


def given_to(name: str, change: dict[str, Any]) -> dict[str, Any]:
    """Inputs that the host passes to a node."""
    links = {
        "CLIP": FakeClip(towers=("clip_l", "clip_g") if "SDXL" in name else ("clip_l",)),
        "IMAGE": torch.zeros(1, 8, 8, 3),
    }
    given: dict[str, Any] = {}
    for key, (kind, options) in inputs_of(name).items():
        if options.get("weighted_clip_ruler") == "prompt":
            given[key] = text_of(name)
        elif "default" in options:
            given[key] = options["default"]
        elif isinstance(kind, list):
            given[key] = kind[0]
        elif key not in ("sigmas", "model") or name == "WeightedCLIPLoadPromptLoras":
            given[key] = links.get(kind.partition(",")[0])
    return {**given, **change}


@pytest.fixture
def read_with(monkeypatch: pytest.MonkeyPatch) -> list[EncodeOptions]:
    """The options of every prompt that is read."""
    seen: list[EncodeOptions] = []
    read = reading._read

    def noted(text: str, options: EncodeOptions, context: ChunkContext) -> reading.ReadPrompt:
        seen.append(options)
        return read(text, options, context)

    monkeypatch.setattr(reading, "_read", noted)
    monkeypatch.setattr(clip_nodes, "encode_images", lambda clip, images, crop: torch.ones(1, 4))
    monkeypatch.setattr(clip_nodes, "with_preview", lambda result, chart: result)
    monkeypatch.setattr(
        clip_nodes,
        "encode_texts",
        lambda clip, texts, syntax: [
            text_features(text, syntax, default_tokenizer(), CLIP_L_LAYOUT, lambda ids: torch.ones(len(ids), 4))
            for text in texts
        ],
    )
    return seen


@pytest.mark.parametrize(("name", "change"), choices())
def test_the_ruler_reads_a_prompt_as_the_node_does(
    name: str, change: dict[str, Any], read_with: list[EncodeOptions]
) -> None:
    node = NODE_CLASS_MAPPINGS[name]()
    views = getattr(node, node.FUNCTION)(**given_to(name, change))["ui"]["weighted_clip"]
    by_node = set(read_with)
    read_with.clear()
    request = request_of({"node": name, "text": text_of(name), "values": change}, NODES)
    shown = inspect(request)["views"]
    assert set(read_with) == by_node
    assert len(shown) == len(views)
    for ours, theirs in zip(shown, views, strict=True):
        # the node's own notes come with a run: of weights it leaves out, of encodings
        by_ruler, of_run = without_issues(ours), without_issues(theirs)
        assert by_ruler == {key: of_run[key] for key in by_ruler}


def without_issues(view: dict[str, Any]) -> dict[str, Any]:
    """The view without its problems and their chips."""
    chunks = [{**chunk, "chips": [{**chip, "problems": None} for chip in chunk["chips"]]} for chunk in view["chunks"]]
    return {**view, "chunks": chunks, "issues": None}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("text", [TEXT, "a cat", "a (cat:0.5)", "(a:0.5) (b:0.6) (c:1.3) (d:0.2) (e:2)"])
def test_the_ruler_counts_the_encodings_that_a_run_asks_for(
    text: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks: list[Ask] = []
    encode = pipeline._called
    monkeypatch.setattr(pipeline, "_called", lambda some, by: asks.extend(some) or encode(some, by))
    given = {**given_to("WeightedCLIPTextEncode", {"scheme": scheme}), "text": text}
    result = NODE_CLASS_MAPPINGS["WeightedCLIPTextEncode"]().encode(**given)
    (shown,) = inspect(
        request_of({"node": "WeightedCLIPTextEncode", "text": text, "values": {"scheme": scheme}}, NODES)
    )["views"]
    number = len(set(asks))
    assert shown["encodings"] == (f"{number} encodings" if number > len(shown["chunks"]) + 1 else "")
    assert shown["encodings"] in result["result"][1]  # the report


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_encodings_of_a_long_prompt_are_counted_up_to_a_bound(scheme: str) -> None:
    text = " ".join(f"(w{number}:{0.4 + number / 1000})" for number in range(200))
    (view,) = inspect({"text": text, "scheme": scheme})["views"]
    assert view["encodings"] in ("", "more than 100 encodings")
    assert (scheme not in ("masked_blend", "comfy++", "down_weight")) or view["encodings"]
    assert inspect({"text": text * 8, "scheme": scheme})["views"][0]["encodings"] == ""
    assert inspect({"text": text, "scheme": scheme, "filler": "several tokens"})["views"][0]["num_tokens"] > 200


def test_with_causality_off_the_ruler_does_not_say_that_a_phrase_is_unseen_anyway() -> None:
    values = {"hide": "cat", "hidden_from": "the phrases below", "from_phrases": "red"}
    for causal in (True, False):
        asked = {"node": "WeightedCLIPMaskControl", "text": "a red cat", "values": {**values, "causal": causal}}
        (view,) = inspect(request_of(asked, NODES))["views"]
        assert [issue["code"] for issue in view["issues"]] == ["already-unseen"] * causal


def test_every_prompt_box_and_every_input_that_counts_is_marked() -> None:
    marked = {
        name: {
            mark: [key for key, (_, options) in inputs_of(name).items() if options.get("weighted_clip_ruler") == mark]
            for mark in ("prompt", "counts")
        }
        for name in NODE_CLASS_MAPPINGS
        if name not in ("WeightedCLIPLoad", "WeightedCLIPLoadFull")
    }
    assert {name for name, marks in marked.items() if marks["prompt"]} == set(NODES) - {"WeightedCLIP"}
    boxes = [
        (name, key)
        for name in marked
        for key, (_, options) in inputs_of(name).items()
        if options.get("multiline") and "weighted_clip_ruler" not in options
    ]
    assert boxes == [
        ("WeightedCLIPSimilarity", "texts"),  # a text a line
        *(("WeightedCLIPTokensToImage", name) for name in ("swap", "numbers")),
        ("WeightedCLIPDalleSample", "text"),  # no tokens of CLIP
        ("WeightedCLIPReadParameters", "text"),  # generation data
    ]
    assert marked["WeightedCLIPSDXLEncode"]["prompt"] == ["text_g", "text_l"]
    assert marked["WeightedCLIPA1111Encode"]["counts"] == [
        *("emphasis", "comma_backtrack", "padding", "steps", "counter", "sigmas", "cleaning", "regions", "loras"),
        *("settings", "glides", "joins", "second_pass", "comments"),
    ]
    assert marked["WeightedCLIPRerank"]["counts"] == ["syntax"]
