"""Checks of a CLIP that is loaded in part, and of CLIPs that several nodes share.

ComfyUI never loads in part on the CPU. Here its own loader is made to see only so much free memory; what it then does
is the same as on a small GPU, except that nothing moves.

Run by test_comfyui_inprocess.py in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import torch
from inprocess import OURS, TEXTS, compares, difference, main, make_clip, make_lora, ours, run_ours, stock, with_lora

LINEAR = r"layers\.\d+\.(self_attn\.\w+|mlp\.fc[12])\.weight|text_projection\.weight"
"""Weights that LoRAs change; everything else that loads in part is as good as one of these."""
POSITIONS = r"position_embedding\.weight"
NOTHING, SOME = 0.0, 0.96
"""Parts of a model that fit. Most of such a small one is its token embedding: with 0.96, some of its layers fit too."""
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


if __name__ == "__main__":
    main(globals())
