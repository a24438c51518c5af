"""Prompts that glide in the WebUI: the host encodes each of their texts by itself, and we mix them for each step.

While the host makes the conditioning of prompts, its function for a list of them is ours. Prompts that do not glide go
through it as they are.

Source: behaviour of stable-diffusion-webui 1.10, of stable-diffusion-webui-forge dfdcbab6 (2025-06), and of
prompt-fusion-extension 1d86996 (2023-12).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...encoder.quoting import raising
from ...weighting.timed.editing import glides_in
from ...weighting.timed.glides import GLIDES
from ...weighting.timed.schedule import TimedText, schedule
from .engines import WebUIError, calling_with, host_option

LEARNED = "get_learned_conditioning"
"""Name of the host's function that makes the conditioning of a list of prompts."""
THEIRS_GLIDES = "the extension Prompt Fusion is active: it reads prompts that glide, not Weighted CLIP."
NO_PLACES = (
    "Places and Word maps need rows that are one text's, and this prompt mixes those of several: take its glides out, "
    "or switch these off."
)


def is_fusion_active() -> bool:
    """Whether the extension prompt-fusion is there and switched on."""
    parser = sys.modules.get("modules.prompt_parser")
    return hasattr(parser, "__fusion_hijacker") and bool(host_option("prompt_fusion_enabled", default=True))


def with_glides(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the host that makes conditioning, for prompts that may glide."""
    names: dict[str, Any] = getattr(function, "__globals__", {})
    inner: Callable[..., Any] | None = names.get(LEARNED)
    if inner is None:
        return function

    def learned(
        model: Any, prompts: Any, steps: int, hires_steps: int | None = None, old_rule: bool = False, *rest: Any
    ) -> list[Any]:
        gliding: dict[str, tuple[TimedText, ...]] = {}
        with raising(WebUIError):
            for prompt in filter(glides_in, dict.fromkeys(prompts)):
                gliding[prompt] = schedule(prompt, steps, hires_steps=hires_steps, old_rule=old_rule, glides=GLIDES[1])
        given = [old_rule, *rest] if old_rule or rest else []
        if not gliding:
            return inner(model, prompts, steps, hires_steps, *given)
        texts = (fragment.text for each in gliding.values() for text in each for fragment in text.fragments)
        single = dict.fromkeys([*(prompt for prompt in prompts if prompt not in gliding), *texts, ""])
        listed = type(prompts)(single, copy_from=prompts) if hasattr(prompts, "is_negative_prompt") else list(single)
        made = dict(zip(single, inner(model, listed, steps, hires_steps, *given), strict=True))
        return [_mixed(gliding[prompt], made) if prompt in gliding else made[prompt] for prompt in prompts]

    is_it = getattr(function, "__name__", "") == LEARNED
    return learned if is_it else calling_with(function, names, LEARNED, learned)


def _mixed(texts: Sequence[TimedText], made: Mapping[str, Sequence[Any]]) -> list[Any]:
    """The host's schedule of a prompt that glides, from those of its texts."""
    (empty, *_) = made[""]
    schedule_of_prompt: list[Any] = []
    for text in texts:
        shares = [(mixed.share, made[mixed.fragment.text][0].cond) for mixed in text.mixture]
        cond = _sum(shares, empty.cond) if shares else made[text.text][0].cond
        schedule_of_prompt.append(type(empty)(text.last_step, cond))
    return schedule_of_prompt


def _sum(shares: Sequence[tuple[float, Any]], empty: Any) -> Any:
    """Sum of conditionings, tensors or dictionaries of them, by their shares."""
    if isinstance(empty, dict):
        return {
            name: _sum([(share, cond[name]) for share, cond in shares], value) if isinstance(value, Tensor) else value
            for name, value in empty.items()
        }
    conds = [cond for _, cond in shares]
    if conds[0].ndim == 2:  # [rows, dim]
        count = max(len(cond) for cond in conds)
        conds = [_filled(cond, count, empty) for cond in conds]
    result = conds[0] * shares[0][0]
    for (share, _), cond in zip(shares[1:], conds[1:], strict=True):
        result = result + cond * share
    return result


def _filled(cond: Tensor, count: int, empty: Tensor) -> Tensor:
    """Rows filled up with those of the empty prompt."""
    missing = count - len(cond)
    if missing % len(empty):
        raise WebUIError(
            f"Texts that a prompt glides between have {len(cond)} and {count} rows, which rows of the empty prompt "
            "cannot fill up: write texts of as many chunks, or take another scheme."
        )
    return torch.cat([cond, *[empty] * (missing // len(empty))]) if missing else cond
