"""Several conditionings mixed into one, for prompts that glide: rows and pooled vectors are summed by shares.

Shorter ones are filled up with the rows of the empty prompt, as in prompt-fusion, or, where these do not fit, with
zeros, as in ComfyUI's Conditioning (Average).

Source: behaviour of ComfyUI 0.29.0 and of prompt-fusion-extension 1d86996; docs/timed.md, "Glides".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...encoder.quoting import quote
from ...weighting.attention import RowEffect
from .attention.attention import with_effects
from .attention.steps import MARKER
from .attention.words import BLEND, WORDS, with_words
from .types import Conditioning

POOLED = "pooled_output"
MASK = "attention_mask"
"""Key of the rows that text encoders without a fixed length mean."""
OURS = ("model_conds", "hooks")
"""Keys that carry weights in the attention."""


def mixed(parts: Sequence[tuple[float, Conditioning]], empty: Callable[[], Conditioning]) -> Conditioning:
    """One conditioning of several.

    Args:
        parts: Conditionings of whole prompts by one text encoder, each with its share of the sum.
        empty: Conditioning of the empty prompt, asked for if the others have different numbers of rows.

    Raises:
        ValueError: If they carry something that cannot be mixed.
    """
    if len({len(conditioning) for _, conditioning in parts}) > 1:
        raise ValueError("texts that a prompt glides between must have the same LoRAs at the same times")
    shares = [share for share, _ in parts]
    return [
        entry
        for entries in zip(*(conditioning for _, conditioning in parts), strict=True)
        for entry in _mixed_entry(shares, entries, empty)
    ]


def _mixed_entry(shares: Sequence[float], entries: Sequence[Any], empty: Callable[[], Conditioning]) -> Conditioning:
    count = max(rows.shape[1] for rows, _ in entries)
    fill = None if all(rows.shape[1] == count for rows, _ in entries) else empty()[0][0]
    rows = _sum(shares, [_filled(rows, count, fill) for rows, _ in entries])
    values: dict[str, Any] = {}
    for key in dict.fromkeys(key for _, entry_values in entries for key in entry_values):
        each = [entry_values.get(key) for _, entry_values in entries]
        if key == POOLED and all(isinstance(value, Tensor) for value in each):
            values[key] = _sum(shares, each)
        elif key == MASK:
            values[key] = _all_meant(each, count)
        elif all(_is_same(value, each[0]) for value in each):
            values[key] = each[0]
        elif key not in (WORDS, *OURS):
            raise ValueError(
                f"A prompt cannot glide from text to text with this model: its text encoder adds {quote(key)}, which "
                "cannot be mixed. Let a weight follow a line instead, as in (cat:0.2@0,1.2@0.5)."
            )
    effects = [_effects_of(entry_values) for _, entry_values in entries]
    if any(effect != effects[0] for effect in effects):
        raise ValueError(
            "Texts that a prompt glides between have weights in the attention on different rows. Put weighted words "
            "before the glide, weight rows by a scheme, or let a weight follow a line, as in (cat:0.2@0,1.2@0.5)."
        )
    conditioning = with_words([[rows, {key: values[key] for key in values if key not in (WORDS, *OURS)}]], BLEND)
    if not effects[0]:
        return [[conditioning[0][0], {**conditioning[0][1], **{key: values[key] for key in OURS if key in values}}]]
    return with_effects(conditioning, effects[0])[0]


def _effects_of(values: Mapping[str, Any]) -> list[RowEffect]:
    """Effects in the attention of an entry's rows; none if there is nothing but plain rows."""
    inputs = values.get("model_conds", {})
    if (marker := inputs.get(MARKER)) is None:
        return []
    if set(inputs) != {MARKER}:
        raise ValueError("A prompt that is weighted by guidance cannot glide from text to text.")
    biases, factors = marker.cond.view(2, -1).tolist()
    return [RowEffect(bias, factor) for bias, factor in zip(biases, factors, strict=True)]


def _sum(shares: Sequence[float], values: Sequence[Any]) -> Tensor:
    result = values[0] * shares[0]
    for share, value in zip(shares[1:], values[1:], strict=True):
        result = result + value * share
    return result


def _filled(
    rows: Tensor,  # [1, rows, dim]
    count: int,
    fill: Tensor | None,  # [1, rows, dim], of the empty prompt
) -> Tensor:
    missing = count - rows.shape[1]
    if not missing or fill is None:
        return rows
    times, rest = divmod(missing, fill.shape[1])
    added = [fill] * times if not rest else [rows.new_zeros(1, missing, rows.shape[2])]
    return torch.cat([rows, *added], 1)


def _all_meant(masks: Sequence[Tensor | None], count: int) -> Tensor | None:
    """A mask of all rows that any text means; None if one of them means all."""
    if any(mask is None for mask in masks):
        return None
    given = [torch.nn.functional.pad(mask, (0, count - mask.shape[-1])) for mask in masks if mask is not None]
    return torch.stack(given).amax(0)


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        return value is other or (value.shape == other.shape and bool(torch.equal(value, other)))
    return value is other or (not isinstance(value, dict | Tensor) and not isinstance(other, Tensor) and value == other)
