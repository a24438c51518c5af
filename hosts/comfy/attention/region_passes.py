"""LoRAs of regions: a pass of the model more for each region that has some, of which its area is taken.

ComfyUI changes a model's weights for a whole call. So an entry whose regions have LoRAs is followed by a copy for each
of them, with their hooks: all read the same prompts by place, and each step the mask of the copy is the region's share,
and that of the entry the rest.

Source: behaviour of ComfyUI 0.29.0; docs/places.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ....weighting.reading.view import counted
from ..contract import host
from ..types import Conditioning
from .steps import StepRows


def lora_hooks(entries: Conditioning) -> Any:
    """Hooks by which the entries of a region change weights of the model, or None.

    Raises:
        ValueError: If entries have different ones.
    """
    hooks = host("comfy.hooks")
    found: list[list[Any]] = []
    for _, values in entries:
        found.append([hook for hook in getattr(values.get("hooks"), "hooks", ()) if is_lora(hook)])
    if not any(found):
        return None
    if any(some != found[0] for some in found):
        raise ValueError(
            f"The {len(entries)} texts of region have different LoRAs. Let LoRAs change with the steps in one prompt: "
            "[<lora:a:1>:<lora:b:1>:0.5]."
        )
    check_memory_mode()
    group = hooks.HookGroup()
    for hook in found[0]:
        group.add(hook)
    return group


def is_lora(hook: Any) -> bool:
    """Whether a hook changes weights of the model."""
    return hook.hook_type == host("comfy.hooks").EnumHookType.Weight


def check_memory_mode() -> None:
    """Refuse LoRAs of parts of the picture where the host keeps the model's weights out of the graphics card."""
    management = host("comfy.model_management")
    state = management.vram_state
    if state in (management.VRAMState.LOW_VRAM, management.VRAMState.NO_VRAM):
        flag = f"--{state.name.replace('_', '').lower()}"
        raise ValueError(
            f"A LoRA for a part of the picture changes the model's weights twice a step, and with {flag} they are not "
            f"on the graphics card: start ComfyUI without {flag}, or load the LoRA for the whole picture."
        )


def by_pass(
    entry: dict[str, Any], own_pass: str | None, step_rows: StepRows, latent: Tensor
) -> Iterator[dict[str, Any]]:
    """An entry limited to what is drawn by its pass in a step; nothing if that is no place.

    Args:
        entry: An entry in the form of the host's sampler.
        own_pass: Name of the region whose pass it is; None for the entry itself.
        step_rows: What it reads in the step.
        latent: Latent of the step.
    """
    passing = [number for number, region in enumerate(step_rows.regions) if region.has_pass]
    if own_pass is not None:
        passing = [number for number in passing if step_rows.regions[number].where.name == own_pass]
    if not passing:
        if own_pass is None:
            yield entry
        return
    if step_rows.shares is None:  # the only region is everywhere
        if own_pass is not None:
            yield entry
        return
    share = sum(step_rows.shares[:, 1 + number] for number in passing)
    assert isinstance(share, Tensor)
    mask = (1.0 - share if own_pass is None else share).clamp(0.0, 1.0)
    if not bool(mask.any()):
        return
    if bool((mask == 1).all()):
        yield entry
        return
    sizes = latent.shape[2:]
    if mask.shape[1:] != sizes:  # guides of a video, behind its frames
        rest = mask.new_full((len(mask), sizes[0] - mask.shape[1], *sizes[1:]), float(own_pass is None))
        mask = torch.cat([mask, rest], 1)
    mask = mask.to(latent)
    if entry.get("mask") is not None:
        number = max(len(mask), len(entry["mask"]))
        mask = mask.expand(number, *sizes) * entry["mask"].to(mask).expand(number, *sizes)
    yield {**entry, "mask": mask}


def loras_in_words(entries: Conditioning) -> str:
    """Number of a region's LoRAs, for a report; empty if there is none."""
    number = sum(map(is_lora, getattr(entries[0][1].get("hooks"), "hooks", ())))
    return counted(number, "LoRA") if number else ""
