"""Checks that every CLIP family equals stock, SDXL, its refiner and CLIPs with T5 too, and the host stays as it was.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from inprocess import (
    OURS,
    TEXTS,
    WIDTHS,
    compares,
    difference,
    identity,
    issues_in,
    main,
    make_clip,
    ours,
    refusal,
    run_ours,
    stock,
)
from safetensors.torch import save_file


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


def check_what_takes_a_clip_text_tower_is_refused_by_name_without_one() -> None:
    clip = make_clip("SD3 with T5 alone")
    message = refusal(lambda: ours(clip, "a (red:2) cat", scheme="a1111"))
    assert "The scheme a1111 takes a CLIP text encoder" in message and "choose comfy" in message, message
    message = refusal(lambda: run_ours("WeightedCLIPMaskControl", clip=clip, text="a cat"))
    assert "only: t5xxl" in message and "take Weighted Prompt" in message, message
    message = refusal(lambda: ours(None, "a cat"))
    assert "Load CLIP" in message, message


SIZES = {"width": 1216, "height": 832, "crop_w": 8, "crop_h": 16, "target_width": 1152, "target_height": 896}
PLAIN, LONG = "a cat on a mat", "a photo of a cat on a mat, oil painting, " * 18
SHORT_WEIGHTED, LONG_WEIGHTED = TEXTS[1:]
PAIRS = (
    (SHORT_WEIGHTED, SHORT_WEIGHTED),
    (PLAIN, "a (dog:0.7) in the rain"),
    (LONG_WEIGHTED, LONG),
    (PLAIN, LONG),
    (LONG, PLAIN),
    (SHORT_WEIGHTED, LONG_WEIGHTED),
    (LONG_WEIGHTED, SHORT_WEIGHTED),
    ("", ""),
    ("", SHORT_WEIGHTED),
    (LONG_WEIGHTED, ""),
)
"""Texts for CLIP-G and CLIP-L: the same, different, and of 1 or 3 chunks each."""
LAYERS = (None, -1, -2, -3)


def stock_sdxl(clip: Any, text_g: str, text_l: str) -> Any:
    """The conditioning of the stock node for SDXL."""
    from comfy_extras.nodes_clip_sdxl import CLIPTextEncodeSDXL

    return CLIPTextEncodeSDXL.execute(clip=clip, text_g=text_g, text_l=text_l, **SIZES)[0]


def our_sdxl(clip: Any, text_g: str, text_l: str, **inputs: Any) -> Any:
    """That of ours."""
    inputs = {**SIZES, **inputs}
    return run_ours("WeightedCLIPSDXLEncode", clip=clip, text_g=text_g, text_l=text_l, **inputs)["result"][0]


@compares("SDXL node, small, two texts, clip skip 1 to 3, with stock")
def check_sdxl_with_two_texts_equals_stock() -> None:
    clip = make_clip("SDXL")
    for layer in LAYERS:
        clip.clip_layer(layer)
        for texts in PAIRS:
            ((hidden, values),) = expected = stock_sdxl(clip, *texts)
            assert hidden.shape == (1, 231 if max(map(len, texts)) > 400 else 77, WIDTHS["l"] + WIDTHS["g"])
            assert values.keys() == {"pooled_output", *SIZES}
            difference(our_sdxl(clip, *texts), expected)


@compares("SDXL node, small, with a LoRA on both encoders, with stock")
def check_sdxl_with_a_lora_equals_stock() -> None:
    clip = make_clip("SDXL")
    plain = [stock_sdxl(clip, *texts) for texts in PAIRS]
    patched = clip.clone()
    for tower, width in (("l", WIDTHS["l"]), ("g", WIDTHS["g"])):
        weight = f"clip_{tower}.transformer.text_model.encoder.layers.1.mlp.fc1.weight"
        change = torch.randn(2 * width, width, generator=torch.Generator().manual_seed(1)) / width**0.5
        assert patched.add_patches({weight: ("diff", (change,))}, 0.5) == [weight]
    for texts, before in zip(PAIRS, plain, strict=True):
        expected = stock_sdxl(patched, *texts)
        difference(our_sdxl(patched, *texts), expected)
        assert not torch.equal(expected[0][0], before[0][0])
        assert not torch.equal(expected[0][1]["pooled_output"], before[0][1]["pooled_output"])


def check_each_text_reaches_its_own_tower_only() -> None:
    clip = make_clip("SDXL")
    border = WIDTHS["l"]
    for scheme in ("comfy", "a1111", "masked_blend"):
        choices = {"scheme": scheme, "syntax": "a1111"}
        ((both, pooled),) = our_sdxl(clip, PLAIN, PLAIN, **choices)
        ((only_l, pooled_l),) = our_sdxl(clip, PLAIN, "a (dog:0.7) in the rain", **choices)
        ((only_g, pooled_g),) = our_sdxl(clip, "a (dog:0.7) in the rain", PLAIN, **choices)
        assert torch.equal(both[..., border:], only_l[..., border:])
        assert torch.equal(both[..., :border], only_g[..., :border])
        assert not torch.isclose(both[..., :border], only_l[..., :border]).all()
        assert not torch.isclose(both[..., border:], only_g[..., border:]).all()
        assert torch.equal(pooled["pooled_output"], pooled_l["pooled_output"])
        assert not torch.isclose(pooled["pooled_output"], pooled_g["pooled_output"]).all()


@compares("A1111/Forge Prompt on SDXL, small, with Text Encode's a1111")
def check_the_a1111_node_on_sdxl_gives_what_its_choices_give() -> None:
    clip = make_clip("SDXL")
    for text in (*TEXTS, "a [cat] BREAK a (dog:1.4) (red:0.3), oil painting"):
        named = run_ours("WeightedCLIPA1111Encode", clip=clip, text=text)["result"][0]
        difference(named, ours(clip, text, syntax="a1111", scheme="a1111"))
        if text:
            ((unweighted, _),) = ours(clip, text, syntax="a1111", scheme="unweighted")
            for part in (slice(0, WIDTHS["l"]), slice(WIDTHS["l"], None)):
                assert not torch.isclose(named[0][0][..., part], unweighted[..., part]).all()


@compares("SDXL's refiner, small, clip skip 1 to 3, with stock")
def check_the_sdxl_node_on_the_refiner_equals_stock() -> None:
    from comfy_extras.nodes_clip_sdxl import CLIPTextEncodeSDXLRefiner

    clip = make_clip("SDXL refiner")
    for layer in LAYERS:
        clip.clip_layer(layer)
        for text in TEXTS:
            expected = CLIPTextEncodeSDXLRefiner.execute(clip=clip, ascore=2.5, width=1216, height=832, text=text)[0]
            difference(our_sdxl(clip, text, "", aesthetic_score=2.5), expected)
            difference(ours(clip, text), stock(clip, text))


def check_a_clip_without_clip_g_is_refused_by_the_sdxl_node() -> None:
    for family, towers in (("SD1", "clip_l"), ("SD2", "clip_h"), ("Flux", "clip_l")):
        message = refusal(lambda family=family: our_sdxl(make_clip(family), PLAIN, PLAIN))
        assert f"holds {towers}, no clip_g" in message, message


@compares("Flux and SD3, small, with T5 and without, with stock")
def check_clips_with_t5_equal_stock() -> None:
    for family in ("Flux", "SD3", "SD3 without T5"):
        clip = make_clip(family)
        for layer in (None, -2):
            clip.clip_layer(layer)
            for text in TEXTS:
                expected = stock(clip, text)
                assert expected[0][0].isfinite().all()
                difference(ours(clip, text), expected)


def check_our_weights_reach_the_clip_towers_beside_t5_and_t5_keeps_the_text_as_it_stands() -> None:
    for family in ("Flux", "SD3"):
        clip = make_clip(family)
        ((before, _),) = stock(clip, SHORT_WEIGHTED)
        result = run_ours(
            "WeightedCLIPTextEncode", clip=clip, text=SHORT_WEIGHTED, scheme="a1111_no_norm", pooled="weighted"
        )
        ((after, _),), report = result["result"]
        t5_rows = 77 if family == "SD3" else 0  # after the CLIP towers' rows; all rows in Flux
        assert torch.equal(after[:, t5_rows:], before[:, t5_rows:])
        assert family == "Flux" or not torch.isclose(after[:, :t5_rows], before[:, :t5_rows]).all()
        assert "encoded by ComfyUI itself, without our weights: t5xxl" in report, report
        faded = run_ours("WeightedCLIPMaskedBlend", clip=clip, text="a (cat:0.2) on a mat", pooled="weighted")
        plain = run_ours("WeightedCLIPMaskedBlend", clip=clip, text="a cat on a mat", pooled="weighted")
        pooled = [one["result"][0][0][1]["pooled_output"] for one in (faded, plain)]
        assert not torch.isclose(*pooled).all(), family


@compares("SDXL, small, embedding for both encoders, with stock")
def check_an_embedding_for_both_towers_of_sdxl_equals_stock() -> None:
    with tempfile.TemporaryDirectory() as folder:
        generator = torch.Generator().manual_seed(2)
        file = {f"clip_{tower}": torch.randn(3, WIDTHS[tower], generator=generator) for tower in "lg"}
        save_file(file, Path(folder, "both.safetensors"))
        clip = make_clip("SDXL", embeddings=Path(folder))
        texts = (
            "a embedding:both cat",
            "(embedding:both:1.3), oil painting",
            "cat " * 70 + "(a:1.1) embedding:both dog",
        )
        for text in texts:
            expected = stock(clip, text)
            difference(ours(clip, text), expected)
            difference(our_sdxl(clip, text, PLAIN), stock_sdxl(clip, text, PLAIN))
            without = stock(clip, text.replace("embedding:both", ""))
            for part in (slice(0, WIDTHS["l"]), slice(WIDTHS["l"], None)):
                assert not torch.isclose(expected[0][0][:, :77, part], without[0][0][:, :77, part]).all()


@compares("SDXL, small, embedding of a wrong width, with stock")
def check_an_embedding_of_another_width_is_named_and_left_out() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # clip_l fits, clip_g has the width of some other model
        save_file({"clip_l": torch.ones(1, WIDTHS["l"]), "clip_g": torch.ones(2, 33)}, Path(folder, "odd.safetensors"))
        clip = make_clip("SDXL", embeddings=Path(folder))
        result = run_ours("WeightedCLIPTextEncode", clip=clip, text="a embedding:odd cat")
        messages = [issue["message"] for issue in issues_in(result)]
        assert any(f"33 wide, clip_g takes {WIDTHS['g']}" in message for message in messages), messages
        assert not any("clip_l takes" in message for message in messages), messages
        (measured,), (expected,) = result["result"][0], stock(clip, "a embedding:odd cat")
    # stock leaves out such a vector when encoding, and pads at the end
    difference(measured[0][..., :128], expected[0][..., :128])
    difference(measured[0][..., 128:], expected[0][..., 128:])


if __name__ == "__main__":
    main(globals())
