"""Checks of Bind Phrases: what one phrase knows of another in ComfyUI's own text encoders.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, ours, run_ours

BIND = "WeightedCLIPBindPhrases"
TEXTS = ("a photo of a red cat and a blue dog on a mat", "a photo of a green bird and a blue dog on a mat")
PHRASES = ("red cat\nblue dog", "green bird\nblue dog")
DOG = [9, 10]
"""Rows of `blue dog` in both of `TEXTS`."""
FAMILIES = ("SD1", "SD2", "SDXL")
SCHEMES = ("comfy", "unweighted", "a1111_no_norm", "masked_blend", "compel", "down_weight", "perp")
"""Schemes that mix no row of a phrase with one of another."""


def bound(clip: Any, text: str, phrases: str, **choices: Any) -> Any:
    """Result of the node."""
    return run_ours(BIND, clip=clip, text=text, phrases=phrases, **choices)["result"][0]


@compares("Bind Phrases, small: a phrase with other words in the other one")
def check_a_phrase_knows_nothing_of_another() -> None:
    for family in FAMILIES:
        clip = make_clip(family)
        for scheme in SCHEMES:
            for rest in ("full", "alone"):
                one, other = (
                    bound(clip, text, phrases, scheme=scheme, rest=rest)[0][0][:, DOG]
                    for text, phrases in zip(TEXTS, PHRASES, strict=True)
                )
                difference(one, other)
                assert torch.equal(one, other), (family, scheme, rest)
        plain = [ours(clip, text)[0][0][:, DOG] for text in TEXTS]
        assert float((plain[0] - plain[1]).abs().max()) > 0.01


@compares("Bind Phrases, these words, small: likewise with a colour")
def check_these_words_of_a_phrase_are_all_that_is_hidden() -> None:
    """In the first phrase the dog sees the cat, whatever its colour."""
    for family in FAMILIES:
        clip = make_clip(family)
        red, green = (
            bound(
                clip,
                TEXTS[0].replace("red", color),
                PHRASES[0].replace("red", color),
                scheme="unweighted",
                hide="these words",
                words=f"{color}, blue",
            )[0][0][:, DOG]
            for color in ("red", "green")
        )
        difference(red, green)
        whole = bound(clip, TEXTS[0], PHRASES[0], scheme="unweighted")[0][0][:, DOG]
        assert float((red - whole).abs().max()) > 0.01


@compares("Bind Phrases at strength 0, or without phrases: Text Encode")
def check_strength_0_and_no_phrases_are_the_plain_node() -> None:
    for family in FAMILIES:
        clip = make_clip(family)
        for scheme in ("comfy", "a1111", "masked_blend"):
            plain = ours(clip, TEXTS[0], scheme=scheme)
            for choices in (
                {"phrases": PHRASES[0], "strength": 0.0},
                {"phrases": ""},
                {"phrases": "", "hide": "cutoff", "words": "red", "strength": 0.0},
            ):
                difference(bound(clip, TEXTS[0], scheme=scheme, **choices), plain)


@compares("Bind Phrases, small: rows, with Mask Control's passes", limit=CLOSE)
def check_strength_1_takes_rows_from_the_passes_as_they_are() -> None:
    """The rows of a phrase are those of Mask Control with the other phrase hidden; all others are the plain ones."""
    for family in FAMILIES:
        clip = make_clip(family)
        plain = ours(clip, TEXTS[0], scheme="unweighted")
        ((hidden, values),) = bound(clip, TEXTS[0], PHRASES[0], scheme="unweighted")
        expected = plain[0][0].clone()
        for phrase, rows in zip(PHRASES[0].split("\n"), ([5, 6], DOG), strict=True):
            (other,) = set(PHRASES[0].split("\n")) - {phrase}
            masked = run_ours("WeightedCLIPMaskControl", clip=clip, text=TEXTS[0], hide=other)["result"][0]
            expected[:, rows] = masked[0][0][:, rows]
        difference([[hidden, values]], [[expected, plain[0][1]]])


@compares("Bind Phrases as Cutoff, small: rows, with texts with _", limit=CLOSE)
def check_cutoff_takes_rows_from_texts_with_underscores() -> None:
    text, words = "a cute girl, pink hair, red shoes", "pink, red"
    for family in FAMILIES:
        clip = make_clip(family)
        plain, shoes, hair = (
            ours(clip, one, scheme="unweighted")
            for one in (text, "a cute girl, _ hair, red shoes", "a cute girl, pink hair, _ shoes")
        )
        ((hidden, values),) = bound(clip, text, "", scheme="unweighted", hide="cutoff", words=words, strength=0.5)
        expected = plain[0][0].clone()
        expected[:, [5, 6]] = 0.5 * (expected + hair[0][0])[:, [5, 6]]
        expected[:, [8, 9]] = 0.5 * (expected + shoes[0][0])[:, [8, 9]]
        difference([[hidden, values]], [[expected, plain[0][1]]])


def check_all_passes_go_through_the_encoder_at_once() -> None:
    clip = make_clip("SD1")
    calls: list[int] = []
    model = clip.cond_stage_model.clip_l.transformer
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(len(kwargs.get("embeds", args[0] if args else None))),
        with_kwargs=True,
    )
    try:
        bound(clip, TEXTS[0], PHRASES[0], scheme="unweighted", rest="alone")
    finally:
        handle.remove()
    assert calls == [4], calls


if __name__ == "__main__":
    main(globals())
