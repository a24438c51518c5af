"""Checks that need ComfyUI's objects in hand: every family equals stock, and the host stays as it was.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import logging
from typing import Any

import torch
from inprocess import OURS, TEXTS, compares, difference, identity, main, make_clip, ours, refusal, run_ours, stock


@compares("SD1, SD2 and SDXL, small, clip skip 1 to 3, with stock")
def check_every_clip_family_equals_stock() -> None:
    for family in ("SD1", "SD2", "SDXL"):
        clip = make_clip(family)
        for layer in (None, -1, -2, -3):
            clip.clip_layer(layer)
            for text in TEXTS:
                difference(ours(clip, text), stock(clip, text))


@compares("SDXL, small, weights in fp16 and bf16, with stock")
def check_half_precision_weights_equal_stock() -> None:
    for dtype in (torch.float16, torch.bfloat16):
        clip = make_clip("SDXL", dtype)
        for text in TEXTS:
            difference(ours(clip, text), stock(clip, text))


def check_every_scheme_and_padding_runs_on_every_family() -> None:
    import nodes

    required = nodes.NODE_CLASS_MAPPINGS[OURS].INPUT_TYPES()["required"]
    for family in ("SD1", "SD2", "SDXL"):
        clip = make_clip(family)
        rows = stock(clip, TEXTS[1])[0][0].shape
        for scheme in required["scheme"][0]:
            for padding in required["padding"][0]:
                ((hidden, values),) = ours(clip, TEXTS[1], scheme=scheme, padding=padding, pooled="weighted")
                is_shorter = padding == "drop" or scheme == "lerp_last"
                assert scheme == "repeat" or (hidden.shape == rows) is not is_shorter, (family, scheme, padding)
                assert hidden.dtype == torch.float32 and hidden.isfinite().all(), (family, scheme, padding)
                assert values["pooled_output"].isfinite().all(), (family, scheme, padding)


@compares("Stock on a small CLIP that our nodes used, with before")
def check_the_clip_that_came_in_is_untouched() -> None:
    clip = make_clip("SDXL")
    weight = "clip_l.transformer.text_model.encoder.layers.0.mlp.fc1.weight"
    assert clip.add_patches({weight: ("diff", (torch.ones(256, 128),))}) == [weight]
    reference = [stock(clip, text) for text in TEXTS]
    state = {name: tensor.clone() for name, tensor in clip.cond_stage_model.state_dict().items()}
    patcher = clip.patcher
    parts = ("patches", "object_patches", "hook_patches", "model_options", "wrappers", "callbacks")
    held = {name: identity(getattr(patcher, name)) for name in parts}
    for text in TEXTS:
        for scheme in ("comfy", "masked_blend"):
            ours(clip, text, scheme=scheme, padding="mask")
    assert clip.patcher is patcher
    assert {name: identity(getattr(patcher, name)) for name in parts} == held
    assert clip.tokenizer_options == {}
    assert clip.layer_idx is None and not clip.use_clip_schedule and clip.apply_hooks_to_conds is None
    assert all(torch.equal(tensor, state[name]) for name, tensor in clip.cond_stage_model.state_dict().items())
    for text, other in zip(TEXTS, reference, strict=True):
        difference(stock(clip, text), other)


@compares("Stock and ours after an error in encoding, with before")
def check_an_exception_while_encoding_leaves_the_host_clean() -> None:
    clip = make_clip("SD1")
    reference = stock(clip, TEXTS[1])
    ours_before = ours(clip, TEXTS[1], scheme="masked_blend")
    tower = clip.cond_stage_model.clip_l
    block = tower.transformer.text_model.encoder.layers[2]

    def fail(*_: Any) -> None:
        raise RuntimeError("out of something")

    handle = block.register_forward_pre_hook(fail)
    try:
        ours(clip, TEXTS[1], scheme="masked_blend")
    except RuntimeError as error:
        assert str(error) == "out of something"
    else:
        raise AssertionError("the error was swallowed")
    finally:
        handle.remove()
    difference(stock(clip, TEXTS[1]), reference)
    difference(ours(clip, TEXTS[1], scheme="masked_blend"), ours_before)


@compares("Ours on a small CLIP that another pack patched, with unpatched")
def check_another_packs_patch_stays_on_its_own_clip() -> None:
    plain = make_clip("SD1")
    reference = stock(plain, TEXTS[1])
    patched = plain.clone()
    marked = torch.full((1, 77, 128), 3.0), torch.full((1, 128), 4.0)
    patched.patcher.add_object_patch("clip_l.encode_token_weights", lambda tokens: marked)
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    try:
        difference(ours(patched, TEXTS[1]), reference)
    finally:
        logging.getLogger().removeHandler(handler)
    assert any("clip_l.encode_token_weights" in record.getMessage() for record in records)
    assert torch.equal(stock(patched, TEXTS[1])[0][0], marked[0])
    difference(stock(plain, TEXTS[1]), reference)


def check_what_takes_a_clip_text_tower_is_refused_by_name_without_one() -> None:
    clip = make_clip("SD3 with T5 alone")
    message = refusal(lambda: ours(clip, "a (red:2) cat", scheme="a1111"))
    assert "The scheme a1111 takes a CLIP text encoder" in message and "choose comfy" in message, message
    message = refusal(lambda: run_ours("WeightedCLIPMaskControl", clip=clip, text="a cat"))
    assert "only: t5xxl" in message and "take CLIP Text Encode (Weighted)" in message, message
    message = refusal(lambda: ours(None, "a cat"))
    assert "Load CLIP" in message, message


if __name__ == "__main__":
    main(globals())
