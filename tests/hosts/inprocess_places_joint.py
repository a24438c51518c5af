"""Checks of Place Phrase in families other than Stable Diffusion 1, 2 and XL: what is drawn is a softmax written out.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. Which query is which place is worked out
once more in written_out.py, with loops.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, note, refusal, run_ours, stock
from inprocess_attention import NODE, area, is_close, left_of, masked, timed
from inprocess_attention_several import families as several
from inprocess_places import columns, encoded, placed, reported, resized, weights
from toys import PLAIN, TOYS, Weights, make_model, make_text_encoder, rows_by_hand, sampled, weighable
from written_out import ByPlace, written_out

VIDEO = ("Wan", "Wan image to video", "Wan VACE", "Wan Camera")
OTHERS = ("Flux", "Chroma", "Qwen-Image", "Z-Image", "Krea 2", "Anima", "LTX-Video")
Fields = dict[int, list[ByPlace]]


def families() -> tuple[str, ...]:
    return weighable(*OTHERS, *several(), *VIDEO)


def toys(*names: str) -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """For each family its name, CLIP, MODEL, and stock's positive and negative conditionings."""
    for family in names or families():
        clip = make_text_encoder(family)
        yield family, clip, make_model(family), stock(clip, PLAIN), stock(clip, TOYS[family].negative)


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
    **settings: Any,
) -> None:
    """Ours draws what stock draws with weights by place written out; see `written_out`."""
    with written_out(model, how, *rows, placed=fields):
        reference = draw(model, stocks, negative, **settings)
    without = draw(model, stocks, negative, **settings)
    is_close(draw(model, ours, negative, **settings), reference, without, name)


def soft_of(family: str) -> torch.Tensor:
    """A mask of many greys at the size of a picture that is 8 times the latent."""
    height, width = (8 * side for side in TOYS[family].latent)
    return torch.linspace(0, 1, height * width).view(1, height, width) ** 2


def soft(family: str, inside: float, outside: float) -> ByPlace:
    """Weights by that mask."""
    mask = soft_of(family)
    height, width = TOYS[family].latent
    cells = weights(mask.double().view(1, height, 8, width, 8).mean((2, 4)), inside, outside)
    return ByPlace(lambda *_: cells, float(cells.min()))


@compares("Place Phrase at weight 1 in other families, with stock")
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
    "Place Phrase in all other families, small, KSampler, with a softmax written out, relative to the largest",
    limit=CLOSE,
)
def check_placed_phrases_equal_weights_by_place_written_out() -> None:
    for family, clip, model, plain, negative in toys():
        width = TOYS[family].latent[1]
        words = run_ours(NODE, clip=clip, text=PLAIN)["result"][0]
        between = ByPlace(lambda *s, w=width: weights(columns(0.1 * w, 0.3 * w)(*s[-2:])), 0.0)
        cases: dict[str, tuple[Any, list[tuple[str, ByPlace]]]] = {
            "hidden": (placed(words, "Red  CAT", area="left half"), [("red cat", half())]),
            "weighed": (
                placed(words, "mat", area="left half", inside=3.0, outside=0.4),
                [("mat", half(3.0, 0.4))],
            ),
            "between cells": (placed(words, "red cat", area="0.1 0.3, 0 1"), [("red cat", between)]),
            "two fields": (
                placed(
                    placed(words, "red cat", area="left", outside=0.3),
                    *("red",),
                    mask=soft_of(family),
                    inside=2.0,
                    outside=0.5,
                ),
                [("red cat", half(1.0, 0.3)), ("red", soft(family, 2.0, 0.5))],
            ),
        }
        for name, (ours, fields) in cases.items():
            known = (plain, by_rows(family, clip, *fields))
            draws_by_place(model, ours, plain, negative, known, name=f"{family}, {name}")


@compares("Place Phrase with the same weight everywhere in other families, with Attention Weights")
def check_a_constant_field_is_weigh_attention() -> None:
    for family, clip, model, _, negative in toys():
        words = encoded(clip)
        everywhere = torch.ones(1, 40, 60)
        for weight in (1.7, 0.0):
            text = PLAIN.replace("red cat", f"(red cat:{weight})")
            weighed = run_ours(NODE, clip=clip, text=text)["result"][0]
            expected = sampled(model, weighed, negative)
            for inputs in ({}, {"mask": everywhere}, {"area": "top left", "outside": weight}):
                ours = placed(words, "red cat", **{"inside": weight, **inputs})
                assert torch.equal(sampled(model, ours, negative), expected), (family, weight, inputs)
                difference(sampled(model, ours, negative), expected)


@compares("Place Phrase in two halves that are one weight together, with that weight everywhere", limit=CLOSE)
def check_the_least_weight_is_that_of_all_places_of_a_word() -> None:
    """The text reads a word by the least of the product of its weights, not by the product of their leasts."""
    for family, clip, model, plain, negative in toys():
        words, size = encoded(clip), TOYS[family].latent
        left = left_of(size, 4 * (size[1] // 8))  # no cell is cut
        halves = placed(placed(words, "red cat", mask=left, outside=0.3), "red cat", mask=1 - left, outside=0.3)
        everywhere = sampled(model, placed(words, "red cat", inside=0.3), negative)
        without = sampled(model, plain, negative)
        effect = float((everywhere - without).abs().max())
        assert effect > 1e-4
        note(float((sampled(model, halves, negative) - everywhere).abs().max()) / effect)


@compares("The same on odd sizes, likewise", limit=CLOSE)
def check_odd_sizes() -> None:
    for family, clip, model, plain, negative in toys(*(name for name in families() if name != "Wan VACE")):
        own = placed(encoded(clip), "red cat", area="0 0.3, 0 0.4", outside=0.1)
        for height, width in ((13, 21), (15, 10)):

            def corner(*size: int, height: int = height, width: int = width) -> torch.Tensor:
                across = columns(0, 0.3 * width)(height, width)
                down = columns(0, 0.4 * height)(width, height).transpose(1, 2)
                return weights(across * down, 1.0, 0.1)

            known = (plain, by_rows(family, clip, ("red cat", ByPlace(corner, 0.1))))
            name = f"{family}, {height} x {width}"
            draws_by_place(resized(model, height, width), own, plain, negative, known, name=name)


@compares("The same in areas, masks and two conditionings, likewise", limit=CLOSE)
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


@compares("The same in batches, with CFG 1 and 7 and long negative prompts, likewise", limit=CLOSE)
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


def video(model: Any, positive: Any, negative: Any, *, frames: int) -> torch.Tensor:
    """Latent of so many frames as KSampler makes it."""
    import nodes

    latent = {"samples": torch.zeros(1, model.model.latent_format.latent_channels, frames, 8, 12)}
    return nodes.KSampler().sample(model, 1, 2, 2.0, "euler", "simple", positive, negative, latent)[0]["samples"]


@compares("The same in the frames of a video, likewise", limit=CLOSE)
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


@compares("The same beside reference images and frames, likewise", limit=CLOSE)
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


# ---- time, words, and what stays


@compares("The same in a part of the time, with two conditionings in time ranges")
def check_time_ranges_equal_two_entries() -> None:
    for family, clip, model, _, negative in toys("Flux", "Z-Image", "Wan", "LTX-Video"):
        words = encoded(clip)
        whole = placed(words, "red cat", area="left half")
        for start, end in ((0.0, 0.37), (0.21, 0.83)):
            ours = placed(words, "red cat", area="left half", start=start, end=end)
            entries = timed(whole, start, end) + timed(words, end + 1e-4, 1.0)
            entries += timed(words, 0.0, start - 1e-4) if start else []
            expected = sampled(model, entries, negative, steps=5)
            assert not torch.equal(sampled(model, whole, negative, steps=5), expected), family
            difference(sampled(model, ours, negative, steps=5), expected)


@compares("The same behind Attention Weights, likewise", limit=CLOSE)
def check_weights_of_rows_and_places_act_together() -> None:
    text = "a (red:1.7) cat on a (mat:0.4), (oil painting:-0.6) in snow"
    kinds = "Flux", "SD 3", "HiDream", "Lumina 2", "Krea 2", "Anima", "Wan", "LTX-Video"
    for family, clip, model, plain, negative in toys(*kinds):
        if family not in families():
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
    for family, clip, *_ in toys():
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


@compares("Stock after Place Phrase on the same model and CLIP of other families, with before")
def check_stock_is_stock_afterwards() -> None:
    for family, clip, model, plain, negative in toys():
        before = sampled(model, plain, negative)
        options = repr(model.model_options), repr(model.wrappers), repr(model.object_patches)
        words = encoded(clip)
        assert not torch.equal(sampled(model, placed(words, "red cat", area="left"), negative), before), family
        difference(sampled(model, plain, negative), before)
        difference(sampled(model, words, negative), before)
        assert options == (repr(model.model_options), repr(model.wrappers), repr(model.object_patches))


def check_what_cannot_be_placed_is_refused_in_words() -> None:
    import importlib
    from unittest.mock import patch

    import node_helpers

    import nodes

    clip, model = make_text_encoder("Flux"), make_model("Flux")
    negative, words = stock(clip, TOYS["Flux"].negative), encoded(clip)
    ours = placed(words, "red cat", area="left")
    package = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPPlace"].__module__.rpartition(".nodes.")[0]
    weighing = importlib.import_module(f"{package}.weighting.weighing")
    with patch.object(weighing, "MAX_BYTES", 2**16):
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
