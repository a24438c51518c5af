"""Mask Control, dropped padding and LoRAs from the prompt, on a fake host."""

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.text_model import TextEncoder
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.hosts.comfy.loras import LoadedLoras
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.reading import read_prompt

from ..door import encode_prompt
from .fake_comfy import BASE, CONFIG, FakeClip, install, node

TEXT = "a red cat and a dog"
NOTHING_HIDDEN = {"hide": "", "hidden_from": "everything", "from_phrases": "", "causal": True, "padding": "attend"}


def native(text: str, **options) -> torch.Tensor:
    encoder, tokenize = TextEncoder(seeded_text_model(CONFIG)), default_tokenizer()
    return encode_prompt(read_prompt(text, EncodeOptions(**options), tokenize), encoder, tokenize).hidden


def control(text: str = TEXT, clip=None, **inputs) -> dict:
    return node("MaskControl").encode(clip or FakeClip(), text, **NOTHING_HIDDEN | inputs)


def test_with_nothing_hidden_it_is_the_plain_encoding() -> None:
    plain = node("TextEncode").encode(FakeClip(), TEXT, **BASE)["result"][0]
    assert torch.equal(control()["result"][0][0][0], plain[0][0])


@pytest.mark.parametrize(
    "inputs",
    [
        {"hide": "red"},
        {"hide": "red", "hidden_from": "padding rows only"},
        {"hide": "red", "hidden_from": "the phrases below", "from_phrases": "dog"},
        {"hide": "red", "padding": "mask"},
        {"hide": "red", "padding": "drop"},
        {"causal": False},
        {"hide": "dog", "causal": False},
    ],
)
@pytest.mark.parametrize("is_native", [False, True])
def test_every_choice_is_the_native_encoders(inputs: dict, is_native: bool) -> None:
    clip = node("Load").load("text_encoders/tiny.safetensors", 1, "fp32", "auto")[0] if is_native else None
    ((hidden, _),), picture, _ = control(clip=clip, **inputs)["result"]
    options = {("is_causal" if name == "causal" else name): value for name, value in inputs.items()}
    torch.testing.assert_close(hidden, native(TEXT, **options), rtol=0, atol=1e-5)
    assert picture.ndim == 4
    assert picture.shape[-1] == 3


def test_the_picture_shows_the_mask() -> None:
    pictures = [control(**inputs)["result"][1] for inputs in ({}, {"hide": "red"}, {"causal": False})]
    assert not torch.equal(pictures[0], pictures[1])
    assert not torch.equal(pictures[0], pictures[2])


def test_a_phrase_that_is_not_there_is_a_problem() -> None:
    result = control(hide="bird")
    assert "“bird” is not in the prompt" in result["ui"]["text"][0]
    assert "“bird” is not in the prompt" in result["result"][2]


@pytest.mark.parametrize("towers", [("clip_l",), ("clip_l", "clip_g")])
def test_dropped_padding_shortens_every_tower_alike(towers: tuple[str, ...]) -> None:
    clip = FakeClip(towers=towers)
    ((hidden, _),) = node("TextEncode").encode(clip, TEXT, **BASE | {"padding": "drop"})["result"][0]
    assert hidden.shape == (1, 8, 64 * len(towers))
    ((full, _),) = node("TextEncode").encode(clip, TEXT, **BASE)["result"][0]
    assert torch.equal(hidden, full[:, :8])


FILES = {"loras": {name: name for name in ("ink.safetensors", "sub/Paint.safetensors", "a/twice.pt", "b/twice.pt")}}


def load(text: str) -> dict:
    return node("LoadPromptLoras").load([], [], text)


@pytest.mark.parametrize(
    ("text", "model", "clip", "bare"),
    [
        ("a cat", [], [], "a cat"),
        ("a <lora:ink:0.8> cat", [("ink.safetensors", 0.8)], [("ink.safetensors", 0.8)], "a  cat"),
        ("<lora:ink.safetensors:1>", [("ink.safetensors", 1.0)], [("ink.safetensors", 1.0)], ""),
        ("<lora:sub/Paint:1:2>", [("sub/Paint.safetensors", 2.0)], [("sub/Paint.safetensors", 1.0)], ""),
        ("<lora:paint:1>", [("sub/Paint.safetensors", 1.0)], [("sub/Paint.safetensors", 1.0)], ""),
        (
            "<lora:ink:1><lora:Paint:0.5>",
            [("ink.safetensors", 1.0), ("sub/Paint.safetensors", 0.5)],
            [("ink.safetensors", 1.0), ("sub/Paint.safetensors", 0.5)],
            "",
        ),
    ],
)
def test_loras_are_found_and_loaded_in_order(monkeypatch, text: str, model: list, clip: list, bare: str) -> None:
    install(monkeypatch, FILES)
    result = load(text)
    assert result["result"][:3] == (model, clip, bare)
    assert result["ui"]["text"] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<lora:gone:1> a", "There is no LoRA “gone”"),
        ("<lora:../ink:1> a", "There is no LoRA “../ink”"),
        ("<lora:twice:1> a", "Several LoRAs are called “twice”: a/twice.pt, b/twice.pt. The first is taken."),
        ("<lora:ink:much> a", "is no number: 1 is taken"),
        ("<hypernet:ink:1> a", "Only LoRAs can be loaded here"),
    ],
)
def test_what_cannot_be_loaded_is_a_problem_and_no_crash(monkeypatch, text: str, message: str) -> None:
    install(monkeypatch, FILES)
    result = load(text)
    assert message in result["ui"]["text"][0]
    assert message in result["result"][3]
    assert result["result"][2] == " a"


def test_tags_are_not_encoded() -> None:
    for encode in (
        lambda text: node("A1111Encode").encode(FakeClip(), text, "Original", 20, "attend"),
        lambda text: node("TextEncode").encode(FakeClip(), text, **BASE | {"syntax": "a1111"}),
    ):
        tagged = encode("a <lora:ink:0.8>(red:1.2) cat")
        assert torch.equal(tagged["result"][0][0][0], encode("a (red:1.2) cat")["result"][0][0][0])
        assert "“ink” at 0.8" in tagged["ui"]["text"][0]


def test_a_lora_in_a_comment_is_not_loaded(monkeypatch) -> None:
    text = "a cat # <lora:ink:1>\nin a bowl"
    monkeypatch.setattr("weighted_clip.nodes.tools.load_loras", lambda _, clip, loras: LoadedLoras(loras, clip, [], []))
    load = node("LoadPromptLoras").load
    model, _, bare, report = load(None, None, text)["result"]
    assert (model, bare) == ([], "a cat \nin a bowl")
    assert "is a comment" in report
    model, _, bare, _ = load(None, None, text, cleaning="none")["result"]
    assert ([lora.name for lora in model], bare) == (["ink"], "a cat # \nin a bowl")


@pytest.mark.parametrize("is_native", [False, True])
def test_bound_phrases_are_the_native_encoders(is_native: bool) -> None:
    clip = node("Load").load("text_encoders/tiny.safetensors", 1, "fp32", "auto")[0] if is_native else FakeClip()
    text, phrases = "a (red:0.5) cat and a blue dog", "red cat\nblue dog"
    inputs = {"rest": "alone", "strength": 0.5, "syntax": "comfy", "scheme": "masked_blend", "padding": "attend"}
    ((hidden, _),), picture, report = node("BindPhrases").encode(clip, text, phrases=phrases, **inputs)["result"]
    expected = native(text, bind=phrases, bind_rest="alone", bind_strength=0.5, scheme="masked_blend")
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-5)
    assert picture.shape[0] == 1
    assert "6 encodings" in report  # of 8, as the second phrase and the rest do not see what fades
