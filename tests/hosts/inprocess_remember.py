"""Checks of CLIPs that remember encodings: what they give is what the same CLIP gives without a memory.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch
from inprocess import (
    CLOSE,
    TEXTS,
    apart,
    compares,
    difference,
    main,
    make_clip,
    make_lora,
    ours,
    stock,
    with_lora,
)
from inprocess_memory import LINEAR, LORA_FRACTION, memory_for
from inprocess_sampling import encode_timed

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
