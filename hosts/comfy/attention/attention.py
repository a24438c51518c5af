"""Weights of words in the attention of ComfyUI's diffusion models: how a CONDITIONING carries them.

Each entry holds the effects on its rows as a marker among its model's inputs (``model_conds``), so that they follow the
entry through areas, masks and time ranges. Wrappers of the host's sampler, attached as a hook of the entry or to a
MODEL, remove the markers and pass them to ``attention_layers.py``. Nothing is replaced in the host.

A fingerprint of the rows, made when the prompt is encoded and again when it is sampled, shows that the effects are for
these rows. A marker may also hold fields, whose weights depend on the place and the step (``fields.py``), and regions,
further prompts whose rows follow (``regions.py``).

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ....weighting.attention import PLAIN, RowEffect
from ..contract import host
from ..families.attention_layers import COUPLED
from ..families.connectors import UNCONNECTED
from ..families.families import (
    FAMILIES,
    MASK,
    check_regions,
    connector_of,
    fills_in_front,
    is_filled_in_front,
    is_known,
    layout_of,
    reads_apart,
    reads_masks,
    shares_calls,
    weighting_function,
)
from ..families.queries import ModelCall, num_guides, told_by_layer
from ..markers import MarkerKind
from ..titles import PLACE_PHRASE, REGIONAL_PROMPT
from ..types import Conditioning, ModelPatcher
from .fields import PIXELS, Field, Step, Where
from .fingerprint import are_same, are_zero, fingerprint
from .memory_estimate import reserve
from .recorder import AS_DAAM, Due, Maps, Record, Records, Watch, WatchedWords
from .region_passes import by_pass, is_lora, lora_hooks
from .regions import LLAMA, Region
from .sampling_log import SamplingLog
from .steps import (
    LLAMA_ROWS,
    MARKER,
    Keys,
    StepRows,
    Weights,
    filled_in_front,
    inputs_for,
    key_of,
    plain,
    region_llamas,
    region_masks,
    region_texts,
    rows_in_step,
    take,
    weights_of_calls,
)
from .text_rows import num_rows_read
from .words import WORDS

READY = "weighted_clip_attention_is_ready"
"""Marks an entry that has its rows for the step."""
RECORDS = "weighted_clip_records"
"""Name of the maps of a sampling among the options of the host's model."""
READ_TOO = ("t5xxl_ids", "t5xxl_weights", LLAMA, MASK)
"""Further values of an entry that models read: Anima T5's ids, HiDream Llama's rows, LTX-Video a mask."""
NUM_TOKENS = "num_tokens"
"""The host's name of the number of rows of a text, for models that read it."""
NOT_ACTING = "weights are ignored if another pack (e.g. Attention Couple) uses this conditioning as a region"
"""Line of a report about weights and signs in the attention; our code does not run there."""

Entry = dict[str, Any]
"""An entry of a conditioning in the form of the host's sampler."""


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
        inputs = {**values.get("model_conds", {}), MARKER: _marker_class()(marker, fingerprint(rows), node_id)}
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
        marker = _marker_of(rows, values)
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
        marked += _with_marker(
            text, values, _marker_of(text, values).with_watch(WatchedWords(watch, tuple(entry_rows)))
        )
    return marked


def fields_of(values: Mapping[str, Any]) -> tuple[Field, ...]:
    """Fields of an entry of a conditioning, given its dictionary, in the order in which they were attached."""
    return getattr(values.get("model_conds", {}).get(MARKER), "fields", ())


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
        marker = _marker_of(rows, values)
        for (text, region_values), time_range in zip(region, times, strict=True):
            region_marker = _marker_for(text, _marker_of(text, region_values))
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


def is_pass(values: Mapping[str, Any]) -> bool:
    """Whether an entry, from its dictionary, is the pass of a region with LoRAs."""
    return getattr(values.get("model_conds", {}).get(MARKER), "own_pass", None) is not None


def regions_of(values: Mapping[str, Any]) -> tuple[Region, ...]:
    """Regions of an entry of a conditioning, from its dictionary."""
    return getattr(values.get("model_conds", {}).get(MARKER), "regions", ())


def has_only_loras(hooks: Any) -> bool:
    """Whether the hooks of an entry, or None, are those by which our markers act, and LoRAs."""
    return hooks is None or all(is_lora(hook) or hook in MARKERS.hooks.hooks for hook in hooks.hooks)


def with_wrappers(model: ModelPatcher) -> ModelPatcher:
    """A clone of a MODEL with our wrappers, attached once."""
    return MARKERS.with_wrappers(model)


@cache
def _marker_class() -> Any:
    """Class of markers, which only `_predict` can make into something that the host passes to a model."""

    class Marker(host("comfy.conds").CONDRegular):
        def __init__(
            self,
            cond: Tensor,
            rows: Tensor,
            node_id: str | None = None,
            fields: tuple[Field, ...] = (),
            regions: tuple[Region, ...] = (),
            watches: tuple[WatchedWords, ...] = (),
            own_pass: str | None = None,
        ) -> None:
            super().__init__(cond)
            self.rows = rows  # fingerprint of the rows that the effects are for
            self.node_id = node_id
            self.fields = fields
            self.regions = regions
            self.watches = watches
            self.own_pass = own_pass  # name of the region whose LoRAs it is for

        def _copy_with(self, cond: Tensor, **changed: Any) -> Marker:
            names = ("rows", "node_id", "fields", "regions", "watches", "own_pass")
            return Marker(cond, **{name: getattr(self, name) for name in names} | changed)

        def with_field(self, field: Field) -> Marker:
            return self._copy_with(self.cond, fields=(*self.fields, field))

        def with_watch(self, watched: WatchedWords) -> Marker:
            return self._copy_with(self.cond, watches=(*self.watches, watched))

        def for_pass(self, name: str) -> Marker:
            return self._copy_with(self.cond, own_pass=name)

        def with_region(self, region: Region, region_marker: Any) -> Marker:
            both = torch.cat([self.cond.view(2, -1), region_marker.cond.view(2, -1)], 1).view(1, -1)

            def moved(rows: Sequence[int]) -> tuple[int, ...]:
                return tuple(region.rows.start + row for row in rows)

            return self._copy_with(
                both,
                fields=(*self.fields, *(field._replace(rows=moved(field.rows)) for field in region_marker.fields)),
                regions=(*self.regions, region),
                watches=(
                    *self.watches,
                    *(watched._replace(rows=tuple(map(moved, watched.rows))) for watched in region_marker.watches),
                ),
            )

        @property
        def num_own(self) -> int:  # of rows that are the entry's, not those of regions
            return self.cond.shape[1] // 2 - sum(len(region.rows) for region in self.regions)

        def process_cond(self, *_: Any, **__: Any) -> Any:
            raise ValueError(
                f"What Attention Weights, {PLACE_PHRASE} or {REGIONAL_PROMPT} added would be lost: another node has "
                "replaced the hooks that the CONDITIONING came with, or the MODEL that is connected to Attention "
                "Weights is sampled instead of its MODEL output. Sample with the MODEL output of Attention Weights."
            )

    return Marker


def _marker_of(rows: Tensor, values: Mapping[str, Any]) -> Any:
    """The marker of an entry of a conditioning; one without effects if it has none."""
    marker = values.get("model_conds", {}).get(MARKER)
    if marker is not None:
        return marker
    return _marker_class()(plain(num_rows_read(rows, values)).reshape(1, -1), fingerprint(rows))


def _with_marker(rows: Tensor, values: Mapping[str, Any], marker: Any) -> Conditioning:
    """An entry of a conditioning with a marker; the first one brings our hooks."""
    inputs = values.get("model_conds", {})
    entry = [[rows, {**values, "model_conds": {**inputs, MARKER: marker}}]]
    return entry if MARKER in inputs else MARKERS.with_hooks(entry)


def _check_rows(executor: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
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
    checked_marker = _marker_for(entry["cross_attn"], marker)
    if checked_marker is marker:
        return entry
    return {**entry, "model_conds": {**entry["model_conds"], MARKER: checked_marker}}


def _marker_for(rows: Tensor, marker: Any) -> Any:
    """The marker if it is for these rows, one without effects if they are zeros; others are refused."""
    current = fingerprint(rows)
    if are_same(marker.rows, current):
        return marker
    if not are_zero(current):
        raise ValueError(_changed(marker.rows.shape[1], current.shape[1]))
    return _marker_class()(plain(marker.num_own).reshape(1, -1), current, marker.node_id)


def _changed(num_own: int, num_found: int) -> str:
    """Message about rows that are not those that were weighed."""
    received = "others" if num_found == num_own else f"{num_found}"
    return (
        f"Attention Weights, {PLACE_PHRASE} or {REGIONAL_PROMPT} got {num_own} rows of text, but the sampler got "
        f"{received}: a node between them, such as Conditioning (Concat) or (Average), has changed them. Join prompts "
        "with Conditioning (Combine), or write them as one."
    )


def _sample(
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
    seen = options[MARKER] = SamplingLog()
    seen.records = options.get(RECORDS, seen.records)
    callback = seen.counting(getattr(executor, "class_obj", None), callback)
    result = executor(model, sigmas, extra_args, callback, *rest, **named)
    if seen.num_rows and not seen.all_finite(result):
        raise ValueError(
            "With these weights the picture is no longer made of finite numbers: Attention Weights, or the scheme "
            "negpip, multiplies by more than this model's number type can hold. Take weights nearer to 1. If it "
            "happens without weights as well, the model itself needs another number type."
        )
    seen.report()
    return result


def _predict(
    executor: Callable[..., Any], model: Any, conds: Sequence[list[Entry] | None], *rest: Any, **named: Any
) -> Any:
    """Wrapper around the predictions of a step: give entries their rows, so that they can share a batch."""
    entries = [entry for group in conds if group is not None for entry in group]
    marked = [entry for entry in entries if MARKER in entry["model_conds"]]
    if not marked or any(READY in entry for entry in entries):
        return executor(model, conds, *rest, **named)
    seen = _seen_in(*rest, **named)
    for entry in marked:
        node_id = entry["model_conds"][MARKER].node_id
        if seen is not None and node_id is not None:
            seen.node_ids[entry["uuid"]] = node_id
    step = _step(model, marked, seen, *rest, **named)
    if step is not None and is_known(model):
        layout_of(model)  # refuses models in which nothing can have a place
    is_filled = is_filled_in_front(model)
    reads: dict[int, StepRows] = {}
    due = _due(marked, step, seen)
    for entry in marked:
        marker = entry["model_conds"][MARKER]
        if "c_crossattn" not in entry["model_conds"]:
            weighting_function(model)  # Stable Cascade's text goes another way
        llama = _llama_of(entry["model_conds"])
        num_last = 0 if llama is None else llama.shape[2]
        num_filled = _num_filled(entry, is_filled)
        entry_step = None if step is None else _without_guides(step, entry)
        reads[id(entry)] = _rows_of(marker, entry_step, num_filled, num_last, due.get(id(entry)), seen)
        if seen is not None and entry_step is not None:
            seen.note_places(marker, entry_step, entry.get("timestep_start"), entry.get("timestep_end"))
    if any(step_rows.regions for step_rows in reads.values()):
        check_regions(model)
    for entry in marked:
        if regions := reads[id(entry)].regions:
            _check_masks(model, entry["model_conds"], regions)
    shares = step is None or shares_calls(model)

    def ready(entry: Entry) -> Entry:
        step_rows = reads.get(id(entry))
        return _ready(_connected(model, entry, step_rows, seen), step_rows, step, seen, shares_calls=shares)

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


def _rows_of(
    marker: Any, step: Step | None, num_filled: int, num_last: int, due: Due | None, seen: SamplingLog | None
) -> StepRows:
    """Rows that are read for a marker in a step, made once where nothing they depend on has changed."""
    key = key_of(marker, step, num_filled, num_last, due)
    if seen is None or key is None:
        return rows_in_step(marker, step, num_filled, num_last, due)
    if key not in seen.rows:
        seen.rows[key] = marker, rows_in_step(marker, step, num_filled, num_last, due)._replace(key=key)
    return seen.rows[key][1]


def _connected(model: Any, entry: Entry, step_rows: StepRows | None, seen: SamplingLog | None) -> Entry:
    """An entry whose rows were joined by layers before the first step, joined again if those must not read some."""
    hidden = None if step_rows is None else step_rows.effects[0] == -torch.inf
    if not entry.get(UNCONNECTED) or hidden is None or not bool(hidden.any()) or not (connect := connector_of(model)):
        return entry
    inputs = entry["model_conds"]
    texts = {} if seen is None else seen.texts
    key, text = id(inputs[MARKER]), inputs["c_crossattn"]
    if key not in texts:
        texts[key] = connect(entry["cross_attn"].to(text.cond), hidden)
    return {**entry, "model_conds": {**inputs, "c_crossattn": text._copy_with(texts[key])}}


def _without_guides(step: Step, entry: Entry) -> Step:
    """A step for an entry, without frames of the latent that are its guides."""
    keyframes = entry["model_conds"].get("keyframe_idxs")
    if keyframes is None:
        return step
    number = num_guides(keyframes.cond, step.latent.shape[2:])
    return step._replace(latent=step.latent[:, :, : step.latent.shape[2] - number])


def _check_masks(model: Any, inputs: Mapping[str, Any], regions: Sequence[Region]) -> None:
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


def _seen_in(*args: Any, **kwargs: Any) -> SamplingLog | None:
    """Record of this sampling, from the arguments of a step's predictions."""
    return _transformer_options(*args, **kwargs).get(MARKER)


def _transformer_options(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The host's options among the arguments of a step's predictions."""
    name = "transformer_options"
    return next((value[name] for value in (*args, *kwargs.values()) if isinstance(value, dict) and name in value), {})


def _step(model: Any, marked: Sequence[Entry], seen: SamplingLog | None, *args: Any, **kwargs: Any) -> Step | None:
    """The step that predictions are for; None if no entry has anything that depends on it."""
    markers = [entry["model_conds"][MARKER] for entry in marked]
    if not any(marker.fields or marker.regions or marker.watches for marker in markers):
        return None
    latent, sigma, *_ = (value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    options = _transformer_options(*args, **kwargs)
    sigmas: Tensor | None = options.get("sample_sigmas")
    is_part, sigma = options.get("context_window") is not None, sigma.flatten()[0]
    if seen is None:
        return Step(model, latent, sigma, None if sigmas is None else sigmas.tolist(), {}, is_part, known=[])
    if seen.levels is None and sigmas is not None:
        seen.levels = sigmas.tolist()
    known = seen.level_of_call(sigma)
    return Step(model, latent, sigma, seen.levels, seen.masks, is_part, seen.records.by_watch, known, seen.of_times)


def _due(marked: Sequence[Entry], step: Step | None, seen: SamplingLog | None) -> dict[int, Due]:
    """Words that are watched in a step, by the identity of their entry; of several calls at a level, in the first.

    Refused for a part of a video.
    """
    if seen is None or step is None:
        return {}
    if not any(entry["model_conds"][MARKER].watches for entry in marked):
        seen.due = ()
        return {}
    level = step.level
    number = sum(level <= float(sigma) for sigma in (step.sigmas or [])[1:-1])
    records, recording = seen.records.by_watch, set[Watch]()
    due_by_entry: dict[int, Due] = {}
    for entry in marked:
        if entry["model_conds"][MARKER].own_pass is not None:
            continue
        watches: list[WatchedWords] = []
        entry_step = _without_guides(step, entry)
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
    seen.due = tuple(due_by_entry.values())
    return due_by_entry


def _ready(
    entry: Entry, step_rows: StepRows | None, step: Step | None, seen: SamplingLog | None, *, shares_calls: bool
) -> Entry:
    """An entry with the model's inputs for its rows in a step."""
    texts = {} if seen is None else seen.texts

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


def _num_filled(entry: Entry, is_filled: bool) -> int:
    """Number of rows of zeros that a model puts before the rows of a marked entry, in the form of the host's sampler.

    ``is_filled``: whether it does so. Otherwise, or if rows are missing, a number other than the marker's is refused.
    """
    inputs = entry["model_conds"]
    num_rows = _num_rows(inputs["c_crossattn"].cond, _llama_of(inputs))
    num_own = inputs[MARKER].num_own
    if num_own > num_rows or (num_own < num_rows and not is_filled):
        raise ValueError(_changed(num_own, num_rows))
    return num_rows - num_own


def _llama_of(inputs: Mapping[str, Any]) -> Tensor | None:
    """Rows of Llama among a model's inputs for an entry, for HiDream: ``[1, layers, rows, dim]``."""
    return getattr(inputs.get(LLAMA_ROWS), "cond", None)


def _check_places(image: StepRows, picture: Tensor) -> None:
    """Refuse weights or shares by place in a part of the picture."""
    if any(maps is not None and maps.shape[2:] != picture.shape[2:] for maps in (image.weights, image.shares)):
        raise ValueError(
            "A placed phrase or a region cannot act where another node cuts the picture into parts, such as tiles: "
            "tiled sampling gives no position in the picture. Take out that node, or "
            f"{PLACE_PHRASE} and {REGIONAL_PROMPT}."
        )


def _num_rows(text: Tensor, llama: Tensor | None) -> int:
    """Number of rows of a text ``[batch, rows, dim]``; for HiDream plus Llama's ``[batch, layers, rows, dim]``."""
    return text.shape[1] + (0 if llama is None else llama.shape[2])


def _apply(
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
    seen: SamplingLog | None = options.get(MARKER)
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
    weights = make() if seen is None else seen.weights(key, make)
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
        weighing.maps = _maps(weights, picture, model, seen)
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
    if not weighing.num_layers and not (seen is not None and seen.num_layers):  # a cache may answer later steps
        raise ValueError(
            "Attention Weights and Place Phrase found no attention layer of this model in which text is read: another "
            "node replaces them, or this ComfyUI is too old to tell."
        )
    if seen is not None:
        seen.num_rows = max(seen.num_rows, num_rows)
        seen.num_layers = max(seen.num_layers, weighing.num_layers)
        seen.has_control = seen.has_control or control is not None
        if (is_finite := weighing.is_finite) is not None:
            seen.are_finite.append(is_finite)
        uuids = options.get("uuids", ())
        for index, uuid in enumerate(uuids):
            image = images[index * len(x) // len(uuids)]
            seen.note(uuid, image.num_changed, weighing.num_layers)
        if isinstance(weighing.maps, Maps):
            seen.note_maps(weighing.maps, [image.entry for image in images])
    return result


def _maps(weights: Weights, x: Tensor, model: Any, seen: SamplingLog | None) -> Maps:
    """Maps of watched words in a call of a model."""
    has_grids = layout_of(model) is told_by_layer
    layers = set() if seen is None else {watched.watch.layers for due in seen.due for watched in due.watches}
    if AS_DAAM in layers and not has_grids:
        raise ValueError(
            f"Watch Words records as DAAM does in {FAMILIES[0].title} only; set its layers to all, coarse or fine."
        )
    assert weights.words is not None
    return Maps(weights.words, x, layers, has_grids=has_grids, kept=weights.of_maps)


MARKERS = MarkerKind(
    MARKER,
    {
        "outer_sample": _check_rows,
        "prepare_sampling": reserve,
        "sampler_sample": _sample,
        "calc_cond_batch": _predict,
        "apply_model": _apply,
    },
)
