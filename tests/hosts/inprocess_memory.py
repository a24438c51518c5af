"""Checks of CLIPs and models that are loaded in part, and of CLIPs that several nodes share or that remember encodings.

ComfyUI never loads in part on the CPU, where it takes no ``--lowvram``. Here its own loader is made to see only so much
free memory; what it then does is the same as on a small GPU, except that nothing moves.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import permutations
from typing import Any

import torch
from inprocess import (
    CLOSE,
    OURS,
    TEXTS,
    apart,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    ours,
    run_ours,
    stock,
    with_lora,
)
from inprocess_attention import rel
from inprocess_places import encoded, placed
from inprocess_regions import DOG, region
from inprocess_timed import encode_timed
from toys import NEGATIVE, TOYS, make_model, make_text_encoder, sampled, weighable

LINEAR = r"layers\.\d+\.(self_attn\.\w+|mlp\.fc[12])\.weight|text_projection\.weight"
"""Weights that LoRAs change; everything else that loads in part is as good as one of these."""
POSITIONS = r"position_embedding\.weight"
NOTHING, HALF, SOME = 0.0, 0.5, 0.96
"""Parts of a model that fit. A small CLIP is mostly its token embedding: with 0.96, some of its layers fit too."""
MASK_CONTROL = "WeightedCLIPMaskControl"
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "comfy": (OURS, {}),
    "masked blend, padding masked": (OURS, {"scheme": "masked_blend", "padding": "mask", "pooled": "weighted"}),
    "a1111": ("WeightedCLIPA1111Encode", {}),
    "hidden": (MASK_CONTROL, {"hide": "mat", "hidden_from": "everything"}),
    "causality off": (MASK_CONTROL, {"causal": False, "padding": "mask"}),
}
"""Nodes and choices that treat a prompt differently."""
LORA_FRACTION = 0.05


@contextmanager
def memory_for(part: float) -> Iterator[None]:
    """Let ComfyUI believe that so much of each model fits in memory, as load_models_gpu works it out on a GPU."""
    from comfy import model_management

    load = model_management.LoadedModel.model_load

    def model_load(self: Any, lowvram_model_memory: float = 0, force_patch_weights: bool = False) -> Any:
        left = part * self.model_memory() - self.model_loaded_memory()
        return load(self, max(0.1, left), force_patch_weights)

    model_management.LoadedModel.model_load = model_load
    try:
        yield
    finally:
        model_management.LoadedModel.model_load = load


def assert_loaded(clip: Any, part: float) -> None:
    """A CLIP with a LoRA is loaded as `memory_for` asks; 1 means wholly, as on the CPU."""
    modules = list(clip.cond_stage_model.modules())
    assert clip.patcher.model.model_lowvram == (part < 1)
    # only partial loading patches a weight each time it is used
    assert any(getattr(module, "weight_function", ()) for module in modules) == (part < 1)
    assert any(getattr(module, "comfy_patched_weights", False) for module in modules) == (part > 0)


def run(clip: Any, text: str, node: str, choices: dict[str, Any]) -> Any:
    """The conditioning of a node of ours."""
    return run_ours(node, clip=clip, text=text, **choices)["result"][0]


@compares("Partly loaded CLIP, SD1 and SDXL, small, LoRA, with stock")
def check_on_a_partly_loaded_clip_ours_equals_stock() -> None:
    for family in ("SD1", "SDXL"):
        for part in (NOTHING, SOME):
            with memory_for(part):
                clip = make_clip(family)
                # the host reads position embeddings as they are, so that in this state a LoRA on them is lost
                for pattern in (LINEAR, f"{LINEAR}|{POSITIONS}"):
                    patched = with_lora(clip, make_lora(clip.cond_stage_model, pattern), LORA_FRACTION)
                    for layer in (None, -2):
                        patched.clip_layer(layer)
                        for text in TEXTS:
                            expected = stock(patched, text)
                            assert_loaded(patched, part)
                            difference(ours(patched, text), expected)
                            assert_loaded(patched, part)
                            assert not torch.isclose(expected[0][0], stock(clip, text)[0][0]).all()


@compares("Ours on a partly loaded CLIP, with wholly loaded", limit=1e-6)
def check_a_partly_loaded_clip_gives_what_a_whole_one_gives() -> None:
    for family in ("SD1", "SDXL"):
        whole = make_clip(family)
        lora = make_lora(whole.cond_stage_model, LINEAR)
        expected = {}
        patched = with_lora(whole, lora, LORA_FRACTION)
        for name, (node, choices) in SETTINGS.items():
            expected[name] = [run(patched, text, node, choices) for text in TEXTS]
            assert_loaded(patched, 1)
            unpatched = [run(whole, text, node, choices) for text in TEXTS]
            assert not torch.isclose(expected[name][1][0][0], unpatched[1][0][0]).all(), name
        for part in (NOTHING, SOME):
            with memory_for(part):
                partial = with_lora(make_clip(family), lora, LORA_FRACTION)
                for name, (node, choices) in SETTINGS.items():
                    for text, other in zip(TEXTS, expected[name], strict=True):
                        found = difference(run(partial, text, node, choices), other)
                        assert found <= 1e-6, (family, part, name, found)
                    assert_loaded(partial, part)


@compares("Placed phrases and regions on a partly loaded model, small, LoRA, with a wholly loaded one")
def check_places_on_a_partly_loaded_model_are_those_on_a_whole_one() -> None:
    import comfy.sd

    for family in weighable("SD1", "Flux"):
        clip = make_text_encoder(family)
        plain, negative = encoded(clip), stock(clip, NEGATIVE)
        both = region(placed(plain, "red cat", area="left half"), encoded(clip, DOG), area="right half", strength=0.8)
        drawn: list[torch.Tensor] = []
        for part in (1.0, NOTHING, HALF):
            with memory_for(part) if part < 1 else nullcontext():
                model = make_model(family)
                lora = make_lora(model.model, TOYS[family].lora)
                model = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0.0)[0]
                drawn.append(sampled(model, both, negative))
                assert model.model.model_lowvram == (part < 1)
                assert rel(drawn[-1], sampled(model, plain, negative)) > 100 * CLOSE, family
        for other in drawn[1:]:
            difference(other, drawn[0])


@compares("Ours on a CLIP that nodes share, with alone")
def check_nodes_that_share_a_clip_give_what_each_gives_alone() -> None:
    text = TEXTS[1]
    for family in ("SD1", "SDXL"):
        alone = {name: run(make_clip(family), text, *setting) for name, setting in SETTINGS.items()}
        clip = make_clip(family)
        for one, other in permutations(alone, 2):
            assert not torch.isclose(alone[one][0][0], alone[other][0][0]).all(), (one, other)
            for name in (one, other, one, one, other):
                difference(run(clip, text, *SETTINGS[name]), alone[name])


@compares("Stock and ours in turn on one CLIP, small, with each alone")
def check_stock_between_our_nodes_stays_what_it_is() -> None:
    text = TEXTS[1]
    for family in ("SD1", "SDXL"):
        plain = make_clip(family)
        lora = make_lora(plain.cond_stage_model, LINEAR)
        patched = with_lora(plain, lora, LORA_FRACTION)
        expected = {"plain": stock(plain, text), "patched": stock(patched, text)}
        clips = {"plain": plain, "patched": patched}
        assert not torch.isclose(expected["plain"][0][0], expected["patched"][0][0]).all()
        for name, setting in SETTINGS.items():
            for for_ours, for_stock in (("plain", "plain"), ("plain", "patched"), ("patched", "plain")):
                kept = run(clips[for_ours], text, *setting)
                found = difference(stock(clips[for_stock], text), expected[for_stock])
                again = difference(run(clips[for_ours], text, *setting), kept)
                assert found == again == 0, (family, name, for_ours, for_stock)


SCHEMES = ("comfy", "masked_blend", "down_weight", "a1111")


def remembering(clip: Any, mebibytes: int = 64) -> Any:
    """The CLIP after the node Remember Encodings."""
    import nodes

    return nodes.NODE_CLASS_MAPPINGS["WeightedCLIPRemember"]().remember(clip, mebibytes)[0]


def calls_of(clip: Any) -> list[int]:
    """Number of chunks passed to the host's own model from now on, call by call."""
    calls: list[int] = []
    towers = [module for module in clip.cond_stage_model.modules() if hasattr(module, "text_model")]
    towers[0].register_forward_pre_hook(
        lambda module, given, named: calls.append(len(named.get("embeds", given[0] if given else ()))),
        with_kwargs=True,
    )
    return calls


@compares("Remember Encodings, small: ours, with no memory", limit=CLOSE)
def check_a_clip_that_remembers_gives_what_it_gives_without() -> None:
    for family in ("SD1", "SDXL"):
        clip = make_clip(family)
        memory = remembering(clip)
        for scheme in SCHEMES:
            for text in (*TEXTS, *(f"{text} (again:1.2)" for text in TEXTS), *TEXTS):
                expected = ours(clip, text, scheme=scheme)
                difference(ours(memory, text, scheme=scheme), expected)


def check_what_is_remembered_is_not_encoded_again() -> None:
    clip = make_clip("SD1")
    memory, calls = remembering(clip), calls_of(clip)
    for text, expected in (("a (red:1.3) cat", [2]), ("a (red:1.5) cat", []), ("a (red:1.5) dog", [1])):
        calls.clear()
        ours(memory, text)
        assert calls == expected, (text, calls)
    calls.clear()
    ours(clip, "a (red:1.3) cat")
    assert calls == [2], calls


@compares("Stock on a CLIP that remembers, SDXL, small, with before")
def check_stock_on_a_clip_that_remembers_is_stock() -> None:
    clip = make_clip("SDXL")
    memory = remembering(clip)
    for text in TEXTS:
        ours(memory, text)
        difference(stock(memory, text), stock(clip, text))


@compares("Remember Encodings: LoRA, clip skip, new weights, with no memory", limit=CLOSE)
def check_nothing_old_is_given_after_a_change() -> None:
    text = TEXTS[1]
    for part in (1.0, 0.96, 0.0):
        with memory_for(part) if part < 1 else torch.inference_mode():
            clip = make_clip("SD1")
            memory = remembering(clip)
            lora = make_lora(clip.cond_stage_model, LINEAR)
            given: list[Any] = []
            for strength in (0.0, 0.8, -0.5, 0.8):
                kinds = [clip, memory]
                if strength:
                    lora_ = {key: value * LORA_FRACTION for key, value in lora.items()}
                    kinds = [with_lora(one, lora_, strength) for one in kinds]
                for skip in (-1, -2, -1):
                    clones = [one.clone() for one in kinds]
                    for one in clones:
                        one.clip_layer(skip)
                    expected, found = (ours(one, text) for one in clones)
                    difference(found, expected)
                    given.append(found[0][0])
            assert not torch.equal(given[0], given[1])
            assert not torch.equal(given[0], given[3])
            for change in (torch.Tensor.mul_, lambda weight, factor: weight.data.mul_(factor)):
                change(clip.cond_stage_model.clip_l.transformer.text_model.encoder.layers[0].mlp.fc1.weight, 1.5)
                difference(ours(memory, text), ours(clip, text))


@compares("Remember Encodings: CLIP hooks, with no memory")
def check_hooks_on_a_clip_that_remembers_change_its_weights() -> None:
    import comfy.hooks
    from comfy_extras.nodes_hooks import SetClipHooks

    clip = make_clip("SD1")
    memory = remembering(clip)
    lora = make_lora(clip.cond_stage_model, LINEAR)
    given: list[Any] = []
    for strength in (0.3, -0.3):
        hooks = comfy.hooks.create_hook_lora(lora=lora, strength_model=0.0, strength_clip=strength)
        expected, found = (
            ours(SetClipHooks().apply_hooks(one, schedule_clip=True, apply_to_conds=False, hooks=hooks)[0], TEXTS[1])
            for one in (clip, memory)
        )
        difference(found, expected)
        given.append(found[0][0])
    difference(ours(memory, TEXTS[1]), ours(clip, TEXTS[1]))
    assert not torch.equal(*given)


def check_bypassed_loras_are_told_apart() -> None:
    import comfy.sd

    if not hasattr(comfy.sd, "load_bypass_lora_for_models"):
        return  # an old host
    clip = make_clip("SD1")
    memory = remembering(clip)
    lora = make_lora(clip.cond_stage_model, LINEAR)
    given = [ours(memory, TEXTS[1])]
    for strength in (1.0, 0.2):
        expected, found = (
            ours(comfy.sd.load_bypass_lora_for_models(None, one, lora, 0.0, strength)[1], TEXTS[1])
            for one in (clip, memory)
        )
        assert apart(found, expected) == 0
        given.append(found)
    assert apart(ours(memory, TEXTS[1]), given[0]) == 0
    assert min(apart(given[0], given[1]), apart(given[1], given[2])) > 0.1


@compares("Remember Encodings: a timed prompt in one batch, with one by one", limit=CLOSE)
def check_timed_texts_are_encoded_together() -> None:
    clip = make_clip("SD1")
    memory, calls = remembering(clip), calls_of(clip)
    text = "a [cat|dog|(cow:1.3)] by the sea AND a [red:blue:0.5] (boat:0.6)"
    found = encode_timed(memory, text)
    assert calls == [4, 1], calls  # a host's CLIP is given four chunks at a time on a CPU
    calls.clear()
    expected = encode_timed(clip, text)
    assert calls == [1] * 5, calls
    difference(found, expected)


if __name__ == "__main__":
    main(globals())
