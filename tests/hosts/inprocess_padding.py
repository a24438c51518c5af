"""Checks of padding ``clean``, and of ``drop``: the U-Net then draws what it draws with the padding's keys masked.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from inprocess import CLOSE, WIDTHS, compares, difference, draw, main, make_clip, ours, run_ours, stock
from inprocess_sampling import make_model

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
    clip, model = make_clip("SD1"), make_model()
    for text in ("", SHORT, LONG):
        full, dropped = ours(clip, text), ours(clip, text, padding="drop")
        expected = predicted(masked(model, rows_of_text(clip, text), None), full)
        found = difference(predicted(model, dropped), expected)
        assert found <= CLOSE, (text, found)
        assert differs(predicted(model, full), expected)


@compares("Dropped rows, KSampler with a small U-Net, with masked keys, relative to the largest", limit=CLOSE)
def check_dropped_rows_equal_masked_keys_through_the_sampler() -> None:
    clip, model = make_clip("SD1"), make_model()
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


if __name__ == "__main__":
    main(globals())
