"""Checks of Place Phrase: small U-Nets draw what a softmax with weights by place draws, and stock stays stock.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. What a place is, which cells a layer has and
which part of the picture an area sees are worked out here once more, with loops.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, make_lora, note, refusal, run_ours, stock
from inprocess_attention import area, is_close, left_of, logged, masked, num_calls, rel, timed
from toys import LATENT, NEGATIVE, PLAIN, TOYS, make_model, make_text_encoder, sampled, there, unheard
from written_out import split

ENCODE = "WeightedCLIPTextEncode"
PLACE = "Place Phrase"
ROWS = {"red": (2,), "red cat": (2, 3), "mat": (6,), "oil painting": (8, 9), "snow": (11,)}
"""Rows of phrases of `PLAIN` in Stable Diffusion; BOS is row 0."""
UNETS = ("SD1", "SD2", "SDXL")
Maps = dict[tuple[int, ...], Callable[[int, int], torch.Tensor]]
"""For some rows, the weight at each place of a latent of a height and width: ``[1 or pictures, height, width]``."""


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


def cells_of(weight: torch.Tensor, num_queries: int) -> torch.Tensor:
    """Mean weights in the cells of a layer, each of 1, 2, 4, ... places along both sides: ``[pictures, queries]``."""
    height, width = weight.shape[-2:]
    side = 1
    while -(-height // side) * -(-width // side) > num_queries:
        side *= 2
    rows, across = range(0, height, side), range(0, width, side)
    assert len(rows) * len(across) == num_queries, (height, width, num_queries)
    return torch.stack([weight[:, y : y + side, x : x + side].mean((1, 2)) for y in rows for x in across], 1)


@contextmanager
def read_by_place(model: Any, *texts: tuple[Any, Maps]) -> Iterator[None]:
    """Let a U-Net read text by an attention in float64 with weights by place for the rows of known conditionings."""
    latent: list[tuple[int, int]] = []

    def weights_of(context: torch.Tensor, picture: int, num_queries: int) -> torch.Tensor:
        found = torch.ones(num_queries, len(context), dtype=torch.float64)
        for conditioning, maps in texts:
            rows = conditioning[0][0][0]
            if is_repeated(context, rows):
                for own, weight_of in maps.items():
                    cells = cells_of(weight_of(*latent[0]), num_queries)
                    for row in own:
                        found[:, row :: len(rows)] *= cells[picture % len(cells)][:, None]
        return found

    def forward_of(layer: Any) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            q, k, v = (
                split(part(tensor).double(), layer.heads)
                for part, tensor in ((layer.to_q, x), (layer.to_k, context), (layer.to_v, context))
            )
            logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            shares = torch.exp(logits - logits.amax(-1, keepdim=True))
            shares = shares * torch.stack([weights_of(one, i, x.shape[1]) for i, one in enumerate(context)])[:, None]
            read = (shares / shares.sum(-1, keepdim=True)) @ v
            return layer.to_out(read.transpose(1, 2).flatten(2).to(x.dtype))

        return forward

    with cross_attention_by(model, forward_of, latent):
        yield


@contextmanager
def cross_attention_by(model: Any, forward_of: Callable[[Any], Any], latent: list[tuple[int, int]]) -> Iterator[None]:
    """Give each cross attention of a U-Net another forward, and note the size of the latent that is drawn."""
    network = model.model.diffusion_model

    def note_size(_: Any, inputs: Any) -> None:
        latent[:] = [tuple(inputs[0].shape[-2:])]

    with ExitStack() as undone:
        undone.callback(network.register_forward_pre_hook(note_size).remove)
        for name, module in network.named_modules():
            if name.endswith("attn2"):
                undone.enter_context(patch.object(module, "forward", forward_of(module)))
        yield


def is_repeated(context: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether a context is the same rows once or several times."""
    times = len(context) // len(rows)
    return len(context) == times * len(rows) and torch.equal(context, rows.repeat(times, 1))


def draws_by_place(
    model: Any, ours: Any, stocks: Any, negative: Any, *texts: Any, name: str = "", on: Any = None, **settings: Any
) -> None:
    """Ours draws what stock draws with weights by place written out; see `read_by_place`."""
    draws_as(read_by_place(model, *texts), on or model, ours, stocks, negative, name, **settings)


def draws_as(
    reading: AbstractContextManager[None], model: Any, ours: Any, stocks: Any, negative: Any, name: str, **settings: Any
) -> None:
    """Ours draws what stock draws while it reads otherwise."""
    with reading:
        reference = sampled(model, stocks, negative, **settings)
    is_close(sampled(model, ours, negative, **settings), reference, sampled(model, stocks, negative, **settings), name)


def resized(model: Any, height: int, width: int) -> Any:
    """A clone of a MODEL that draws another size."""
    model.model.toy = model.model.toy._replace(latent=(height, width))
    return model


LEFT = columns(0, 11)
SOFT = torch.linspace(0, 1, 8 * LATENT[0] * 8 * LATENT[1]).view(1, 8 * LATENT[0], 8 * LATENT[1]) ** 2


def soft(height: int, width: int) -> torch.Tensor:
    return SOFT.double().view(1, height, 8, width, 8).mean((2, 4))


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
    for family in UNETS:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
        expected = sampled(model, plain, negative)
        difference(sampled(model, words, negative), expected)
        for inputs in ({"outside": 1.0, "area": "left"}, {}):
            same, report = reported(words, "red cat", **inputs)
            assert same is words and "weight is 1 everywhere" in report
        unused = placed(words, "red cat", area="left", start=7, end=9, unit="steps")
        difference(sampled(model, unused, negative), expected)
        difference(sampled(model, plain, negative), expected)


@compares(
    "Place Phrase on SD1, SD2 and SDXL, small, KSampler, with a softmax written out, relative to the largest",
    limit=CLOSE,
)
def check_placed_phrases_equal_weights_by_place_written_out() -> None:
    for family in UNETS:
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
        cases: dict[str, tuple[Any, Maps]] = {
            "hidden": (placed(words, "Red  CAT", area="left half"), {ROWS["red cat"]: lambda *s: weights(LEFT(*s))}),
            "weighed": (
                placed(words, "mat", area="left half", inside=3.0, outside=0.4),
                {ROWS["mat"]: lambda *s: weights(LEFT(*s), 3.0, 0.4)},
            ),
            "between cells": (
                placed(words, "red cat", area="0.1 0.3, 0 1"),
                {ROWS["red cat"]: lambda *s: weights(columns(2.2, 6.6)(*s))},
            ),
            "mask": (
                placed(words, "oil painting", mask=SOFT, inside=2.0, outside=0.1),
                {ROWS["oil painting"]: lambda *s: weights(soft(*s), 2.0, 0.1)},
            ),
            "mask and area": (
                placed(words, "snow", mask=SOFT, area="left", outside=0.2),
                {ROWS["snow"]: lambda *s: weights(soft(*s) * LEFT(*s), 1.0, 0.2)},
            ),
            "boxes": (
                placed(words, "mat", boxes=as_host(BOXES), inside=2.0, outside=0.1),
                {ROWS["mat"]: lambda *s: weights(painted(*BOXES)(*s), 2.0, 0.1)},
            ),
            "a box in an area and a mask": (
                placed(words, "snow", boxes=as_host(BOXES)[0][0], mask=SOFT, area="left", outside=0.2),
                {ROWS["snow"]: lambda *s: weights(painted(BOXES[0])(*s) * soft(*s) * LEFT(*s), 1.0, 0.2)},
            ),
            "two fields": (
                placed(placed(words, "red cat", area="left", outside=0.3), "red", mask=SOFT, inside=2.0, outside=0.5),
                {
                    ROWS["red cat"]: lambda *s: weights(LEFT(*s), 1.0, 0.3),
                    ROWS["red"]: lambda *s: weights(soft(*s), 2.0, 0.5),
                },
            ),
        }
        for name, (ours, maps) in cases.items():
            draws_by_place(model, ours, plain, negative, (plain, maps), name=f"{family}, {name}")


@compares("Place Phrase with the same weight everywhere, with Attention Weights")
def check_a_constant_field_is_weigh_attention() -> None:
    everywhere = torch.ones(1, 40, 60)
    for family in UNETS:
        clip, model = make_text_encoder(family), make_model(family)
        negative, words = stock(clip, NEGATIVE), encoded(clip)
        for weight in (1.7, 0.3, 0.0):
            text = PLAIN.replace("red cat", f"(red cat:{weight})")
            expected = sampled(
                model, run_ours("WeightedCLIPWeighAttention", clip=clip, text=text)["result"][0], negative
            )
            for inputs in ({}, {"mask": everywhere}, {"area": "top left", "outside": weight}, {"area": "0 1, 0 1"}):
                ours = placed(words, "red cat", **{"inside": weight, **inputs})
                difference(sampled(model, ours, negative), expected)


@compares("Place Phrase on odd sizes, likewise", limit=CLOSE)
def check_odd_sizes() -> None:
    clip = make_clip("SD1")
    plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
    for height, width in ((13, 21), (15, 9), (9, 23)):
        model = resized(make_model("SD1"), height, width)
        own = placed(words, "red cat", area="0 0.3, 0 0.4", outside=0.2)

        def corner(h: int, w: int) -> torch.Tensor:
            across = columns(0, 0.3 * w)(h, w)
            down = columns(0, 0.4 * h)(w, h).transpose(1, 2)
            return weights(across * down, 1.0, 0.2)

        draws_by_place(model, own, plain, negative, (plain, {ROWS["red cat"]: corner}), name=f"{height} x {width}")


@compares("Place Phrase beside Attention Weights, signs and LoRA hooks, likewise", limit=CLOSE)
def check_row_weights_signs_and_hooks_act_beside() -> None:
    import comfy.hooks

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    weighed, _, wrapped = run_ours(
        "WeightedCLIPWeighAttention", clip=clip, text=PLAIN.replace("mat", "(mat:1.7)"), model=model
    )["result"]
    maps: Maps = {ROWS["red cat"]: lambda *s: weights(LEFT(*s)), ROWS["mat"]: lambda h, w: torch.full((1, h, w), 1.7)}
    draws_by_place(model, placed(weighed, "red cat", area="left"), plain, negative, (plain, maps), on=wrapped)
    maps[ROWS["mat"]] = lambda *s: 1.7 * weights(LEFT(*s), 2.0, 0.5)
    both = placed(placed(weighed, "red cat", area="left"), "mat", area="left", inside=2.0, outside=0.5)
    draws_by_place(model, both, plain, negative, (plain, maps), on=wrapped)
    lora = make_lora(model.model, TOYS["SD1"].lora)
    hooked, _, hooks = comfy.hooks.load_hook_lora_for_models(model, None, lora, 1.0, 0.0)
    words = comfy.hooks.set_hooks_for_conditioning(encoded(clip), hooks)
    own = {ROWS["red cat"]: lambda *s: weights(LEFT(*s))}
    stocks = comfy.hooks.set_hooks_for_conditioning(plain, hooks)
    draws_by_place(model, placed(words, "red cat", area="left"), stocks, negative, (plain, own), on=hooked)
    assert rel(sampled(hooked, stocks, negative), sampled(model, plain, negative)) > 100 * CLOSE


@compares("Place Phrase in areas, masks and two conditionings, likewise", limit=CLOSE)
def check_fields_stay_with_their_entry_in_areas_and_masks() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, other, negative = (stock(clip, text) for text in (PLAIN, "a dog", NEGATIVE))
    words, dog = encoded(clip), encoded(clip, "a dog")
    place, half = {"area": "0.25 0.75, 0 1", "outside": 0.1}, (5.5, 16.5)
    mask = left_of(LATENT, 12)

    def by_place(start: int) -> Maps:
        return {ROWS["red cat"]: lambda h, w: weights(columns(*half, start if w < 22 else 0)(h, w), 1.0, 0.1)}

    layouts: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
        "left area": (0, lambda one, two: [*area(one, 0), *area(two, 88)]),
        "right area": (11, lambda one, two: [*area(two, 0), *area(one, 88)]),
        "area over a whole": (5, lambda one, two: [*two, *area(one, 40)]),
        "masks": (0, lambda one, two: [*masked(one, mask), *masked(two, 1 - mask)]),
        "bounds": (0, lambda one, two: [*masked(one, mask, "mask bounds"), *two]),
        "two": (0, lambda one, two: [*one, *two]),
    }
    for name, (start, layout) in layouts.items():
        for ours in (layout(placed(words, "red cat", **place), dog), placed(layout(words, dog), "red cat", **place)):
            draws_by_place(model, ours, layout(plain, other), negative, (plain, by_place(start)), name=name)
    # the negative prompt, beside one that has no words
    ours = placed(words, "red cat", **place)
    with read_by_place(model, (plain, by_place(0))):
        reference = sampled(model, other, plain)
    is_close(sampled(model, other, ours), reference, sampled(model, other, plain))


@compares("Place Phrase, batches, CFG 1 and 7, long negative prompts, likewise", limit=CLOSE)
def check_batches_guidance_and_unequal_lengths() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, words = stock(clip, PLAIN), encoded(clip)
    pictures = torch.stack([SOFT[0], SOFT[0].flip(0), SOFT[0].flip(1)])
    by_picture = pictures.double().view(3, LATENT[0], 8, LATENT[1], 8).mean((2, 4))
    for negative in (stock(clip, NEGATIVE), stock(clip, "blurry, " * 60)):
        for cfg in (1.0, 7.0):
            for batch in (2, 3):
                mask, known = (SOFT, soft) if batch == 2 else (pictures, lambda *_: by_picture)
                ours = placed(words, "red cat", mask=mask, outside=0.1)
                maps = {ROWS["red cat"]: lambda *s, known=known: weights(known(*s), 1.0, 0.1)}
                name = f"batch {batch}, cfg {cfg}"
                draws_by_place(model, ours, plain, negative, (plain, maps), batch=batch, cfg=cfg, name=name)
    assert "has 3 pictures, but 2" in refusal(
        lambda: sampled(model, placed(words, "red cat", mask=pictures), negative, batch=2)
    )


@compares("Place Phrase with hypertile, ToMe, FreeU, SAG and PAG, likewise", limit=CLOSE)
def check_other_changes_of_the_model() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative, words = stock(clip, PLAIN), stock(clip, NEGATIVE), encoded(clip)
    ours = placed(words, "red cat", area="left", outside=0.1)
    maps = {ROWS["red cat"]: lambda *s: weights(LEFT(*s), 1.0, 0.1)}
    for node, inputs in others(nodes.NODE_CLASS_MAPPINGS, model):
        draws_by_place(model, ours, plain, negative, (plain, maps), on=applied(node, inputs), name=node.__name__)


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


# ---- time


@compares("Place Phrase in a part of the time, with two conditionings in time ranges")
def check_time_ranges_equal_two_entries() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    negative, words = stock(clip, NEGATIVE), encoded(clip)
    inside = {"area": "left half"}
    whole = placed(words, "red cat", **inside)
    for steps in (4, 5):
        for start, end in ((0.0, 0.37), (0.37, 1.0), (0.21, 0.83)):
            ours = placed(words, "red cat", **inside, start=start, end=end)
            entries = timed(whole, start, end)
            entries += timed(words, 0.0, start - 1e-4) if start else []
            entries += timed(words, end + 1e-4, 1.0) if end < 1 else []
            difference(sampled(model, ours, negative, steps=steps), sampled(model, entries, negative, steps=steps))


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


# ---- what stays, what is said, and what is refused


@compares("Stock after Place Phrase on the same model and CLIP, with before")
def check_stock_is_stock_afterwards() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    plain, negative = stock(clip, PLAIN), stock(clip, NEGATIVE)
    before = sampled(model, plain, negative)
    options = repr(model.model_options), repr(model.wrappers), repr(model.object_patches)
    words = encoded(clip)
    kept = repr(words[0][1].keys())
    drawn = sampled(model, placed(words, "red cat", area="left"), negative)
    assert not torch.equal(drawn, before)
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


if __name__ == "__main__":
    main(globals())
