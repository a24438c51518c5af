"""Our nodes on CLIPs without a CLIP text tower: what text the fake host is given to encode, and what is said of it.

The host's own encoders are tested in tests/hosts/inprocess_beyond.py.
"""

import re
from types import SimpleNamespace

import pytest
import torch

from .fake_comfy import BASE, install, node

ENDING = 1


class Encoder:
    """The host's tokenizer of one encoder: a word is a token, and weights are read by the host's own simple rule."""

    tokens_start, tokenizer_adds_end_token, start_token, max_length = 0, True, None, 99999999

    def __init__(self, is_weighing: bool) -> None:
        self.is_weighing = is_weighing
        self.vocabulary: dict[str, int] = {}

    def tokenizer(self, text, return_offsets_mapping=False):
        found = [(match.group().strip(), *match.span()) for match in re.finditer(r"\s*\S+", text)]
        ids = [self.vocabulary.setdefault(word, len(self.vocabulary) + 2) for word, _, _ in found]
        return {"input_ids": [*ids, ENDING], "offset_mapping": [*((start, end) for _, start, end in found), (0, 0)]}

    def pairs(self, text):
        parts = re.split(r"((?<!\\)\([^()]*:[^()]*(?<!\\)\))", text) if self.is_weighing else [text]
        pairs = []
        for part in parts:
            body, _, weight = part[1:-1].rpartition(":") if self.is_weighing and part[:1] == "(" else (part, "", "1")
            pairs += [(token_id, float(weight)) for token_id in self.tokenizer(body)["input_ids"][:-1]]
        return [*pairs, (ENDING, 1.0)]


class TextClip:
    """A CLIP of such an encoder, which notes what it is given."""

    def __init__(self, is_weighing: bool) -> None:
        self.cond_stage_model = torch.nn.Module()
        self.cond_stage_model.toy = torch.nn.Linear(1, 1)
        self.tokenizer = SimpleNamespace(toy=Encoder(is_weighing))
        self.texts: list[str] = []

    def tokenize(self, text):
        self.texts.append(text)
        return {"toy": [self.tokenizer.toy.pairs(text)]}

    def encode_from_tokens_scheduled(self, tokens, add_dict=None):
        rows = torch.tensor([[[float(token_id), weight] for token_id, weight in tokens["toy"][0]]])
        return [[rows, {"pooled_output": None, **(add_dict or {})}]]


@pytest.fixture(autouse=True)
def host(monkeypatch) -> None:
    """The host's modules."""
    install(monkeypatch)


def run(clip, text, **choices):
    result = node("TextEncode").encode(clip, text, **BASE | choices)
    (view,) = result["ui"]["weighted_clip"]
    return clip.texts[-1], view, result["result"]


@pytest.mark.parametrize(
    ("syntax", "text", "given"),
    [
        ("comfy", "a (red:1.4) cat", "a (red:1.4) cat"),
        ("a1111", "a (red:1.4) [cat] # not this", f"(a :1.0)(red:1.4)( :1.0)(cat:{1 / 1.1!r})( :1.0)"),
        ("a1111", r"a <lora:x:1>red \(cat\)", r"a red \(cat\)"),
        ("compel", "a (red)1.5 cat++, dog", f"(a:1.0)( red:1.5)( cat:{1.1**2!r})(, dog:1.0)"),
        ("none", "a (red:1.4) cat", r"a \(red:1.4\) cat"),
    ],
)
def test_an_encoder_that_weighs_rows_is_given_the_weights_in_the_hosts_syntax(syntax, text, given) -> None:
    assert run(TextClip(True), text, syntax=syntax)[0] == given


@pytest.mark.parametrize("scheme", ["comfy", "unweighted"])
def test_an_encoder_that_reads_weights_as_text_is_given_the_words(scheme) -> None:
    given, view, _ = run(TextClip(False), "a (red:1.4) cat (x)", scheme=scheme)
    assert given == "a red cat x"
    issues = [(issue["code"], issue["start"], issue["end"]) for issue in view["issues"]]
    assert issues == [("weights-left-out", 3, 6)] * (scheme == "comfy")
    assert [(chip["text"], chip["note"]) for chip in view["chunks"][0]["chips"]] == [
        *(("a", ""), ("red", ""), ("cat", ""), ("x", "")),
    ]
    given = run(TextClip(False), "a (red)1.5 (old)2(cat)+, b's", scheme=scheme, syntax="compel")[0]
    assert given == "a red old cat, b's"
    assert run(TextClip(False), "a (red:1.4) cat", syntax="none")[0] == "a (red:1.4) cat"
    assert not run(TextClip(False), "a (red:1) cat")[1]["issues"]


def test_unweighted_is_without_weights_where_the_host_weighs() -> None:
    assert run(TextClip(True), r"a (red:1.4) cat \(x\)", scheme="unweighted")[0] == r"a red cat \(x\)"


def test_tokens_weights_and_what_the_host_does_are_shown() -> None:
    _, view, (_, report) = run(TextClip(True), "a (red fox:1.4) cat")
    (chunk,) = view["chunks"]
    assert [(chip["text"], chip["note"]) for chip in chunk["chips"]] == [
        *(("a", ""), ("red", "1.4"), ("fox", "1.4"), ("cat", "")),
    ]
    assert (chunk["num_tokens"], chunk["capacity"]) == (4, None)
    assert view["notes"] == ["encoded as by ComfyUI's own node"]
    assert report.startswith("prompt as encoded: “a (red fox:1.4) cat”\n4 tokens\n")
    assert "toy: comfy, 1 encoding -> 5 rows of 2" in report


def test_tokens_that_the_host_does_not_tell_are_left_out() -> None:
    clip = TextClip(True)
    clip.tokenizer.toy.tokenizer = None
    clip.tokenizer.toy.pairs = lambda text: [(7, 1.0)]
    assert run(clip, "a cat")[1]["num_tokens"] == 0


def test_what_takes_a_clip_tower_is_refused_by_name() -> None:
    for is_weighing, way in ((True, "ComfyUI weighs rows"), (False, "ComfyUI encodes without weights")):
        with pytest.raises(
            ValueError,
            match=rf"The scheme compel takes .*In CLIP Text Encode \(Weighted\) choose comfy, by which {way}",
        ):
            run(TextClip(is_weighing), "a (cat:2)", scheme="compel")
    assert run(TextClip(True), "a cat", scheme="compel")[0] == "a cat"
    with pytest.raises(ValueError, match="“padding drop” takes a CLIP text encoder"):
        run(TextClip(True), "a cat", padding="drop")
    with pytest.raises(ValueError, match=r"\.and and \.blend"):
        run(TextClip(True), '("a", "b").blend(1, 1)', syntax="compel")
