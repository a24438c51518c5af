"""Checks of weights in the attention of further families of pictures (toys_pictures.py).

The rows of words are found without our tables: of a text encoder that reads from left to right, a word's row is the
first that changes with its token. Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
from typing import Any

import torch
from inprocess import CLOSE, compares, main, stock
from inprocess_attention import is_close
from toys import PLAIN, TOYS, WORDS, Weights, make_model, make_text_encoder, rows_by_hand, sampled
from toys_pictures import FAMILIES
from written_out import written_out

BOTH_WAYS = ("Chroma Radiance", "AuraFlow", "Cosmos Predict 2")
"""Families whose text encoder, T5, reads in both directions; it has a row for each token."""


def ours(module: str) -> Any:
    """A module of our pack, as ComfyUI has loaded it."""
    import nodes

    inside = nodes.NODE_CLASS_MAPPINGS["WeightedCLIPWeighAttention"].__module__
    return importlib.import_module(f"{inside.rpartition('.nodes.')[0]}.{module}")


def tokens_of(family: str, clip: Any) -> tuple[Any, list[Any], dict[str, int]]:
    """The host's tokens of our text, those of the encoder with the words, and their places there, the last of each."""
    tokens, (key,) = clip.tokenize(PLAIN), TOYS[family].keys
    ((*pairs,),) = tokens[key]
    inner = getattr(clip.tokenizer, key, None) or getattr(clip.tokenizer, f"clip_{key}")
    places = {inner.inv_vocab.get(pair[0], "").strip("▁Ġ"): place for place, pair in enumerate(pairs)}
    return tokens, pairs, {word: places[word] for word in WORDS}


def rows_by_change(family: str, clip: Any) -> Weights:
    """Weight of each row of our text: of a word that of the first row which another token in its place changes."""
    if family in BOTH_WAYS:
        return rows_by_hand(family, clip)
    tokens, pairs, places = tokens_of(family, clip)
    (key,) = TOYS[family].keys
    plain = clip.encode_from_tokens_scheduled(tokens)[0][0][0]
    found: Weights = {}
    for word, place in places.items():
        other = [*pairs[:place], (pairs[place][0] + 1, *pairs[place][1:]), *pairs[place + 1 :]]
        changed = clip.encode_from_tokens_scheduled({**tokens, key: [other]})[0][0][0]
        found[int((changed != plain).any(1).nonzero()[0])] = WORDS[word]
    assert len(found) == len(WORDS)
    return found


def weighed(conditioning: Any, rows: Weights, how: str = "bias") -> Any:
    """A stock conditioning with weights for its rows."""
    rule = ours("weighting.attention")
    number = conditioning[0][0].shape[1]
    effects = [rule.effect_of(rows.get(row, 1.0), how, 1.0) for row in range(number)]
    return ours("hosts.comfy.attention").with_effects(conditioning, effects)[0]


def check_the_last_token_of_the_host_is_the_last_row() -> None:
    """But for those that a record says are left out."""
    tables = ours("hosts.comfy.families")
    for family in FAMILIES:
        clip = make_text_encoder(family)
        _, pairs, places = tokens_of(family, clip)
        behind = tables.text_family(clip).num_left_out_behind([pair[0] for pair in pairs])
        number = stock(clip, PLAIN)[0][0].shape[1]
        by_place = {number - (len(pairs) - behind - place): WORDS[word] for word, place in places.items()}
        assert by_place == rows_by_change(family, clip), (family, by_place)


@compares("Weights in further families of pictures, small, KSampler, with a softmax written out, likewise", limit=CLOSE)
def check_weights_in_families_of_pictures_equal_ones_written_out() -> None:
    for family in FAMILIES:
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


if __name__ == "__main__":
    main(globals())
