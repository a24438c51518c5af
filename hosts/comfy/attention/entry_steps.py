"""What a marked entry needs in one step of sampling: its rows, the step, the words that are due.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..families.connectors import UNCONNECTED
from ..families.families import MASK, connector_of, reads_apart, reads_masks
from ..families.queries import num_guides
from ..titles import REGIONAL_PROMPT
from .fields import PIXELS, Step
from .marker import Entry, rows_changed
from .recorder import Due, Record, Watch, WatchedWords
from .regions import Region
from .sampling_log import SamplingLog
from .steps import LLAMA_ROWS, MARKER, StepRows, key_of, rows_in_step


def rows_of(
    marker: Any, step: Step | None, num_filled: int, num_last: int, due: Due | None, log: SamplingLog | None
) -> StepRows:
    """Rows that are read for a marker in a step, made once where nothing they depend on has changed."""
    key = key_of(marker, step, num_filled, num_last, due)
    if log is None or key is None:
        return rows_in_step(marker, step, num_filled, num_last, due)
    if key not in log.rows:
        log.rows[key] = marker, rows_in_step(marker, step, num_filled, num_last, due)._replace(key=key)
    return log.rows[key][1]


def connected(model: Any, entry: Entry, step_rows: StepRows | None, log: SamplingLog | None) -> Entry:
    """An entry whose rows were joined by layers before the first step, joined again if those must not read some."""
    hidden = None if step_rows is None else step_rows.effects[0] == -torch.inf
    if not entry.get(UNCONNECTED) or hidden is None or not bool(hidden.any()) or not (connect := connector_of(model)):
        return entry
    inputs = entry["model_conds"]
    texts = {} if log is None else log.texts
    key, text = id(inputs[MARKER]), inputs["c_crossattn"]
    if key not in texts:
        texts[key] = connect(entry["cross_attn"].to(text.cond), hidden)
    return {**entry, "model_conds": {**inputs, "c_crossattn": text._copy_with(texts[key])}}


def without_guides(step: Step, entry: Entry) -> Step:
    """A step for an entry, without frames of the latent that are its guides."""
    keyframes = entry["model_conds"].get("keyframe_idxs")
    if keyframes is None:
        return step
    number = num_guides(keyframes.cond, step.latent.shape[2:])
    return step._replace(latent=step.latent[:, :, : step.latent.shape[2] - number])


def check_masks(model: Any, inputs: Mapping[str, Any], regions: Sequence[Region]) -> None:
    """Refuse masks of rows, among the model's inputs for the base prompt or in regions, that cannot be joined."""
    if MASK not in inputs and not (any(not region.mask.all() for region in regions) and reads_masks(model)):
        return
    if MASK not in inputs or not reads_apart(model):
        raise ValueError(
            f"{REGIONAL_PROMPT} cannot act where a prompt hides some of its rows (attention_mask): the model takes "
            f"one mask, for all rows of the base and of regions. Take out {REGIONAL_PROMPT}, or what made the mask."
        )
    masks = (inputs[MASK].cond, *(region.mask for region in regions))
    rows = (inputs[MARKER].num_own, *(len(region.rows) for region in regions))
    for mask, number in zip(masks, rows, strict=True):
        if mask.shape != (1, number) or mask.dtype not in (torch.int, torch.long):
            raise ValueError(
                f"{REGIONAL_PROMPT} needs masks of rows (attention_mask) as text encoders make them, a whole number "
                f"for each: that of a prompt of {number} rows is {list(mask.shape)} of {mask.dtype}. Take out what "
                "made it."
            )


def log_of(*args: Any, **kwargs: Any) -> SamplingLog | None:
    """Record of this sampling, from the arguments of a step's predictions."""
    return _transformer_options(*args, **kwargs).get(MARKER)


def _transformer_options(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The host's options among the arguments of a step's predictions."""
    name = "transformer_options"
    return next((value[name] for value in (*args, *kwargs.values()) if isinstance(value, dict) and name in value), {})


def step_of(model: Any, marked: Sequence[Entry], log: SamplingLog | None, *args: Any, **kwargs: Any) -> Step | None:
    """The step that predictions are for; None if no entry has anything that depends on it."""
    markers = [entry["model_conds"][MARKER] for entry in marked]
    if not any(marker.fields or marker.regions or marker.watches for marker in markers):
        return None
    latent, sigma, *_ = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    options = _transformer_options(*args, **kwargs)
    sigmas: Tensor | None = options.get("sample_sigmas")
    is_part, sigma = options.get("context_window") is not None, sigma.flatten()[0]
    if log is None:
        return Step(model, latent, sigma, None if sigmas is None else sigmas.tolist(), {}, is_part, known=[])
    if log.levels is None and sigmas is not None:
        log.levels = sigmas.tolist()
    known = log.level_of_call(sigma)
    return Step(model, latent, sigma, log.levels, log.masks, is_part, log.records.by_watch, known, log.of_times)


def due_words(marked: Sequence[Entry], step: Step | None, log: SamplingLog | None) -> dict[int, Due]:
    """Words that are watched in a step, by the identity of their entry; of several calls at a level, in the first.

    Refused for a part of a video.
    """
    if log is None or step is None:
        return {}
    if not any(entry["model_conds"][MARKER].watches for entry in marked):
        log.due = ()
        return {}
    level = step.level
    number = sum(level <= float(sigma) for sigma in (step.sigmas or [])[1:-1])
    records, recording = log.records.by_watch, set[Watch]()
    due_by_entry: dict[int, Due] = {}
    for entry in marked:
        if entry["model_conds"][MARKER].own_pass is not None:
            continue
        watches: list[WatchedWords] = []
        entry_step = without_guides(step, entry)
        for watched in entry["model_conds"][MARKER].watches:
            watch = watched.watch
            is_known = watch in records and level in records[watch].levels
            if number % watch.every or (is_known and watch not in recording):
                continue
            if step.is_part:
                raise ValueError(
                    "Watch Words cannot tell which frames are drawn while another node samples the video in parts "
                    "(context windows): take out that node, or Watch Words."
                )
            if watch not in records:
                latent_format = step.model.latent_format
                ratios = (
                    getattr(latent_format, "spacial_downscale_ratio", PIXELS),
                    getattr(latent_format, "temporal_downscale_ratio", 1),
                )
                records[watch] = Record(watch, entry_step.latent, *ratios)
            records[watch].levels.add(level)
            recording.add(watch)
            watches.append(watched)
        if watches:
            due_by_entry[id(entry)] = Due(len(due_by_entry) + 1, tuple(watches), entry.get("area"))
    log.due = tuple(due_by_entry.values())
    return due_by_entry


def num_filled_in_front(entry: Entry, is_filled: bool) -> int:
    """Number of rows of zeros that a model puts before the rows of a marked entry, in the form of the host's sampler.

    ``is_filled``: whether it does so. Otherwise, or if rows are missing, a number other than the marker's is refused.
    """
    inputs = entry["model_conds"]
    num_rows = _num_rows(inputs["c_crossattn"].cond, llama_of(inputs))
    num_own = inputs[MARKER].num_own
    if num_own > num_rows or (num_own < num_rows and not is_filled):
        raise ValueError(rows_changed(num_own, num_rows))
    return num_rows - num_own


def llama_of(inputs: Mapping[str, Any]) -> Tensor | None:
    """Rows of Llama among a model's inputs for an entry, for HiDream: ``[1, layers, rows, dim]``."""
    return getattr(inputs.get(LLAMA_ROWS), "cond", None)


def _num_rows(text: Tensor, llama: Tensor | None) -> int:
    """Number of rows of a text ``[batch, rows, dim]``; for HiDream plus Llama's ``[batch, layers, rows, dim]``."""
    return text.shape[1] + (0 if llama is None else llama.shape[2])
