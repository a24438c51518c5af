"""Checks of Hide Words and Color Bleed on ComfyUI's CLIP: against the stock node, and our native encoder.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from inprocess import (
    CLOSE,
    compares,
    difference,
    issues_in,
    main,
    make_clip,
    make_lora,
    ours,
    run_ours,
    stock,
    with_lora,
)
from inprocess_native import checkpoint, load

NODE = "WeightedCLIPMaskControl"
FAMILIES = ("SD1", "SDXL")
SHORT = "a (red:1.3) cat and a blue dog on a mat"
LONG = "a photo of a (red:1.3) cat, a blue dog on a mat, " * 9
HIDING: dict[str, dict[str, Any]] = {
    "everything": {"hide": "red\nblue dog", "hidden_from": "everything"},
    "the phrases below": {"hide": "red", "hidden_from": "the phrases below", "from_phrases": "dog\nmat"},
    "padding rows only": {"hide": "cat\nmat", "hidden_from": "padding rows only"},
    "everything, padding too": {"hide": "red", "hidden_from": "everything", "padding": "mask"},
}
UNCHANGED = {"everything": 2, "the phrases below": 7, "padding rows only": 12, "everything, padding too": 2}
"""First row of `SHORT`, BOS being row 0, that can differ from the plain encoding: the first of those that may not see
something, or read it from one of them. Its EOS is row 11."""


def control(clip: Any, text: str, **inputs: Any) -> Any:
    """The conditioning of Hide Words."""
    result = run_ours(NODE, clip=clip, text=text, **inputs)
    assert "no-such-phrase" not in {issue["code"] for issue in issues_in(result)}
    picture = result["result"][1]
    assert picture.dim() == 4 and picture.std() > 0.01
    return result["result"][0]


def clips_and_native() -> Iterator[tuple[str, int, Any, Any]]:
    """Families, clip skip, the host's CLIP, and the native encoder with the same weights: plain, and with a LoRA."""
    for family in FAMILIES:
        for clip_skip in (1, 2):
            if family == "SD1" or clip_skip == 2:  # SDXL's 1 is its 2, for us as for the host
                clip = make_clip(family)
                clip.clip_layer(-clip_skip)
                with checkpoint(family, clip) as file:
                    yield family, clip_skip, clip, load(file, clip_skip)
        clip = make_clip(family)
        lora = make_lora(clip.cond_stage_model, r"layers\.\d+\.(self_attn\.\w+|mlp\.fc[12])\.weight")
        with checkpoint(family, baked(clip, lora, 0.05)) as file:
            yield f"{family}, LoRA", 1, with_lora(clip, lora, 0.05), load(file)


def baked(clip: Any, lora: dict[str, torch.Tensor], strength: float) -> Any:
    """A CLIP like another, with a LoRA in its weights for good."""
    other = make_clip("SDXL" if hasattr(clip.cond_stage_model, "clip_g") else "SD1")
    weights = other.cond_stage_model.state_dict()
    for key, up in lora.items():
        if key.endswith(".lora_up.weight"):
            name = key.removesuffix(".lora_up.weight")
            change = strength * up @ lora[f"{name}.lora_down.weight"]  # alpha is the rank
            weights[name.removeprefix("text_encoders.") + ".weight"] += change
    return other


@compares("Hide Words with nothing hidden, small, with stock")
def check_mask_control_that_hides_nothing_equals_stock() -> None:
    for family in FAMILIES:
        clip = make_clip(family)
        for layer in (None, -2):
            clip.clip_layer(layer)
            for text in ("", SHORT, LONG):
                expected = stock(clip, text)
                for hidden_from in ("everything", "the phrases below", "padding rows only"):
                    difference(control(clip, text, hide="  \n", hidden_from=hidden_from), expected)


@compares("Hide Words, hidden phrases, small, with the native encoder", limit=CLOSE)
def check_hidden_phrases_equal_the_native_encoder() -> None:
    for name, clip_skip, clip, native in clips_and_native():
        for text in (SHORT, LONG):
            plain = stock(clip, text)
            for case, inputs in HIDING.items():
                measured = control(clip, text, **inputs)
                found = difference(measured, control(native, text, **inputs))
                assert found <= CLOSE, (name, clip_skip, case, found)
                assert not torch.isclose(measured[0][0], plain[0][0]).all(), (name, case)


@compares("Hide Words, rows before the hidden phrase, with stock")
def check_rows_before_a_hidden_phrase_keep_their_bits() -> None:
    for family in FAMILIES:
        clip = make_clip(family)
        # weights move rows too
        text = SHORT.replace("(red:1.3)", "red")
        ((plain, _),) = stock(clip, text)
        assert clip.tokenize(text)["l"][0][11][0] == 49407
        for case, inputs in HIDING.items():
            ((measured, _),) = control(clip, text, **inputs)
            first = UNCHANGED[case]
            difference(measured[:, :first], plain[:, :first])
            assert not torch.isclose(measured[:, first], plain[:, first]).all(), (family, case)


@compares("Causality off, small, with the native encoder", limit=CLOSE)
def check_without_causality_the_host_equals_the_native_encoder() -> None:
    for name, clip_skip, clip, native in clips_and_native():
        for text in (SHORT, LONG):
            plain = stock(clip, text)
            for inputs in ({}, *HIDING.values(), {"padding": "mask"}):
                measured = control(clip, text, causal=False, **inputs)
                found = difference(measured, control(native, text, causal=False, **inputs))
                assert found <= CLOSE, (name, clip_skip, inputs, found)
                # the first row cannot change while it sees itself alone
                assert not torch.isclose(measured[0][0][:, 0], plain[0][0][:, 0]).all(), (name, inputs)


def check_mask_control_follows_clip_skip_and_lora() -> None:
    for family in FAMILIES:
        clip = make_clip(family)
        skipped = clip.clone()
        skipped.clip_layer(-3)
        lora = make_lora(clip.cond_stage_model, r"layers\.1\.mlp\.fc1\.weight")
        for inputs in ({"causal": False}, *HIDING.values()):
            plain = control(clip, SHORT, **inputs)[0][0]
            for other in (skipped, with_lora(clip, lora, 0.5)):
                assert not torch.isclose(control(other, SHORT, **inputs)[0][0], plain).all(), (family, inputs)


BIND = "WeightedCLIPBindPhrases"
TEXTS = ("a photo of a red cat and a blue dog on a mat", "a photo of a green bird and a blue dog on a mat")
PHRASES = ("red cat\nblue dog", "green bird\nblue dog")
DOG = [9, 10]
"""Rows of `blue dog` in both of `TEXTS`."""
WITH_SD2 = ("SD1", "SD2", "SDXL")
SCHEMES = ("comfy", "unweighted", "a1111_no_norm", "masked_blend", "compel", "down_weight", "perp")
"""Schemes that mix no row of a phrase with one of another."""


def bound(clip: Any, text: str, phrases: str, **choices: Any) -> Any:
    """Result of the node."""
    return run_ours(BIND, clip=clip, text=text, phrases=phrases, **choices)["result"][0]


@compares("Color Bleed, small: a phrase with other words in the other one")
def check_a_phrase_knows_nothing_of_another() -> None:
    for family in WITH_SD2:
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


@compares("Color Bleed, these words, small: likewise with a colour")
def check_these_words_of_a_phrase_are_all_that_is_hidden() -> None:
    """In the first phrase the dog sees the cat, whatever its colour."""
    for family in WITH_SD2:
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


@compares("Color Bleed at strength 0, or without phrases: Text Encode")
def check_strength_0_and_no_phrases_are_the_plain_node() -> None:
    for family in WITH_SD2:
        clip = make_clip(family)
        for scheme in ("comfy", "a1111", "masked_blend"):
            plain = ours(clip, TEXTS[0], scheme=scheme)
            for choices in (
                {"phrases": PHRASES[0], "strength": 0.0},
                {"phrases": ""},
                {"phrases": "", "hide": "cutoff", "words": "red", "strength": 0.0},
            ):
                difference(bound(clip, TEXTS[0], scheme=scheme, **choices), plain)


@compares("Color Bleed, small: rows, with Hide Words' passes", limit=CLOSE)
def check_strength_1_takes_rows_from_the_passes_as_they_are() -> None:
    """The rows of a phrase are those of Hide Words with the other phrase hidden; all others are the plain ones."""
    for family in WITH_SD2:
        clip = make_clip(family)
        plain = ours(clip, TEXTS[0], scheme="unweighted")
        ((hidden, values),) = bound(clip, TEXTS[0], PHRASES[0], scheme="unweighted")
        expected = plain[0][0].clone()
        for phrase, rows in zip(PHRASES[0].split("\n"), ([5, 6], DOG), strict=True):
            (other,) = set(PHRASES[0].split("\n")) - {phrase}
            masked = run_ours("WeightedCLIPMaskControl", clip=clip, text=TEXTS[0], hide=other)["result"][0]
            expected[:, rows] = masked[0][0][:, rows]
        difference([[hidden, values]], [[expected, plain[0][1]]])


@compares("Color Bleed as Cutoff, small: rows, with texts with _", limit=CLOSE)
def check_cutoff_takes_rows_from_texts_with_underscores() -> None:
    text, words = "a cute girl, pink hair, red shoes", "pink, red"
    for family in WITH_SD2:
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
