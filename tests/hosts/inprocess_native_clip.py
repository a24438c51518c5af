"""Checks of our native encoder as a CLIP: stock nodes on it, with the host's own CLIP of the same weights.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
from itertools import chain, pairwise, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from inprocess import (
    CLOSE,
    TEXTS,
    WIDTHS,
    apart,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    ours,
    refusal,
    run_ours,
    stock,
    tower_sizes,
    with_lora,
)
from inprocess_native import FAMILIES, LONG, ROWS, SDXL_OURS, checkpoint
from inprocess_traces import LORA, hooked, leaves_nothing, nodes_for, run_node
from inprocess_weighted_clip import CHOICES, sdxl
from safetensors.torch import save_file
from served_clip import served

ACTS = 0.01
"""Least difference that shows that something acts."""


def loaded(file: str, clip_skip: int = 1, dtype: str = "fp32", remember: int = 0) -> tuple[Any, Any]:
    """Both outputs of the loader: our encoder, and it as a CLIP."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPLoad"]().load(file, clip_skip, dtype, "auto", remember)


def pair(family: str, clip_skip: int = 1, **choices: Any) -> tuple[Any, Any, Any]:
    """The host's CLIP of a family, our encoder with its weights, and that as a CLIP."""
    clip = make_clip(family)
    with checkpoint(family, clip) as file:
        return clip, *loaded(file, clip_skip, **choices)


def at_layer(clip: Any, layer: int | None) -> Any:
    """A CLIP behind CLIP Set Last Layer; as it is with None."""
    import nodes

    return clip if layer is None else nodes.CLIPSetLastLayer().set_last_layer(clip, layer)[0]


@compares("Stock CLIP Text Encode on the native CLIP, small, every layer, with stock", limit=CLOSE)
def check_every_layer_equals_stock() -> None:
    for family in FAMILIES:
        clip, _, native = pair(family)
        for layer in (None, -1, -2, -3, -4, -24):  # the last counts as none
            for text in TEXTS:
                difference(stock(at_layer(native, layer), text), stock(at_layer(clip, layer), text))
        rows = [stock(at_layer(native, layer), TEXTS[1])[0][0] for layer in (-1, -2, -3, -4)]
        assert all(apart(one, other) > ACTS for one, other in pairwise(rows))


@compares("Stock CLIP Text Encode on the native CLIP, clip skip of the loader, with our node on the encoder")
def check_the_loaders_clip_skip_is_that_of_the_clip() -> None:
    for family, clip_skip in product(FAMILIES, (1, 2, 3, 4, 5)):
        clip, native, made = pair(family, clip_skip)
        for text in TEXTS:
            found = stock(made, text)
            difference(found, ours(native, text))
            if clip_skip < 5:  # the embeddings, which stock does not give
                expected = stock(at_layer(clip, -clip_skip if family == "SD1" else -max(clip_skip, 2)), text)
                assert apart(found, expected) <= CLOSE
        assert apart(stock(at_layer(made, -2), TEXTS[1]), stock(at_layer(clip, -2), TEXTS[1])) <= CLOSE


@compares(
    "CLIP Text Encode SDXL with two texts and the refiner's node on the native CLIP, small, with stock", limit=CLOSE
)
def check_nodes_of_sdxl_equal_stock() -> None:
    from comfy_extras.nodes_clip_sdxl import CLIPTextEncodeSDXLRefiner

    clip, _, native = pair("SDXL")
    for text_g, text_l in product(TEXTS, TEXTS):
        difference(sdxl(native, text_g, text_l), sdxl(clip, text_g, text_l))
    refiner, _, native = pair("SDXL refiner")
    for text in TEXTS:
        expected, found = (
            CLIPTextEncodeSDXLRefiner.execute(one, 2.5, 640, 512, text).result[0] for one in (refiner, native)
        )
        difference(found, expected)


@compares("Pooled vectors without projection of the native CLIP, small, with stock", limit=CLOSE)
def check_pooled_vectors_without_projection_equal_stock() -> None:
    for family in FAMILIES:
        clip, _, native = pair(family)
        kinds = {}
        for kind in (True, "unprojected"):
            expected, kinds[kind] = (
                one.encode_from_tokens(one.tokenize(TEXTS[2]), return_pooled=kind)[1] for one in (clip, native)
            )
            difference(kinds[kind], expected)
        assert family == "SD1" or apart(*kinds.values()) > ACTS


@compares("Embeddings on the native CLIP, small, with stock", limit=CLOSE)
def check_embeddings_equal_stock() -> None:
    import folder_paths

    generator = torch.Generator().manual_seed(3)
    files = {
        "both": {f"clip_{tower}": torch.randn(3, WIDTHS[tower], generator=generator) for tower in "lg"},
        # of a width that CLIP-L cannot take: left out there, as in stock
        "large": {"clip_g": torch.randn(2, WIDTHS["g"], generator=generator)},
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, state in files.items():
            save_file(state, Path(folder, f"{name}.safetensors"))
        folder_paths.add_model_folder_path("embeddings", folder, is_default=True)
        try:
            clip = make_clip("SDXL", embeddings=Path(folder))
            with checkpoint("SDXL", clip) as file:
                _, native = loaded(file)
            for name in files:
                text = f"a (embedding:{name}:1.2) cat, " * 10
                difference(stock(native, text), stock(clip, text))
                assert (
                    apart(stock(native, text)[0][0], stock(native, text.replace(f"embedding:{name}", "x"))[0][0]) > ACTS
                )
        finally:
            folder_paths.folder_names_and_paths["embeddings"][0].remove(folder)


def lora_for(clip: Any, layers: str = LORA) -> dict[str, torch.Tensor]:
    """A LoRA for what every file of the family has."""
    return make_lora(clip.cond_stage_model, layers)


EVERYWHERE = r"(mlp|self_attn|clip_[gh].*text_projection)"


@compares("LoRAs on the native CLIP, small, with stock", limit=2 * CLOSE)
def check_loras_equal_stock() -> None:
    for family, remember in product(FAMILIES, (0, 16)):
        clip, native, made = pair(family, remember=remember)
        plain = ours(native, TEXTS[1])
        for layers, strength in ((LORA, 0.7), (EVERYWHERE, 0.6), (EVERYWHERE, -0.5), (LORA, 0.7)):
            lora = lora_for(clip, layers)
            theirs, changed = (with_lora(one, lora, strength) for one in (clip, made))
            for text in TEXTS:
                found = stock(changed, text)
                difference(found, stock(theirs, text))
                difference(stock(at_layer(changed, -2), text), stock(at_layer(theirs, -2), text))
            assert apart(stock(changed, TEXTS[1]), plain) > ACTS
            # the encoder of the other output is the same, and has no LoRA
            assert apart(ours(native, TEXTS[1]), plain) == 0.0
            assert apart(stock(made, TEXTS[1]), plain) == 0.0
        with leaves_nothing(made, family):
            stock(with_lora(made, lora_for(clip), 0.7), TEXTS[1])
            stock(made, TEXTS[1])


@compares("LoRA on the native CLIP, small, where there is no room on the device, with stock", limit=2 * CLOSE)
def check_loras_act_without_room_on_the_device() -> None:
    """The host then patches its own layers when they are called, and leaves all others."""
    from comfy import model_management

    clip, _, made = pair("SD1")
    lora = lora_for(clip)
    plain, expected = stock(made, TEXTS[1]), stock(with_lora(clip, lora, 0.7), TEXTS[1])
    crowded = patch.multiple(
        model_management, is_device_cpu=lambda device: False, vram_state=model_management.VRAMState.NO_VRAM
    )
    model_management.unload_all_models()
    with crowded:
        found = stock(with_lora(made, lora, 0.7), TEXTS[1])
    assert apart(found, plain) > ACTS
    difference(found, expected)
    difference(stock(made, TEXTS[1]), plain)


@compares("Bypassed LoRAs on the native CLIP, small, with stock", limit=2 * CLOSE)
def check_bypassed_loras_equal_stock() -> None:
    import comfy.sd

    for family in FAMILIES:
        clip, native, made = pair(family, remember=16)
        plain = stock(made, TEXTS[1])
        lora = lora_for(clip, EVERYWHERE)
        theirs, changed = (comfy.sd.load_bypass_lora_for_models(None, one, lora, 0.0, 0.7)[1] for one in (clip, made))
        found = stock(changed, TEXTS[1])
        assert apart(found, plain) > ACTS
        difference(found, stock(theirs, TEXTS[1]))
        difference(ours(changed, TEXTS[1]), ours(theirs, TEXTS[1]))
        assert apart(ours(native, TEXTS[1]), plain) == 0.0


@compares("LoRAs as hooks on the native CLIP, small, with stock", limit=2 * CLOSE)
def check_hooks_equal_stock() -> None:
    for family, is_scheduled in product(("SD1", "SDXL"), (False, True)):
        clip, native, made = pair(family, remember=16)
        plain = ours(native, TEXTS[1])
        theirs, changed = (hooked(one, is_scheduled) for one in (clip, made))
        for text in TEXTS:
            expected, found = (
                [
                    [rows, {key: value for key, value in values.items() if key != "hooks"}]
                    for rows, values in stock(one, text)
                ]
                for one in (theirs, changed)
            )
            difference(found, expected)
            before, *behind = (rows for rows, _ in found)
            assert len(behind) == is_scheduled
            assert (
                apart(before, *behind or [stock(made, text)[0][0]]) > ACTS
            )  # behind the keyframe, or without the hook
        assert apart(ours(native, TEXTS[1]), plain) == 0.0


@compares("Weighted CLIP with a scheme on the native CLIP, small, with Weighted Prompt on the encoder")
def check_weighted_clip_equals_our_node_on_the_encoder() -> None:
    for family, clip_skip in product(FAMILIES, (1, 3)):
        clip, native, made = pair(family, clip_skip)
        for choices, text in product(CHOICES, TEXTS):
            difference(stock(served(made, **choices), text), ours(native, text, **choices))
        assert all(apart(stock(served(made), text), stock(made, text)) == 0.0 for text in TEXTS)
        weighed = served(made, syntax="a1111", scheme="masked_blend")
        assert apart(stock(weighed, TEXTS[1]), stock(made, TEXTS[1])) > ACTS
        lora, theirs = lora_for(clip), clip if clip_skip == 1 else at_layer(clip, -3)
        for changed in (
            with_lora(weighed, lora, 0.7),
            served(with_lora(made, lora, 0.7), syntax="a1111", scheme="masked_blend"),
        ):
            expected = ours(with_lora(theirs, lora, 0.7), TEXTS[1], syntax="a1111", scheme="masked_blend")
            assert apart(stock(changed, TEXTS[1]), expected) <= 2 * CLOSE


@compares("CLIP Text Encode SDXL on a Weighted CLIP of the native CLIP, small, with our SDXL node on the encoder")
def check_two_texts_by_weighted_clip_equal_our_node_on_the_encoder() -> None:
    _, native, made = pair("SDXL")
    for choices, (text_g, text_l) in product(CHOICES[:4], product(TEXTS, TEXTS)):
        expected = run_ours(SDXL_OURS, clip=native, text_g=text_g, text_l=text_l, **choices)["result"][0]
        found = sdxl(served(made, **choices), text_g, text_l)
        difference(found[0][0], expected[0][0])
        difference(found[0][1]["pooled_output"], expected[0][1]["pooled_output"])


@compares("Every node of ours on the native CLIP, small, with the encoder")
def check_our_nodes_give_what_they_give_on_the_encoder() -> None:
    import nodes

    for family in ("SD1", "SD2", "SDXL"):
        _, native, made = pair(family)
        for name in nodes_for(family):
            types = nodes.NODE_CLASS_MAPPINGS[name].RETURN_TYPES
            with leaves_nothing(made, f"{family}, {name}"):
                found = run_node(name, made)
            if (
                "CONDITIONING" in types
                and "CLIP" not in nodes.NODE_CLASS_MAPPINGS[name].INPUT_TYPES()["required"]["clip"]
            ):
                at = types.index("CONDITIONING")
                results = (
                    some["result"] if isinstance(some, dict) else some for some in (found, run_node(name, native))
                )
                difference(*(rows_of(result[at]) for result in results))


def rows_of(conditioning: Any) -> Any:
    """Rows and pooled vectors of a conditioning or of several."""
    entries = conditioning if isinstance(conditioning[0][0], torch.Tensor) else chain(*conditioning)
    return [[rows, {"pooled_output": values["pooled_output"]}] for rows, values in entries]


HIDDEN: tuple[dict[str, Any], ...] = (
    {"name": "WeightedCLIPMaskControl", "text": "a red cat on a mat", "hide": "cat"},
    {"name": "WeightedCLIPMaskControl", "text": "a red cat on a mat", "causal": False},
    {"name": "WeightedCLIPBindPhrases", "text": "a red cat on a blue mat", "phrases": "red cat\nblue mat"},
)


@compares("Hide Words and Color Bleed on the native CLIP, small, with the host's CLIP", limit=2 * CLOSE)
def check_masks_equal_those_on_the_hosts_clip() -> None:
    for family in FAMILIES:
        clip, _, made = pair(family)
        for layer, choices in product((None, -2), HIDDEN):
            inputs = {name: value for name, value in choices.items() if name != "name"}
            found, expected = (
                run_ours(choices["name"], clip=at_layer(one, layer), **inputs)["result"][0] for one in (made, clip)
            )
            difference(found, expected)
            assert apart(found, stock(at_layer(made, layer), choices["text"])) > ACTS / 10


@compares("Native CLIP of a Long-CLIP in SD1 and SDXL, small, with stock", limit=CLOSE)
def check_long_clip_equals_stock() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family, long_l=LONG)
        with checkpoint(family, clip) as file:
            _, native = loaded(file)
        for text in ROWS:
            difference(stock(native, text), stock(clip, text))


@compares("Weights that the native CLIP saves and is merged with, small, with stock", limit=CLOSE)
def check_weights_have_the_hosts_names() -> None:
    from comfy_extras.nodes_model_merging import CLIPMergeSimple

    for family in FAMILIES:
        clip, _, native = pair(family)
        changed = make_clip(family)
        changed.cond_stage_model.load_state_dict({key: value + 0.01 for key, value in clip.get_sd().items()})
        expected, found = clip.get_sd(), native.get_sd()
        # files have none for CLIP-L, where nothing uses it
        assert expected.keys() - found.keys() <= {"clip_l.transformer.text_projection.weight"}
        assert all(torch.equal(found[key], expected[key]) for key in found if not key.endswith("logit_scale"))
        for one, other in ((native, changed), (changed, native)):
            merged = CLIPMergeSimple().merge(one, other, 0.3)[0]
            hosts = (clip if some is native else some for some in (one, other))
            difference(stock(merged, TEXTS[1]), stock(CLIPMergeSimple().merge(*hosts, 0.3)[0], TEXTS[1]))


@compares("Native CLIP of SD2 without its last layer, as diffusers keeps it, narrow, with stock", limit=CLOSE)
def check_a_file_without_the_last_layer_equals_stock() -> None:
    sizes = {name: {**some, "num_hidden_layers": 24} for name, some in tower_sizes().items()}
    with patch("inprocess.tower_sizes", lambda: sizes):
        clip = make_clip("SD2")
    state = clip.cond_stage_model.state_dict()
    kept = {name: tensor for name, tensor in state.items() if ".layers.23." not in name}
    with checkpoint("SD2", SimpleNamespace(cond_stage_model=SimpleNamespace(state_dict=lambda: kept))) as file:
        natives = {clip_skip: loaded(file, clip_skip)[1] for clip_skip in (1, 3)}
    for (clip_skip, native), text in product(natives.items(), TEXTS):
        for layer in (None, -4):
            expected = stock(at_layer(clip, layer or -max(clip_skip, 2)), text)
            difference(stock(at_layer(native, layer), text)[0][0], expected[0][0])
    assert "last layer" in (message := refusal(lambda: stock(at_layer(natives[1], -1), "a cat"))), message


def check_other_types_are_computed_alike() -> None:
    for dtype in ("fp16", "bf16"):
        clip, native, made = pair("SDXL", dtype=dtype)
        expected = ours(native, TEXTS[1])
        assert apart(stock(made, TEXTS[1]), expected) == 0.0
        changed = with_lora(made, lora_for(clip), 0.7)
        assert apart(stock(changed, TEXTS[1]), expected) > ACTS
        assert apart(ours(native, TEXTS[1]), expected) == 0.0


def check_what_it_cannot_give_is_refused() -> None:
    _, _, made = pair("SD1")
    several = made.clone()
    several.clip_layer([-1, -2])
    assert "[-1, -2]" in (message := refusal(lambda: stock(several, "a cat"))), message
    tokens = {"l": [[(49406, 1.0), ({"type": "image"}, 1.0), *[(49407, 1.0)] * 75]]}
    assert "image" in (message := refusal(lambda: made.encode_from_tokens_scheduled(tokens))), message


if __name__ == "__main__":
    main(globals())
