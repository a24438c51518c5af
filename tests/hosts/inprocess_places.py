"""Checks of Place Phrase in every family: small models draw what a softmax with weights by place draws.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. What a place is, and which part of the
picture an area sees, are worked out here once more, which query is which place in written_out.py, with loops.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import (
    CLOSE,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    note,
    pack_module,
    refusal,
    run_ours,
    stock,
)
from inprocess_attention import NODE, area, is_close, left_of, logged, masked, num_calls, rel, timed
from inprocess_attention_several import families as several
from toys import (
    LATENT,
    NEGATIVE,
    PLAIN,
    TOYS,
    Weights,
    make_model,
    make_text_encoder,
    rows_by_hand,
    sampled,
    there,
    unheard,
    weighable,
)
from written_out import ByPlace, written_out

ENCODE = "WeightedCLIPTextEncode"
PLACE = "Place Phrase"
UNETS = ("SD1", "SD2", "SDXL")
VIDEO = ("Wan", "Wan image to video", "Wan VACE", "Wan Camera")
OTHERS = ("Flux", "Chroma", "Qwen-Image", "Z-Image", "Krea 2", "Anima", "LTX-Video")
Fields = dict[int, list[ByPlace]]


def families() -> tuple[str, ...]:
    """Those in which text and picture share an attention, and those that read it across."""
    return weighable(*OTHERS, *several(), *VIDEO)


def toys(*names: str) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """For each family its name, CLIP, MODEL, and stock's positive and negative conditionings."""
    for family in names or (*UNETS, *families()):
        clip = make_text_encoder(family)
        yield family, clip, make_model(family), stock(clip, PLAIN), stock(clip, TOYS[family].negative)


def encoded(clip: Any, text: str = PLAIN) -> Any:
    return run_ours(ENCODE, clip=clip, text=text)["result"][0]


def placed(conditioning: Any, phrase: str, **inputs: Any) -> Any:
    return reported(conditioning, phrase, **inputs)[0]


def reported(conditioning: Any, phrase: str, **inputs: Any) -> tuple[Any, str]:
    return result_of("WeightedCLIPPlace", conditioning, phrase=phrase, **inputs)


def result_of(node_id: str, *given: Any, **inputs: Any) -> tuple[Any, str]:
    """Conditioning and report of a node that places something; other inputs have their defaults."""
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS[node_id]
    described = node.INPUT_TYPES()["required"].items()
    values = {name: options["default"] for name, (_, options) in described if "default" in options}
    return node().place(*given, **{**values, **inputs})["result"]


def weights(mask: torch.Tensor, inside: float = 1.0, outside: float = 0.0) -> torch.Tensor:
    return outside + mask.double() * (inside - outside)


def columns(first: float, last: float, start: int = 0) -> Any:
    """A mask between two columns, which need not be whole, of a latent, or of its part behind a column."""

    def mask(height: int, width: int) -> torch.Tensor:
        shares = [min(last, start + x + 1) - max(first, start + x) for x in range(width)]
        return torch.tensor([max(0.0, share) for share in shares], dtype=torch.float64).expand(1, height, width)

    return mask


def by_rows(family: str, clip: Any, *fields: tuple[str, ByPlace], text: str = PLAIN) -> Fields:
    """Fields of phrases by the rows of their words."""
    found: Fields = {}
    for phrase, field in fields:
        for row in rows_by_hand(family, clip, text, dict.fromkeys(phrase.split(), 1.0)):
            found.setdefault(row, []).append(field)
    return found


def half(inside: float = 1.0, outside: float = 0.0, start: int = 0, width: int | None = None) -> ByPlace:
    """Weights in the left half of a picture, or of one of ``width`` of which the latent is a part."""

    def at(*size: int) -> torch.Tensor:
        return weights(columns(0, (width or size[-1]) / 2, start)(*size[-2:]), inside, outside)

    return ByPlace(at, min(inside, outside))


def draws_by_place(
    model: Any,
    ours: Any,
    stocks: Any,
    negative: Any,
    *fields: tuple[Any, Fields],
    rows: tuple[tuple[Any, Weights], ...] = (),
    how: str = "bias",
    name: str = "",
    draw: Callable[..., torch.Tensor] = sampled,
    on: Any = None,
    **settings: Any,
) -> None:
    """Ours draws what stock draws with weights by place written out; see `written_out`."""
    reading = written_out(model, how, *rows, placed=fields)
    draws_as(reading, on or model, ours, stocks, negative, name, draw, **settings)


def soft_of(family: str) -> torch.Tensor:
    """A mask of many greys at the size of a picture that is 8 times the latent."""
    height, width = (8 * side for side in TOYS[family].latent)
    return torch.linspace(0, 1, height * width).view(1, height, width) ** 2


def soft(family: str, inside: float, outside: float, *others: Callable[..., torch.Tensor]) -> ByPlace:
    """Weights by that mask, within other masks."""
    mask = soft_of(family)
    height, width = TOYS[family].latent
    shares = mask.double().view(1, height, 8, width, 8).mean((2, 4))
    for other in others:
        shares = shares * other(height, width)
    cells = weights(shares, inside, outside)
    return ByPlace(lambda *_: cells, float(cells.min()))


def draws_as(
    reading: AbstractContextManager[None],
    model: Any,
    ours: Any,
    stocks: Any,
    negative: Any,
    name: str,
    draw: Callable[..., torch.Tensor] = sampled,
    **settings: Any,
) -> None:
    """Ours draws what stock draws while it reads otherwise."""
    with reading:
        reference = draw(model, stocks, negative, **settings)
    without = draw(model, stocks, negative, **settings)
    is_close(draw(model, ours, negative, **settings), reference, without, name)


def resized(model: Any, height: int, width: int) -> Any:
    """A clone of a MODEL that draws another size."""
    model.model.toy = model.model.toy._replace(latent=(height, width))
    return model


def painted(*boxes: tuple[int, int, int, int]) -> Any:
    """A mask that is 1 in boxes of pixels (x, y, width, height)."""

    def mask(height: int, width: int) -> torch.Tensor:
        pixels = torch.zeros(1, 8 * height, 8 * width, dtype=torch.float64)
        for x, y, across, down in boxes:
            pixels[:, y : y + down, x : x + across] = 1
        return pixels.view(1, height, 8, width, 8).mean((2, 4))

    return mask


BOXES = (20, 8, 50, 36), (104, 0, 24, 17)


def as_host(boxes: Sequence[tuple[int, int, int, int]]) -> list[list[dict[str, Any]]]:
    """Boxes as the host's Create Bounding Boxes gives them."""
    sides = ("x", "y", "width", "height")
    return [[{**dict(zip(sides, box, strict=True)), "metadata": {"type": "obj"}} for box in boxes]]


# ---- what is drawn


@compares("Place Phrase at weight 1, with stock")
def check_a_phrase_of_weight_1_everywhere_is_stock() -> None:
    for family, clip, model, plain, negative in toys():
        words = encoded(clip)
        expected = sampled(model, plain, negative)
        difference(sampled(model, words, negative), expected)
        for inputs in ({"outside": 1.0, "area": "left"}, {}):
            same, report = reported(words, "red cat", **inputs)
            assert same is words and "weight is 1 everywhere" in report, family
        unused = placed(words, "red cat", area="left", start=7, end=9, unit="steps")
        difference(sampled(model, unused, negative), expected)


@compares(
    "Place Phrase in all families, small, KSampler, with a softmax written out, relative to the largest", limit=CLOSE
)
def check_placed_phrases_equal_weights_by_place_written_out() -> None:
    for family, clip, model, plain, negative in toys():
        width, words, mask = TOYS[family].latent[1], encoded(clip), soft_of(family)
        between = ByPlace(lambda *s, w=width: weights(columns(0.1 * w, 0.3 * w)(*s[-2:])), 0.0)
        left_and_soft = {"mask": mask, "area": "left"}
        two = placed(placed(words, "red cat", area="left", outside=0.3), "red", mask=mask, inside=2.0, outside=0.5)
        cases: dict[str, tuple[Any, list[tuple[str, ByPlace]]]] = {
            "hidden": (placed(words, "Red  CAT", area="left half"), [("red cat", half())]),
            "weighted": (placed(words, "mat", area="left half", inside=3.0, outside=0.4), [("mat", half(3.0, 0.4))]),
            "between cells": (placed(words, "red cat", area="0.1 0.3, 0 1"), [("red cat", between)]),
            "two fields": (two, [("red cat", half(1.0, 0.3)), ("red", soft(family, 2.0, 0.5))]),
        }
        if family in UNETS:
            boxes, box = as_host(BOXES), as_host(BOXES)[0][0]
            cases |= {
                "mask": (
                    placed(words, "oil painting", mask=mask, inside=2.0, outside=0.1),
                    [("oil painting", soft(family, 2.0, 0.1))],
                ),
                "mask and area": (
                    placed(words, "snow", **left_and_soft, outside=0.2),
                    [("snow", soft(family, 1.0, 0.2, columns(0, width / 2)))],
                ),
                "boxes": (
                    placed(words, "mat", boxes=boxes, inside=2.0, outside=0.1),
                    [("mat", ByPlace(lambda *s: weights(painted(*BOXES)(*s), 2.0, 0.1), 0.1))],
                ),
                "a box in an area and a mask": (
                    placed(words, "snow", boxes=box, **left_and_soft, outside=0.2),
                    [("snow", soft(family, 1.0, 0.2, columns(0, width / 2), painted(BOXES[0])))],
                ),
            }
        for name, (ours, fields) in cases.items():
            known = (plain, by_rows(family, clip, *fields))
            draws_by_place(model, ours, plain, negative, known, name=f"{family}, {name}")


@compares("Place Phrase with the same weight everywhere, with Attention Weights")
def check_a_constant_field_is_attention_weights() -> None:
    everywhere = torch.ones(1, 40, 60)
    for family, clip, model, _, negative in toys():
        words = encoded(clip)
        for weight in (1.7, 0.3, 0.0) if family in UNETS else (1.7, 0.0):
            text = PLAIN.replace("red cat", f"(red cat:{weight})")
            expected = sampled(model, run_ours(NODE, clip=clip, text=text)["result"][0], negative)
            for inputs in ({}, {"mask": everywhere}, {"area": "top left", "outside": weight}, {"area": "0 1, 0 1"}):
                ours = placed(words, "red cat", **{"inside": weight, **inputs})
                assert torch.equal(sampled(model, ours, negative), expected), (family, weight, inputs)
                difference(sampled(model, ours, negative), expected)


@compares("Place Phrase in two halves that are one weight together, with that weight everywhere", limit=CLOSE)
def check_the_least_weight_is_that_of_all_places_of_a_word() -> None:
    """The text reads a word by the least of the product of its weights, not by the product of their leasts."""
    for family, clip, model, plain, negative in toys(*families()):
        words, size = encoded(clip), TOYS[family].latent
        left = left_of(size, 4 * (size[1] // 8))  # no cell is cut
        halves = placed(placed(words, "red cat", mask=left, outside=0.3), "red cat", mask=1 - left, outside=0.3)
        everywhere = sampled(model, placed(words, "red cat", inside=0.3), negative)
        without = sampled(model, plain, negative)
        effect = float((everywhere - without).abs().max())
        assert effect > 1e-4
        note(float((sampled(model, halves, negative) - everywhere).abs().max()) / effect)


@compares("Place Phrase on odd sizes, likewise", limit=CLOSE)
def check_odd_sizes() -> None:
    for family, clip, model, plain, negative in toys(*(name for name in (*UNETS, *families()) if name != "Wan VACE")):
        own = placed(encoded(clip), "red cat", area="0 0.3, 0 0.4", outside=0.1)
        for height, width in ((13, 21), (15, 9), (9, 23)) if family in UNETS else ((13, 21), (15, 10)):

            def corner(*size: int, height: int = height, width: int = width) -> torch.Tensor:
                across = columns(0, 0.3 * width)(height, width)
                down = columns(0, 0.4 * height)(width, height).transpose(1, 2)
                return weights(across * down, 1.0, 0.1)

            known = (plain, by_rows(family, clip, ("red cat", ByPlace(corner, 0.1))))
            name = f"{family}, {height} x {width}"
            draws_by_place(resized(model, height, width), own, plain, negative, known, name=name)


@compares("Place Phrase with LoRA hooks, likewise", limit=CLOSE)
def check_hooks_act_beside() -> None:
    import comfy.hooks

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    lora = make_lora(model.model, TOYS["SD1"].lora)
    hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)
    words, stocks = (comfy.hooks.set_hooks_for_conditioning(one, hooks) for one in (encoded(clip), plain))
    known = (plain, by_rows("SD1", clip, ("red cat", half())))
    draws_by_place(hooked, placed(words, "red cat", area="left"), stocks, negative, known)
    assert rel(sampled(hooked, stocks, negative), sampled(model, plain, negative)) > 100 * CLOSE


@compares("Place Phrase in areas, masks and two conditionings, likewise", limit=CLOSE)
def check_fields_stay_with_their_entry_in_areas_and_masks() -> None:
    for family, clip, model, plain, negative in toys():
        other, words, dog = stock(clip, "a dog"), encoded(clip), encoded(clip, "a dog")
        size, place = TOYS[family].latent, {"area": "left", "inside": 3.0, "outside": 0.1}
        mask = left_of(size, 12)

        def own(start: int, width: int = size[1]) -> ByPlace:
            def at(*latent: int) -> torch.Tensor:
                return half(3.0, 0.1, start if latent[-1] < width else 0, width).at(*latent)

            return ByPlace(at, 0.1)

        layouts: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
            "left area": (0, lambda one, two: [*area(one, 0), *area(two, 88), *two]),
            "right area": (11, lambda one, two: [*area(two, 0), *area(one, 88), *two]),
            "masks": (0, lambda one, two, mask=mask: [*masked(one, mask), *masked(two, 1 - mask)]),
            "two": (0, lambda one, two: [*one, *two]),
        }
        if family in UNETS:
            layouts |= {
                "area over a whole": (5, lambda one, two: [*two, *area(one, 40)]),
                "bounds": (0, lambda one, two, mask=mask: [*masked(one, mask, "mask bounds"), *two]),
            }
        for name, (start, layout) in layouts.items():
            if family == "Wan VACE" and "area" in name:
                continue  # its own masks have no areas
            known = (plain, by_rows(family, clip, ("red cat", own(start))))
            for ours in (
                layout(placed(words, "red cat", **place), dog),
                placed(layout(words, dog), "red cat", **place),
            ):
                draws_by_place(model, ours, layout(plain, other), negative, known, name=f"{family}, {name}")
        # the negative prompt, beside one that has no words
        ours = placed(words, "red cat", **place)
        known = (plain, by_rows(family, clip, ("red cat", own(0))))
        with written_out(model, "bias", placed=(known,)):
            reference = sampled(model, other, plain)
        is_close(sampled(model, other, ours), reference, sampled(model, other, plain), family)


@compares("Place Phrase in batches, with CFG 1 and 7 and long negative prompts, likewise", limit=CLOSE)
def check_batches_guidance_and_unequal_lengths() -> None:
    for family, clip, model, plain, _ in toys():
        height, width = TOYS[family].latent
        one = soft_of(family)[0]
        pictures = torch.stack([one, one.flip(1)])
        cells = weights(pictures.double().view(2, height, 8, width, 8).mean((2, 4)), 1.0, 0.1)
        ours = placed(encoded(clip), "red cat", mask=pictures, outside=0.1)
        field = ByPlace(lambda *_, cells=cells: cells, float(cells.min()))
        known = (plain, by_rows(family, clip, ("red cat", field)))
        long = ", ".join([TOYS[family].negative] * 12)
        for text, cfg in ((TOYS[family].negative, 7.0), (long, 7.0), (long, 1.0)):
            negative = stock(clip, text)
            draws_by_place(model, ours, plain, negative, known, batch=2, cfg=cfg, name=f"{family}, cfg {cfg}")
        three = placed(encoded(clip), "red cat", mask=torch.stack([one, one, one]))
        message = refusal(lambda m=model, three=three, n=plain: sampled(m, three, n, batch=2))
        assert "has 3 pictures, but 2" in message, message


@compares("Place Phrase with hypertile, ToMe, FreeU, SAG and PAG, likewise", limit=CLOSE)
def check_other_changes_of_the_model() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
    ours = placed(words, "red cat", area="left", outside=0.1)
    known = (plain, by_rows("SD1", clip, ("red cat", half(1.0, 0.1))))
    for node, inputs in others(nodes.NODE_CLASS_MAPPINGS, model):
        draws_by_place(model, ours, plain, negative, known, on=applied(node, inputs), name=node.__name__)


DEEP_SHRINK = {
    **{"block_number": 1, "downscale_factor": 2.0, "start_percent": 0.0, "end_percent": 0.35},
    **{"downscale_after_skip": True, "downscale_method": "bicubic", "upscale_method": "bicubic"},
}


def others(known: Mapping[str, Any], model: Any) -> list[tuple[Any, dict[str, Any]]]:
    """Nodes of the host that change a U-Net, with their inputs."""
    import importlib

    found = []
    for module, name, inputs in (
        ("nodes_hypertile", "HyperTile", {"tile_size": 64, "swap_size": 2, "max_depth": 0, "scale_depth": False}),
        ("nodes_tomesd", "TomePatchModel", {"ratio": 0.5}),
        ("nodes_freelunch", "FreeU", {"b1": 1.1, "b2": 1.2, "s1": 0.9, "s2": 0.2}),
        ("nodes_sag", "SelfAttentionGuidance", {"scale": 0.5, "blur_sigma": 2.0}),
        ("nodes_pag", "PerturbedAttentionGuidance", {"scale": 3.0}),
        ("nodes_model_downscale", "PatchModelAddDownscale", DEEP_SHRINK),
    ):
        node = getattr(importlib.import_module(f"comfy_extras.{module}"), name)
        found.append((node, {"model": model, **inputs}))
    return found


def applied(node: Any, inputs: dict[str, Any]) -> Any:
    """First output of a node of the host, of either of its APIs."""
    if hasattr(node, "execute"):
        found = node.execute(**inputs)
        return getattr(found, "result", found)[0]
    return getattr(node(), node.FUNCTION)(**inputs)[0]


def check_objects_of_the_small_world_are_drawn_in_their_places() -> None:
    import nodes

    model, clip, vae = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadWorld"]().load("cpu")
    inputs = {"clip": clip, "text": "a red circle and a blue square", "padding": "clean EOS too"}
    words = run_ours(ENCODE, **inputs)["result"][0]
    latent = {"samples": torch.zeros(48, 12, 16, 16)}

    def num_in_place(positive: Any) -> int:
        given = (model, 3, 12, 4.0, "euler", "simple", positive, stock(clip, ""), latent)
        red, green, blue = vae.decode(nodes.KSampler().sample(*given)[0]["samples"]).unbind(-1)
        is_red, is_blue = (one.clamp(min=0).mean(1) for one in (red - (green + blue) / 2, blue - (red + green) / 2))
        half = is_red.shape[1] // 2
        is_left = is_red[:, :half].sum(1) > is_red[:, half:].sum(1)
        is_right = is_blue[:, half:].sum(1) > is_blue[:, :half].sum(1)
        return int((is_left & is_right).sum())

    in_parts = placed(placed(words, "red circle", area="left half"), "blue square", area="right half")
    in_pixels = placed(placed(words, "red circle", area="0 16, 0 1"), "blue square", area="16 32, 0 1")
    assert num_in_place(words) < 0.6 * 48
    assert num_in_place(in_parts) == num_in_place(in_pixels) > 0.8 * 48


def video(model: Any, positive: Any, negative: Any, *, frames: int) -> torch.Tensor:
    """Latent of so many frames as KSampler makes it."""
    import nodes

    latent = {"samples": torch.zeros(1, model.model.latent_format.latent_channels, frames, 8, 12)}
    return nodes.KSampler().sample(model, 1, 2, 2.0, "euler", "simple", positive, negative, latent)[0]["samples"]


@compares("Place Phrase in the frames of a video, likewise", limit=CLOSE)
def check_each_frame_has_its_mask() -> None:
    for family, clip, model, plain, negative in toys(
        "Wan", "Wan VACE", "Wan image to video", "Qwen-Image", "LTX-Video"
    ):
        words = encoded(clip)
        each = 8 if family == "LTX-Video" else 4  # frames of the video for each but the first of the latent
        pixels = torch.rand(1 + 2 * each, 64, 96, generator=torch.Generator().manual_seed(2)).round()
        pixels[1 : 1 + each, :, 48:] = 0
        of_all = pixels.double().view(-1, 8, 8, 12, 8).mean((2, 4))
        of_three = torch.cat([of_all[:1], of_all[1:].view(2, each, 8, 12).mean(1)])
        masks = {"each": (pixels, of_three), "latent": (pixels[:3], of_all[:3]), "all": (pixels[:1], of_all[[0] * 3])}
        for name, (mask, cells) in masks.items():
            cells = weights(cells, 1.0, 0.1)[None]
            ours = placed(words, "red cat", mask=mask, outside=0.1)
            field = ByPlace(lambda *_, cells=cells: cells, float(cells.min()))
            known = (plain, by_rows(family, clip, ("red cat", field)))
            draws_by_place(model, ours, plain, negative, known, draw=video, frames=3, name=f"{family}, {name}")
        few = placed(words, "red cat", mask=pixels[:2])
        message = refusal(lambda m=model, few=few, n=negative: video(m, few, n, frames=3))
        assert f"has 2 pictures, but the video has {len(pixels)} frames, of which the model makes 3" in message, message


@compares("Place Phrase beside reference images and frames, likewise", limit=CLOSE)
def check_references_have_no_place() -> None:
    import node_helpers

    generator = torch.Generator().manual_seed(8)
    given: dict[str, dict[str, Any]] = {
        "Flux": {"reference_latents": [torch.randn(1, 16, 9, 8, generator=generator)]},
        "Flux 2": {"reference_latents": [torch.randn(1, 128, 5, 4, generator=generator)] * 2},
        "Qwen-Image": {"reference_latents": [torch.randn(1, 16, 1, 8, 10, generator=generator)]},
        "Krea 2": {
            "reference_latents": [torch.randn(1, 16, 1, 8, 10, generator=generator)],
            "reference_latents_method": "index",
        },
    }
    for family, clip, model, plain, negative in toys(*(name for name in given if name in families())):
        beside = [node_helpers.conditioning_set_values(one, given[family]) for one in (plain, encoded(clip))]
        assert torch.equal(sampled(model, beside[0], negative), sampled(model, beside[1], negative))
        assert not torch.equal(sampled(model, beside[0], negative), sampled(model, plain, negative))
        ours = placed(beside[1], "red cat", area="left", outside=0.1)
        known = (plain, by_rows(family, clip, ("red cat", half(1.0, 0.1))))
        draws_by_place(model, ours, beside[0], negative, known, name=family)


# ---- time


@compares("Place Phrase in a part of the time, with two conditionings in time ranges")
def check_time_ranges_equal_two_entries() -> None:
    for family, clip, model, _, negative in toys("SD1", "Flux", "Z-Image", "Wan", "LTX-Video"):
        words = encoded(clip)
        whole = placed(words, "red cat", area="left half")
        for start, end in ((0.0, 0.37), (0.37, 1.0), (0.21, 0.83)):
            ours = placed(words, "red cat", area="left half", start=start, end=end)
            entries = timed(whole, start, end)
            entries += timed(words, end + 1e-4, 1.0) if end < 1 else []
            entries += timed(words, 0.0, start - 1e-4) if start else []
            expected = sampled(model, entries, negative, steps=5)
            assert not torch.equal(sampled(model, whole, negative, steps=5), expected), family
            difference(sampled(model, ours, negative, steps=5), expected)


@compares("Place Phrase in steps, with sampling in parts, relative to the largest", limit=CLOSE)
def check_times_in_steps_count_the_samplers() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    whole = placed(words, "red cat", area="left half")

    def in_parts(*parts: tuple[Any, int, int]) -> torch.Tensor:
        latent = {"samples": torch.zeros(1, 4, *LATENT)}
        for index, (positive, first, last) in enumerate(parts):
            noise = "enable" if index == 0 else "disable"
            inputs = (model, noise, 1, 6, 4.0, "euler", "normal", positive, negative, latent, first, last, "enable")
            (latent,) = nodes.KSamplerAdvanced().sample(*inputs)
        return latent["samples"]

    for start, end in ((0, 2), (2, 5), (3, 6), (1, 40)):
        ours = placed(words, "red cat", area="left half", start=start, end=end, unit="steps")
        last = min(end, 6)
        parts = [(words, 0, start), (whole, start, last), (words, last, 6)]
        expected = in_parts(*(part for part in parts if part[1] < part[2]))
        found = sampled(model, ours, negative, steps=6)
        assert note(rel(found, expected)) <= CLOSE
        assert rel(sampled(model, words, negative, steps=6), expected) > 10 * CLOSE


def check_a_field_whose_start_is_a_step_acts_in_it_and_one_that_ends_there_does_not() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    place = {"area": "left half", "outside": 0.3}
    # the middle one of an odd number of steps of “normal” is exactly half way
    first, second = (placed(words, "red cat", **place, start=start, end=end) for start, end in ((0.0, 0.5), (0.5, 1.0)))
    both = placed(first, "red cat", **place, start=0.5, end=1.0)
    whole = placed(words, "red cat", **place)
    sampled_ones = [sampled(model, one, negative, steps=5) for one in (both, whole, first, second)]
    assert torch.equal(sampled_ones[0], sampled_ones[1])
    lines = [logged(lambda one=one: sampled(model, one, negative, steps=5), PLACE) for one in (first, second)]
    acted = [int(line.split(" acted in ")[1].split()[0]) for (line,) in lines]
    assert sum(acted) == 5, acted


# ---- words, what stays, what is said, and what is refused


@compares("Place Phrase behind Attention Weights, likewise", limit=CLOSE)
def check_weights_of_rows_and_places_act_together() -> None:
    text = "a (red:1.7) cat on a (mat:0.4), (oil painting:-0.6) in snow"
    kinds = "SD1", "Flux", "SD 3", "HiDream", "Lumina 2", "Krea 2", "Anima", "Wan", "LTX-Video"
    for family, clip, model, plain, negative in toys(*kinds):
        if family not in (*UNETS, *families()):
            continue
        rows = rows_by_hand(family, clip, PLAIN, {"red": 1.7, "mat": 0.4, "oil": -0.6, "painting": -0.6})
        known = (plain, by_rows(family, clip, ("red", half(1.0, 0.2)), ("snow", half(0.0, 2.0))))
        for how in ("bias", "value"):
            weighed = run_ours(NODE, clip=clip, text=text, how=how)["result"][0]
            ours = placed(
                placed(weighed, "red", area="left", outside=0.2), "snow", area="left", inside=0.0, outside=2.0
            )
            draws_by_place(model, ours, plain, negative, known, rows=((plain, rows),), how=how, name=f"{family}, {how}")
            message = refusal(lambda weighed=weighed: placed(weighed, "oil painting", area="left"))
            assert how == "value" or "weight below 0" in message, message


def check_every_encode_node_says_which_rows_are_words() -> None:
    typed = "a (red:1.3) cat on a (mat:0.7), (oil painting:1.2) in snow"
    for family, clip, *_ in toys(*families()):
        tokens = clip.tokenize("(a:2)")
        is_weighing = any(pair[1] != 1 for key in TOYS[family].keys for pair in tokens[key][0])
        for node, text in (
            (NODE, typed),
            ("WeightedCLIPTextEncode", PLAIN),
            ("WeightedCLIPTextEncode", typed),
            ("WeightedCLIPA1111Encode", typed),
        ):
            if node == "WeightedCLIPA1111Encode" and family not in ("Flux", "SD 3"):
                continue  # it weighs by CLIP
            if family in ("HiDream", "Lumina 2") and text == typed and node != NODE:
                continue  # beside brackets, small vocabularies have other pieces
            words = run_ours(node, clip=clip, text=text)["result"][0]
            read = text if is_weighing and node != NODE else PLAIN
            for phrase in ("red cat", "oil painting", "snow"):
                (field,) = placed(words, phrase, area="left")[0][1]["model_conds"]["weighted_clip_attention"].fields
                expected = by_rows(family, clip, (phrase, half()), text=read)
                assert set(field.rows) == set(expected), (family, node, text, phrase, field.rows, expected.keys())
            assert "“blue” is not in the prompt" in refusal(lambda words=words: placed(words, "blue", area="left"))


@compares("Stock after Place Phrase on the same model and CLIP, with before")
def check_stock_is_stock_afterwards() -> None:
    for family, clip, model, plain, negative in toys():
        before = sampled(model, plain, negative)
        options = repr(model.model_options), repr(model.wrappers), repr(model.object_patches)
        words = encoded(clip)
        kept = repr(words[0][1].keys())
        assert not torch.equal(sampled(model, placed(words, "red cat", area="left"), negative), before), family
        difference(sampled(model, plain, negative), before)
        difference(sampled(model, words, negative), before)
        difference(stock(clip, PLAIN), plain)
        assert kept == repr(words[0][1].keys())
        assert options == (repr(model.model_options), repr(model.wrappers), repr(model.object_patches))


def check_a_placed_phrase_takes_no_more_passes() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    for inputs in ({}, {"start": 0.5}, {"end": 0.5}):
        assert num_calls(model, placed(words, "red cat", area="left", **inputs), negative) == 1
        assert num_calls(model, negative, placed(words, "red cat", area="left", **inputs)) == 1


def check_the_log_says_in_how_many_steps_a_phrase_acted() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    for inputs, count in (
        ({}, 4),
        ({"start": 1, "end": 3, "unit": "steps"}, 2),
        ({"start": 7, "end": 9, "unit": "steps"}, 0),
    ):
        ours = placed(words, "red cat", area="left", **inputs)
        assert logged(lambda ours=ours: sampled(model, ours, negative, steps=4), PLACE) == [
            f"Place Phrase: “red cat” acted in {count} of 4 steps"
        ]


def check_the_page_is_told_in_which_steps_and_where_a_phrase_acted() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    told: list[Any] = []
    instance = SimpleNamespace(client_id="page", send_sync=lambda *message: told.append(message))
    server = SimpleNamespace(PromptServer=SimpleNamespace(instance=instance))
    times = {"start": 1, "end": 3, "unit": "steps"}
    ours = placed(words, "red cat", area="left", unique_id="3:7", **times)
    ours = placed(ours, "mat", mask=torch.eye(2)[None], unique_id="8", **{**times, "start": 7, "end": 9})
    with patch.dict(sys.modules, {"server": server}):
        sampled(model, ours, negative, steps=4)
    first, second = ((event, detail, client) for event, detail, client in told)
    height, width = LATENT
    left = [[1.0] * 8 + [0.0] * 8] * round(height / width * 16)
    place = {"name": "“red cat”", "steps": [1, 2], "num_steps": 4, "picture": left}
    text = "“red cat” acted in 2 of 4 steps"
    assert first == ("weighted_clip.weighed", {"node": "3:7", "text": text, "place": place}, "page"), first
    place = {"name": "“mat”", "steps": [], "num_steps": 4, "picture": None}
    assert second[1] == {"node": "8", "text": "“mat” acted in 0 of 4 steps", "place": place}, second


def check_what_cannot_be_placed_is_refused_in_words() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
    assert "Weighted Prompt" in refusal(lambda: placed(plain, "red cat"))
    assert "“blue” is not in the prompt" in refusal(lambda: placed(words, "blue"))
    for changed in (
        nodes.ConditioningConcat().concat(words, plain)[0],
        nodes.ConditioningAverage().addWeighted(words, plain, 0.5)[0],
        nodes.ConditioningZeroOut().zero_out(words)[0],
    ):
        if changed[0][0].shape != words[0][0].shape or not torch.equal(changed[0][0], words[0][0]):
            assert "has changed the rows" in refusal(lambda changed=changed: placed(changed, "red cat", area="left"))
    ours = placed(words, "red cat", area="left")
    (joined,) = nodes.ConditioningConcat().concat(ours, plain)
    assert "the sampler got 154" in refusal(lambda: sampled(model, joined, negative))
    assert placed(nodes.ConditioningCombine().combine(words, encoded(clip, "a dog"))[0], "dog", area="left")
    for inputs, message in (
        ({"area": "upstairs"}, "“upstairs” is not understood"),
        ({"mask": torch.zeros(1, 8, 8)}, "The mask is empty"),
        ({"start": 0.5, "end": 0.5}, "start must be before end"),
        ({"inside": float("nan")}, "inside must be"),
        ({"boxes": []}, "draw the place"),
        ({"boxes": as_host([(0, -8, 16, 16)])}, "0, -8 with width 16"),
    ):
        assert message in refusal(lambda inputs=inputs: placed(words, "red cat", **inputs))
    too_wide = placed(words, "red cat", area="0 200, 0 64")
    assert "the picture is 176 wide" in refusal(lambda: sampled(model, too_wide, negative))
    too_wide = placed(words, "red cat", boxes=as_host([(8, 0, 180, 16)]))
    assert "“box 8 188, 0 16” reaches to pixel 188" in refusal(lambda: sampled(model, too_wide, negative))
    subtracted = run_ours(ENCODE, clip=clip, text="a (red:-1) cat", scheme="negpip")["result"][0]
    assert "weight below 0" in refusal(lambda: placed(subtracted, "red", area="left"))
    refuses_patches(model, ours, negative)


def refuses_patches(model: Any, ours: Any, negative: Any) -> None:
    """Other packs' patches that change which queries read what are refused in words."""
    doubling = model.clone()
    doubling.set_model_attn2_patch(lambda n, k, v, _: (n.repeat(2, 1, 1), k.repeat(2, 1, 1), v.repeat(2, 1, 1)))
    assert "Attention Couple" in refusal(lambda: sampled(doubling, ours, negative))
    replacing = model.clone()
    replacing.set_model_attn2_replace(lambda q, k, v, options: v, "middle", 0)
    assert "attn2_replace" in refusal(lambda: sampled(replacing, ours, negative))
    fewer = model.clone()
    fewer.set_model_attn2_patch(lambda n, k, v, _: (n[:, ::2], k, v))
    assert "has changed them" in refusal(lambda: sampled(fewer, ours, negative))


def check_text_encoders_without_a_table_of_rows_are_refused_by_name() -> None:
    for family in there("Mochi", "Ovis"):
        words, name = encoded(unheard(make_text_encoder(family))), f"{family}TEModel_"
        message = refusal(lambda words=words: placed(words, "red", area="left"))
        assert name in message and "unknown which rows" in message, message


def check_what_cannot_be_placed_in_other_families_is_refused_in_words() -> None:
    import node_helpers

    clip, model = make_text_encoder("Flux"), make_model("Flux")
    negative, words = stock(clip, TOYS["Flux"].negative), encoded(clip)
    ours = placed(words, "red cat", area="left")
    with patch.object(pack_module("weighting.key_weights"), "MAX_BYTES", 2**16):
        message = refusal(lambda: sampled(model, ours, negative))
        assert "333 rows at 333 places" in message and "Take a smaller picture" in message, message
    moving = model.clone()
    moving.set_model_patch(lambda inputs: inputs, "post_input")
    assert "post_input" in refusal(lambda: sampled(moving, ours, negative))

    clip, model = make_text_encoder("HiDream"), make_model("HiDream")
    joined = {"concat_latent_image": torch.ones(1, 16, *TOYS["HiDream"].latent)}
    ours = node_helpers.conditioning_set_values(placed(encoded(clip), "red cat", area="left"), joined)
    assert "joined other pictures" in refusal(lambda: sampled(model, ours, ours))

    clip, model = make_text_encoder("Z-Image"), make_model("Z-Image")
    images = {"reference_latents": [torch.ones(1, 16, *TOYS["Z-Image"].latent)]}
    ours = node_helpers.conditioning_set_values(placed(encoded(clip), "red cat", area="left"), images)
    assert "reference images" in refusal(lambda: sampled(model, ours, ours))


if __name__ == "__main__":
    main(globals())
