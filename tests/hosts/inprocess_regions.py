"""Checks of regions: small U-Nets draw what each prompt's attention, mixed by shares, draws; and stock stays stock.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. The formula is written out in float64, with
a loop over the prompts, the shares with a loop over the places; and other packs' own code runs beside ours.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from inprocess import CLOSE, compares, difference, main, make_clip, refusal, run_ours, stock
from inprocess_attention import area, is_close, left_of, logged, masked, num_calls, rel, timed
from inprocess_attention_beside import as_forge, forge_couple, ppm_couple
from inprocess_places import (
    ENCODE,
    LEFT,
    ROWS,
    SOFT,
    UNETS,
    Maps,
    applied,
    cells_of,
    columns,
    cross_attention_by,
    draws_as,
    encoded,
    is_repeated,
    others,
    placed,
    resized,
    result_of,
    soft,
    weights,
)
from toys import LATENT, NEGATIVE, PLAIN, Weights, make_model, make_text_encoder, sampled
from written_out import split

DOG = "a blue dog in a forest"
LONG = "a big blue dog on green grass under tall old trees, " * 8
"""A text of two chunks."""
Mask = Callable[[int, int], torch.Tensor]


class Other(NamedTuple):
    """A region written out."""

    conditioning: Any
    """Stock's."""
    mask: Mask
    """For a latent of a height and width ``[1 or pictures, height, width]``."""
    strength: float = 1.0
    maps: Maps = {}  # noqa: RUF012
    """Weights by place of its rows."""
    rows: Weights = {}  # noqa: RUF012
    """Weights of its rows where text and picture share an attention."""
    blends: bool = False
    """Whether all read it in every second block, where text and picture share an attention."""


class Text(NamedTuple):
    """A base prompt with its regions written out."""

    conditioning: Any
    others: Sequence[Other]
    maps: Maps = {}  # noqa: RUF012
    rows: Weights = {}  # noqa: RUF012


def region(base: Any, prompt: Any, **inputs: Any) -> Any:
    return reported(base, prompt, **inputs)[0]


def reported(base: Any, prompt: Any, **inputs: Any) -> tuple[Any, str]:
    return result_of("WeightedCLIPRegion", base, prompt, **inputs)


def shares_of(text: Text, height: int, width: int) -> torch.Tensor:
    """Share of the base and of each region at each place: ``[pictures, prompts, height, width]``."""
    masks = [one.strength * one.mask(height, width).double() for one in text.others]
    shares = torch.zeros(max(map(len, masks)), 1 + len(masks), height, width, dtype=torch.float64)
    for picture, own in enumerate(shares):
        for y in range(height):
            for x in range(width):
                found = [float(mask[picture % len(mask), y, x]) for mask in masks]
                total = sum(found)
                own[:, y, x] = torch.tensor([max(0.0, 1 - total), *found]) / max(1.0, total)
    return shares


@contextmanager
def read_by_region(model: Any, *texts: Text) -> Iterator[None]:
    """Let a U-Net read known base prompts with their regions by an attention to each of them in float64."""
    latent: list[tuple[int, int]] = []
    kept: dict[tuple[int, int, int], torch.Tensor] = {}

    def at(weight: torch.Tensor, picture: int, num_queries: int) -> torch.Tensor:
        cells = cells_of(weight, num_queries)
        return cells[picture % len(cells)]

    def one_prompt(layer: Any, x: torch.Tensor, rows: torch.Tensor, maps: Maps, picture: int) -> torch.Tensor:
        q, k, v = (
            split(part(tensor[None]).double(), layer.heads)
            for part, tensor in ((layer.to_q, x), (layer.to_k, rows), (layer.to_v, rows))
        )
        logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        shares = torch.exp(logits - logits.amax(-1, keepdim=True))
        for own, weight_of in maps.items():
            for row in own:
                shares[..., row] *= at(weight_of(*latent[0]), picture, len(x))
        return ((shares / shares.sum(-1, keepdim=True)) @ v).transpose(1, 2).flatten(2)[0]

    def forward_of(layer: Any) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            read: list[torch.Tensor] = []
            for picture, (queries, found) in enumerate(zip(x, context, strict=True)):
                known = [text for text in texts if is_repeated(found, text.conditioning[0][0][0])]
                if not known:
                    read.append(one_prompt(layer, queries, found, {}, picture))
                    continue
                (text,) = known
                key = (id(text), *latent[0])
                if key not in kept:
                    kept[key] = shares_of(text, *latent[0])
                shares = kept[key]
                prompts = [(text.conditioning, text.maps), *((one.conditioning, one.maps) for one in text.others)]
                read.append(
                    sum(
                        at(shares[:, number], picture, len(queries))[:, None]
                        * one_prompt(layer, queries, conditioning[0][0][0], maps, picture)
                        for number, (conditioning, maps) in enumerate(prompts)
                    )
                )
            return layer.to_out(torch.stack(read).to(x.dtype))

        return forward

    with cross_attention_by(model, forward_of, latent):
        yield


def draws_by_region(
    model: Any, ours: Any, stocks: Any, negative: Any, *texts: Text, name: str = "", on: Any = None, **settings: Any
) -> None:
    """Ours draws what stock's base prompts draw with their regions written out."""
    draws_as(read_by_region(model, *texts), on or model, ours, stocks, negative, name, **settings)


def everywhere(height: int, width: int) -> torch.Tensor:
    return torch.ones(1, height, width)


# ---- what is drawn


@compares(
    "Regional Prompt on SD1, SD2 and SDXL, small, with attention to each prompt written out, likewise", limit=CLOSE
)
def check_regions_equal_attention_to_each_prompt_written_out() -> None:
    for family in UNETS:
        clip, model = make_text_encoder(family), make_model(family)
        base, dog, long, negative = (stock(clip, text) for text in (PLAIN, DOG, LONG, NEGATIVE))
        assert long[0][0].shape[1] == 2 * dog[0][0].shape[1]
        right = columns(11, 22)
        cases: dict[str, tuple[Any, Any, list[Other]]] = {
            "hard": (region(base, dog, area="left half"), base, [Other(dog, LEFT)]),
            "soft": (region(base, dog, mask=SOFT), base, [Other(dog, soft)]),
            "longer": (region(base, long, mask=SOFT), base, [Other(long, soft)]),
            "shorter": (region(long, dog, mask=SOFT), long, [Other(dog, soft)]),
            "between cells": (region(base, dog, area="0.1 0.3, 0 1"), base, [Other(dog, columns(2.2, 6.6))]),
            "half": (region(base, dog, area="left", strength=0.5), base, [Other(dog, LEFT, 0.5)]),
            "no base": (
                region(region(base, dog, area="left"), long, area="right"),
                base,
                [Other(dog, LEFT), Other(long, right)],
            ),
            "overlapping": (
                region(region(base, dog, mask=SOFT, strength=1.7), long, area="0.3 0.8, 0 1", strength=0.8),
                base,
                [Other(dog, soft, 1.7), Other(long, columns(6.6, 17.6), 0.8)],
            ),
        }
        for name, (ours, stocks, texts) in cases.items():
            draws_by_region(model, ours, stocks, negative, Text(stocks, texts), name=f"{family}, {name}")
        assert rel(sampled(model, region(base, long, area="left"), negative), sampled(model, base, negative)) > CLOSE


@compares("Regions in all of the picture, with the region's prompt alone")
def check_a_region_everywhere_is_its_prompt_alone() -> None:
    for family in UNETS:
        clip, model = make_text_encoder(family), make_model(family)
        base, dog, long, negative = (stock(clip, text) for text in (PLAIN, DOG, LONG, NEGATIVE))
        for one, other in ((base, dog), (base, long), (long, dog)):
            alone = [[other[0][0], one[0][1]]]
            expected = sampled(model, alone, negative)
            for inputs in ({}, {"mask": torch.ones(1, 40, 60)}, {"area": "0 1, 0 1"}, {"strength": 3.0}):
                difference(sampled(model, region(one, other, **inputs), negative), expected)
            difference(sampled(model, negative, region(one, other)), sampled(model, negative, alone))
            # what the region's own nodes have made of it comes along
            words = encoded(clip, DOG) if other is dog else encoded(clip, LONG)
            weighed = placed(words, "blue", inside=0.3)
            alone = [[weighed[0][0], {**one[0][1], **{k: weighed[0][1][k] for k in ("model_conds", "hooks")}}]]
            difference(sampled(model, region(one, weighed), negative), sampled(model, alone, negative))


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
    clip = make_clip("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    for height, width in ((13, 21), (15, 9), (9, 23)):
        model = resized(make_model("SD1"), height, width)

        def corner(h: int, w: int) -> torch.Tensor:
            return columns(0, 0.3 * w)(h, w) * columns(0, 0.4 * h)(w, h).transpose(1, 2)

        own = region(base, dog, area="0 0.3, 0 0.4")
        draws_by_region(model, own, base, negative, Text(base, [Other(dog, corner)]), name=f"{height} x {width}")


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
            draws_by_region(model, ours, base, negative, text, on=ready or thinner)
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
        draws_by_region(model, ours, base, negative, text)
    # NegPip's signs
    signed = run_ours(ENCODE, clip=clip, text="a dog, (snow:-1)", scheme="negpip")["result"][0]
    unsigned = [[signed[0][0], {"pooled_output": signed[0][1]["pooled_output"]}]]
    with_sign, without = (sampled(model, region(base, one, area="left"), negative) for one in (signed, unsigned))
    assert rel(with_sign, without) > 100 * CLOSE
    half = region(base, signed, strength=0.5)
    both = region(region(base, signed, area="left", strength=0.5), signed, area="right", strength=0.5)
    is_close(sampled(model, both, negative), sampled(model, half, negative), without)


@compares("Regions in areas, masks, several conditionings and negative prompts, likewise", limit=CLOSE)
def check_regions_stay_with_their_entry_in_areas_and_masks() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, other, negative = (stock(clip, text) for text in (PLAIN, DOG, "a house", NEGATIVE))
    mask = left_of(LATENT, 12)
    ours = region(base, dog, area="0.25 0.75, 0 1")

    def text(start: int) -> Text:
        return Text(base, [Other(dog, lambda h, w: columns(5.5, 16.5, start if w < 22 else 0)(h, w))])

    layouts: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
        "left area": (0, lambda one, two: [*area(one, 0), *area(two, 88)]),
        "right area": (11, lambda one, two: [*area(two, 0), *area(one, 88)]),
        "area over a whole": (5, lambda one, two: [*two, *area(one, 40)]),
        "masks": (0, lambda one, two: [*masked(one, mask), *masked(two, 1 - mask)]),
        "bounds": (0, lambda one, two: [*masked(one, mask, "mask bounds"), *two]),
        "two": (0, lambda one, two: [*one, *two]),
    }
    for name, (start, layout) in layouts.items():
        draws_by_region(model, layout(ours, other), layout(base, other), negative, text(start), name=name)
    # the negative prompt, alone and with other regions than the positive one
    for positive, texts in (
        (other, [text(0)]),
        (region(other, base, mask=SOFT), [text(0), Text(other, [Other(base, soft)])]),
    ):
        with read_by_region(model, *texts):
            reference = sampled(model, other, base)
        is_close(sampled(model, positive, ours), reference, sampled(model, other, base))


@compares("Regions, batches, CFG 1 and 7, long negative prompts, likewise", limit=CLOSE)
def check_batches_guidance_and_unequal_lengths() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog = stock(clip, PLAIN), stock(clip, DOG)
    pictures = torch.stack([SOFT[0], SOFT[0].flip(0), SOFT[0].flip(1)])
    by_picture = pictures.double().view(3, LATENT[0], 8, LATENT[1], 8).mean((2, 4))
    for negative in (stock(clip, NEGATIVE), stock(clip, "blurry, " * 60)):
        for cfg in (1.0, 7.0):
            for batch in (2, 3):
                mask, known = (SOFT, soft) if batch == 2 else (pictures, lambda *_: by_picture)
                ours, text = region(base, dog, mask=mask), Text(base, [Other(dog, known)])
                name = f"batch {batch}, cfg {cfg}"
                draws_by_region(model, ours, base, negative, text, batch=batch, cfg=cfg, name=name)
    message = refusal(lambda: sampled(model, region(base, dog, mask=pictures), negative, batch=2))
    assert "The mask of region 1 has 3 pictures, but 2" in message


@compares("Regions with hypertile, ToMe, FreeU, SAG and PAG, likewise", limit=CLOSE)
def check_other_changes_of_the_model() -> None:
    import nodes

    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    ours, text = region(base, dog, area="left"), Text(base, [Other(dog, LEFT)])
    for node, inputs in others(nodes.NODE_CLASS_MAPPINGS, model):
        draws_by_region(model, ours, base, negative, text, on=applied(node, inputs), name=node.__name__)


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


@compares("Stock after Regional Prompt on the same model and CLIP, with before")
def check_stock_is_stock_afterwards() -> None:
    clip, model = make_clip("SD1"), make_model("SD1")
    base, dog, negative = (stock(clip, text) for text in (PLAIN, DOG, NEGATIVE))
    before = sampled(model, base, negative)
    options = repr(model.model_options), repr(model.wrappers), repr(model.object_patches)
    kept = [repr(one[0][1].keys()) for one in (base, dog)]
    drawn = sampled(model, region(base, dog, area="left"), negative)
    assert not torch.equal(drawn, before)
    difference(sampled(model, base, negative), before)
    difference(stock(clip, PLAIN), base)
    unused = region(base, dog, area="left", start=7, end=9, unit="steps")
    difference(sampled(model, unused, negative), before)
    same, report = reported(base, dog, strength=0.0)
    assert same is base and "strength is 0" in report
    assert kept == [repr(one[0][1].keys()) for one in (base, dog)]
    assert options == (repr(model.model_options), repr(model.wrappers), repr(model.object_patches))


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
    doubling = model.clone()
    doubling.set_model_attn2_patch(lambda n, k, v, _: (n.repeat(2, 1, 1), k.repeat(2, 1, 1), v.repeat(2, 1, 1)))
    assert "Attention Couple" in refusal(lambda: sampled(doubling, ours, negative))
    replacing = model.clone()
    replacing.set_model_attn2_replace(lambda q, k, v, options: v, "middle", 0)
    assert "attn2_replace" in refusal(lambda: sampled(replacing, ours, negative))
    fewer = model.clone()
    fewer.set_model_attn2_patch(lambda n, k, v, _: (n[:, ::2], k, v))
    assert "has changed them" in refusal(lambda: sampled(fewer, ours, negative))


if __name__ == "__main__":
    main(globals())
