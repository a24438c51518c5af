"""Checks of the joint world in Load Small World: stock nodes and ours on it, against the world's own code.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from inprocess import CLOSE, compares, difference, main, refusal, run_ours, stock
from inprocess_world import GUIDANCE, SEED, STEPS, WEIGH, empty, of_pack
from inprocess_world import same_pictures as same_shapes

PLAIN = "a red striped disc and a blue plain disc"
PROMPT = "a red striped disc and (a blue plain disc:{})"


@cache
def loaded() -> tuple[Any, Any, Any]:
    """Results of the node: MODEL, CLIP and VAE."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadWorld"]().load("auto", "joint")


@cache
def painter() -> Any:
    """The world's own encoder and sampler, which know nothing of ComfyUI."""
    model = of_pack("studio.world.model")
    return of_pack("studio.world.painter").painter_of(model.load_world(model.trained("joint"))[0])


def way(name: str = "", **fields: Any) -> Any:
    """A way of weighting, for `painter`."""
    return of_pack("studio.world.questions").Way(name, **fields)


def drawn(positive: Any, latents: Mapping[str, Any] | None = None, *, model: Any = None) -> Any:
    """Pictures by KSampler and VAE Decode, ``[n, h, w, 3]`` in 0..255."""
    import nodes

    default_model, clip, vae = loaded()
    (sampled,) = nodes.common_ksampler(
        *(model or default_model, SEED, STEPS, GUIDANCE, "euler", "simple", positive, stock(clip, "")),
        latents or empty(count=4),
    )
    return (nodes.VAEDecode().decode(vae, sampled)[0] * 255).round()


def expected(text: Any, width: int = 32, height: int = 32, count: int = 4) -> Any:
    """The same pictures by the world's own sampler, of the host's noise."""
    import comfy.sample

    world = of_pack("studio.world.model")
    noise = comfy.sample.prepare_noise(torch.zeros(count, 12, height // 2, width // 2), SEED)
    *_, latents = world.sampled(painter().network, noise, text, painter().empty, STEPS, GUIDANCE)
    return (world.to_pictures(latents).movedim(1, -1) * 255).round()


def weighed(text: str, how: str, **more: Any) -> tuple[Any, Any]:
    """Conditioning, and MODEL if one is given, of Attention Weights."""
    result = run_ours(WEIGH, clip=loaded()[1], text=text, syntax="comfy", how=how, **more)["result"]
    return result[0], result[2]


def same_pictures(pictures: Any, wanted: Any) -> None:
    """As of shapes; of a texture, half or less is coloured."""
    same_shapes(pictures, wanted, 10.0)


def check_pieces_are_those_of_the_hosts_tokenizer() -> None:
    world, tokenizer = of_pack("studio.world.model"), loaded()[1].tokenizer
    for caption in ("", PLAIN, "a white dotted disc, a green checked disc and a yellow disc, a purple plain disc"):
        [tokens] = tokenizer.tokenize_with_weights(caption)["qwen3_4b"]
        assert [token for token, _ in tokens] == [world.PIECES[piece] for piece in world.pieces_of(caption)]


@compares("joint world, rows of stock CLIP Text Encode, with ours", limit=CLOSE)
def check_stock_rows_are_those_of_our_encoder() -> None:
    for text in ("", "a white disc", PLAIN):
        difference(stock(loaded()[1], text)[0][0], painter().text(text, way()).rows)


@compares("joint world, pictures in 8 bits, with its own sampler", limit=1)
def check_ksampler_draws_the_pictures_of_our_sampler() -> None:
    for text in ("a white disc", PLAIN):
        same_pictures(drawn(stock(loaded()[1], text)), expected(painter().text(text, way())))
    same_pictures(drawn(stock(loaded()[1], PLAIN), empty(40, 32, 2)), expected(painter().text(PLAIN, way()), 40, 32, 2))


@compares("joint world, pictures with Attention Weights, with its own sampler", limit=1)
def check_attention_weights_draw_what_is_measured_without_a_host() -> None:
    for how in of_pack("studio.world.questions").JOINT_HOWS:
        for weight in (-1.0, 0.0, 0.5, 1.5):
            positive, _ = weighed(PROMPT.format(weight), how)
            same_pictures(drawn(positive), expected(painter().text(PROMPT.format(weight), way(how=how))))
    positive, model = weighed(PROMPT.format(0.5), "bias", model=loaded()[0])
    same_pictures(drawn(positive, model=model), expected(painter().text(PROMPT.format(0.5), way(how="bias"))))


@compares("joint world, pictures with placed phrases, regions and Conditioning (Set Mask), with its sampler", limit=1)
def check_places_draw_what_is_measured_without_a_host() -> None:
    import nodes

    questions, scenes = of_pack("studio.world.questions"), of_pack("studio.world.scenes")
    things = scenes.Thing("red", "striped"), scenes.Thing("blue", "plain")
    prompt, halves = questions.Prompt(scenes.Scene(things), 0), ("left half", "right half")
    place, region = (nodes.NODE_CLASS_MAPPINGS[f"WeightedCLIP{name}"]() for name in ("Place", "Region"))

    def wanted(**places: Any) -> Any:
        one = way(places=questions.Places(**places))
        return expected(painter().drawable(prompt, one, 4.0 if places["of"] == "phrases" else 1.0, ""))

    alone = [weighed(thing.phrase, "bias")[0] for thing in things]
    for edge, end, unit in (("", 1, "percent"), (" ~0.25", 1, "percent"), ("", 8, "steps")):
        areas = tuple(half + edge for half in halves)
        placed, _ = weighed(PLAIN, "bias")
        for thing, area in zip(things, areas, strict=True):
            (placed, _) = place.place(placed, thing.phrase, 4.0, 0.0, area, 0.0, end, unit)["result"]
        until = 0.4 if unit == "steps" else 1.0
        same_pictures(drawn(placed), wanted(of="phrases", areas=areas, until=until))
        for blocks in ("all", "every other"):
            base, _ = weighed(PLAIN, "bias")
            for one, area in zip(alone, areas, strict=True):
                (base, _) = region.place(base, one, 1.0, area, 0.0, end, unit, blocks=blocks)["result"]
            same_pictures(drawn(base), wanted(of="regions", areas=areas, until=until, blend=blocks != "all"))

    masked: list[Any] = []
    for one, left in zip(alone, (1.0, 0.0), strict=True):
        mask = torch.tensor([left] * 8 + [1 - left] * 8).expand(16, 16)
        masked += nodes.ConditioningSetMask().append(one, mask, "default", 1.0)[0]
    same_pictures(drawn(masked), wanted(of="predictions"))


def check_what_is_no_kind_of_world_is_refused() -> None:
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadWorld"]()
    assert "unet, joint" in refusal(lambda: node.load("cpu", "flux"))


if __name__ == "__main__":
    main(globals())
