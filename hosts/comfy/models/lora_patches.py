"""LoRAs with a strength for each block of the model: patches of ComfyUI's MODEL and CLIP, and its hooks.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/reference/syntaxes.md, "LoRA tags".
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from ....weighting.text.lora_blocks import LISTED, BlockStrengths
from ....weighting.text.prompt import Issue, Span, shortened
from ..contract import host

logger = logging.getLogger(__name__)

WHOLE = Span(0, 0)
"""Position of an issue about no part of a prompt."""


def by_strength(patches: Mapping[Any, Any], blocks: BlockStrengths) -> Iterator[tuple[float, dict[Any, Any]]]:
    """Patches of a LoRA by their factor; the host's keys are names of weights, or start with them."""
    groups: dict[float, dict[Any, Any]] = {}
    for key, patch in patches.items():
        groups.setdefault(blocks.of(_name(key)), {})[key] = patch
    yield from groups.items()


def _name(key: Any) -> str:
    return key if isinstance(key, str) else key[0]


def with_patches(patcher: Any, patches: Mapping[Any, Any], strength: float, blocks: BlockStrengths | None) -> None:
    """Add patches to a clone of a model, each at its block's strength."""
    for factor, some in by_strength(patches, blocks) if blocks else [(1.0, dict(patches))]:
        patcher.add_patches(some, factor * strength)


def block_hook(weights: Any, on_model: float, on_clip: float, blocks: BlockStrengths, name: str = "") -> Any:
    """Group of one hook that adds a LoRA, given as the host reads its file, at its blocks' strengths.

    With a ``name``, blocks that do not fit the model are logged under it when it is sampled.
    """
    hook = _hook_class()(strength_model=on_model, strength_clip=on_clip)
    hook.weights, hook.blocks, hook.name, hook.factors = weights, blocks, name, (on_model, on_clip)
    group = host("comfy.hooks").HookGroup()
    group.add(hook)
    return group


@cache
def _hook_class() -> Any:
    """Class of the host's hooks for weights, whose patches have several strengths."""
    hooks = host("comfy.hooks")
    lora = host("comfy.lora")

    class BlockHook(hooks.WeightHook):
        blocks: BlockStrengths
        name: str
        factors: tuple[float, float]  # for the model and for CLIP

        def add_hook_patches(self, model: Any, model_options: Any, target_dict: Any, registered: Any) -> bool:
            if not self.should_register(model, model_options, target_dict, registered):
                return False
            is_clip = target_dict.get("target") == hooks.EnumWeightTarget.Clip
            find_keys = lora.model_lora_keys_clip if is_clip else lora.model_lora_keys_unet
            patches = lora.load_lora(self.weights, find_keys(model.model, {}), log_missing=False)
            strength = self.factors[is_clip]
            if self.name and not is_clip:
                for issue in block_issues(patches, self.blocks, self.name):
                    logger.warning("%s", issue.message)
            for factor, some in by_strength(patches, self.blocks):
                model.add_hook_patches(hook=self, patches=some, strength_patch=factor * strength)
            registered.add(self)
            return True

        def clone(self) -> Any:
            copy = super().clone()
            copy.blocks, copy.name, copy.factors = self.blocks, self.name, self.factors
            return copy

    return BlockHook


def block_issues(patches: Mapping[Any, Any], blocks: BlockStrengths, name: str, place: Span = WHOLE) -> list[Issue]:
    """Issues about a list of blocks that is not one for the model of a LoRA, given its patches of that model."""
    found = {blocks.block_of(_name(key)) for key in patches} - {None}
    number, list_name = len(blocks.written), shortened(blocks.name, 40)
    if patches and not found:
        message = (
            f"lbw={list_name} of the LoRA “{shortened(name)}” has {number} numbers, and names no block of this model: "
            "all of it counts 1."
        )
        return [Issue("other-blocks", message, place)]
    missing = sorted(str(block) for block in found - {*blocks.by_block})
    if not missing:
        return []
    fitting = [str(count) for count, names in LISTED.items() if found <= {*names}]
    message = (
        f"lbw={list_name} of the LoRA “{shortened(name)}” has {number} numbers, without "
        f"{shortened(', '.join(missing), 100)}: these count 0, as in sd-webui-lora-block-weight. This LoRA takes a "
        f"list of {' or '.join(fitting) or 'other blocks'}."
    )
    return [Issue("other-blocks", message, place)]
