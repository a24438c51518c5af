"""Prompts joined by AND_PERP, AND_SALT and AND_TOPK in ComfyUI: a prediction for each, made into one in each step.

The entries of each prompt carry its number in a marker. Around a whole sampling a wrapper takes the markers away; one
around each call of the model has the host predict every prompt by itself, and returns what they make together in place
of their mean.

Source: behaviour of ComfyUI 0.29.0; docs/timed.md, "AND_PERP, AND_SALT, AND_TOPK".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...weighting.composing import composed
from ...weighting.timed.joining import Joined
from .markers import MarkerKind
from .types import Conditioning

JOINT = "weighted_clip_joint"
"""Name of the markers, and of their values' key in an entry while a picture is sampled."""


class _Part(NamedTuple):
    joined: Joined
    number: int  # of the prompt


def with_joints(prompts: Sequence[Conditioning], joined: Joined) -> Conditioning:
    """One conditioning of prompts in their order, which makes of their predictions what joins them."""
    parts = [_Part(joined, number) for number, entries in enumerate(prompts) for _ in entries]
    return _MARKERS.with_hooks(_MARKERS.marked([entry for entries in prompts for entry in entries], parts))


def _outer_sample(executor: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Wrapper around a whole sampling: markers become keys of the entries."""
    guider: Any = executor.class_obj  # type: ignore[attr-defined]
    guider.conds = {kind: [_with_key(entry) for entry in entries] for kind, entries in guider.conds.items()}
    if sum(any(JOINT in entry for entry in entries) for entries in guider.conds.values()) > 1:
        raise ValueError("AND_PERP, AND_SALT and AND_TOPK belong into the prompt alone: take them out of the negative.")
    for entries in guider.conds.values():
        marked = [entry[JOINT] for entry in entries if JOINT in entry]
        if marked and (len(marked) < len(entries) or len({id(marker.joined) for marker in marked}) > 1):
            raise ValueError(
                "A prompt with AND_PERP, AND_SALT or AND_TOPK cannot be combined with another: write both in one, "
                "with AND between them."
            )
    # at CFG 1 the host leaves out the prediction without a prompt, which is needed
    guider.model_options["disable_cfg1_optimization"] = True
    return executor(*arguments, **options)


def _with_key(entry: dict[str, Any]) -> dict[str, Any]:
    copy, part = _MARKERS.taken(entry)
    return copy if part is None else {**copy, JOINT: part}


def _predict(executor: Callable[..., Any], model: Any, conds: Sequence[Any], *arguments: Any) -> list[Tensor]:
    """Wrapper around a call of the model: the prediction of joined prompts is made of each one's."""
    index = next((number for number, entries in enumerate(conds) if entries and JOINT in entries[0]), None)
    if index is None:
        return executor(model, conds, *arguments)
    others = [number for number, entries in enumerate(conds) if entries is not None and number != index]
    if len(others) != 1:
        raise ValueError(
            "AND_PERP, AND_SALT and AND_TOPK need a guider with one negative prompt, such as KSampler's or CFGGuider: "
            f"this one asks for {len(others)} other predictions."
        )
    joined: Joined = conds[index][0][JOINT].joined
    each = [[entry for entry in conds[index] if entry[JOINT].number == number] for number in range(joined.num_prompts)]
    *answers, without = executor(model, [*each, conds[others[0]]], *arguments)
    results = [without] * len(conds)
    for number, entries in enumerate(conds):
        if entries is None:
            results[number] = torch.zeros_like(without)
    results[index] = without + composed(joined, answers, without) / joined.sum_of_weights
    return results


_MARKERS = MarkerKind(
    JOINT,
    {"outer_sample": _outer_sample, "calc_cond_batch": _predict},
    "AND_PERP, AND_SALT and AND_TOPK would be lost: another node has replaced the hooks that the CONDITIONING came "
    "with, or reads its entries by itself.",
)
