"""The node Bind Phrases with some words hidden, as Cutoff, and with more passes than a row of masks holds."""

from __future__ import annotations

import pytest
import torch

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


def test_the_picture_shows_every_pass() -> None:
    """In rows of four; of the passes beyond the sixteenth it says how many they are."""
    names = ["cat", "dog", "bird", "mat", "bowl", "house", "red", "blue", "green"]

    def height_of(count: int) -> int:
        text, phrases = ", ".join(names[:count]), "\n".join(names[:count])
        result = node("BindPhrases").encode(FakeClip(), text, phrases=phrases, **DEFAULTS)["result"]
        return result[1].shape[1]

    few, more = height_of(3), height_of(4)
    assert more > 1.7 * few
