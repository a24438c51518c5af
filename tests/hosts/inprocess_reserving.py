"""Checks of what ComfyUI is told of our memory before it loads models: at least what is taken, and nothing without us.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py. What is taken is counted where it is made.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import torch
from inprocess import main, pack_module, run_ours, stock
from inprocess_attention import timed
from inprocess_places import encoded, placed
from inprocess_regions import region
from inprocess_word_maps import watched
from toys import PLAIN, TOYS, make_model, make_text_encoder, sampled, weighable

FAMILIES = ("SD1", "Flux", "Z-Image", "Flux 2 Klein", "HiDream", "LTX-Video", "Wan")
MOST = 2.5
"""Largest ratio of what is kept free to what is taken."""


def memory_of(*inputs: Any, **settings: Any) -> tuple[float, float, int]:
    """Memory of a sampling in a step: what ComfyUI wants to have free, at best and at least, and our most biases.

    A bias that is being made counts with the one in float32 that it is made of.
    """
    from comfy import model_management

    weighing_class = pack_module("hosts.comfy.families.attention_layers").ComfyWeighting
    load, make = model_management.load_models_gpu, weighing_class._bias_by_place
    alive, asked, taken = WeakSet(), [], [0]

    def loading(*given: Any, **named: Any) -> Any:
        asked.append((named["memory_required"], named["minimum_memory_required"]))
        return load(*given, **named)

    def making(weighing: Any, *given: Any, **named: Any) -> Any:
        alive.add(weighing)
        bias = make(weighing, *given, **named)
        kept = sum({id(each._kept): each.num_bytes for each in alive}.values())
        is_masked = weighing.shared is not None and weighing._is_joint
        taken.append(kept + 4 * bias.shape[2] * weighing.bias.shape[1] * (len(bias) if is_masked else 1))
        return bias

    with (
        patch.object(model_management, "load_models_gpu", loading),
        patch.object(weighing_class, "_bias_by_place", making),
    ):
        sampled(*inputs, **settings, steps=1)
    return *asked[0], max(taken)


def check_the_estimate_of_memory_grows_by_what_placed_phrases_and_regions_take() -> None:
    for family in weighable(*FAMILIES):
        clip, model = make_text_encoder(family), make_model(family)
        plain, words, dog = stock(clip, PLAIN), encoded(clip), encoded(clip, "a dog")
        phrase, everywhere = placed(words, "red cat", area="left"), placed(words, "red cat", inside=0.3)
        others = placed(dog, "dog", area="right")
        cases: dict[str, Any] = {
            "phrase": phrase,
            "two entries": [*phrase, *others],
            "times": [*timed(phrase, 0.0, 0.3), *timed(others, 0.31, 1.0)],
        }
        one = region(words, dog, area="left")
        both = region(one, plain, area="0.4 0.9, 0 1", blocks="every other")
        cases |= {"region": one, "regions": both, "regions, phrase": placed(both, "red", area="top", outside=0.2)}
        negative = stock(clip, ", ".join([TOYS[family].negative] * 12))
        without = memory_of(model, plain, negative, batch=2)
        for same in (words, everywhere):
            assert memory_of(model, same, negative, batch=2) == without, family
        if family == "Flux":  # of as many rows, so that both share a call
            (_, least_of_same, _), (_, least, used) = (memory_of(model, each, plain, batch=2) for each in (plain, both))
            assert used <= round(least - least_of_same) <= MOST * used, (used, least - least_of_same)
        for name, ours in cases.items():
            best, least, used = memory_of(model, ours, negative, batch=2)
            grown = {round(best - without[0]), round(least - without[1])}
            assert len(grown) == 1 and used <= max(grown) <= MOST * used, (family, name, grown, used)


def memory_of_maps(model: Any, positive: Any, negative: Any, **settings: Any) -> tuple[float, int]:
    """Memory of a sampling in a step: what ComfyUI wants to have free, and the most that maps of words take."""
    recorder = pack_module("hosts.comfy.attention.recorder")
    mean, start = recorder.Maps.mean, recorder.Record.__init__
    records, taken = WeakSet(), [0]

    def starting(record: Any, *given: Any) -> None:
        start(record, *given)
        records.add(record)

    def averaging(maps: Any, layers: str) -> Any:
        result = mean(maps, layers)
        kept = sum(one._sums.nbytes + one._counts.nbytes for one in records)
        of_layers = sum(grid.nbytes for each in maps._layers.values() for grid in each._sums.values())
        taken.append(kept + of_layers + 2 * result.nbytes)
        return result

    with patch.object(recorder.Maps, "mean", averaging), patch.object(recorder.Record, "__init__", starting):
        best, *_ = memory_of(model, positive, negative, **settings)
    return best, max(taken)


def check_the_estimate_of_memory_grows_by_what_word_maps_take() -> None:
    for family in weighable(*FAMILIES):
        clip, model = make_text_encoder(family), make_model(family)
        words, negative = encoded(clip), stock(clip, TOYS[family].negative)
        for batch in (1, 3):
            without, _ = memory_of_maps(model, words, negative, batch=batch)
            for typed in ("red cat", "red\ncat\nmat\nsnow"):
                told, used = memory_of_maps(model, watched(words, typed)[0], negative, batch=batch)
                assert used <= told - without <= MOST * used, (family, batch, typed, told - without, used)


def check_references_beside_the_picture_count() -> None:
    import node_helpers

    generator = torch.Generator().manual_seed(8)
    for family, shape in (("Flux", (1, 16, 9, 8)), ("Qwen-Image", (1, 16, 1, 8, 10))):
        clip, model = make_text_encoder(family), make_model(family)
        pictures = {"reference_latents": [torch.randn(shape, generator=generator)] * 2}
        plain, ours = (
            node_helpers.conditioning_set_values(one, pictures)
            for one in (stock(clip, PLAIN), placed(encoded(clip), "red cat", area="left"))
        )
        (without, *_), (best, _, used) = (memory_of(model, one, plain) for one in (plain, ours))
        assert MOST * used >= best - without >= used, (family, best - without, used)


def check_weights_of_words_take_no_more_memory() -> None:
    for family in weighable("SD1", "Flux"):
        clip, model = make_text_encoder(family), make_model(family)
        plain, negative = (stock(clip, text) for text in ("a red cat", TOYS[family].negative))
        weighed = run_ours("WeightedCLIPWeighAttention", clip=clip, text="a (red:1.7) cat")["result"][0]
        assert memory_of(model, weighed, negative) == memory_of(model, plain, negative)


if __name__ == "__main__":
    main(globals())
