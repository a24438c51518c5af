"""Memory of biases by place and of word maps, of which ComfyUI is told, so that it keeps as much free of models.

ComfyUI asks the ControlNets of a conditioning how much they need. So it is shown one that needs as much and does
nothing else.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Memory of weights by place", "Word maps".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ....weighting.key_weights import MOST_OF_TABLE
from ....weighting.placing.word_maps import MAX_BYTES
from ..contract import host
from ..families.attention_layers import takes_scale
from ..families.families import has_layout, is_filled_in_front, layout_of, reads_apart, shares_calls
from ..families.queries import ModelCall, told_by_layer
from .recorder import AS_DAAM
from .regions import Region
from .sampling_log import MOST_KEPT
from .steps import MARKER
from .text_rows import num_rows_read

FILLED_ROWS = 512
"""Number of rows up to which models fill text up at the front."""
LEVELS = 8
"""Most levels of a U-Net, each with half as many places along a side as the one before."""
REPEATED = 12
"""Most times that the host repeats the rows of a text for others in its batch."""
OF_MEAN = 3
"""Maps of the latent's size that the mean of layers takes: their sum, a layer's, and the mean."""
REFERENCES = ("reference_latents", "context_latents", "time_dim_concat", "pose_video_latent", "reference_motion")
"""Values of an entry that are further latents, or lists of them."""
WORKING = 2 * torch.float32.itemsize
"""Bytes for each query and row of text while a bias is made."""

COPIED = 3 * 4096
"""Numbers of queries, keys and values, of which an attention with columns takes copies."""

Entry = Mapping[str, Any]
"""An entry of a conditioning in the form of the host's sampler."""


def reserve(
    executor: Callable[..., Any],
    model: Any,
    noise_shape: Sequence[int],
    conds: Mapping[str, Any],
    *rest: Any,
    **named: Any,
) -> Any:
    """Wrapper around the loading of models for a sampling: memory for biases by place and word maps is kept free."""
    entries = [entry for group in conds.values() for entry in group]
    num_bytes = bytes_of_biases(model.model, noise_shape, entries) + bytes_of_maps(model.model, noise_shape, entries)
    if not num_bytes:
        return executor(model, noise_shape, conds, *rest, **named)
    padded_conds = {**conds, MARKER: [{"control": _control_class()(num_bytes)}]}
    loaded, _, *results = executor(model, noise_shape, padded_conds, *rest, **named)
    return loaded, conds, *results


def _attention() -> Any:
    """The host's attention function."""
    return host("comfy.ldm.modules.attention").optimized_attention


def keep_free(num_bytes: int) -> None:
    """Let the host unload models from the processor's memory if that is not as free as this."""
    host("comfy.model_management").free_memory(num_bytes, torch.device("cpu"))


@cache
def _control_class() -> Any:
    """Class of ControlNets that need memory and do nothing."""

    class Control(host("comfy.controlnet").ControlBase):
        def __init__(self, num_bytes: int) -> None:
            super().__init__()
            self.num_bytes = num_bytes

        def inference_memory_requirements(self, dtype: torch.dtype) -> int:
            return self.num_bytes

        def deepclone_multigpu(self, *_: Any, **__: Any) -> Any:
            return self

    return Control


def bytes_of_biases(model: Any, shape: Sequence[int], entries: Sequence[Entry]) -> int:
    """Most bytes that biases by place take at once in a sampling; 0 if there are none.

    Args:
        model: The host's model.
        shape: The latent's, ``[batch, channels, (frames,) height, width]``.
        entries: Those of all conditionings.
    """
    if not has_layout(model):
        return 0
    if reads_apart(model):
        return _bytes_of(model, shape, entries, ()) if any(map(_has_places, entries)) else 0
    sharing: dict[tuple[int, int], list[Entry]] = {}  # entries that may share a call of the model
    for entry in entries:
        kind = 0 if shares_calls(model) else len(_regions(entry))
        sharing.setdefault((_num_own(model, entry), kind), []).append(entry)
    sizes = [
        _bytes_of(model, shape, group, masked)
        for group in sharing.values()
        if (masked := [region for entry in group for region in _regions(entry)]) or any(map(_has_places, group))
    ]
    largest = max(sizes, default=0)
    return largest + min(sum(sizes) - largest, MOST_KEPT)


def bytes_of_maps(model: Any, shape: Sequence[int], entries: Sequence[Entry]) -> int:
    """Most bytes that maps of watched words take at once in a sampling, arguments as in `bytes_of_biases`."""
    by_entry = [getattr(entry["model_conds"].get(MARKER), "watches", ()) for entry in entries]
    watches = {watched.watch for entry_watches in by_entry for watched in entry_watches}
    if not watches or not has_layout(model):
        return 0
    num_kept = (shape[0] + 1) * sum(sum(watch.lengths) for watch in watches)  # sums, and of how many words and places
    words = max(sum(len(watched.rows) for watched in entry_watches) for entry_watches in by_entry)
    size = tuple(shape[2:])
    places = math.prod(size)
    if layout_of(model) is told_by_layer:
        of_layers = 4 / 3 * places  # each with a quarter of the places of the one before
    else:
        of_layers = math.prod(layout_of(model)(ModelCall(model.diffusion_model, {}, {}, size), 0).grid)
    of_call = shape[0] * _num_at_once(entries) * words * (of_layers + OF_MEAN * places)
    as_daam = MAX_BYTES if any(watch.layers == AS_DAAM for watch in watches) else 0
    return math.ceil((num_kept * places + of_call) * torch.float32.itemsize) + as_daam


def _bytes_of(model: Any, shape: Sequence[int], entries: Sequence[Entry], masked: Sequence[Region]) -> int:
    """Bytes in a call of the model, where text and picture share an attention with masks of some regions."""
    size, row_counts = tuple(shape[2:]), [_num_own(model, entry) for entry in entries]
    is_repeated = layout_of(model) is told_by_layer
    text = min(math.lcm(*row_counts), REPEATED * max(row_counts)) if is_repeated else max(row_counts)
    regions = (_regions(entry) for entry in entries)
    text += max(sum(len(region.rows) + len(region.parts[1]) for region in entry_regions) for entry_regions in regions)
    if is_repeated:
        queries = sum(math.prod(-(-side // 2**level) for side in size) for level in range(LEVELS))
    else:
        num_references = max(
            sum(_num_queries(model, reference_size, 0) for reference_size in _references(entry)) for entry in entries
        )
        queries = _num_queries(model, size, text) + num_references
    keys = text if reads_apart(model) else queries
    num_prompts = shape[0] * _num_at_once(entries)
    num_kinds = 1 + any(region.blends for region in masked)  # of blocks
    itemsize = (model.manual_cast_dtype or model.get_dtype()).itemsize
    num_bytes = num_prompts * num_kinds * queries * keys * itemsize
    if not reads_apart(model) and num_bytes > num_kinds * MOST_OF_TABLE and takes_scale(_attention()):
        return num_prompts * queries * COPIED * itemsize
    return num_bytes + (num_prompts if masked else 1) * queries * text * WORKING


def _num_own(model: Any, entry: Entry) -> int:
    """Rows of text of an entry without its regions, as the model reads them; Llama's twice."""
    num_rows, llama = num_rows_read(entry["cross_attn"], entry), entry.get("conditioning_llama3")
    num_rows += 0 if llama is None else llama.shape[2]
    return max(num_rows, FILLED_ROWS) if is_filled_in_front(model) else num_rows


def _has_places(entry: Entry) -> bool:
    """Whether weights of an entry act at some places only."""
    fields = getattr(entry["model_conds"].get(MARKER), "fields", ())
    return any(not field.where.is_everywhere for field in fields)


def _regions(entry: Entry) -> Sequence[Region]:
    return getattr(entry["model_conds"].get(MARKER), "regions", ())


def _num_queries(model: Any, size: tuple[int, ...], num_text: int) -> int:
    """Number of queries for a latent of a size."""
    queries = layout_of(model)(ModelCall(model.diffusion_model, {}, {}, size), num_text)
    return queries.before + math.prod(queries.grid) + queries.behind


def _references(entry: Entry) -> list[tuple[int, ...]]:
    """Sizes of an entry's further latents."""
    values = [entry[key] for key in REFERENCES if entry.get(key) is not None]
    return [tuple(latent.shape[2:]) for value in values for latent in ([value] if isinstance(value, Tensor) else value)]


def _num_at_once(entries: Iterable[Entry]) -> int:
    """Most entries that act at the same time."""
    times = [(entry.get("start_percent", 0.0), entry.get("end_percent", 1.0)) for entry in entries]
    return max(sum(first <= start <= last for first, last in times) for start, _ in times)
