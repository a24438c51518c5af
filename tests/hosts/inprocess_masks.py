"""Checks of Mask Control on ComfyUI's CLIP: against the stock node, and our native encoder on the same weights.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, issues_in, main, make_clip, make_lora, run_ours, stock, with_lora
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
    """The conditioning of Mask Control."""
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


@compares("Mask Control with nothing hidden, small, with stock")
def check_mask_control_that_hides_nothing_equals_stock() -> None:
    for family in FAMILIES:
        clip = make_clip(family)
        for layer in (None, -2):
            clip.clip_layer(layer)
            for text in ("", SHORT, LONG):
                expected = stock(clip, text)
                for hidden_from in ("everything", "the phrases below", "padding rows only"):
                    difference(control(clip, text, hide="  \n", hidden_from=hidden_from), expected)


@compares("Mask Control, hidden phrases, small, with the native encoder", limit=CLOSE)
def check_hidden_phrases_equal_the_native_encoder() -> None:
    for name, clip_skip, clip, native in clips_and_native():
        for text in (SHORT, LONG):
            plain = stock(clip, text)
            for case, inputs in HIDING.items():
                measured = control(clip, text, **inputs)
                found = difference(measured, control(native, text, **inputs))
                assert found <= CLOSE, (name, clip_skip, case, found)
                assert not torch.isclose(measured[0][0], plain[0][0]).all(), (name, case)


@compares("Mask Control, rows before the hidden phrase, with stock")
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


if __name__ == "__main__":
    main(globals())
