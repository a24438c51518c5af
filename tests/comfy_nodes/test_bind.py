"""The node Bind Phrases with some words hidden, as Cutoff, and with more passes than a row of masks holds."""

from __future__ import annotations

import sys

import pytest
import torch
from weighted_clip.hosts.comfy.clip import encode_texts
from weighted_clip.hosts.comfy.weighing import weigh_text
from weighted_clip.weighting.options import EncodeOptions
from weighted_clip.weighting.schemes import SCHEMES

from .fake_comfy import Transformer
from .test_masks_and_loras import FakeClip, native, node

DEFAULTS = {"rest": "full", "strength": 1.0, "syntax": "comfy", "scheme": "comfy", "padding": "attend"}


@pytest.mark.parametrize(
    ("inputs", "options", "told"),
    [
        (
            {"phrases": "red cat\nblue dog", "hide": "these words", "words": "red, blue"},
            {"bind": "red cat\nblue dog", "bind_hide": "these words", "bind_words": "red\nblue"},
            "clip_l: comfy, 2 phrases kept apart in 3 passes, 4 encodings",
        ),
        (
            {"phrases": "", "hide": "cutoff", "words": "red\nblue", "strength": 0.5, "rest": "alone"},
            {"bind_hide": "cutoff", "bind_words": "red\nblue", "bind_strength": 0.5, "bind_rest": "alone"},
            "clip_l: comfy, 2 phrases kept apart in 4 passes, 5 encodings",
        ),
    ],
)
def test_words_and_cutoff_are_the_native_encoders(
    inputs: dict[str, object], options: dict[str, object], told: str
) -> None:
    text = "a (red:1.3) cat, a blue dog"
    if inputs["hide"] == "these words":
        inputs = {**inputs, "phrases": "red cat\nblue dog"}
    ((hidden, _),), _, report = node("BindPhrases").encode(FakeClip(), text, **{**DEFAULTS, **inputs})["result"]
    torch.testing.assert_close(hidden, native(text, scheme="comfy", **options), rtol=0, atol=1e-5)
    assert told in report


def test_without_the_new_inputs_whole_phrases_are_hidden() -> None:
    """As a workflow has it that was saved before they were there."""
    text, phrases = "a red cat and a blue dog", "red cat\nblue dog"
    ((hidden, _),), _, _ = node("BindPhrases").encode(FakeClip(), text, phrases=phrases, **DEFAULTS)["result"]
    torch.testing.assert_close(hidden, native(text, scheme="comfy", bind=phrases), rtol=0, atol=1e-5)


def never(*_: object, **__: object) -> None:
    pytest.fail("the encoder is called")


def test_a_refused_text_is_refused_before_others_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transformer, "forward", never)
    with pytest.raises(ValueError, match="“red cat” is not in the prompt"):
        encode_texts(FakeClip(), ["a red cat", "a blue dog"], EncodeOptions(bind="red cat"))
    two = FakeClip(towers=("clip_l", "clip_g"))
    texts = {"clip_l": "a (cat:-1)", "clip_g": "a big (cat:-1)"}
    with pytest.raises(ValueError, match="same rows of clip_l and clip_g"):
        encode_texts(two, ["a", texts], EncodeOptions(scheme="negpip"))
    for how in ("negpip", "bias"):
        with pytest.raises(ValueError, match=r"does not take \.and and \.blend"):
            weigh_text(two, '("a cat", "a dog").and()', EncodeOptions(syntax="compel"), how)


@pytest.mark.parametrize("binding", [{}, {"phrases": "red cat\nblue dog", "rest": "alone"}], ids=["", "bound"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_call_follows_an_interrupt(scheme: str, binding: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is asked before each call, of every pass and every tower."""
    events: list[str] = []

    def interrupt() -> None:
        events.append("asked")
        if events.count("asked") - 1 == last:
            raise InterruptedError

    def forward(self: object, *_: object, embeds: torch.Tensor, **__: object) -> tuple[torch.Tensor, ...]:
        events.append("call")
        rows = torch.ones_like(embeds)
        return rows, rows, rows[:, 0], rows[:, 0]

    monkeypatch.setattr(Transformer, "forward", forward)
    monkeypatch.setattr("weighted_clip.hosts.comfy.clip.MAX_CHUNKS_CPU", 1)
    monkeypatch.setattr(sys.modules["comfy.model_management"], "throw_exception_if_processing_interrupted", interrupt)
    inputs = {**DEFAULTS, "phrases": "", **binding, "scheme": scheme, "padding": "clean"}
    clip = FakeClip(towers=("clip_l", "clip_g"))
    last = -1
    node("BindPhrases").encode(clip, "a (red:0.5) cat, a (blue:1.2) dog", **inputs)
    whole = list(events)
    assert whole == ["asked", "call"] * (len(whole) // 2) and len(whole) >= 4
    for last in range(len(whole) // 2):
        events.clear()
        with pytest.raises(InterruptedError):
            node("BindPhrases").encode(clip, "a (red:0.5) cat, a (blue:1.2) dog", **inputs)
        assert events == [*whole[: 2 * last], "asked"]


def test_the_picture_shows_every_pass() -> None:
    """In rows of four; of the passes beyond the sixteenth it says how many they are."""
    names = ["cat", "dog", "bird", "mat", "bowl", "house", "red", "blue", "green"]

    def height_of(count: int) -> int:
        text, phrases = ", ".join(names[:count]), "\n".join(names[:count])
        result = node("BindPhrases").encode(FakeClip(), text, phrases=phrases, **DEFAULTS)["result"]
        return result[1].shape[1]

    few, more = height_of(3), height_of(4)
    assert more > 1.7 * few
