"""Checks of the scheme ``repeat``: the U-Net then draws what it draws with the logarithms of the weights as a bias.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from inprocess import (
    CLOSE,
    apart,
    compares,
    difference,
    draw,
    issues_in,
    main,
    make_clip,
    note,
    ours,
    run_ours,
    stock,
)
from inprocess_padding import SDXL_OURS, predicted, sampled
from inprocess_sampling import make_model
from make_checkpoint import VAE

UP, DOWN = "a (red:1.5) cat on a (mat:3)", "a (red:0.25) cat on a (mat:0.5), (oil:2) painting"
LONG = "a photo of a (red:1.5) cat on a (mat:0.5), oil painting, " * 14
PLAIN = "a red cat on a mat"


def weights_of(clip: Any, text: str, **options: Any) -> torch.Tensor:
    """The weight of every row, as the host's own tokenizer reads it."""
    return torch.tensor([weight for chunk in clip.tokenize(text, **options)["l"] for _, weight in chunk])


def biased(model: Any, positive: torch.Tensor, negative: torch.Tensor | None = None) -> Any:
    """A clone of a MODEL whose cross attention is written out, with ``ln w`` added to the logits of every row."""

    def replace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        heads = options["n_heads"]
        biases = []
        for index in options["cond_or_uncond"]:
            weights = (positive, negative)[index]
            bias = torch.zeros(k.shape[1]) if weights is None else weights.log()
            biases.append(bias.repeat(k.shape[1] // len(bias)))
        queries, keys, values = (tensor.unflatten(-1, (heads, -1)).transpose(1, 2) for tensor in (q, k, v))
        logits = queries @ keys.transpose(-1, -2) / math.sqrt(queries.shape[-1])  # [batch, heads, pixels, rows]
        share = torch.softmax(logits + torch.stack(biases)[:, None, None, :], dim=-1)
        return (share @ values).transpose(1, 2).flatten(2)

    patched = model.clone()
    for name, count in (("input", 12), ("middle", 1), ("output", 12)):
        for number in range(count):
            patched.set_model_attn2_replace(replace, name, number)
    return patched


def refused(what: Any, *named: str) -> None:
    """Assert that a call is refused, in words that name what it is about."""
    try:
        what()
    except ValueError as error:
        assert all(name in str(error) for name in named), error
    else:
        raise AssertionError("not refused")


@compares("Scheme repeat, a call of a U-Net, with ln w as a bias", limit=CLOSE)
def check_repeated_rows_equal_a_bias_in_one_call_of_the_unet() -> None:
    clip, model = make_clip("SD1"), make_model()
    for text, rows in ((UP, 159), (DOWN, 307), (LONG, None), ("a (cat:2)", 78), ("a (cat:0) (dog:0.5)", 151)):
        plain, repeated = ours(clip, text, scheme="unweighted"), ours(clip, text, scheme="repeat")
        assert rows is None or repeated[0][0].shape[1] == rows, (text, repeated[0][0].shape)
        expected = predicted(biased(model, weights_of(clip, text)), plain)
        found = note(apart(predicted(model, repeated), expected) / float(expected.abs().max()))
        assert found <= CLOSE, (text, found)
        unweighted = predicted(model, plain)
        assert float((unweighted - expected).abs().max()) > 1e-3 * float(expected.abs().max()), text


@compares("Scheme repeat, KSampler with a small U-Net, with ln w as a bias, relative to the largest", limit=CLOSE)
def check_repeated_rows_equal_a_bias_through_the_sampler() -> None:
    clip, model = make_clip("SD1"), make_model()
    for text, negative, passes in ((UP, "", 8), (DOWN, "bad (hands:1.5)", 8), ("a (cat:2)", "a (dog:2)", 4)):
        texts = (text, negative)
        weights = [weights_of(clip, one) for one in texts]
        expected, _ = sampled(biased(model, *weights), *(ours(clip, one, scheme="unweighted") for one in texts))
        measured, counted = sampled(model, *(ours(clip, one, scheme="repeat") for one in texts))
        assert counted == passes, (texts, counted)
        scale = float(expected.abs().max())
        found = difference(measured / scale, expected / scale)
        assert found <= CLOSE, (texts, found)


def picture_of(latent: torch.Tensor) -> torch.Tensor:
    """A latent as the nodes VAE Decode and Save Image show it, in 8 bits, with a narrow autoencoder."""
    from comfy.ldm.models.autoencoder import AutoencoderKL

    decoder = AutoencoderKL(ddconfig=VAE | {"ch": 32, "ch_mult": [1, 1, 1, 1]}, embed_dim=4)
    draw(decoder)
    with torch.inference_mode():
        pixels = decoder.decode(latent)
    return (255 * ((pixels + 1) / 2).clamp(0, 1)).to(torch.uint8)


@compares(
    "Scheme repeat, KSampler and a small autoencoder, 8-bit values off from those with ln w as a bias, at most",
    limit=1.0,
)
def check_pictures_with_repeated_rows_are_those_of_a_bias() -> None:
    clip, model = make_clip("SD1"), make_model()
    for text in (UP, DOWN, "a (red:2.7) cat"):
        positive = ours(clip, text, scheme="unweighted")
        expected, _ = sampled(biased(model, weights_of(clip, text)), positive, stock(clip, ""))
        measured, _ = sampled(model, ours(clip, text, scheme="repeat"), stock(clip, ""))
        plain, _ = sampled(model, positive, stock(clip, ""))
        shown, other, unweighted = (picture_of(latent).int() for latent in (measured, expected, plain))
        off = (shown - other).abs()
        assert off.max() <= 1, (text, int(off.max()))
        assert (off > 0).float().mean() <= 0.01, text
        assert ((unweighted - other).abs() > 1).float().mean() > 0.1, text  # else the weights cannot be seen
        difference(shown, other)


@compares("Scheme repeat, small: weights 1 and 0, padding drop and clean, with unweighted")
def check_rows_of_weight_one_and_zero_are_the_unweighted_ones_bit_for_bit() -> None:
    for family in ("SD1", "SD2", "SDXL", "SDXL refiner"):
        clip = make_clip(family)
        for text in ("", PLAIN, f"{PLAIN}, " * 20):
            difference(ours(clip, text, scheme="repeat"), ours(clip, text, scheme="unweighted"))
            difference(ours(clip, text, scheme="repeat"), stock(clip, text))
        ((full, values),) = ours(clip, "a (red:0) cat", scheme="unweighted")
        ((without, others),) = ours(clip, "a (red:0) cat", scheme="repeat")
        kept = [row for row in range(77) if row != 2]
        difference([[without, others]], [[full[:, kept], values]])
        for padding, end in (("drop", 5), ("clean", 77)):
            rows = sorted([*range(end), *range(end), 2])
            ((full, values),) = ours(clip, "a (red:1.5) cat", scheme="unweighted", padding=padding)
            ((many, others),) = ours(clip, "a (red:1.5) cat", scheme="repeat", padding=padding)
            difference([[many, others]], [[full[:, rows], values]])


def check_repeat_refuses_by_name_what_it_cannot_do() -> None:
    encode = partial(ours, scheme="repeat")
    sdxl = make_clip("SDXL")
    pair = partial(run_ours, SDXL_OURS, clip=sdxl, scheme="repeat")
    refused(lambda: pair(text_g="a (red:2) cat", text_l="a cat"), "clip_l", "clip_g")
    assert pair(text_g="a red cat", text_l="a dog")["result"][0][0][0].shape[1] == 77
    assert pair(text_g="a (red:2) cat", text_l="a (big:2) dog")["result"][0][0][0].shape[1] == 78

    sd3 = make_clip("SD3")
    assert apart(encode(sd3, PLAIN), stock(sd3, PLAIN)) == 0
    ((plain, _),), ((many, _),) = (ours(sd3, "a (red:2) (big:0) cat", scheme=name) for name in ("unweighted", "repeat"))
    rows = [0, 1, 2, 2, *range(4, plain.shape[1])]
    assert torch.equal(many, plain[:, rows])
    refused(lambda: encode(sd3, "a (red:1.5) cat"), "Stable Diffusion 3", "finest_step")
    result = run_ours("WeightedCLIPTextEncode", clip=sd3, text="a (red:1.5) cat", scheme="repeat", finest_step="1")
    assert result["result"][0][0][0].shape[1] == plain.shape[1] + 1
    assert [issue["code"] for issue in issues_in(result)] == ["rounded-weight"]
    refused(lambda: encode(make_clip("Stable Cascade"), "a (red:1.5) cat"), "Stable Cascade", "finest_step")
    assert encode(make_clip("Stable Cascade"), "a (red:2) cat")[0][0].shape[1] == 78

    flux = make_clip("Flux")
    assert apart(encode(flux, PLAIN), stock(flux, PLAIN)) == 0
    refused(lambda: encode(flux, "a (red:2) cat"), "FluxClipModel_", "pooled")

    def encode_token_weights_negpip(tower: Any, pairs: Sequence[Any]) -> Any:
        """Called as ComfyUI-ppm calls its own."""

    clip = make_clip("SD1").clone()
    patch = partial(encode_token_weights_negpip, clip.cond_stage_model.clip_l)
    clip.patcher.add_object_patch("clip_l.encode_token_weights", patch)
    refused(lambda: encode(clip, "a (red:2) cat"), "CLIP NegPip")
    refused(lambda: encode(make_clip("SD1"), "a (red:2000) cat"), "2,048")


if __name__ == "__main__":
    main(globals())
