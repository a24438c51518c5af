"""Weights of words in the attention of ComfyUI's diffusion models: how a CONDITIONING carries them.

Each entry holds the effects on its rows as a marker (``marker.py``). Wrappers of the host's sampler (``wrappers.py``)
remove the markers and pass them to ``attention_layers.py``. A marker may also hold fields, whose weights depend on the
place and the step (``fields.py``), and regions, further prompts whose rows follow (``regions.py``).

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ....weighting.attention import PLAIN, RowEffect
from ..contract import host
from ..families.families import MASK
from ..types import Conditioning, ModelPatcher
from .fields import Field, Where
from .fingerprint import fingerprint
from .marker import marker_class, marker_for, marker_of
from .recorder import Watch, WatchedWords
from .region_passes import lora_hooks
from .regions import LLAMA, Region
from .steps import MARKER
from .text_rows import num_rows_read
from .words import WORDS
from .wrappers import MARKERS, with_wrappers

READ_TOO = ("t5xxl_ids", "t5xxl_weights", LLAMA, MASK)
"""Further values of an entry that models read: Anima T5's ids, HiDream Llama's rows, LTX-Video a mask."""
NOT_ACTING = "weights are ignored if another pack (e.g. Attention Couple) uses this conditioning as a region"
"""Line of a report about weights and signs in the attention; our code does not run there."""


def with_effects(
    conditioning: Conditioning,
    effects: Sequence[RowEffect],
    model: ModelPatcher | None = None,
    node_id: str | None = None,
) -> tuple[Conditioning, ModelPatcher | None]:
    """Attach effects to a conditioning, so that its rows are weighted wherever an image reads them.

    Args:
        conditioning: Conditioning of a prompt; each entry has as many rows as there are effects.
        effects: Effect on each row.
        model: Model for the wrappers; None to attach them to the conditioning, as hooks.
        node_id: Node to notify after sampling where its weights acted.

    Returns:
        Copies of the conditioning and the model, or the originals if no effect changes anything.

    Raises:
        ValueError: If an entry has another number of rows.
    """
    if all(effect == PLAIN for effect in effects):
        return conditioning, model
    marker = torch.tensor([[effect.bias for effect in effects] + [effect.factor for effect in effects]])
    marked: Conditioning = []
    for rows, values in conditioning:
        num_rows = num_rows_read(rows, values)
        if num_rows != len(effects):
            raise ValueError(f"the text encoder gave {num_rows} rows, but the prompt was read as {len(effects)}")
        inputs = {**values.get("model_conds", {}), MARKER: marker_class()(marker, fingerprint(rows), node_id)}
        marked.append([rows, {**values, "model_conds": inputs}])
    if model is None:
        return MARKERS.with_hooks(marked), None
    return marked, with_wrappers(model)


def with_field(conditioning: Conditioning, fields: Sequence[Field | None]) -> Conditioning:
    """Attach a field to the entries of a conditioning that have one; None for those that stay as they are.

    Raises:
        ValueError: If an entry takes some of the field's rows away, as a weight below 0 does.
    """
    marked: Conditioning = []
    for (rows, values), field in zip(conditioning, fields, strict=True):
        if field is None:
            marked.append([rows, values])
            continue
        marker = marker_of(rows, values)
        if bool((marker.cond.view(2, -1)[1, list(field.rows)] < 0).any()):
            raise ValueError(
                f"{field.where.name} has a weight below 0, which takes it away in the attention: it cannot be placed. "
                "Take a weight of 0 or above, or the phrase out."
            )
        marked += _with_marker(rows, values, marker.with_field(field))
    return marked


def with_watch(conditioning: Conditioning, watch: Watch, rows: Sequence[Sequence[tuple[int, ...]]]) -> Conditioning:
    """Let a watch record the words of a conditioning; ``rows`` holds each word's rows, entry by entry."""
    marked: Conditioning = []
    for (text, values), entry_rows in zip(conditioning, rows, strict=True):
        marked += _with_marker(text, values, marker_of(text, values).with_watch(WatchedWords(watch, tuple(entry_rows))))
    return marked


def with_region(
    conditioning: Conditioning,
    region: Conditioning,
    strength: float,
    where: Where,
    times: Sequence[tuple[float, float]],
    blends: bool = False,
) -> Conditioning:
    """Attach a region's prompt to each entry of a conditioning; ``times`` holds the time range of each region entry.

    If the region has LoRAs, each entry is followed by one for its pass.
    """
    marked: Conditioning = []
    hooks = lora_hooks(region)
    for rows, values in conditioning:
        marker = marker_of(rows, values)
        for (text, region_values), time_range in zip(region, times, strict=True):
            region_marker = marker_for(text, marker_of(text, region_values))
            first = marker.cond.shape[1] // 2
            rows_of_it = range(first, first + region_marker.num_own)
            inputs_of = {key: region_values[key] for key in READ_TOO if key in region_values}
            added = Region(
                *(text, rows_of_it, strength, where, time_range, region_values.get(WORDS), inputs_of, blends),
                has_pass=hooks is not None,
            )
            marker = marker.with_region(added, region_marker)
        marked += _with_marker(rows, values, marker)
        if hooks is not None and marker.own_pass is None:
            in_pass = _with_marker(rows, values, marker.for_pass(where.name))
            marked += host("comfy.hooks").set_hooks_for_conditioning(in_pass, hooks)
    return marked


def _with_marker(rows: Tensor, values: Mapping[str, Any], marker: Any) -> Conditioning:
    """An entry of a conditioning with a marker; the first one brings our hooks."""
    inputs = values.get("model_conds", {})
    entry = [[rows, {**values, "model_conds": {**inputs, MARKER: marker}}]]
    return entry if MARKER in inputs else MARKERS.with_hooks(entry)
