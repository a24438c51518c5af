"""Checks of Weigh Attention where text and image share an attention: Flux, Chroma, Qwen-Image and Z-Image, small.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import CLOSE, T5_SIZES, WIDTHS, compares, draw, main, make_clip, make_lora, refusal, run_ours, stock
from inprocess_attention import NEGATIVE, NODE, PLAIN, TEXT, Weights, is_close, logged, rel, weighed
from inprocess_families import (
    Toys,
    layouts,
    read_out,
    weight_one_is_stock,
    weights_equal_ones_written_out,
    weights_stay_with_their_entry,
)

LATENT = (14, 22)
"""As in inprocess_attention.py: 7 by 11 patches."""
CHANNELS = 16
WORDS = {"red": 1.7, "mat": 0.4, "oil": -0.6, "painting": -0.6, "snow": 0.0}
"""Words of `TEXT`; each is one piece in the vocabularies of T5 and Qwen."""
FAMILIES = ("Flux", "Chroma", "Qwen-Image", "Z-Image")
FILLED = ", and" * 32
"""Makes a text of Z-Image 65 to 96 tokens long, which it pads to 96, as it does the 77 patches of an image: the layers
that refine text alone and image alone then have the same shapes."""


def make_text_encoder(family: str) -> Any:
    """A small CLIP of a family with the host's own tokenizer."""
    import comfy.sd
    from comfy.text_encoders import qwen_vl

    if family == "Flux":
        return make_clip("Flux")
    module, model, tokenizer = {
        "Chroma": ("pixart_t5", "pixart_te", "PixArtTokenizer"),
        "Qwen-Image": ("qwen_image", "te", "QwenImageTokenizer"),
        "Z-Image": ("z_image", "te", "ZImageTokenizer"),
    }[family]
    theirs = importlib.import_module(f"comfy.text_encoders.{module}")  # not all of them in an older ComfyUI
    qwen = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    qwen["num_key_value_heads"] = 2
    sizes = {"t5xxl": T5_SIZES, "clip_t5xxl": T5_SIZES, "qwen25_7b": qwen, "qwen3_4b": qwen | {"num_hidden_layers": 3}}
    # its eyes, which text has no use for, have half a billion weights
    with patch.object(qwen_vl, "Qwen2VLVisionTransformer", lambda *_, **__: torch.nn.Identity()):
        clip = comfy.sd.CLIP(
            target=SimpleNamespace(params={}, clip=getattr(theirs, model)(), tokenizer=getattr(theirs, tokenizer)),
            model_options={f"{name}_model_config": config for name, config in sizes.items()} | {"dtype": torch.float32},
        )
    draw(clip.cond_stage_model)
    return clip


def make_model(family: str) -> Any:
    """A MODEL of a family with a few narrow layers."""
    from comfy import model_patcher, supported_models

    flux = {
        "axes_dim": [4, 6, 6],
        "num_heads": 2,
        "hidden_size": 32,
        "mlp_ratio": 2.0,
        "theta": 10000,
        "qkv_bias": True,
        "txt_ids_dims": [],
        "patch_size": 2,
        "depth": 2,
        "depth_single_blocks": 2,
        "context_in_dim": 64,
        "vec_in_dim": WIDTHS["l"],
    }
    chroma = {"in_dim": 64, "out_dim": 32, "hidden_dim": 48, "n_layers": 2, "in_channels": 64, "out_channels": 64}
    config_class, sizes = {
        "Flux": (supported_models.Flux, {**flux, "in_channels": 16, "out_channels": 16, "guidance_embed": True}),
        "Chroma": (supported_models.Chroma, {**flux, **chroma}),
        "Qwen-Image": (
            supported_models.QwenImage,
            {
                "num_layers": 2,
                "attention_head_dim": 16,
                "num_attention_heads": 2,
                "joint_attention_dim": 64,
                "axes_dims_rope": (4, 6, 6),
            },
        ),
        "Z-Image": (
            supported_models.ZImage,
            {
                "in_channels": 16,
                "dim": 256,  # no less, for the width of what the time step becomes
                "n_layers": 2,
                "n_refiner_layers": 2,
                "n_heads": 2,
                "n_kv_heads": 2,
                "axes_dims": [32, 48, 48],
                "axes_lens": [512, 64, 64],
                "qk_norm": True,
                "cap_feat_dim": 64,
                "z_image_modulation": True,
                "time_scale": 1000.0,
                "pad_tokens_multiple": 32,
            },
        ),
    }[family]
    config = config_class({**config_class.unet_config, **sizes, "dtype": torch.float32})
    cpu = torch.device("cpu")
    model = config.get_model({}, device=cpu)
    draw(model.diffusion_model)
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def sampled(
    model: Any,
    positive: Any,
    negative: Any,
    *,
    batch: int = 1,
    steps: int = 2,
    size: tuple[int, int] = LATENT,
) -> torch.Tensor:
    """Output of the node KSampler."""
    import nodes

    frames = () if model.model.latent_format.latent_dimensions == 2 else (1,)
    latent = {"samples": torch.zeros(batch, CHANNELS, *frames, *size)}
    return nodes.KSampler().sample(model, 1, steps, 2.0, "euler", "simple", positive, negative, latent)[0]["samples"]


@contextmanager
def written_out(model: Any, how: str, *texts: tuple[Any, Weights]) -> Iterator[None]:
    """All attention of a MODEL written out, in float64, with weights for the rows of known encodings.

    The text comes first. A model with refiners asks for text alone first, then for the image alone, then for both; of
    weights only 0 counts in the text alone.
    """
    from comfy.ldm.flux import math as flux_math
    from comfy.ldm.lumina import model as lumina_model
    from comfy.ldm.qwen_image import model as qwen_model

    network = model.model.diffusion_model
    forward = network.forward
    weights = torch.ones(1, 1)
    parts: list[str] = []
    refined = [f"{part} alone" for part in ("text", "image") for _ in getattr(network, "context_refiner", ())]

    def note(x: torch.Tensor, timestep: torch.Tensor, context: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        nonlocal weights
        parts[:] = refined
        weights = torch.ones(context.shape[:2], dtype=torch.float64)
        for index, one in enumerate(context):
            for conditioning, by_row in texts:
                if torch.equal(one, conditioning[0][0][0]):
                    for row, weight in by_row.items():
                        weights[index, row] = weight
        return forward(x, timestep, context, *rest, **named)

    def attend(q: Any, k: Any, v: Any, heads: int, mask: Any = None, skip_reshape: bool = False, **_: Any) -> Any:
        assert skip_reshape and mask is None
        part = parts.pop(0) if parts else "both"
        own = weights if part == "both" else torch.where(weights == 0, 0.0, 1.0).double()
        if part == "image alone" or (part == "text alone" and how == "value"):
            own = torch.ones_like(weights)[:, : k.shape[2]]
        assert part != "both" or k.shape[2] - own.shape[1] >= math.prod(LATENT) // 4
        return read_out(q, k, v, how, own)

    with (
        patch.object(flux_math, "optimized_attention", attend),
        patch.object(qwen_model, "optimized_attention_masked", attend),
        patch.object(lumina_model, "optimized_attention_masked", attend),
        patch.object(network, "forward", note),
    ):
        yield


def rows_by_hand(family: str, clip: Any, text: str = PLAIN) -> Weights:
    """Weight of each row of `TEXT`, from the pieces that the host's tokenizer names, in words of their own."""
    tokenizer = clip.tokenizer
    inner = getattr(tokenizer, "t5xxl", None) or getattr(tokenizer, "clip_t5xxl", None)
    inner = inner or getattr(tokenizer, "qwen25_7b", None) or tokenizer.qwen3_4b
    pairs = next(pairs for key, pairs in clip.tokenize(text).items() if key != "l")[0]
    pieces = [inner.inv_vocab[pair[0]].replace("▁", "").replace("Ġ", "") for pair in pairs]
    if family == "Qwen-Image":
        # after the second turn and its heading: <|im_start|> user \n
        start = [place for place, piece in enumerate(pieces) if piece == "<|im_start|>"][1] + 3
        pieces = pieces[start:]
    found = {row: WORDS[piece] for row, piece in enumerate(pieces) if piece in WORDS}
    assert len(found) == len(WORDS), (pieces, found)
    return found


TOYS = Toys(make_text_encoder, make_model, rows_by_hand, written_out, sampled)


@compares("Weigh Attention at weight 1, Flux, Chroma, Qwen-Image and Z-Image, small, with stock")
def check_joint_families_at_weight_one_are_stock() -> None:
    weight_one_is_stock(TOYS, FAMILIES)


@compares(
    "Weigh Attention on Flux, Chroma, Qwen-Image and Z-Image, small, KSampler, with a softmax written out, likewise",
    limit=CLOSE,
)
def check_weighed_joint_attention_equals_one_written_out() -> None:
    weights_equal_ones_written_out(TOYS, FAMILIES, ("value", "bias"))


@compares("The same on Z-Image with as many rows as patches, likewise", limit=CLOSE)
def check_refiners_of_equal_shapes_are_told_apart() -> None:
    clip, model = make_text_encoder("Z-Image"), make_model("Z-Image")
    plain, negative = stock(clip, PLAIN + FILLED), stock(clip, NEGATIVE)
    assert 64 < plain[0][0].shape[1] <= 96
    with written_out(model, "bias", (plain, rows_by_hand("Z-Image", clip))):
        reference = sampled(model, plain, negative)
    ours = sampled(model, weighed(clip, TEXT + FILLED), negative)
    is_close(ours, reference, sampled(model, plain, negative))


def check_reference_images_are_refused_where_they_stand_before_the_text() -> None:
    import node_helpers

    clip, model = make_text_encoder("Z-Image"), make_model("Z-Image")
    images = {"reference_latents": [torch.ones(1, 16, *LATENT)]}
    positive = node_helpers.conditioning_set_values(weighed(clip), images)
    assert "reference images" in refusal(lambda: sampled(model, positive, positive))


@compares("The same in masks, two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_joint_weights_stay_with_their_entry() -> None:
    weights_stay_with_their_entry(TOYS, FAMILIES, layouts(LATENT, left=12))


@compares("The same with LoRA hooks, likewise", limit=CLOSE)
def check_joint_weights_and_lora_hooks_act_together() -> None:
    import comfy.hooks

    layers = {
        "Flux": r"attn\.(qkv|proj)",
        "Chroma": r"attn\.(qkv|proj)",
        "Qwen-Image": r"attn\.to_[kv]",
        "Z-Image": "qkv",
    }
    for family, pattern in layers.items():
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        lora = make_lora(model.model, pattern)
        hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)

        def with_lora(conditioning: Any, hooks: Any = hooks) -> Any:
            return comfy.hooks.set_hooks_for_conditioning(conditioning, hooks)

        with written_out(model, "bias", (plain, rows_by_hand(family, clip))):
            reference = sampled(hooked, with_lora(plain), negative)
        without = sampled(hooked, with_lora(plain), negative)
        assert rel(without, sampled(model, plain, negative)) > 100 * CLOSE, family
        ours = sampled(hooked, with_lora(weighed(clip)), negative)
        is_close(ours, reference, without, family)


@compares("The same in compiled models, likewise", limit=CLOSE)
def check_compiled_joint_families_are_weighed_as_well() -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    for family in FAMILIES:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
        with written_out(model, "bias", (plain, rows_by_hand(family, clip))):
            reference = sampled(model, plain, negative)
        compiled = model.clone()
        set_torch_compile_wrapper(compiled, backend="eager")
        without = sampled(compiled, plain, negative)
        is_close(sampled(compiled, weighed(clip), negative), reference, without, family)


@compares("The same on Flux with EasyCache, likewise", limit=CLOSE)
def check_a_cache_that_answers_for_steps_is_let_be() -> None:
    from comfy_extras.nodes_easycache import EasyCacheNode

    clip, model = make_text_encoder("Flux"), make_model("Flux")
    (cached,) = EasyCacheNode.execute(model, 3.0, 0.1, 0.95, False).args
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    with written_out(model, "bias", (plain, rows_by_hand("Flux", clip))):
        reference = sampled(cached, plain, negative, steps=6)
        assert not torch.equal(sampled(model, plain, negative, steps=6), reference)  # it did answer
    ours = sampled(cached, weighed(clip), negative, steps=6)
    is_close(ours, reference, sampled(cached, plain, negative, steps=6))


def check_joint_families_say_what_acts_and_refuse_what_does_not() -> None:
    for family in FAMILIES:
        clip, model = make_text_encoder(family), make_model(family)
        negative = stock(clip, NEGATIVE)
        conditioning, report, _ = run_ours(NODE, clip=clip, text=TEXT)["result"]
        rows = rows_by_hand(family, clip)
        for word in ("red", "mat", "snow"):
            (row,) = [row for row, weight in rows.items() if weight == WORDS[word]]
            assert f"{word!r} {WORDS[word]:g}: row {row}" in report, report
        layers = 2 if family in ("Qwen-Image", "Z-Image") else 4
        assert logged(lambda m=model, c=conditioning, n=negative: sampled(m, c, n)) == [
            f"Weigh Attention: {len(rows)} rows in {layers} attention layers"
        ]
        if family in ("Flux", "Qwen-Image"):  # the others have no such patch
            moving = model.clone()
            moving.set_model_patch(lambda inputs: inputs, "post_input")
            message = refusal(lambda m=moving, c=conditioning, n=negative: sampled(m, c, n))
            assert "post_input" in message, message
        view = run_ours(NODE, clip=clip, text="a pain(ting:2) BREAK cat", syntax="a1111")["ui"]["weighted_clip"][0]
        assert [issue["code"] for issue in view["issues"]] == ["one-token"]
        assert [chip["text"] for chip in view["chunks"][0]["chips"]][-2:] == ["pain(ting", "cat"]
        if family != "Flux":  # its CLIP-L can be weighed by the other nodes
            message = refusal(lambda clip=clip: run_ours("WeightedCLIPMaskControl", clip=clip, text="a cat"))
            assert f"for weights in {family} the node Weigh Attention" in message


if __name__ == "__main__":
    main(globals())
