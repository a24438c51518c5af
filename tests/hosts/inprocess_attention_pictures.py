"""Checks of weights in the attention of further families of pictures (toys_pictures.py).

The rows of words are found without our tables: of a text encoder that reads from left to right, a word's row is the
first that changes with its token. Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import SkipTest

import torch
from inprocess import CLOSE, apart, compares, difference, main, pack_module, refusal, stock
from inprocess_attention import (
    compiled_models_are_weighed,
    draws_as_written_out,
    is_close,
    layouts,
    left_of,
    lora_hooks_and_weights_act,
    weights_stay_with_their_entry,
)
from inprocess_places import draws_by_place, encoded, half, placed
from inprocess_regions import check as regions_equal
from inprocess_regions import region
from inprocess_word_maps import compared, probabilities_of_blocks, watched
from served_clip import effects, served
from toys import LATENT, PLAIN, TEXT, TOYS, WORDS, Weights, make_model, make_text_encoder, sampled
from toys_pictures import FAMILIES, known, rows_by_change, tokens_of
from written_out import written_out

EDITING = ("Mage-Flow", "Boogu", "OmniGen 2", "HiDream-O1", "LongCat-Image", "JoyImage")
"""Families that read reference images."""
PLACED = (
    "Mage-Flow",
    "Ovis-Image",
    "NewBie",
    "Chroma Radiance",
    "Z-Image in pixels",
    "Cosmos Predict 2",
    "Boogu",
    "OmniGen 2",
    "Ideogram 4",
    "JoyImage",
    "Cosmos 1",
    "PixArt",
    "Lens",
    "LongCat-Image",
)
"""Families in which words may have places."""
REGIONAL = tuple(family for family in PLACED if family not in ("Lens", "LongCat-Image"))
"""Those that take regions as others do: Lens masks its rows, LongCat-Image moves the picture by their number."""
WHOLE = ("OmniGen 2", "Ideogram 4", "Ernie-Image", "Cosmos 1", "PixArt")
"""Families with a row for each token, one for each way of getting weights into the attention."""


def weighed(conditioning: Any, rows: Weights, how: str = "bias") -> Any:
    """A stock conditioning with weights for its rows."""
    rule = pack_module("weighting.attention")
    number = conditioning[0][0].shape[1]
    effects = [rule.effect_of(rows.get(row, 1.0), how, 1.0) for row in range(number)]
    return pack_module("hosts.comfy.attention.attention").with_effects(conditioning, effects)[0]


def check_the_last_token_of_the_host_is_the_last_row() -> None:
    """But for those that a record says are left out."""
    tables = pack_module("hosts.comfy.families.families")
    for family in known(*FAMILIES):
        clip = make_text_encoder(family)
        _, pairs, places = tokens_of(family, clip)
        behind = tables.text_family(clip).num_left_out_behind([pair[0] for pair in pairs])
        number = stock(clip, PLAIN)[0][0].shape[1]
        by_place = {number - (len(pairs) - behind - place): WORDS[word] for word, place in places.items()}
        assert by_place == rows_by_change(family, clip), (family, by_place)


@compares("Stock CLIP Text Encode on a Weighted CLIP, likewise: rows with stock, effects with those of rows by hand")
def check_a_weighted_clip_weighs_the_rows_of_words() -> None:
    for family in known(*FAMILIES):
        clip = make_text_encoder(family)
        plain, rows = stock(clip, PLAIN), rows_by_change(family, clip)
        for text in ("", PLAIN):  # no rows at all, in Lens
            assert apart(stock(served(clip), text), stock(clip, text)) == 0, (family, text)
        found = stock(served(clip, scheme="attention: bias"), TEXT)
        difference(found[0][0], plain[0][0])
        assert torch.equal(effects(found), effects(weighed(plain, rows))), family


def check_letters_in_quotation_marks_are_weighed_one_by_one() -> None:
    """LongCat-Image reads them so, and its CLIP leaves out rows in front and behind."""
    if not known("LongCat-Image"):
        raise SkipTest("this ComfyUI has no LongCat-Image")
    clip = make_text_encoder("LongCat-Image")
    text, typed = 'a cat with "mat" in snow', 'a cat with "(mat:1.7)" in (snow:0.4)'
    ((pairs,),) = clip.tokenize(text).values()
    names = [clip.tokenizer.qwen25_7b.inv_vocab[pair[0]] for pair in pairs]
    start = names.index("Ġwith") + 3  # a space and the quotation mark are between
    assert names[start - 1 : start + 4] == ['"', "m", "a", "t", '"']
    rows = dict.fromkeys(range(start, start + 3), 1.7) | {names.index("Ġsnow", start): 0.4}
    plain = stock(clip, text)
    left_out = names.index("Ġwith") - 2  # the prompt begins with "a cat"
    expected = effects(weighed(plain, {row - left_out: weight for row, weight in rows.items()}))
    assert torch.equal(effects(stock(served(clip, scheme="attention: bias"), typed)), expected)


@compares("Weights in further families of pictures, small, KSampler, with a softmax written out, likewise", limit=CLOSE)
def check_weights_in_families_of_pictures_equal_ones_written_out() -> None:
    for family in known(*FAMILIES):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        rows = rows_by_change(family, clip)
        without = sampled(model, plain, negative)
        for how in ("value", "bias"):
            with written_out(model, how, (plain, rows)):
                reference = sampled(model, plain, negative)
            is_close(sampled(model, weighed(plain, rows, how), negative), reference, without, f"{family}, {how}")
        assert torch.equal(sampled(model, weighed(plain, {}), negative), without), family
        assert torch.equal(sampled(model, plain, negative), without), family


@compares("The same in masks, two conditionings, time ranges and batches, likewise", limit=CLOSE)
def check_weights_in_families_of_pictures_stay_with_their_entry() -> None:
    weights_stay_with_their_entry(known(*WHOLE), layouts(LATENT, columns=12))


@compares("The same on OmniGen 2, compiled, likewise", limit=CLOSE)
def check_a_compiled_omnigen_2_is_weighed_as_well() -> None:
    compiled_models_are_weighed(known("OmniGen 2"))


@compares("The same on PiD, which enlarges a latent, likewise", limit=CLOSE)
def check_weights_in_pid_equal_ones_written_out() -> None:
    import node_helpers

    if not known("PiD"):
        raise SkipTest("this ComfyUI has no PiD")
    clip, model = make_text_encoder("PiD"), make_model("PiD")
    values = {"lq_latent": torch.randn(1, 16, 7, 11, generator=torch.Generator().manual_seed(8))}
    values["degrade_sigma"] = torch.tensor([0.3])
    plain, negative = (
        node_helpers.conditioning_set_values(stock(clip, text), values) for text in (PLAIN, TOYS["PiD"].negative)
    )
    rows = rows_by_change("PiD", clip)
    draws_as_written_out(model, weighed(plain, rows), plain, negative, (plain, rows))


def with_references(family: str, conditioning: Any) -> Any:
    """A conditioning with two reference images of other sizes than the picture's."""
    import node_helpers

    generator = torch.Generator().manual_seed(8)
    sizes = (64, 96), (96, 64)
    if family == "HiDream-O1":  # it sees images themselves
        images = [torch.rand(1, *size, 3, generator=generator) for size in sizes]
    else:
        channels, frames = (128 if family == "Mage-Flow" else 16), ((1,) if family == "JoyImage" else ())
        images = [
            torch.randn(1, channels, *frames, *(side // 8 for side in size), generator=generator) for size in sizes
        ]
    return node_helpers.conditioning_set_values(conditioning, {"reference_latents": images})


@compares("The same with reference images, in families that edit, likewise", limit=CLOSE)
def check_weights_beside_reference_images_equal_ones_written_out() -> None:
    for family in known(*EDITING):
        clip, model = make_text_encoder(family), make_model(family)
        alone, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        rows, plain = rows_by_change(family, clip), with_references(family, alone)
        rows[min(rows) - 1] = 0.5  # the first word: behind which HiDream-O1 puts no image any more
        assert not torch.equal(sampled(model, plain, negative), sampled(model, alone, negative)), family
        for other in (negative, with_references(family, negative)):
            ours = weighed(plain, rows)
            draws_as_written_out(model, ours, plain, other, (plain, rows), name=family)
        if family in PLACED:
            ours, field = placed_by_hand(family, clip, plain)
            draws_by_place(model, ours, plain, negative, (plain, field), name=f"{family}, placed")


def placed_by_hand(family: str, clip: Any, conditioning: Any) -> tuple[Any, dict[int, list[Any]]]:
    """A stock conditioning with a word in the left half, and its weights by place written out, by its row."""
    fields = pack_module("hosts.comfy.attention.fields")
    (row,) = (row for row, weight in rows_by_change(family, clip).items() if weight == WORDS["red"])
    where = fields.Where("red", mask=left_of(TOYS[family].latent, TOYS[family].latent[1] // 2))
    field = fields.Field((row,), 3.0, 0.4, where, "red")
    return pack_module("hosts.comfy.attention.attention").with_field(conditioning, [field]), {row: [half(3.0, 0.4)]}


@compares("Place Phrase in those whose queries are laid out as in families before, likewise", limit=CLOSE)
def check_placed_phrases_equal_weights_by_place_written_out() -> None:
    for family in known(*PLACED):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        ours, field = placed_by_hand(family, clip, plain)
        draws_by_place(model, ours, plain, negative, (plain, field), name=family)


@compares("Word maps in those, with probabilities written out", limit=CLOSE)
def check_word_maps_are_probabilities() -> None:
    for family in known(*PLACED):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
        (row,) = (row for row, weight in rows_by_change(family, clip).items() if weight == WORDS["red"])
        conditioning, watch = watched(encoded(clip), "red")
        with probabilities_of_blocks(model, plain, [(row,)]) as shares:
            sampled(model, plain, negative)
        compared(watch, sampled(model, conditioning, negative), shares)


@compares("Regional Prompt in those, but for Lens and LongCat-Image, likewise", limit=CLOSE)
def check_regions_equal_masks_written_out() -> None:
    regions_equal(known(*REGIONAL))


@compares("A region that is everywhere in OmniGen 2 and Boogu, which count the rows, with its prompt alone")
def check_a_region_everywhere_is_its_prompt_alone() -> None:
    for family in known("OmniGen 2", "Boogu"):
        clip, model = make_text_encoder(family), make_model(family)
        base, dog = stock(clip, PLAIN), stock(clip, "a blue dog in a forest")
        assert base[0][0].shape != dog[0][0].shape
        difference(sampled(model, region(base, dog), base), sampled(model, dog, base))


def check_a_region_that_would_move_the_picture_is_refused() -> None:
    for family in known("LongCat-Image"):
        clip, model = make_text_encoder(family), make_model(family)
        words, negative = encoded(clip), stock(clip, TOYS[family].negative)
        regional = region(words, encoded(clip, "a dog"), area="left half")
        assert "would move the picture" in refusal(partial(sampled, model, regional, negative))


def check_places_regions_and_maps_are_refused_where_the_layout_is_unknown() -> None:
    clip, model = make_text_encoder("AuraFlow"), make_model("AuraFlow")
    words, negative = encoded(clip), stock(clip, TOYS["AuraFlow"].negative)
    for conditioning in (
        placed(words, "red", area="left half"),
        region(words, encoded(clip, "a dog"), area="left half"),
        watched(words, "red")[0],
    ):
        message = refusal(lambda conditioning=conditioning: sampled(model, conditioning, negative))
        assert "do not know where in the picture the places of this model (AuraFlow) are" in message, message


def unreachable(name: str) -> tuple[Any, Any]:
    """A small MODEL that our weights do not reach, and a conditioning for it made of random numbers."""
    from toys import build

    generator = torch.Generator().manual_seed(9)

    def rows(number: int, width: int = 64) -> torch.Tensor:
        return torch.randn(1, number, width, generator=generator)

    sizes, values = {
        "HunyuanDiT": (
            {
                **{"hidden_size": 32, "num_heads": 2, "depth": 4, "text_states_dim": 64, "text_states_dim_t5": 64},
                **{"in_channels": 4, "patch_size": 2},
            },
            {
                **{"attention_mask": torch.ones(1, 77), "attention_mask_mt5xl": torch.ones(1, 256)},
                "conditioning_mt5xl": rows(256),
            },
        ),
        "Stable_Cascade_C": (
            {
                **{"c_cond": 32, "c_r": 8, "c_hidden": [32, 32], "nhead": [2, 2], "blocks": [[1, 1], [1, 1]]},
                **{"block_repeat": [[1, 1], [1, 1]], "c_clip_text": 64, "c_clip_text_pooled": 64, "c_clip_img": 768},
            },
            {"pooled_output": rows(1)[0]},
        ),
    }[name]
    return build(name, sizes), [[rows(77), {"pooled_output": None, **values}]]


def check_models_that_cannot_be_reached_are_refused_with_the_reason() -> None:
    """The host passes the attention of the first no options, so that a function around it is not called."""
    import nodes

    def drawn(model: Any, conditioning: Any) -> torch.Tensor:
        latent = {"samples": torch.zeros(1, model.model.latent_format.latent_channels, 64, 64)}
        settings = 1, 1, 1.0, "euler", "simple"
        return nodes.KSampler().sample(model, *settings, conditioning, conditioning, latent)[0]["samples"]

    for name, reason in (
        ("HunyuanDiT", "neither options nor a mask"),
        ("Stable_Cascade_C", "its CLIP's own schemes weigh there"),
    ):
        model, conditioning = unreachable(name)
        calls: list[int] = []

        def around(function: Any, *inputs: Any, calls: list[int] = calls, **choices: Any) -> Any:
            calls.append(1)
            return function(*inputs, **choices)

        theirs = model.clone()
        theirs.model_options["transformer_options"]["optimized_attention_override"] = around
        assert drawn(theirs, conditioning).isfinite().all()
        assert bool(calls) == (name == "Stable_Cascade_C"), name
        ours = weighed(conditioning, {2: 1.7})
        message = refusal(lambda model=model, ours=ours: drawn(model, ours))
        assert reason in message and "reads text: " in message, message


def hooks_are_taken_off(family: str, blocks: str, last: str, num_of_block: int) -> None:
    """Hooks of a call are taken off, also after an error, and a compiled model is refused.

    Args:
        family: A family whose models pass no options to their attention.
        blocks: The host's name of the blocks of its network.
        last: The host's name of a layer behind them.
        num_of_block: Number of hooks on the layers of a block.
    """
    from comfy_api.torch_helpers import set_torch_compile_wrapper

    clip, model = make_text_encoder(family), make_model(family)
    plain, negative = stock(clip, PLAIN), stock(clip, TOYS[family].negative)
    positive = weighed(plain, rows_by_change(family, clip))
    network = model.model.diffusion_model
    layers = getattr(network, blocks)
    without = sampled(model, plain, negative)
    hooked: list[int] = []

    def num_hooks() -> int:
        return sum(len(layer._forward_hooks) + len(layer._forward_pre_hooks) for layer in network.modules())

    def noting(apply_model: Any, call: dict[str, Any]) -> Any:
        handle = getattr(network, last).register_forward_pre_hook(lambda *_: hooked.append(num_hooks()))
        try:
            return apply_model(call["input"], call["timestep"], **call["c"])
        finally:
            handle.remove()

    noted = model.clone()
    noted.set_model_unet_function_wrapper(noting)
    assert not torch.equal(sampled(noted, positive, negative), without)
    assert max(hooked) == 1 + num_of_block * len(layers) and num_hooks() == 0

    def failing(*_: Any) -> None:
        raise ValueError("in the middle")

    handle = layers[1].register_forward_pre_hook(failing)
    assert refusal(lambda: sampled(model, positive, negative)) == "in the middle"
    handle.remove()
    assert num_hooks() == 0 and torch.equal(sampled(model, plain, negative), without)
    for key in ("diffusion_model", f"diffusion_model.{blocks}.0"):
        compiled = model.clone()
        set_torch_compile_wrapper(compiled, backend="eager", keys=[key])
        message = refusal(lambda compiled=compiled: sampled(compiled, positive, negative))
        assert "while it is compiled" in message, message
        sampled(compiled, negative, negative)


def check_hooks_of_a_call_are_taken_off_and_a_compiled_model_is_refused() -> None:
    """Ernie-Image and PixArt pass no options to their attention."""
    hooks_are_taken_off("PixArt", "blocks", "final_layer", 3)
    if not known("Ernie-Image"):
        raise SkipTest("this ComfyUI has no Ernie-Image")
    hooks_are_taken_off("Ernie-Image", "layers", "final_norm", 2)


@compares("The same on PixArt, with LoRA hooks, likewise", limit=CLOSE)
def check_weights_in_pixart_and_lora_hooks_act_together() -> None:
    lora_hooks_and_weights_act(known("PixArt"))


if __name__ == "__main__":
    main(globals())
