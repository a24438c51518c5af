"""Checks of NegPip in ComfyUI: what small diffusion models draw with ours and with CLIP NegPip of ComfyUI-ppm.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib.util
import sys
from functools import cache, partial
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, issues_in, main, make_clip, ours, pack_of, refusal, run_ours, stock
from inprocess_attention import NODE, is_close, num_calls, rel
from toys import NEGATIVE, make_model, make_text_encoder, sampled

TEXTS = (
    "a red cat on a mat, (oil painting:-1)",
    "a (red:1.7) cat on a (mat:-0.4), (oil painting:-1.6) in (snow:0)",
    "a photo of a (red:-1.2) cat, (oil:1.3), " * 10,
)
NEGATIVES = (NEGATIVE, "blurry, (sharp:-1.1)", "blurry, " * 60)
SDXL_OURS = "WeightedCLIPSDXLEncode"


@cache
def clip_negpip() -> Any:
    """Their node. It imports a function that ComfyUI 0.29.0 has no more, for another model: it gets None for it."""
    from comfy.ldm.cosmos import predict2

    if not hasattr(predict2, "apply_rotary_pos_emb"):
        predict2.apply_rotary_pos_emb = None
    folder = pack_of("ComfyUI-ppm")
    spec = importlib.util.spec_from_file_location(
        "comfyui_ppm", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec and spec.loader
    package = sys.modules["comfyui_ppm"] = importlib.util.module_from_spec(spec)
    package.__path__ = [str(folder)]
    return importlib.import_module("comfyui_ppm.src.nodes_ppm.clip_negpip").CLIPNegPip


def theirs(model: Any, clip: Any) -> tuple[Any, Any]:
    """MODEL and CLIP from their node."""
    result = clip_negpip().execute(model=model, clip=clip)
    return result.args


def by_theirs(family: str, text: str, negative: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples with their node and the host's own encode node, and without their node."""
    clip, model = make_clip(family), make_model(family)
    patched_model, patched_clip = theirs(model, clip)
    expected = sampled(patched_model, stock(patched_clip, text), stock(patched_clip, negative))
    return expected, sampled(model, stock(clip, text), stock(clip, negative))


@compares("Scheme negpip on SD1 and SDXL, small, with CLIP NegPip of ComfyUI-ppm, relative to the largest", limit=CLOSE)
def check_the_scheme_negpip_draws_what_theirs_draws() -> None:
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        encode = partial(ours, clip, scheme="negpip")
        for text in TEXTS:
            for negative in NEGATIVES:
                expected, without = by_theirs(family, text, negative)
                drawn = sampled(model, encode(text=text), encode(text=negative))
                is_close(drawn, expected, without, f"{family} {text} {negative}")


@compares(
    "Rows and signs of scheme negpip on SD1 and SDXL, small, with CLIP NegPip of ComfyUI-ppm, relative to the largest",
    limit=CLOSE,
)
def check_the_rows_are_theirs_with_signs() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        _, patched = theirs(make_model(family), clip)
        for text in ("a red cat", *TEXTS):
            pairs, values = stock(patched, text)[0]
            ((rows, others),) = ours(clip, text, scheme="negpip")
            marker = others.get("model_conds", {}).get("weighted_clip_attention")
            factor = torch.ones(rows.shape[1]) if marker is None else marker.cond.view(2, -1)[1]
            given = {"pooled_output": others["pooled_output"]}
            difference([[rows, given]], [[pairs[:, 0::2], values]])
            signed = rows * factor[:, None]
            difference([[signed, given]], [[pairs[:, 1::2], values]])
            assert (marker is None) is ("-" not in text)


@compares(
    "Attention Weights at negpip on SD1 and SDXL, small, with CLIP NegPip of ComfyUI-ppm, relative to the largest",
    limit=CLOSE,
)
def check_weigh_attention_by_negpip_draws_what_theirs_draws() -> None:
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        for text in TEXTS:
            expected, without = by_theirs(family, text, NEGATIVE)
            negative = stock(clip, NEGATIVE)
            weighed = run_ours(NODE, clip=clip, text=text, how="negpip")["result"][0]
            is_close(sampled(model, weighed, negative), expected, without, text)
            conditioning, _, ready = run_ours(NODE, clip=clip, text=text, how="negpip", model=model)["result"]
            assert "hooks" not in conditioning[0][1]
            is_close(sampled(ready, conditioning, negative), expected, without, text)
            assert num_calls(model, weighed, negative) == num_calls(model, stock(clip, text), negative)


@compares(
    "Attention Weights at negpip on Anima, small, with CLIP NegPip of ComfyUI-ppm, relative to the largest", limit=CLOSE
)
def check_anima_draws_what_theirs_draws() -> None:
    clip, model = make_text_encoder("Anima"), make_model("Anima")
    patched_model, patched_clip = theirs(model, clip)
    assert patched_model.object_patches
    for text in ("a red cat", *TEXTS[:2]):
        for negative in NEGATIVES[:2]:
            expected = sampled(patched_model, stock(patched_clip, text), stock(patched_clip, negative))
            ours = [run_ours(NODE, clip=clip, text=one, how="negpip")["result"][0] for one in (text, negative)]
            drawn, without = sampled(model, *ours), sampled(model, stock(clip, text), stock(clip, negative))
            if "-" in text + negative:
                is_close(drawn, expected, without, f"{text} {negative}")
            else:
                assert torch.equal(drawn, without)
                assert rel(drawn, expected) <= CLOSE


@compares(limit=CLOSE)
def check_strength_takes_weights_part_of_the_way() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    expected, without = by_theirs("SD1", "a (red:1.5) cat, (oil painting:-2)", NEGATIVE)
    text = "a (red:2) cat, (oil painting:-5)"
    weighed = run_ours(NODE, clip=clip, text=text, how="negpip", strength=0.5)["result"][0]
    is_close(sampled(model, weighed, stock(clip, NEGATIVE)), expected, without)


@compares(limit=CLOSE)
def check_on_their_clip_every_scheme_gives_rows_for_their_model() -> None:
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        patched_model, patched = theirs(model, clip)
        for text in TEXTS:
            result = run_ours("WeightedCLIPTextEncode", clip=patched, text=text, scheme="negpip")
            assert [issue["code"] for issue in issues_in(result)][:1] == ["negpip-of-ppm"]
            difference(result["result"][0], stock(patched, text))
        plain = "a (red:1.5) cat on a (mat:0.3)"
        result = run_ours("WeightedCLIPTextEncode", clip=patched, text=plain)
        assert issues_in(result) == []
        difference(result["result"][0], stock(patched, plain))
        drawn = sampled(patched_model, result["result"][0], ours(patched, NEGATIVE))
        assert rel(drawn, sampled(model, stock(clip, plain), stock(clip, NEGATIVE))) <= CLOSE


@compares(limit=CLOSE)
def check_what_is_appended_apart_is_what_is_encoded_apart() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    text = "a red cat, (oil painting:-1.3) on a (mat:1.2)"
    encode = partial(ours, clip, syntax="a1111", cleaning="none")
    ((rows, values),) = encode(text, scheme="negpip_apart")
    ((left, pooled),) = encode("a red cat,  on a (mat:1.2)", scheme="a1111")
    ((term, _),) = encode("(oil painting:1.3)", scheme="a1111")
    given = {"pooled_output": values["pooled_output"]}
    joined = torch.cat([left, term[:, 1:4]], dim=1)
    difference([[rows, given]], [[joined, pooled]])

    # by their MODEL, which takes values from odd rows
    patched_model, _ = theirs(model, clip)
    signed = joined.clone()
    signed[:, 77:] *= -1
    pairs = torch.stack([joined, signed], dim=2).flatten(1, 2)
    ((negative, _),) = uncond = stock(clip, NEGATIVE)
    expected = sampled(patched_model, [[pairs, pooled]], [[negative.repeat_interleave(2, dim=1), uncond[0][1]]])
    drawn = sampled(model, encode(text, scheme="negpip_apart"), uncond)
    without = sampled(model, [[joined, pooled]], uncond)
    is_close(drawn, expected, without)


def check_where_words_cannot_be_taken_away_it_is_refused() -> None:
    for family in ("SD3", "Flux"):
        clip = make_clip(family)
        for scheme in ("negpip", "negpip_apart"):
            told = refusal(partial(ours, clip, "a cat, (oil painting:-1)", scheme=scheme))
            assert "Stable Diffusion 1, 2 and XL" in told
            assert len(ours(clip, "a (cat:1.2)", scheme=scheme)) == 1
    flux = partial(run_ours, NODE, clip=make_clip("Flux"), text="a (cat:1.2)", how="negpip")
    assert "Flux 1" in refusal(flux)
    pair = partial(run_ours, SDXL_OURS, clip=make_clip("SDXL"), scheme="negpip")
    told = refusal(partial(pair, text_g="a (cat:-1)", text_l="a big (cat:-1)"))
    assert "clip_l" in told and "clip_g" in told


@compares(limit=CLOSE)
def check_stock_is_stock_afterwards() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    positive, negative = stock(clip, TEXTS[0]), stock(clip, NEGATIVE)
    before = sampled(model, positive, negative)
    assert rel(sampled(model, ours(clip, TEXTS[0], scheme="negpip"), negative), before) > 100 * CLOSE
    after = sampled(model, stock(clip, TEXTS[0]), negative)
    assert torch.equal(before, after)
    difference(stock(clip, TEXTS[0]), positive)


if __name__ == "__main__":
    main(globals())
