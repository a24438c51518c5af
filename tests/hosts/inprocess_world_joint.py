"""Checks of the joint world in Load Small World: stock nodes and ours on it, against the world's own code.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from functools import partial
from typing import Any

import inprocess_world as world
from inprocess import CLOSE, compares, difference, main, pack_module, refusal, run_ours, stock
from inprocess_world import WEIGH, empty

PLAIN = "a red striped disc and a blue plain disc"
PROMPT = "a red striped disc and (a blue plain disc:{})"


drawn, expected = partial(world.drawn, kind="joint"), partial(world.expected, kind="joint")
loaded, painter = partial(world.loaded, "joint"), partial(world.painter, "joint")


def way(name: str = "", **fields: Any) -> Any:
    """A way of weighting, for `painter`."""
    return pack_module("studio.world.questions").Way(name, **fields)


def weighed(text: str, how: str, **more: Any) -> tuple[Any, Any]:
    """Conditioning, and MODEL if one is given, of Attention Weights."""
    result = run_ours(WEIGH, clip=loaded()[1], text=text, syntax="comfy", how=how, **more)["result"]
    return result[0], result[2]


def same_pictures(pictures: Any, wanted: Any) -> None:
    """As of shapes; of a texture, half or less is coloured."""
    world.same_pictures(pictures, wanted, 10.0)


def check_pieces_are_those_of_the_hosts_tokenizer() -> None:
    model, tokenizer = pack_module("studio.world.model"), loaded()[1].tokenizer
    for caption in ("", PLAIN, "a white dotted disc, a green checked disc and a yellow disc, a purple plain disc"):
        [tokens] = tokenizer.tokenize_with_weights(caption)["qwen3_4b"]
        assert [token for token, _ in tokens] == [model.PIECES[piece] for piece in model.pieces_of(caption)]


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
    for how in pack_module("studio.world.questions").JOINT_HOWS:
        for weight in (-1.0, 0.0, 0.5, 1.5):
            positive, _ = weighed(PROMPT.format(weight), how)
            same_pictures(drawn(positive), expected(painter().text(PROMPT.format(weight), way(how=how))))
    positive, model = weighed(PROMPT.format(0.5), "bias", model=loaded()[0])
    same_pictures(drawn(positive, model=model), expected(painter().text(PROMPT.format(0.5), way(how="bias"))))


@compares("joint world, pictures with placed phrases, regions and Conditioning (Set Mask), with its sampler", limit=1)
def check_places_draw_what_is_measured_without_a_host() -> None:
    def encode(text: str) -> Any:
        return weighed(text, "bias")[0]

    world.places_draw_what_is_measured("joint", ("striped", "plain"), encode, {}, ("all", "every other"), 10.0)


def check_what_is_no_kind_of_world_is_refused() -> None:
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoadWorld"]()
    assert "unet, joint" in refusal(lambda: node.load("cpu", "flux"))


if __name__ == "__main__":
    main(globals())
