"""Wrappers of ComfyUI's sampler that remove the markers of entries and apply them in the model's attention.

They are attached as a hook of the entry or to a MODEL. Nothing is replaced in the host.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ..families.attention_layers import COUPLED
from ..families.families import (
    FAMILIES,
    MASK,
    check_regions,
    fills_in_front,
    is_filled_in_front,
    is_known,
    layout_of,
    shares_calls,
    weighting_function,
)
from ..families.queries import ModelCall, num_guides, told_by_layer
from ..markers import MarkerKind
from ..titles import PLACE_PHRASE, REGIONAL_PROMPT
from ..types import ModelPatcher
from .entry_steps import (
    check_masks,
    connected,
    due_words,
    llama_of,
    log_of,
    num_filled_in_front,
    rows_of,
    step_of,
    without_guides,
)
from .fields import Step
from .marker import Entry, marker_for
from .memory_estimate import reserve
from .recorder import AS_DAAM, Maps, Records
from .region_passes import by_pass, is_lora
from .regions import Region
from .sampling_log import SamplingLog
from .steps import (
    LLAMA_ROWS,
    MARKER,
    Keys,
    StepRows,
    Weights,
    filled_in_front,
    inputs_for,
    region_llamas,
    region_masks,
    region_texts,
    take,
    weights_of_calls,
)

READY = "weighted_clip_attention_is_ready"
"""Marks an entry that has its rows for the step."""
RECORDS = "weighted_clip_records"
"""Name of the maps of a sampling among the options of the host's model."""
NUM_TOKENS = "num_tokens"
"""The host's name of the number of rows of a text, for models that read it."""


def has_only_loras(hooks: Any) -> bool:
    """Whether the hooks of an entry, or None, are those by which our markers act, and LoRAs."""
    return hooks is None or all(is_lora(hook) or hook in MARKERS.hooks.hooks for hook in hooks.hooks)


def with_wrappers(model: ModelPatcher) -> ModelPatcher:
    """A clone of a MODEL with our wrappers, attached once."""
    return MARKERS.with_wrappers(model)


def check_rows(executor: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Wrapper around a whole sampling: the marked entries still have the rows that were weighed, or zeros.

    Later, entries of the host may have the rows of one prompt and the model's inputs of another.
    """
    guider: Any = executor.class_obj  # type: ignore[attr-defined]
    guider.conds = {kind: [_checked(entry) for entry in entries] for kind, entries in guider.conds.items()}
    markers = [entry["model_conds"].get(MARKER) for entries in guider.conds.values() for entry in entries]
    if not any(marker is not None and marker.watches for marker in markers):
        return executor(*args, **kwargs)
    records = Records()
    guider.model_options.setdefault("transformer_options", {})[RECORDS] = records
    result = executor(*args, **kwargs)
    for watch, record in records.by_watch.items():
        watch.add(record, result)
    return result


def _checked(entry: Entry) -> Entry:
    """An entry whose marker is for its rows, refused if they are others; effects on rows of zeros are none."""
    marker = entry["model_conds"].get(MARKER)
    if marker is None:
        return entry
    checked_marker = marker_for(entry["cross_attn"], marker)
    if checked_marker is marker:
        return entry
    return {**entry, "model_conds": {**entry["model_conds"], MARKER: checked_marker}}


def sample(
    executor: Callable[..., Any],
    model: Any,
    sigmas: Any,
    extra_args: dict[str, Any],
    callback: Callable[..., Any] | None = None,
    *rest: Any,
    **named: Any,
) -> Any:
    """Wrapper around a sampling that reports the weights' effects afterwards."""
    options = extra_args["model_options"].setdefault("transformer_options", {})
    if MARKER in options:  # our wrappers are both on the model and in the conditioning
        return executor(model, sigmas, extra_args, callback, *rest, **named)
    log = options[MARKER] = SamplingLog()
    log.records = options.get(RECORDS, log.records)
    callback = log.counting(getattr(executor, "class_obj", None), callback)
    result = executor(model, sigmas, extra_args, callback, *rest, **named)
    if log.num_rows and not log.all_finite(result):
        raise ValueError(
            "With these weights the picture is no longer made of finite numbers: Attention Weights, or the scheme "
            "negpip, multiplies by more than this model's number type can hold. Take weights nearer to 1. If it "
            "happens without weights as well, the model itself needs another number type."
        )
    log.report()
    return result


def predict(
    executor: Callable[..., Any], model: Any, conds: Sequence[list[Entry] | None], *rest: Any, **named: Any
) -> Any:
    """Wrapper around the predictions of a step: give entries their rows, so that they can share a batch."""
    entries = [entry for group in conds if group is not None for entry in group]
    marked = [entry for entry in entries if MARKER in entry["model_conds"]]
    if not marked or any(READY in entry for entry in entries):
        return executor(model, conds, *rest, **named)
    log = log_of(*rest, **named)
    for entry in marked:
        node_id = entry["model_conds"][MARKER].node_id
        if log is not None and node_id is not None:
            log.node_ids[entry["uuid"]] = node_id
    step = step_of(model, marked, log, *rest, **named)
    if step is not None and is_known(model):
        layout_of(model)  # refuses models in which nothing can have a place
    is_filled = is_filled_in_front(model)
    reads: dict[int, StepRows] = {}
    due = due_words(marked, step, log)
    for entry in marked:
        marker = entry["model_conds"][MARKER]
        if "c_crossattn" not in entry["model_conds"]:
            weighting_function(model)  # Stable Cascade's text goes another way
        llama = llama_of(entry["model_conds"])
        num_last = 0 if llama is None else llama.shape[2]
        num_filled = num_filled_in_front(entry, is_filled)
        entry_step = None if step is None else without_guides(step, entry)
        reads[id(entry)] = rows_of(marker, entry_step, num_filled, num_last, due.get(id(entry)), log)
        if log is not None and entry_step is not None:
            log.note_places(marker, entry_step, entry.get("timestep_start"), entry.get("timestep_end"))
    if any(step_rows.regions for step_rows in reads.values()):
        check_regions(model)
    for entry in marked:
        if regions := reads[id(entry)].regions:
            check_masks(model, entry["model_conds"], regions)
    shares = step is None or shares_calls(model)

    def ready(entry: Entry) -> Entry:
        step_rows = reads.get(id(entry))
        return _ready(connected(model, entry, step_rows, log), step_rows, step, log, shares_calls=shares)

    parts: list[Entry] = []

    def passes(entry: Entry) -> Iterator[Entry]:
        if step is None or id(entry) not in reads:
            yield entry
            return
        own_pass = entry["model_conds"][MARKER].own_pass
        for part in by_pass(entry, own_pass, reads[id(entry)], step.latent):
            reads[id(part)] = reads[id(entry)]
            parts.append(part)  # kept, so that no other has its identity
            yield part

    conds = [group and [part for entry in group for part in passes(entry)] for group in conds]
    try:
        return executor(model, [group and [*map(ready, group)] for group in conds], *rest, **named)
    except AttributeError as error:
        # prompt-control's hook lacks a part once the host has copied it to put it beside ours
        hook_classes = {type(hook).__name__ for entry in marked for hook in getattr(entry.get("hooks"), "hooks", ())}
        if any(name == "AttentionCoupleHook" and name in str(error) for name in hook_classes):
            raise ValueError(COUPLED) from error
        raise


def _ready(
    entry: Entry, step_rows: StepRows | None, step: Step | None, log: SamplingLog | None, *, shares_calls: bool
) -> Entry:
    """An entry with the model's inputs for its rows in a step."""
    texts = {} if log is None else log.texts

    def text_of(region: Region, like: Tensor) -> Tensor:
        key = id(region), like.dtype, like.device
        if key not in texts:
            text = region.text
            if "t5xxl_ids" in region.inputs and step is not None:
                cond_values = {**entry, **region.inputs, "cross_attn": text}
                model_inputs = step.model.extra_conds(**cond_values, device=step.latent.device, noise=step.latent)
                text = model_inputs["c_crossattn"].cond
            texts[key] = text.to(like)
        return texts[key]

    inputs = inputs_for(entry["model_conds"], step_rows, text_of, shares_calls=shares_calls)
    copy = {**entry, "model_conds": inputs, READY: True}
    if MARKERS.has_only_ours(entry.get("hooks")):
        copy["hooks"] = None  # no longer needed, and entries with different hooks never share a batch
    return copy


def _check_places(image: StepRows, picture: Tensor) -> None:
    """Refuse weights or shares by place in a part of the picture."""
    if any(maps is not None and maps.shape[2:] != picture.shape[2:] for maps in (image.weights, image.shares)):
        raise ValueError(
            "A placed phrase or a region cannot act where another node cuts the picture into parts, such as tiles: "
            "tiled sampling gives no position in the picture. Take out that node, or "
            f"{PLACE_PHRASE} and {REGIONAL_PROMPT}."
        )


def apply(
    executor: Callable[..., Tensor],
    x: Tensor,
    t: Tensor,
    c_concat: Tensor | None = None,
    c_crossattn: Tensor | None = None,
    control: Any = None,
    transformer_options: dict[str, Any] | None = None,
    **inputs: Any,
) -> Tensor:
    """Wrapper around a call of the model: remove the markers from its inputs, and apply them."""
    options = transformer_options or {}
    images = take(inputs, len(x))
    if images is None or c_crossattn is None:  # all families have the text there
        return executor(x, t, c_concat, c_crossattn, control, options, **inputs)
    log: SamplingLog | None = options.get(MARKER)
    if len(images) != len(x) and any(image.num_changed or image.texts or image.is_watched for image in images):
        raise ValueError(COUPLED)
    llamas, llama = region_llamas(images), inputs.get(LLAMA_ROWS)
    text = c_crossattn
    model = executor.class_obj  # type: ignore[attr-defined]
    in_front = fills_in_front(model)
    last = Keys(*(0 if rows is None else rows.shape[2] for rows in (llama, llamas)))

    def make() -> Weights:
        texts = region_texts(images, text)
        first = Keys(text.shape[1], 0 if texts is None else texts.shape[1])
        return weights_of_calls(images, first, last, x.device, texts, fills_in_front=in_front)

    keys = tuple(image.key for image in images)
    key = None if None in keys else (keys, text.shape[1], last, x.device, c_crossattn.dtype, c_crossattn.device)
    weights = make() if log is None else log.weights(key, make)
    num_rows, region_rows = weights.num_changed, weights.texts
    num_region_rows = 0 if region_rows is None else region_rows.shape[1]
    if NUM_TOKENS in inputs and MASK not in inputs:
        inputs[NUM_TOKENS] = c_crossattn.shape[1] + num_region_rows  # regions may have other rows than the base prompt
    if not (num_rows or num_region_rows or weights.words is not None):
        return executor(x, t, c_concat, c_crossattn, control, options, **inputs)
    weigh = weighting_function(model)
    picture = x[:, :, : x.shape[2] - num_guides(inputs.get("keyframe_idxs"), x.shape[2:])]
    for image in images:
        _check_places(image, picture)
    weighing = weights.weighting.again()
    if weights.words is not None:
        weighing.maps = _maps(weights, picture, model, log)
    if region_rows is not None:
        c_crossattn = torch.cat([c_crossattn, region_rows], 1)
        if in_front:
            c_crossattn = filled_in_front(images, c_crossattn, num_region_rows)
        if MASK in inputs:
            inputs[MASK] = torch.cat([inputs[MASK], region_masks(images, num_region_rows).to(x.device)], 1)
    if llamas is not None:
        inputs[LLAMA_ROWS] = torch.cat([inputs[LLAMA_ROWS], llamas.to(inputs[LLAMA_ROWS])], 2)
    call = ModelCall(model.diffusion_model, options, inputs, tuple(x.shape[2:]))
    with weighing.closing:
        options = weigh(weighing, call)
        if weighing.has_places:
            weighing.queries = layout_of(model)(call, weighing.bias.shape[1])
        result = executor(x, t, c_concat, c_crossattn, control, options, **inputs)
    if not weighing.num_layers and not (log is not None and log.num_layers):  # a cache may answer later steps
        raise ValueError(
            "Attention Weights and Place Phrase found no attention layer of this model in which text is read: another "
            "node replaces them, or this ComfyUI is too old to tell."
        )
    if log is not None:
        log.num_rows = max(log.num_rows, num_rows)
        log.num_layers = max(log.num_layers, weighing.num_layers)
        log.has_control = log.has_control or control is not None
        if (is_finite := weighing.is_finite) is not None:
            log.are_finite.append(is_finite)
        uuids = options.get("uuids", ())
        for index, uuid in enumerate(uuids):
            image = images[index * len(x) // len(uuids)]
            log.note(uuid, image.num_changed, weighing.num_layers)
        if isinstance(weighing.maps, Maps):
            log.note_maps(weighing.maps, [image.entry for image in images])
    return result


def _maps(weights: Weights, x: Tensor, model: Any, log: SamplingLog | None) -> Maps:
    """Maps of watched words in a call of a model."""
    has_grids = layout_of(model) is told_by_layer
    layers = set() if log is None else {watched.watch.layers for due in log.due for watched in due.watches}
    if AS_DAAM in layers and not has_grids:
        raise ValueError(
            f"Watch Words records as DAAM does in {FAMILIES[0].title} only; set its layers to all, coarse or fine."
        )
    assert weights.words is not None
    return Maps(weights.words, x, layers, has_grids=has_grids, kept=weights.of_maps)


MARKERS = MarkerKind(
    MARKER,
    {
        "outer_sample": check_rows,
        "prepare_sampling": reserve,
        "sampler_sample": sample,
        "calc_cond_batch": predict,
        "apply_model": apply,
    },
)
