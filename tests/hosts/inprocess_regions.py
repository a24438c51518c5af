"""Checks of regions in every family: each prompt's attention, mixed by shares, is drawn; and stock stays stock.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. The formula is written out in float64, who
may read whom and how much with loops over prompts and places; and other packs' own code runs beside ours.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, note, refusal, run_ours, stock
from inprocess_attention import area, is_close, left_of, logged, masked, num_calls, rel, timed
from inprocess_attention_beside import as_forge, forge_couple, ppm_couple
from inprocess_places import (
    ENCODE,
    UNETS,
    applied,
    columns,
    draws_as,
    encoded,
    others,
    placed,
    refuses_patches,
    resized,
    result_of,
    soft_of,
    weights,
)
from toys import LATENT, NEGATIVE, PLAIN, TOYS, make_model, make_text_encoder, rows_by_hand, sampled
from written_out import rows_read
from written_out_regions import Maps, Other, Text, read_by_region

ROWS = {"red cat": (2, 3), "mat": (6,), "snow": (11,)}
"""Rows of phrases of `PLAIN` in Stable Diffusion; BOS is row 0."""
DOG, HOUSE = "a blue dog in a forest", "a house"
LONG = "a big blue dog on green grass under tall old trees, " * 8
"""A text of two chunks."""
JOINT = ("Flux", "Chroma", "Qwen-Image", "SD 3", "SD 3.5", "Krea 2", "Flux 2 Klein", "Lumina 2", "Z-Image", "HiDream")
APART = ("Anima", "LTX-Video", "Wan", "Wan image to video", "Wan VACE", "Wan Camera")
LEFT = columns(0, 11)
SOFT = soft_of("SD1")


def soft(height: int, width: int) -> torch.Tensor:
    """`SOFT` in the places of a latent."""
    return SOFT.double().view(1, height, 8, width, 8).mean((2, 4))


def region(base: Any, prompt: Any, **inputs: Any) -> Any:
    return reported(base, prompt, **inputs)[0]


def reported(base: Any, prompt: Any, **inputs: Any) -> tuple[Any, str]:
    return result_of("WeightedCLIPRegion", base, prompt, **inputs)


def draws_by_region(
    model: Any,
    ours: Any,
    stocks: Any,
    *texts: Text,
    negative: Any = None,
    name: str = "",
    on: Any = None,
    **settings: Any,
) -> None:
    """Ours draws what stock's base prompts draw with their regions written out; without a negative prompt, at CFG 1."""
    if negative is None:
        negative, settings = stocks, {"cfg": 1.0, **settings}
    draws_as(read_by_region(model, *texts), on or model, ours, stocks, negative, name, **settings)


def toys(*families: str) -> Iterator[tuple[str, Any, Any, Any, Any, Any]]:
    """For each family its name, CLIP, MODEL, and stock's base prompt and two others."""
    for family in families:
        clip = make_text_encoder(family)
        yield (family, clip, make_model(family), *(stock(clip, text) for text in (PLAIN, DOG, HOUSE)))


# ---- what is drawn


def check(families: tuple[str, ...]) -> None:
    """Regions of all kinds draw what is written out."""
    for family, clip, model, base, dog, house in toys(*families):
        width = TOYS[family].latent[1]
        mask = soft_of(family)

        def soft(h: int, w: int, mask: torch.Tensor = mask) -> torch.Tensor:
            return mask.double().view(1, h, 8, w, 8).mean((2, 4))

        left, right = columns(0, width / 2), columns(0.45 * width, width)
        hard = region(base, dog, area="left half"), base, [Other(dog, left)]
        cases = {
            "hard": hard,
            "soft": (region(base, house, mask=mask, strength=0.7), base, [Other(house, soft, 0.7)]),
            "two": (
                region(region(base, dog, area="left half"), house, area="0.45 1, 0 1"),
                base,
                [Other(dog, left), Other(house, right)],
            ),
        }
        if family in UNETS:
            long = stock(clip, LONG)
            assert long[0][0].shape[1] == 2 * dog[0][0].shape[1]
            cases |= {
                "longer": (region(base, long, mask=mask), base, [Other(long, soft)]),
                "shorter": (region(long, dog, mask=mask), long, [Other(dog, soft)]),
                "between cells": (region(base, dog, area="0.1 0.3, 0 1"), base, [Other(dog, columns(2.2, 6.6))]),
                "no base": (
                    region(region(base, dog, area="left"), long, area="right"),
                    base,
                    [Other(dog, LEFT), Other(long, columns(11, 22))],
                ),
                "overlapping": (
                    region(region(base, dog, mask=mask, strength=1.7), long, area="0.3 0.8, 0 1", strength=0.8),
                    base,
                    [Other(dog, soft, 1.7), Other(long, columns(6.6, 17.6), 0.8)],
                ),
            }
        for name, (ours, stocks, texts) in cases.items():
            draws_by_region(model, ours, stocks, Text(stocks, texts), name=f"{family}, {name}")
        draws_by_region(model, hard[0], base, Text(base, hard[2]), batch=2, name=family)


@compares(
    "Regional Prompt in all families, small, with attention to each prompt or masks written out, likewise", limit=CLOSE
)
def check_regions_equal_attention_to_each_prompt_written_out() -> None:
    check((*UNETS, *JOINT, *APART))


@compares("Regions in every other block of six families, with masks written out, likewise", limit=CLOSE)
def check_regions_in_every_other_block_equal_masks_written_out() -> None:
    for family, _, model, base, dog, house in toys("Flux", "SD 3.5", "Krea 2", "Flux 2 Klein", "Z-Image", "HiDream"):
        left, right = columns(0, TOYS[family].latent[1] / 2), columns(0.45 * TOYS[family].latent[1], 99)
        one = region(base, dog, area="left half", blocks="every other")
        always = region(base, dog, area="left half")
        draws_by_region(model, one, base, Text(base, [Other(dog, left, blends=True)]), name=family, batch=2)
        drawn = [sampled(model, ours, base, cfg=1.0) for ours in (one, always)]
        assert rel(*drawn) > CLOSE, family
        for blends in ((True, False), (True, True)):
            both = region(one, house, area="0.45 1, 0 1", blocks="every other" if blends[1] else "all")
            others = [Other(dog, left, blends=True), Other(house, right, blends=blends[1])]
            draws_by_region(model, both, base, Text(base, others), name=f"{family}, {blends}")


@compares("Regions in every other block of SD1, Anima, LTX-Video and Wan, with all blocks")
def check_blocks_change_nothing_in_cross_attention() -> None:
    for _, _, model, base, dog, _ in toys("SD1", "Anima", "LTX-Video", "Wan"):
        drawn = [
            sampled(model, region(base, dog, area="left", blocks=blocks), base, cfg=1.0)
            for blocks in ("all", "every other")
        ]
        difference(*drawn)


@compares("Regions in all of the picture, with the region's prompt alone; stock afterwards")
def check_a_region_everywhere_is_its_prompt_alone() -> None:
    for family, clip, model, base, dog, _ in toys(*UNETS, *JOINT, *APART):
        negative = stock(clip, TOYS[family].negative)
        before, options = sampled(model, base, negative), repr(model.model_options)
        read_too = "t5xxl_ids", "t5xxl_weights", "conditioning_llama3", "attention_mask"
        long = stock(clip, LONG) if family in UNETS else dog
        for one, other in ((base, dog), (base, long), (long, dog))[: 3 if family in UNETS else 1]:
            taken = {key: other[0][1][key] for key in read_too if key in other[0][1]}
            alone = [[other[0][0], {**one[0][1], **taken}]]
            expected = sampled(model, alone, negative)
            for inputs in ({}, {"mask": torch.ones(1, 40, 60)}, {"area": "0 1, 0 1"}, {"strength": 3.0}):
                difference(sampled(model, region(one, other, **inputs), negative), expected)
            if family in UNETS:
                difference(sampled(model, negative, region(one, other)), sampled(model, negative, alone))
                # what the region's own nodes have made of it comes along
                weighted = placed(encoded(clip, DOG if other is dog else LONG), "blue", inside=0.3)
                alone = [[weighted[0][0], {**one[0][1], **{k: weighted[0][1][k] for k in ("model_conds", "hooks")}}]]
                difference(sampled(model, region(one, weighted), negative), sampled(model, alone, negative))
        unused = region(base, dog, area="left", start=7, end=9, unit="steps")
        difference(sampled(model, unused, negative), before)
        assert rel(sampled(model, region(base, dog, area="left"), negative), before) > CLOSE, family
        difference(sampled(model, base, negative), before)
        difference(stock(clip, PLAIN), base)
        assert options == repr(model.model_options)
        same, report = reported(base, dog, strength=0.0)
        assert same is base and "strength is 0" in report


def in_blocks(height: int, width: int) -> torch.Tensor:
    """A soft mask, the same in all of a cell of the deepest layer, as the packs take the nearest place of one."""
    cells = torch.rand(height // 2, width // 2, generator=torch.Generator().manual_seed(2))
    return cells.repeat_interleave(2, 0).repeat_interleave(2, 1)[None]


def masks_of(latent: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Masks in pixels, hard and soft."""
    masks = {"hard": columns(0, 12)(*latent), "soft": in_blocks(*latent)}
    return {name: mask.float().repeat_interleave(8, 1).repeat_interleave(8, 2) for name, mask in masks.items()}


def equals_theirs(coupled: Callable[[Any, Any, list[Any], list[torch.Tensor]], Any]) -> None:
    """Draws what another pack's code draws, with one region and with two, of one chunk and of two."""
    for family in ("SD1", "SDXL"):
        clip, model = make_clip(family), make_model(family)
        base, dog, long, negative = (stock(clip, text) for text in (PLAIN, DOG, LONG, NEGATIVE))
        for name, mask in masks_of(LATENT).items():
            for prompts, masks in (
                ([dog], [mask]),
                ([long], [mask]),
                ([dog, long], [mask * 0.75, (1 - mask) * 0.5]),
            ):
                ours = base
                for prompt, own in zip(prompts, masks, strict=True):
                    ours = region(ours, prompt, mask=own)
                theirs = coupled(model, base, prompts, [1 - sum(masks), *masks])
                reference, without = sampled(theirs, base, negative), sampled(model, base, negative)
                is_close(sampled(model, ours, negative), reference, without, f"{family}, {name}, {len(prompts)}")


@compares(
    "Regional Prompt on SD1 and SDXL, small, with Attention Couple of ComfyUI-ppm, relative to the largest", limit=CLOSE
)
def check_regions_draw_what_attention_couple_draws_beside_ppm() -> None:
    unet_couple = ppm_couple()

    def coupled(model: Any, base: Any, prompts: list[Any], masks: list[torch.Tensor]) -> Any:
        work, num = model.clone(), len(masks)
        given = (base, prompts, num, False, torch.device("cpu"), torch.float32)
        work.set_model_attn2_patch(unet_couple.unet_attn2_couple_wrapper(*given))
        work.set_model_attn2_output_patch(unet_couple.unet_attn2_output_couple_wrapper(torch.stack(masks)))
        return work

    equals_theirs(coupled)


@compares("Regions on SD1 and SDXL, small, with sd-forge-couple, relative to the largest", limit=CLOSE)
def check_regions_draw_what_attention_couple_draws_beside_forge_couple() -> None:
    couple = forge_couple()

    def coupled(model: Any, base: Any, prompts: list[Any], masks: list[torch.Tensor]) -> Any:
        given = {f"cond_{number}": prompt for number, prompt in enumerate(prompts, 1)}
        given |= {f"mask_{number}": mask for number, mask in enumerate(masks[1:], 1)}
        work = couple.patch_unet(model, masks[0], given)
        work.set_model_unet_function_wrapper(as_forge)
        return work

    equals_theirs(coupled)


@compares("Regions on odd sizes, likewise", limit=CLOSE)
def check_odd_sizes() -> None:
    for family, _, model, base, dog, _ in toys("SD1", "Flux", "Z-Image", "Flux 2 Klein", "LTX-Video", "Wan"):
        for height, width in ((13, 21), (15, 9), (9, 23)) if family in UNETS else ((13, 21), (15, 10)):

            def corner(h: int, w: int) -> torch.Tensor:
                return columns(0, 0.3 * w)(h, w) * columns(0, 0.4 * h)(w, h).transpose(1, 2)

            own = region(base, dog, area="0 0.3, 0 0.4")
            text, name = Text(base, [Other(dog, corner)]), f"{family}, {height} x {width}"
            draws_by_region(resized(model, height, width), own, base, text, name=name)


@compares("Regions beside Attention Weights, Place Phrase and signs, likewise", limit=CLOSE)
def check_weights_fields_and_signs_of_every_prompt_act() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    heavy = PLAIN.replace("mat", "(mat:1.7)")
    faint = DOG.replace("blue", "(blue:0.4)")
    node = "WeightedCLIPWeighAttention"
    mat: Maps = {ROWS["mat"]: lambda h, w: torch.full((1, h, w), 1.7)}
    blue: Maps = {(2,): lambda h, w: torch.full((1, h, w), 0.4)}
    for given in (None, model):
        weighed, _, ready = run_ours(node, clip=clip, text=heavy, model=given)["result"]
        thin, _, thinner = run_ours(node, clip=clip, text=faint, model=given)["result"]
        for one, other, first, second in (
            (weighed, dog, mat, {}),
            (base, thin, {}, blue),
            (weighed, thin, mat, blue),
        ):
            ours = region(one, other, mask=SOFT)
            text = Text(base, [Other(dog, soft, maps=second)], first)
            draws_by_region(model, ours, base, text, negative=negative, on=ready or thinner)
    # a phrase placed before, in base and region, and after
    words, animal = encoded(clip), encoded(clip, DOG)
    right = columns(11, 22)
    text = Text(
        base,
        [Other(dog, soft, maps={(2, 3): lambda *s: weights(right(*s), 1.0, 0.2)})],
        {ROWS["red cat"]: lambda *s: weights(LEFT(*s), 2.0, 0.5)},
    )
    cat = {"area": "left", "inside": 2.0, "outside": 0.5}
    blue_dog = {"area": "right", "outside": 0.2}
    before = region(placed(words, "red cat", **cat), placed(animal, "blue dog", **blue_dog), mask=SOFT)
    after = placed(placed(region(words, animal, mask=SOFT), "blue dog", **blue_dog), "red cat", **cat)
    for ours in (before, after):
        draws_by_region(model, ours, base, text, negative=negative)
    # NegPip's signs
    signed = run_ours(ENCODE, clip=clip, text="a dog, (snow:-1)", scheme="negpip")["result"][0]
    unsigned = [[signed[0][0], {"pooled_output": signed[0][1]["pooled_output"]}]]
    with_sign, without = (sampled(model, region(base, one, area="left"), negative) for one in (signed, unsigned))
    assert rel(with_sign, without) > 100 * CLOSE
    half = region(base, signed, strength=0.5)
    both = region(region(base, signed, area="left", strength=0.5), signed, area="right", strength=0.5)
    is_close(sampled(model, both, negative), sampled(model, half, negative), without)


@compares("Regions with Attention Weights and Place Phrase, with a softmax written out, likewise", limit=CLOSE)
def check_weights_and_fields_act_in_a_shared_softmax() -> None:
    weigh = "WeightedCLIPWeighAttention"
    for family, clip, model, base, dog, _ in toys("Flux", "HiDream"):
        half, left = {"area": "left half"}, columns(0, TOYS[family].latent[1] / 2)
        heavy, faint, words = (
            run_ours(weigh, clip=clip, text=text)["result"][0]
            for text in (PLAIN.replace("mat", "(mat:1.7)"), DOG.replace("dog", "(dog:0.4)"), DOG)
        )
        mat, dogs = (
            rows_by_hand(family, clip, text, weights) for text, weights in ((PLAIN, {"mat": 1.7}), (DOG, {"dog": 0.4}))
        )
        text = Text(base, [Other(dog, left, rows=dogs)], rows=mat)
        draws_by_region(model, region(heavy, faint, **half), base, text, name=family)
        text = Text(base, [Other(dog, left, rows=dogs)])
        after = region(encoded(clip), words, **half)
        for ours in (region(base, placed(words, "dog", inside=0.4), **half), placed(after, "dog", inside=0.4)):
            draws_by_region(model, ours, base, text, name=family)


@compares("Regions in areas, masks, several conditionings, batches and negative prompts, likewise", limit=CLOSE)
def check_regions_stay_with_their_entry_in_areas_masks_and_batches() -> None:
    for family, clip, model, base, dog, other in toys("SD1", "Flux", "Z-Image", "HiDream"):
        height, width = TOYS[family].latent
        mask = left_of((height, width), 12)
        ours = region(base, dog, area="0.25 0.75, 0 1")

        def text(start: int, width: int = width, base: Any = base, dog: Any = dog) -> Text:
            def middle(h: int, w: int) -> torch.Tensor:
                return columns(0.25 * width, 0.75 * width, start if w < width else 0)(h, w)

            return Text(base, [Other(dog, middle)])

        layouts: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
            "left area": (0, lambda one, two: [*area(one, 0), *area(two, 88), *two]),
            "right area": (11, lambda one, two: [*area(two, 0), *area(one, 88), *two]),
            "masks": (0, lambda one, two, mask=mask: [*masked(one, mask), *masked(two, 1 - mask)]),
            "bounds": (0, lambda one, two, mask=mask: [*masked(one, mask, "mask bounds"), *two]),
        }
        if family in UNETS:
            layouts |= {
                "area over a whole": (5, lambda one, two: [*two, *area(one, 40)]),
                "two": (0, lambda one, two: [*one, *two]),
            }
        for name, (start, layout) in layouts.items():
            name = f"{family}, {name}"
            draws_by_region(model, layout(ours, other), layout(base, other), text(start), name=name)
        one = soft_of(family)[0]
        pictures = torch.stack([one, one.flip(0), one.flip(1)])
        cells = pictures.double().view(3, height, 8, width, 8).mean((2, 4))
        each = Text(base, [Other(dog, lambda *_, cells=cells: cells)])
        draws_by_region(model, region(base, dog, mask=pictures), base, each, batch=3, name=family)
        message = refusal(lambda m=model, b=base, d=dog, p=pictures: sampled(m, region(b, d, mask=p), b, batch=2))
        assert "The mask of region 1 has 3 pictures, but 2" in message, message
        if family not in UNETS:
            continue
        # the negative prompt, alone and with other regions than the positive one; at other CFG and lengths
        for positive, texts in (
            (other, [text(0)]),
            (region(other, base, mask=SOFT), [text(0), Text(other, [Other(base, soft)])]),
        ):
            with read_by_region(model, *texts):
                reference = sampled(model, other, base)
            is_close(sampled(model, positive, ours), reference, sampled(model, other, base))
        for negative in (stock(clip, NEGATIVE), stock(clip, "blurry, " * 60)):
            for cfg in (1.0, 7.0):
                given = {"negative": negative, "batch": 2, "cfg": cfg, "name": f"cfg {cfg}"}
                draws_by_region(model, region(base, dog, mask=SOFT), base, Text(base, [Other(dog, soft)]), **given)


@compares("Regions at CFG 2, with its two predictions", limit=CLOSE)
def check_guidance_with_prompts_of_other_lengths() -> None:
    sharing = "Flux", "Chroma", "Qwen-Image", "SD 3", "SD 3.5", "Flux 2 Klein", "Krea 2", "HiDream", "Lumina 2"
    for family, clip, model, base, dog, house in toys(*sharing, "Z-Image", "Anima", "LTX-Video", "Wan"):
        negative = stock(clip, TOYS[family].negative)
        one, two = region(base, dog, area="left"), region(negative, house, area="top")
        for positive, other in ((one, negative), (one, two), (base, two), (one, base)):
            found = sampled(model, positive, other, steps=1, cfg=2.0)
            conditional, unconditional = (sampled(model, each, each, steps=1, cfg=1.0) for each in (positive, other))
            expected = unconditional + 2.0 * (conditional - unconditional)
            assert note(rel(found, expected)) <= CLOSE, family
        if family in APART:
            assert num_calls(model, one, two) == 1
        assert num_calls(model, one, base) == (2 if family == "Z-Image" else 1), family


def cut(model: Any, num_text: int) -> Any:
    """A clone of a MODEL whose queries read no key behind the text but their own."""

    def override(function: Any, q: Any, k: Any, v: Any, heads: int, mask: Any = None, *rest: Any, **named: Any) -> Any:
        rows = k.shape[-2]
        if rows > num_text and q.shape[-2] == rows:
            own = torch.zeros(1, 1, rows, rows)
            own[..., num_text:] = -1e4
            own += torch.diag_embed(torch.full((rows,), 1e4).where(torch.arange(rows) >= num_text, 0.0))
            mask = own if mask is None else mask + own
        return function(q, k, v, heads, mask, *rest, **named)

    work = model.clone()
    work.model_options["transformer_options"]["optimized_attention_override"] = override
    return work


def check_little_of_a_region_reaches_another() -> None:
    families = "Flux", "Qwen-Image", "SD 3", "Lumina 2", "Z-Image", "Flux 2 Klein", "HiDream"
    for family, _, model, base, dog, house in toys(*families):
        width = TOYS[family].latent[1]
        half = width // 4 * 2  # the border of two patches
        masks = columns(0, half), columns(half, width)
        left, right = {"mask": left_of(TOYS[family].latent, half)}, {"mask": 1 - left_of(TOYS[family].latent, half)}

        def drawn(
            first: Any, work: Any = model, base: Any = base, house: Any = house, sides: Any = (left, right)
        ) -> Any:
            ours = region(region(base, first, **sides[0]), house, **sides[1])
            return sampled(work, ours, base, cfg=1.0)

        def free(first: Any, model: Any = model, base: Any = base, house: Any = house, masks: Any = masks) -> Any:
            with read_by_region(model, Text(base, [Other(first, masks[0]), Other(house, masks[1])]), is_free=True):
                return sampled(model, base, base, cfg=1.0)

        def leak(one: torch.Tensor, other: torch.Tensor, half: int = half) -> float:
            change = (one - other).abs()
            return float(change[..., half:].mean() / change[..., :half].mean())

        another = stock_like(dog)
        leaks = [leak(draw(dog), draw(another)) for draw in (drawn, free)]
        assert leaks[0] <= 0.3 * leaks[1], (family, leaks)
        num_text = rows_read(model.model.diffusion_model, base).shape[0]
        num_text = max(num_text, 512) if family == "Flux 2 Klein" else num_text
        num_text += sum(rows_read(model.model.diffusion_model, one).shape[0] for one in (dog, house))
        if family == "Flux":
            work = cut(model, num_text)
            assert leak(drawn(dog, work), drawn(another, work)) == 0.0, family


def stock_like(conditioning: Any) -> Any:
    """A prompt whose words are all others."""
    rows, values = conditioning[0]
    drawn = torch.randn(rows.shape, generator=torch.Generator().manual_seed(4)) * rows.std()
    if (llama := values.get("conditioning_llama3")) is not None:
        others = torch.randn(llama.shape, generator=torch.Generator().manual_seed(5)) * llama.std()
        values = {**values, "conditioning_llama3": others}
    return [[drawn, values]]


@compares("Regions with hypertile, ToMe, FreeU, SAG and PAG, likewise", limit=CLOSE)
def check_other_changes_of_the_model() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    ours, text = region(base, dog, area="left"), Text(base, [Other(dog, LEFT)])
    for node, inputs in others(nodes.NODE_CLASS_MAPPINGS, model):
        draws_by_region(model, ours, base, text, negative=negative, on=applied(node, inputs), name=node.__name__)


# ---- time


@compares("Regions in a part of the time, and of a prompt that changes, with conditionings in time ranges")
def check_time_ranges_equal_several_entries() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, house, negative = (stock(clip, text) for text in (PLAIN, DOG, "a house", NEGATIVE))
    whole = region(base, dog, area="left half")
    for steps in (4, 5):
        for start, end in ((0.0, 0.37), (0.37, 1.0), (0.21, 0.83)):
            ours = region(base, dog, area="left half", start=start, end=end)
            entries = timed(whole, start, end)
            entries += timed(base, 0.0, start - 1e-4) if start else []
            entries += timed(base, end + 1e-4, 1.0) if end < 1 else []
            difference(sampled(model, ours, negative, steps=steps), sampled(model, entries, negative, steps=steps))
    changing = [*timed(dog, 0.0, 0.3), *timed(house, 0.301, 1.0)]
    first, second = (region(base, one, area="left half") for one in (dog, house))
    expected = sampled(model, [*timed(first, 0.0, 0.3), *timed(second, 0.301, 1.0)], negative, steps=5)
    difference(sampled(model, region(base, changing, area="left half"), negative, steps=5), expected)
    assert not torch.equal(sampled(model, first, negative, steps=5), expected)
    # both change, at other times
    both = [*timed(negative, 0.0, 0.6), *timed(base, 0.601, 1.0)]
    a, b, c = region(negative, dog, area="left"), region(negative, house, area="left"), region(base, house, area="left")
    expected = sampled(model, [*timed(a, 0.0, 0.3), *timed(b, 0.301, 0.6), *timed(c, 0.601, 1.0)], negative, steps=7)
    difference(sampled(model, region(both, changing, area="left"), negative, steps=7), expected)
    in_steps = region(base, dog, area="left half", start=0, end=9, unit="steps")
    difference(sampled(model, in_steps, negative), sampled(model, whole, negative))


def check_of_two_regions_that_meet_in_time_one_acts_in_each_step() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, house, negative = (stock(clip, text) for text in (PLAIN, DOG, "a house", NEGATIVE))
    # the middle one of an odd number of steps of “normal” is exactly half way
    both = region(region(base, dog, area="left", end=0.5), house, area="left", start=0.5)
    lines = logged(lambda: sampled(model, both, negative, steps=5), "Regional Prompt:")
    acted = [int(line.split(" acted in ")[1].split()[0]) for line in lines]
    assert acted == [2, 3], acted
    calls = [region(base, one, area="left") for one in (dog, house)]
    first, second = (timed(one, *times) for one, times in zip(calls, ((0.0, 0.49), (0.49, 1.0)), strict=True))
    assert torch.equal(sampled(model, both, negative, steps=5), sampled(model, [*first, *second], negative, steps=5))


# ---- what stays, what is said, and what is refused


def check_a_region_takes_no_more_passes_and_others_see_the_base_alone() -> None:
    from comfy.controlnet import ControlBase

    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, long, negative = (stock(clip, text) for text in (PLAIN, DOG, LONG, NEGATIVE))
    for inputs in ({}, {"start": 0.5}, {"end": 0.5}):
        for one in (dog, long):
            assert num_calls(model, region(base, one, area="left", **inputs), negative) == 1
            assert num_calls(model, negative, region(base, one, area="left", **inputs)) == 1
            assert num_calls(model, region(base, one, area="left"), region(negative, long, area="top")) == 1
    seen: list[torch.Tensor] = []

    class Control(ControlBase):
        """A ControlNet that notes what it reads."""

        def get_control(self, _x: Any, _t: Any, cond: dict[str, Any], *_: Any) -> None:
            seen.append(cond["c_crossattn"])

    control = Control()
    ours = [[rows, {**values, "control": control}] for rows, values in region(base, dog, area="left")]
    sampled(model, ours, negative, cfg=1.0)
    assert seen and all(torch.equal(one, base[0][0]) for one in seen)


def check_the_log_says_in_how_many_steps_a_region_acted() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    for inputs, count in (
        ({}, 4),
        ({"start": 1, "end": 3, "unit": "steps"}, 2),
        ({"start": 7, "end": 9, "unit": "steps"}, 0),
    ):
        ours = region(region(base, dog, area="left", **inputs), dog, area="right")
        lines = logged(lambda ours=ours: sampled(model, ours, negative, steps=4), "Regional Prompt:")
        assert lines == [
            f"Regional Prompt: region 1 acted in {count} of 4 steps",
            "Regional Prompt: region 2 acted in 4 of 4 steps",
        ]


def check_what_cannot_be_a_region_is_refused_in_words() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    ours = region(base, dog, area="left")
    assert "base are 128 wide, those of region 192" in refusal(lambda: region(base, stock(make_clip("SD2"), DOG)))
    assert "has regions itself" in refusal(lambda: region(base, ours))
    assert "2 prompts at the same time" in refusal(lambda: region(base, [*dog, *negative]))
    assert "comes with a mask" in refusal(lambda: region(base, masked(dog, left_of(LATENT, 9))))
    assert "comes with an area" in refusal(lambda: region(base, area(dog, 0)))
    (joined,) = nodes.ConditioningConcat().concat(ours, dog)
    assert "the sampler got 154" in refusal(lambda: sampled(model, joined, negative))
    (zeroed,) = nodes.ConditioningZeroOut().zero_out(ours)
    (zeros,) = nodes.ConditioningZeroOut().zero_out(base)
    assert torch.equal(sampled(model, zeroed, negative), sampled(model, zeros, negative))
    lost = [[rows, {k: v for k, v in values.items() if k != "hooks"}] for rows, values in ours]
    assert "would be lost" in refusal(lambda: sampled(model, lost, negative))
    refuses_patches(model, ours, negative)


def check_unknown_models_are_refused_by_name() -> None:
    clip, model = make_text_encoder("Flux"), make_model("Flux")
    network = model.model.diffusion_model
    known = type(network)
    for place in ("left", ""):
        ours = region(stock(clip, PLAIN), stock(clip, DOG), area=place)
        network.__class__ = type("Other", (known,), {"forward": known.forward})
        message = refusal(lambda ours=ours: sampled(model, ours, ours))
        network.__class__ = known
        assert "Regional Prompt do not know where this model (Flux, Other) reads text" in message, message


if __name__ == "__main__":
    main(globals())
