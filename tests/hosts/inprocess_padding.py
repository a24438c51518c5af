"""Checks of paddings ``clean`` and ``drop`` and of the scheme ``repeat``, by what the U-Net draws.

With ``drop`` it draws what it draws with the padding's keys masked, and with ``repeat`` what a bias of ``ln w`` gives.

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
    WIDTHS,
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
from make_checkpoint import VAE
from toys import make_unet

EOS = 49407
SHORT, LONG = "a (red:1.3) cat on a mat", "a photo of a (red:1.3) cat on a mat, oil painting, " * 14
SDXL_OURS = "WeightedCLIPSDXLEncode"


def rows_of_text(clip: Any, *texts: str) -> torch.Tensor:
    """Rows of a full conditioning that are padding in none of the texts, by the host's own tokenizer."""
    kept: list[bool] = []
    chunks = [clip.tokenize(text)["l"] for text in texts]
    for row in range(max(map(len, chunks))):
        ends = [[token for token, _ in one[row]].index(EOS) for one in chunks if row < len(one)]
        kept += [place <= max(ends) for place in range(77)]
    return torch.tensor(kept)


def masked(model: Any, positive: torch.Tensor | None, negative: torch.Tensor | None) -> Any:
    """A clone of a MODEL in whose cross attention some keys of a conditioning are hidden with -inf."""
    from comfy.ldm.modules import attention

    def replace(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        masks = []
        for index in options["cond_or_uncond"]:
            rows = (positive, negative)[index]
            rows = torch.ones(k.shape[1], dtype=torch.bool) if rows is None else rows
            # of two conditionings in one pass the host repeats the shorter one
            bias = torch.zeros(k.shape[1]).masked_fill(~rows.repeat(k.shape[1] // len(rows)), -torch.inf)
            masks.append(bias.expand(q.shape[1], -1))
        return attention.optimized_attention_masked(q, k, v, options["n_heads"], torch.stack(masks))

    patched = model.clone()
    for name, count in (("input", 12), ("middle", 1), ("output", 12)):
        for number in range(count):
            patched.set_model_attn2_replace(replace, name, number)
    return patched


def predicted(model: Any, conditioning: Any) -> torch.Tensor:
    """One call of a MODEL's U-Net: the noise it sees in noise."""
    noise = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(6))
    options = {**model.model_options["transformer_options"], "cond_or_uncond": [0]}
    time = torch.tensor([500])
    return model.model.diffusion_model(noise, time, context=conditioning[0][0], transformer_options=options)


def sampled(model: Any, positive: Any, negative: Any) -> tuple[torch.Tensor, int]:
    """Output of the node KSampler in four steps, and the number of passes through the U-Net."""
    import nodes

    passes = 0

    def count(apply_model: Any, arguments: dict[str, Any]) -> Any:
        nonlocal passes
        passes += 1
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    counted = model.clone()
    counted.set_model_unet_function_wrapper(count)
    latent = {"samples": torch.zeros(1, 4, 8, 8)}
    (result,) = nodes.KSampler().sample(counted, 1, 4, 7.0, "euler", "normal", positive, negative, latent)
    return result["samples"], passes


def differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results are farther from each other than any rounding is."""
    return float((one - other).abs().max()) > 0.01 * float(other.abs().max())


@compares("Padding dropped, small: rows that stay, with attended")
def check_dropped_rows_are_the_others_bit_for_bit() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        for text in ("", SHORT, LONG):
            for scheme in ("comfy", "a1111", "masked_blend"):
                ((full, values),) = ours(clip, text, scheme=scheme)
                ((dropped, kept),) = ours(clip, text, scheme=scheme, padding="drop")
                rows = rows_of_text(clip, text)
                assert not rows.all()
                difference([[dropped, kept]], [[full[:, rows], values]])


@compares("Padding dropped, SDXL node, two texts: rows that stay, likewise")
def check_the_towers_of_sdxl_drop_the_same_rows() -> None:
    clip = make_clip("SDXL")
    for texts in ((SHORT, "a dog"), ("a dog", SHORT), (SHORT, LONG), (LONG, SHORT), ("", "")):
        inputs = dict(zip(("text_g", "text_l"), texts, strict=True))
        ((full, values),) = run_ours(SDXL_OURS, clip=clip, **inputs)["result"][0]
        ((dropped, kept),) = run_ours(SDXL_OURS, clip=clip, **inputs, padding="drop")["result"][0]
        assert dropped.shape[2] == WIDTHS["l"] + WIDTHS["g"]
        rows = rows_of_text(clip, *texts)
        difference([[dropped, kept]], [[full[:, rows], values]])


@compares("Padding clean, small: words, padding, with stock")
def check_clean_rows_are_those_of_stocks_empty_prompt_bit_for_bit() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        ((empty, _),) = stock(clip, "")
        for text in (SHORT, LONG):
            ((full, values),) = ours(clip, text, scheme="a1111_no_norm")
            rows = rows_of_text(clip, text)
            behind = torch.nn.functional.pad(rows.unflatten(0, (-1, 77))[:, 1:], (0, 1)).flatten()
            words = rows & behind  # the last of each chunk's rows is that of EOS
            for padding, kept in (("clean", rows), ("clean EOS too", words)):
                ((clean, others),) = ours(clip, text, scheme="a1111_no_norm", padding=padding)
                expected = torch.where(kept[:, None], full[0], empty[0].repeat(len(kept) // 77, 1)).unsqueeze(0)
                assert differs(full, expected)
                difference([[clean, others]], [[expected, values]])


@compares("Dropped rows in cross attention, with masked keys", limit=CLOSE)
def check_dropped_rows_equal_masked_keys_in_a_layer_of_full_size() -> None:
    import comfy.ops
    from comfy.ldm.modules.attention import CrossAttention

    for query, context, heads, size in ((320, 768, 8, 1024), (1280, 768, 8, 64), (1280, 2048, 20, 256)):
        layer = CrossAttention(query, context, heads, query // heads, operations=comfy.ops.disable_weight_init)
        draw(layer)
        generator = torch.Generator().manual_seed(7)
        x = torch.randn(1, size, query, generator=generator)
        hidden = torch.randn(1, 154, context, generator=generator)
        for kept in ([*range(4)], [*range(77), *range(77, 90)], [*range(20), *range(77, 154)]):
            bias = torch.full((154,), -torch.inf).index_fill(0, torch.tensor(kept), 0.0).expand(1, size, -1)
            expected, attended = layer(x, hidden, mask=bias), layer(x, hidden)
            found = difference(layer(x, hidden[:, kept]), expected)
            assert found <= CLOSE and differs(attended, expected), found


@compares("Dropped rows, a call of a U-Net, with masked keys", limit=CLOSE)
def check_dropped_rows_equal_masked_keys_in_one_call_of_the_unet() -> None:
    clip, model = make_clip("SD1"), make_unet()
    for text in ("", SHORT, LONG):
        full, dropped = ours(clip, text), ours(clip, text, padding="drop")
        expected = predicted(masked(model, rows_of_text(clip, text), None), full)
        found = difference(predicted(model, dropped), expected)
        assert found <= CLOSE, (text, found)
        assert differs(predicted(model, full), expected)


@compares("Dropped rows, KSampler with a small U-Net, with masked keys, relative to the largest", limit=CLOSE)
def check_dropped_rows_equal_masked_keys_through_the_sampler() -> None:
    clip, model = make_clip("SD1"), make_unet()
    for text, negative, paddings, passes in (
        (SHORT, "", ("drop", "attend"), 8),  # 8 and 77 rows: two passes a step
        (SHORT, "", ("drop", "drop"), 4),  # 8 and 2 rows, repeated to 8: one pass a step
        ("a cat", "bad", ("drop", "drop"), 4),  # 4 and 3 rows, repeated to 12
        ("a cat", "a red (cat:1.2)", ("drop", "drop"), 8),  # 4 and 5 rows, whose least common multiple is 5 times 4
        (LONG, SHORT, ("drop", "attend"), 8),
    ):
        texts = list(zip((text, negative), paddings, strict=True))
        full = [ours(clip, one) for one in (text, negative)]
        dropped = [ours(clip, one, padding=padding) for one, padding in texts]
        rows = [rows_of_text(clip, one) if padding == "drop" else None for one, padding in texts]
        expected, _ = sampled(masked(model, *rows), *full)
        attended, _ = sampled(model, *full)
        measured, counted = sampled(model, *dropped)
        assert counted == passes, (text, paddings, counted)
        largest_value = float(expected.abs().max())
        found = difference(measured / largest_value, expected / largest_value)
        assert found <= CLOSE and differs(attended, expected), (text, paddings, found)


UP, DOWN = "a (red:1.5) cat on a (mat:3)", "a (red:0.25) cat on a (mat:0.5), (oil:2) painting"
MANY = "a photo of a (red:1.5) cat on a (mat:0.5), oil painting, " * 14
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
    clip, model = make_clip("SD1"), make_unet()
    for text, rows in ((UP, 159), (DOWN, 307), (MANY, None), ("a (cat:2)", 78), ("a (cat:0) (dog:0.5)", 151)):
        plain, repeated = ours(clip, text, scheme="unweighted"), ours(clip, text, scheme="repeat")
        assert rows is None or repeated[0][0].shape[1] == rows, (text, repeated[0][0].shape)
        expected = predicted(biased(model, weights_of(clip, text)), plain)
        found = note(apart(predicted(model, repeated), expected) / float(expected.abs().max()))
        assert found <= CLOSE, (text, found)
        unweighted = predicted(model, plain)
        assert float((unweighted - expected).abs().max()) > 1e-3 * float(expected.abs().max()), text


@compares("Scheme repeat, KSampler with a small U-Net, with ln w as a bias, relative to the largest", limit=CLOSE)
def check_repeated_rows_equal_a_bias_through_the_sampler() -> None:
    clip, model = make_clip("SD1"), make_unet()
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
    clip, model = make_clip("SD1"), make_unet()
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
