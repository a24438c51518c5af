"""Our nodes on CLIPs without a CLIP text tower: what text the fake host is given to encode, and what is said of it.

The host's own encoders are tested in tests/hosts/inprocess_beyond.py.
"""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from weighted_clip import NODE_CLASS_MAPPINGS
from weighted_clip.hosts.comfy.attention.steps import MARKER
from weighted_clip.hosts.comfy.clip.host_texts import STAND_IN
from weighted_clip.hosts.comfy.families.attention_layers import in_cross_attention
from weighted_clip.hosts.comfy.families.families import BY_TOKENIZER, ModelFamily
from weighted_clip.hosts.comfy.families.kinds import class_of
from weighted_clip.hosts.comfy.families.queries import told_by_layer
from weighted_clip.hosts.comfy.weighted_clip import live_tokenizers
from weighted_clip.nodes.base.routes import ruler_nodes
from weighted_clip.web.inspection import RequestError, inspect, reader_of, request_of

from .fake_comfy import encode
from .test_text_rows import toy_tokenizer

ENDING = 1


class Encoder:
    """The host's tokenizer of one encoder: a word is a token, and weights are read by the host's own simple rule."""

    tokens_start, tokenizer_adds_end_token, start_token, max_length = 0, True, None, 99999999
    end_token = pad_token = ENDING
    embedding_directory = None

    tokenizer = staticmethod(toy_tokenizer)

    def __init__(self, is_weighing: bool) -> None:
        self.disable_weights = not is_weighing

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        clip = sys.modules["comfy.sd1_clip"]
        reads_none = options.get("disable_weights", self.disable_weights)
        parts = [(text, 1.0)] if reads_none else clip.token_weights(clip.escape_important(text), 1.0)
        pairs = []
        for part, weight in parts:
            ids = self.tokenizer(clip.unescape_important(part))["input_ids"][:-1]
            pairs += [(token_id, weight) for token_id in ids]
        return [[*pairs, (ENDING, 1.0)]]


class Tokenizer(SimpleNamespace):
    """The host's tokenizer of a CLIP with one encoder."""

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        return {"toy": self.toy.tokenize_with_weights(text, return_word_ids, **options)}


class TextClip:
    """A CLIP of such an encoder, which notes what it is given."""

    def __init__(self, is_weighing: bool) -> None:
        self.cond_stage_model = torch.nn.Module()
        self.cond_stage_model.toy = torch.nn.Linear(1, 1)
        self.tokenizer = Tokenizer(toy=Encoder(is_weighing))
        self.texts: list[str] = []

    def tokenize(self, text, **options):
        if STAND_IN not in text:  # which shows where the prompt stands
            self.texts.append(text)
        return self.tokenizer.tokenize_with_weights(text, **options)

    def encode_from_tokens_scheduled(self, tokens, add_dict=None):
        rows = torch.tensor([[[float(token_id), weight] for token_id, weight in tokens["toy"][0]]])
        return [[rows, {"pooled_output": None, **(add_dict or {})}]]


def run(clip, text, **choices):
    result = encode("TextEncode", clip, text, **choices)
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


def test_tokens_that_the_host_does_not_tell_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clip = TextClip(True)
    clip.tokenizer.toy.tokenizer = None
    monkeypatch.setattr(Encoder, "tokenize_with_weights", lambda *given, **options: [[(7, 1.0)]])
    assert run(clip, "a cat")[1]["num_tokens"] == 0


def test_what_takes_a_clip_tower_is_refused_by_name() -> None:
    for is_weighing, way in ((True, "ComfyUI weighs rows"), (False, "ComfyUI encodes without weights")):
        with pytest.raises(
            ValueError,
            match=rf"The scheme compel takes .*In Weighted Prompt choose comfy, by which {way}",
        ):
            run(TextClip(is_weighing), "a (cat:2)", scheme="compel")
    assert run(TextClip(True), "a cat", scheme="compel")[0] == "a cat"
    with pytest.raises(ValueError, match="“padding drop” takes a CLIP text encoder"):
        run(TextClip(True), "a cat", padding="drop")
    with pytest.raises(ValueError, match=r"\.and and \.blend"):
        run(TextClip(True), '("a", "b").blend(1, 1)', syntax="compel")


# ---- Attention Weights by NegPip where the model multiplies each row by a weight, as Anima's does

SIGNED = "a (red:1.5) cat (dog:-2)"
WEIGHTS = [1.0, 1.5, 1.0, -2.0, 1.0]
"""Weights of its words and of the end."""


class RowWeights(TextClip):
    """Gives the rows and the weight of each; its model pads them to 512."""

    def encode_from_tokens_scheduled(self, tokens, add_dict=None):
        ((rows, values),) = super().encode_from_tokens_scheduled(tokens, add_dict)
        return [[rows, {**values, "t5xxl_ids": rows[0, :, 0], "t5xxl_weights": rows[0, :, 1]}]]


@pytest.fixture
def clip(monkeypatch) -> RowWeights:
    """A host's CLIP of that kind, in the table of encoders."""
    clip = RowWeights(True)
    name = class_of(clip.tokenizer)
    monkeypatch.setitem(
        BY_TOKENIZER,
        name,
        ModelFamily("Toy", in_cross_attention, told_by_layer, (), {name: "toy"}, has_row_weights=True),
    )
    return clip


def weighed(clip, text, strength=1.0):
    return encode("WeighAttention", clip, text, how="negpip", strength=strength)["result"]


@pytest.mark.parametrize("strength", [1.0, 0.5, 2.0])
def test_rows_are_multiplied_by_absolute_weights_and_values_turned_round(clip, strength) -> None:
    ((rows, values),), report, _ = weighed(clip, SIGNED, strength)
    taken = [1 + strength * (weight - 1) for weight in WEIGHTS]
    assert values["t5xxl_weights"].tolist() == [abs(weight) for weight in taken]
    bias, factor = values["model_conds"][MARKER].cond.view(2, 512)
    assert not bias.any()
    assert factor.tolist() == [*(-1.0 if weight < 0 else 1.0 for weight in taken), *[1.0] * 507]
    assert torch.equal(rows, clip.encode_from_tokens_scheduled(clip.tokenize(SIGNED))[0][0])
    assert "'red' 1.5: row 1" in report
    assert "'dog' -2: row 3" in report


def test_with_weights_above_0_it_is_the_hosts_own_conditioning(clip) -> None:
    ((_, values),), _, _ = weighed(clip, "a (red:1.5) cat")
    assert "model_conds" not in values
    assert values["t5xxl_weights"].tolist() == WEIGHTS[:3] + WEIGHTS[4:]


def test_other_encoders_are_refused_by_name(clip, monkeypatch) -> None:
    name = class_of(clip.tokenizer)
    monkeypatch.setitem(BY_TOKENIZER, name, ModelFamily("Toy", in_cross_attention, told_by_layer, (), {name: "toy"}))
    with pytest.raises(ValueError, match="and on Anima, as CLIP NegPip of ComfyUI-ppm does, not on Toy"):
        weighed(clip, SIGNED)


# ---- the ruler while a prompt is typed

NODES = ruler_nodes(NODE_CLASS_MAPPINGS)
Z_IMAGE = "comfy.text_encoders.z_image.ZImageTokenizer"
WEIGH, ENCODE = "WeightedCLIPWeighAttention", "WeightedCLIPTextEncode"
num_made = 0


class ZImageTokenizer:
    """Words after a template; brackets are text."""

    __module__ = "comfy.text_encoders.z_image"
    llama_template = "<user> {} <end>"

    def __init__(self) -> None:
        global num_made
        num_made += 1
        self.qwen3_4b: Any = Encoder(is_weighing=False)

    def tokenize_with_weights(self, text, return_word_ids=False, **_):
        return {"qwen3_4b": self.qwen3_4b.tokenize_with_weights(self.llama_template.format(text))}


@pytest.fixture
def z_image(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A host with that tokenizer, and one that cannot be made without a checkpoint."""
    global num_made
    num_made = 0
    live_tokenizers._tokenizer_alone.cache_clear()
    module, other = ModuleType("comfy.text_encoders.z_image"), ModuleType("comfy.text_encoders.pixart_t5")
    module.ZImageTokenizer = ZImageTokenizer
    other.PixArtTokenizer = lambda: {}["spiece_model"]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, other.__name__, other)
    monkeypatch.setattr(
        live_tokenizers, "OF_LOADERS", {"CLIPLoader toy": Z_IMAGE, "CLIPLoader none": "comfy.no.Tokenizer"}
    )
    yield
    live_tokenizers._tokenizer_alone.cache_clear()


def shown(node: str, text: str, encoder: object = Z_IMAGE, **values: Any) -> list[dict[str, Any]]:
    asked = {"node": node, "text": text, "values": values, "encoder": encoder}
    return inspect(request_of(asked, NODES), [], reader_of(asked, NODES))["views"]


def chips(view: dict[str, Any]) -> list[tuple[str, str]]:
    return [(chip["text"], chip["note"]) for chunk in view["chunks"] for chip in chunk["chips"]]


@pytest.mark.usefixtures("z_image")
@pytest.mark.parametrize("encoder", [Z_IMAGE, "CLIPLoader toy"])
def test_the_encoders_own_tokens_are_shown_with_their_weights(encoder: str) -> None:
    (view,) = shown(WEIGH, "a (red:1.4) cat", encoder)
    assert chips(view) == [("a", ""), ("red", "1.4"), ("cat", "")]
    assert (view["encoder"], view["notes"]) == (Z_IMAGE, ["ComfyUI's own node reads weights as text here"])
    assert view["chunks"][0]["capacity"] is None


@pytest.mark.usefixtures("z_image")
def test_where_weights_are_left_out_it_is_said() -> None:
    (view,) = shown(ENCODE, "a (red:1.4) cat")
    assert chips(view) == [("a", ""), ("red", ""), ("cat", "")]
    assert [issue["code"] for issue in view["issues"]] == ["weights-left-out"]
    with pytest.raises(RequestError, match="“padding drop” takes a CLIP text encoder"):
        shown(ENCODE, "a cat", padding="drop")


@pytest.mark.usefixtures("z_image")
def test_texts_of_a_timed_prompt_are_read_so_too() -> None:
    views = shown("WeightedCLIPA1111Encode", "a [cat:dog:0.5]", steps=20)
    assert [chips(view) for view in views] == [[("a", ""), ("cat", "")], [("a", ""), ("dog", "")]]
    assert {view["encoder"] for view in views} == {Z_IMAGE}


@pytest.mark.usefixtures("z_image")
@pytest.mark.parametrize(
    ("node", "encoder"),
    [
        *((WEIGH, name) for name in ("", "CLIPLoader none", "CLIPLoader flux2", "os.system", "comfy.text_encoders")),
        (WEIGH, "comfy.text_encoders.pixart_t5.PixArtTokenizer"),  # cannot be made
        ("WeightedCLIPMaskControl", Z_IMAGE),  # takes CLIP only
    ],
)
def test_otherwise_tokens_are_clips(node: str, encoder: str) -> None:
    (view,) = shown(node, "a cat", encoder)
    assert "encoder" not in view
    assert view["chunks"][0]["capacity"] == 75
    assert num_made == 0


@pytest.mark.usefixtures("z_image")
def test_a_tokenizer_is_made_once_and_when_it_is_asked_for() -> None:
    for text in ("a", "a cat", "a dog"):
        shown(WEIGH, text)
        shown(ENCODE, text)
    assert num_made == 1


@pytest.mark.usefixtures("z_image")
def test_beside_a_clip_tower_a_loaders_type_says_nothing_of_the_other_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithTower(ZImageTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.clip_l = None

    WithTower.__module__, WithTower.__qualname__ = Z_IMAGE.rpartition(".")[::2]
    monkeypatch.setattr(sys.modules["comfy.text_encoders.z_image"], "ZImageTokenizer", WithTower)
    assert "encoder" in shown(WEIGH, "a cat", "CLIPLoader toy")[0]
    assert "encoder" not in shown(ENCODE, "a cat", "CLIPLoader toy")[0]
    assert "encoder" in shown(ENCODE, "a cat", Z_IMAGE)[0]  # reported by a run


@pytest.mark.usefixtures("z_image")
def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(RequestError, match=r"encoder must be a string, got \[1\]"):
        shown(WEIGH, "a cat", [1])
