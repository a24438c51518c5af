"""Checks of placed phrases and regions beside what else is sampled: compiled models, times, masks of rows, references.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, refusal, stock
from inprocess_attention import is_close, rel, timed
from inprocess_places import by_rows, columns, draws_by_place, encoded, half, placed, video
from inprocess_regions import DOG, draws_by_region, region
from inprocess_word_maps import WORDS, compared, probabilities_of_blocks, watched
from toys import PLAIN, TOYS, WAN, build, make_model, make_text_encoder, sampled, weighable
from written_out import ByPlace
from written_out_regions import Other, Text, read_by_region

LEFT = {"area": "left"}


def ours_on(family: str) -> tuple[Any, Any, dict[str, Any]]:
    """MODEL and stock's prompt of a family, with a placed phrase and a region."""
    clip, model = make_text_encoder(family), make_model(family)
    base, words = stock(clip, PLAIN), encoded(clip)
    return model, base, {"phrase": placed(words, "red cat", **LEFT), "region": region(words, stock(clip, DOG), **LEFT)}


@compares("Place Phrase and Regional Prompt in a compiled model, with one that is not")
def check_compiled_models() -> None:
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    for family in weighable("SD1", "Flux", "LTX-Video"):
        model, base, ours = ours_on(family)
        compiled = model.clone()
        set_torch_compile_wrapper(compiled, backend="eager")
        both = placed(ours["region"], "mat", area="top", outside=0.3)
        drawn = [sampled(one, both, base, steps=1, cfg=1.0) for one in (model, compiled)]
        difference(*drawn)
        assert rel(sampled(model, base, base, steps=1, cfg=1.0), drawn[0]) > CLOSE, family


@compares("Place Phrase and Regional Prompt in front of and behind time ranges, with several conditionings")
def check_time_ranges_of_the_host_act_beside() -> None:
    for family in weighable("SD1", "Flux"):
        clip, model = make_text_encoder(family), make_model(family)
        words, dog, other = encoded(clip), stock(clip, DOG), stock(clip, "a house")
        rest = timed(other, 0.621, 1.0)
        for place in (partial(placed, phrase="red cat", **LEFT), partial(region, prompt=dog, **LEFT)):

            def drawn(*entries: Any, model: Any = model, other: Any = other, rest: Any = rest) -> torch.Tensor:
                return sampled(model, [*entries, *rest], other, steps=7, cfg=2.0)

            expected = drawn(*timed(place(words), 0.0, 0.62))
            difference(drawn(*place(timed(words, 0.0, 0.62))), expected)
            assert rel(drawn(*timed(words, 0.0, 0.62)), expected) > CLOSE, family
            # a time of its own, which begins within the range and ends behind it
            own = {"start": 0.2005, "end": 0.9}
            expected = drawn(*timed(words, 0.0, 0.2), *timed(place(words), 0.201, 0.62))
            difference(drawn(*timed(place(words, **own), 0.0, 0.62)), expected)
            difference(drawn(*place(timed(words, 0.0, 0.62), **own)), expected)


REFERENCES = {"Flux": ((1, 16, 9, 8),), "Qwen-Image": ((1, 16, 1, 8, 10),), "Flux 2 Klein": ((1, 128, 5, 4),) * 2}
"""Sizes of reference images."""


@compares("Regions beside reference images of Flux, Qwen-Image and Flux 2, likewise", limit=CLOSE)
def check_reference_images_beside_regions() -> None:
    import node_helpers

    generator = torch.Generator().manual_seed(8)
    for family, shapes in REFERENCES.items():
        clip, model = make_text_encoder(family), make_model(family)
        base, dog = stock(clip, PLAIN), stock(clip, DOG)
        given = {"reference_latents": [torch.randn(shape, generator=generator) for shape in shapes]}
        beside = node_helpers.conditioning_set_values(base, given)
        left = columns(0, TOYS[family].latent[1] / 2)
        ours = region(beside, dog, **LEFT)
        draws_by_region(model, ours, beside, Text(base, [Other(dog, left)]), name=family)
        drawn = sampled(model, region(base, dog, **LEFT), base, cfg=1.0)
        assert rel(sampled(model, ours, base, cfg=1.0), drawn) > CLOSE, family
    for family in ("Lumina 2", "Z-Image"):
        clip, model = make_text_encoder(family), make_model(family)
        base = stock(clip, PLAIN)
        pictures = {"reference_latents": [torch.ones(1, 16, *TOYS[family].latent)]}
        ours = node_helpers.conditioning_set_values(region(base, stock(clip, "a dog"), **LEFT), pictures)
        assert "reference images" in refusal(lambda m=model, ours=ours: sampled(m, ours, ours)), family


@compares("Place Phrase and Regional Prompt beside Wan's reference image and frames, likewise", limit=CLOSE)
def check_references_of_wan() -> None:
    import node_helpers

    clip = make_text_encoder("Wan")
    model = build("WAN21_T2V", {**WAN, "in_dim_ref_conv": 16})
    model.model.toy = TOYS["Wan"]
    generator = torch.Generator().manual_seed(8)
    base, dog, words = stock(clip, PLAIN), stock(clip, DOG), encoded(clip)
    image = {"reference_latents": [torch.randn(1, 16, 1, 8, 12, generator=generator)]}
    frames = {"time_dim_concat": torch.randn(1, 16, 2, 8, 12, generator=generator)}

    def of_frames(*size: int) -> torch.Tensor:
        return half(1.0, 0.1).at(*size)[:, None].expand(1, *size)

    left = ByPlace(of_frames, 0.1)

    def draw(*given: Any, cfg: float = 1.0) -> torch.Tensor:
        return video(*given, frames=3)

    for given in (image, frames, {**image, **frames}):
        stocks, own, other = (node_helpers.conditioning_set_values(one, given) for one in (base, words, dog))
        assert rel(draw(model, stocks, stocks), draw(model, base, base)) > CLOSE, given.keys()
        ours = placed(own, "red cat", area="left", outside=0.1)
        known = (base, by_rows("Wan", clip, ("red cat", left)))
        draws_by_place(model, ours, stocks, other, known, draw=draw, name=str(given.keys()))
        ours = region(stocks, dog, area="left")
        with read_by_region(model, Text(base, [Other(dog, columns(0, 6))])):
            reference = draw(model, stocks, stocks)
        is_close(draw(model, ours, ours), reference, draw(model, stocks, stocks), str(given.keys()))


def check_masks_of_rows_are_refused_beside_regions() -> None:
    for family in weighable("Qwen-Image", "SD1"):
        model, base, ours = ours_on(family)
        mask = torch.ones(1, base[0][0].shape[1])
        mask[0, -1] = 0
        hiding = {
            name: [[rows, {**values, "attention_mask": mask}] for rows, values in one] for name, one in ours.items()
        }
        sampled(model, hiding["phrase"], base)
        hidden = region(base, [[base[0][0], {"attention_mask": mask}]], **LEFT)
        if family == "SD1":  # it does not read it
            sampled(model, hiding["region"], base)
            sampled(model, hidden, base)
            continue
        for ours in (hiding["region"], hidden):
            message = refusal(lambda m=model, one=ours, base=base: sampled(m, one, base))
            assert "attention_mask" in message, message
        sampled(model, region(base, [[base[0][0], {"attention_mask": torch.ones_like(mask)}]], **LEFT), base)


@compares("Regions where masks of LTX-Video hide rows, with prompts without them, likewise", limit=CLOSE)
def check_each_prompt_keeps_its_mask_of_rows() -> None:
    model = make_model("LTX-Video")
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(1, number, 64, generator=generator) for number in (12, 17)]

    def prompt(rows: torch.Tensor, hidden: slice, **more: Any) -> Any:
        mask = torch.ones(1, rows.shape[1], dtype=torch.long)
        mask[:, hidden] = 0
        return [[rows, {"attention_mask": mask, **more}]]

    def without(rows: torch.Tensor, hidden: slice) -> Any:
        return prompt(torch.cat([rows[:, : hidden.start], rows[:, hidden.stop :]], 1), slice(0))

    none, hidden = slice(0), (slice(4, 7), slice(1, 9))
    for inputs in (LEFT, {**LEFT, "strength": 0.4}, {}):
        found = region(*map(prompt, rows, hidden), **inputs)
        expected = region(*map(without, rows, hidden), **inputs)
        whole = region(*(prompt(one, none) for one in rows), **inputs)
        is_close(*(sampled(model, one, one) for one in (found, expected, whole)), str(inputs))
    for wrong in (torch.ones(1, 9), torch.ones(1, 17), torch.ones(1, 9, dtype=torch.long), torch.ones(17).long()):
        base, other = (prompt(one, none) for one in rows)
        other = [[other[0][0], {"attention_mask": wrong}]]
        for ours in (region(base, other, **LEFT), region(other, base, **LEFT)):
            message = refusal(lambda ours=ours: sampled(model, ours, ours))
            assert f"that of a prompt of 17 rows is {list(wrong.shape)} of {wrong.dtype}" in message, message


def guided(prompts: Any, guides: tuple[tuple[int, float, int], ...]) -> tuple[Any, Any, Any]:
    """Two prompts of LTX-Video with guides, by the host's own nodes, and a function that samples with them.

    Each guide is a frame of the video, a strength, and the side of its cells.
    """
    from comfy_extras import nodes_lt

    import nodes

    node, generator = nodes_lt.LTXVAddGuide, torch.Generator().manual_seed(8)
    samples = torch.zeros(1, 128, 3, 8, 12)
    noise = nodes_lt.get_noise_mask({"samples": samples})
    for frame, strength, side in guides:
        cells = torch.randn(1, 128, 1, 8 // side, 12 // side, generator=generator)
        guide, mask = node.dilate_latent(cells, side)
        *prompts, samples, noise = node.append_keyframe(
            *(*prompts, frame, samples, noise, guide, strength, (8, 32, 32)),
            guide_mask=mask,
            latent_downscale_factor=side,
        )
        about = guide[0, 0].numel(), [*cells.shape[2:]]
        prompts = nodes_lt._append_guide_attention_entry(*prompts, *about, strength=strength)

    def draw(model: Any, positive: Any, negative: Any, cfg: float = 1.0) -> torch.Tensor:
        latent = {"samples": samples, "noise_mask": noise}
        return nodes.KSampler().sample(model, 1, 2, cfg, "euler", "simple", positive, negative, latent)[0]["samples"]

    return *prompts, draw


@compares("Place Phrase, Regional Prompt and Watch Words beside guides of LTX-Video, likewise", limit=CLOSE)
def check_guides_of_ltx_video_are_no_frames_of_the_picture() -> None:
    clip, model = make_text_encoder("LTX-Video"), make_model("LTX-Video")
    base, dog, words = stock(clip, PLAIN), stock(clip, DOG), encoded(clip)
    by_row = [tuple(by_rows("LTX-Video", clip, (word, half()))) for word in WORDS]
    pixels = torch.rand(17, 64, 96, generator=torch.Generator().manual_seed(2)).round()
    cells = pixels.double().view(17, 8, 8, 12, 8).mean((2, 4))
    cells = 0.2 + 0.8 * torch.cat([cells[:1], cells[1:].view(2, 8, 8, 12).mean(1)])[None]
    known = (base, by_rows("LTX-Video", clip, ("red cat", ByPlace(lambda *_: cells, float(cells.min())))))
    # two; one that is read by half; one whose cells are as large as four, of which the model gets one
    for guides in (((0, 1.0, 1), (9, 1.0, 1)), ((8, 0.5, 1),), ((0, 1.0, 2),)):
        stocks, own, draw = guided((base, words), guides)
        negative = guided((dog, dog), guides)[0]
        without = draw(model, stocks, stocks)
        assert without.shape[2] == 3 + len(guides)
        for cfg in (1.0, 2.0):
            ours = placed(own, "red cat", mask=pixels, outside=0.2)
            draws_by_place(model, ours, stocks, negative, known, draw=draw, cfg=cfg, name=str(guides))
        ours = region(stocks, dog, area="left")
        with read_by_region(model, Text(base, [Other(dog, columns(0, 6))])):
            reference = draw(model, stocks, stocks)
        is_close(draw(model, ours, ours), reference, without, str(guides))
        ours, watch = watched(own)
        with probabilities_of_blocks(model, base, by_row) as shares:
            draw(model, stocks, stocks)
        samples = draw(model, ours, stocks)
        assert torch.equal(samples, without)
        compared(watch, samples, shares)
        compared(watch, samples[:, :, :3], shares)  # as LTXVCropGuides gives it


if __name__ == "__main__":
    main(globals())
