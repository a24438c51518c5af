"""Weights of words in the attention of ComfyUI's diffusion models: how a CONDITIONING carries them.

Each entry holds the effects on its rows as a marker among its model's inputs (``model_conds``), so that they follow the
entry through areas, masks and time ranges. Wrappers of the host's sampler, attached as a hook of the entry or to a
MODEL, remove the markers and pass them to ``attention_layers.py``. Nothing is replaced in the host.

A fingerprint of the rows, made when the prompt is encoded and again when it is sampled, shows that the effects are for
these rows. A marker may also hold fields, whose weights depend on the place and the step (``fields.py``).

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ...weighting.attention import PLAIN, RowEffect
from ...weighting.fields import small_picture
from ...weighting.view import counted
from .attention_layers import COUPLED, Call, Weighing
from .contract import PATCHER, checked_object, host
from .families import has_places, is_filled_in_front, weigher_of
from .fields import Acting, Field, Places, Step, acting, steps_of
from .fingerprint import are_same, are_zero, fingerprint
from .text_rows import num_rows_read
from .types import Conditioning, ModelPatcher

logger = logging.getLogger(__name__)

MARKER = "weighted_clip_attention"
"""Name of the marker, of our wrappers, and of the state of a sampling."""
PLACES = "weighted_clip_places"
"""Name of the weights by place among a model's inputs."""
EVENT = "weighted_clip.weighed"
"""Message to the page after a sampling: the node whose weights acted, and where (web/comfyui/ruler.js)."""
READY = "weighted_clip_attention_is_ready"
"""Marks an entry whose marker is as long as those of the other entries."""
NOT_ACTING = "lost in silence: where another pack, such as Attention Couple, takes this conditioning for a region"
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
        return host("comfy.hooks").set_hooks_for_conditioning(marked, _hooks()), None
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
        inputs = values.get("model_conds", {})
        marker = inputs.get(MARKER)
        is_new = marker is None
        if marker is None:
            plain = _plain(num_rows_read(rows, values)).reshape(1, -1)
            marker = _marker_class()(plain, fingerprint(rows))
        elif bool((marker.cond.view(2, -1)[1, list(field.rows)] < 0).any()):
            raise ValueError(
                f"{field.where.name} has a weight below 0, which takes it away in the attention: it cannot be placed. "
                "Take a weight of 0 or above, or the phrase out."
            )
        inputs = {**inputs, MARKER: marker.with_field(field)}
        entry = [[rows, {**values, "model_conds": inputs}]]
        marked += host("comfy.hooks").set_hooks_for_conditioning(entry, _hooks()) if is_new else entry
    return marked


def fields_of(values: Mapping[str, Any]) -> tuple[Field, ...]:
    """Fields of an entry of a conditioning, given its dictionary, in the order in which they were attached."""
    return getattr(values.get("model_conds", {}).get(MARKER), "fields", ())


def with_wrappers(model: ModelPatcher) -> ModelPatcher:
    """A clone of a MODEL with our wrappers, attached once."""
    work = model.clone()
    checked_object(work, PATCHER, "add_wrapper_with_key", "remove_wrappers_with_key")
    for kind, wrapper in _WRAPPERS.items():
        work.remove_wrappers_with_key(kind, MARKER)
        work.add_wrapper_with_key(kind, MARKER, wrapper)
    return work


@cache
def _marker_class() -> Any:
    """Class of markers, which only `_predict` can make into something that the host passes to a model."""

    class Marker(host("comfy.conds").CONDRegular):
        def __init__(
            self, cond: Tensor, rows: Tensor, node_id: str | None = None, fields: tuple[Field, ...] = ()
        ) -> None:
            super().__init__(cond)
            self.rows = rows  # fingerprint of the rows that the effects are for
            self.node_id = node_id
            self.fields = fields

        def _copy_with(self, cond: Tensor) -> Marker:
            return Marker(cond, self.rows, self.node_id, self.fields)

        def with_field(self, field: Field) -> Marker:
            return Marker(self.cond, self.rows, self.node_id, (*self.fields, field))

        def process_cond(self, *_: Any, **__: Any) -> Any:
            raise ValueError(
                "The weights of Weigh Attention or Place Phrase would be lost: another node has replaced the hooks "
                "that the CONDITIONING came with, or the MODEL that is connected to Weigh Attention is sampled instead "
                "of its MODEL output. Sample with the MODEL output of Weigh Attention."
            )

    return Marker


@cache
def _hooks() -> Any:
    """The one group of hooks shared by all marked entries, so that none of them runs separately for its hooks."""
    hooks = host("comfy.hooks")
    wrappers = {kind: {MARKER: [wrapper]} for kind, wrapper in _WRAPPERS.items()}
    group = hooks.HookGroup()
    scope = hooks.EnumHookScope.AllConditioning
    group.add(hooks.TransformerOptionsHook({"wrappers": wrappers}, hook_scope=scope))
    return group


class _Seen:
    """Record of the weights' effects in one sampling."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.num_layers = 0
        self.has_control = False
        self.are_finite: list[Tensor] = []
        """For each call of the model, whether its multiplied values are numbers; read once, after the last step."""
        self.node_ids: dict[Any, str] = {}
        """Node that weighted each entry, by the host's id of the entry."""
        self.of_nodes: dict[str, tuple[int, int]] = {}
        """Rows and layers in which the weights of a node acted."""
        self.of_fields: dict[tuple[str | None, str], set[int]] = {}
        """Steps in which each placed phrase acts, by its node and name."""
        self.pictures: dict[tuple[str | None, str], list[list[float]]] = {}
        """Small picture of the mask of each placed phrase that has acted, by its node and name."""
        self.num_steps = 0
        self.masks: dict[tuple[int, torch.Size], Tensor | None] = {}
        """Masks of placed phrases, as `Step` keeps them."""

    def note(self, uuid: Any, num_rows: int, num_layers: int) -> None:
        """Record that weights of an entry have acted."""
        if num_rows and uuid in self.node_ids:
            rows, layers = self.of_nodes.get(self.node_ids[uuid], (0, 0))
            self.of_nodes[self.node_ids[uuid]] = max(rows, num_rows), max(layers, num_layers)

    def report(self) -> None:
        for (node_id, name), steps in self.of_fields.items():
            text = f"{name} acted in {len(steps)} of {counted(self.num_steps, 'step')}"
            logger.log(logging.INFO if steps else logging.WARNING, "Place Phrase: %s", text)
            if node_id is not None:
                place = {"name": name, "steps": sorted(steps), "num_steps": self.num_steps}
                _tell(node_id, text, place={**place, "picture": self.pictures.get((node_id, name))})
        if not self.num_rows:
            return
        logger.info("Weigh Attention: %s", _in_words(self.num_rows, self.num_layers))
        for node_id, found in self.of_nodes.items():
            _tell(node_id, _in_words(*found))
        if self.has_control:
            logger.info("Weigh Attention: the ControlNet read them at weight 1; it has no weights in its own attention")


def _in_words(num_rows: int, num_layers: int) -> str:
    return f"{counted(num_rows, 'row')} in {counted(num_layers, 'attention layer')}"


def _tell(node_id: str, text: str, **more: Any) -> None:
    """Send a text, and more values, to a node on the page, if the host's server runs."""
    server = getattr(getattr(sys.modules.get("server"), "PromptServer", None), "instance", None)
    if server is not None:
        server.send_sync(EVENT, {"node": node_id, "text": text, **more}, server.client_id)


def _check_rows(executor: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """Wrapper around a whole sampling: the marked entries still have the rows that were weighed, or zeros.

    Later, entries of the host may have the rows of one prompt and the model's inputs of another.
    """
    guider: Any = executor.class_obj  # type: ignore[attr-defined]
    guider.conds = {kind: [_checked(entry) for entry in entries] for kind, entries in guider.conds.items()}
    return executor(*given, **named)


def _checked(entry: Entry) -> Entry:
    """An entry whose marker is for its rows, refused if they are others; effects on rows of zeros are none."""
    marker = entry["model_conds"].get(MARKER)
    if marker is None:
        return entry
    found = fingerprint(entry["cross_attn"])
    if are_same(marker.rows, found):
        return entry
    if not are_zero(found):
        raise ValueError(_changed(marker.rows.shape[1], found.shape[1]))
    plain = _marker_class()(_plain(marker.cond.shape[1] // 2).reshape(1, -1), found, marker.node_id)
    return {**entry, "model_conds": {**entry["model_conds"], MARKER: plain}}


def _changed(num_own: int, num_found: int) -> str:
    """Message about rows that are not those that were weighed."""
    found = "others" if num_found == num_own else f"{num_found}"
    return (
        f"Weigh Attention or Place Phrase weighed {num_own} rows of text, but the sampler got {found}: a node between "
        "them, such as Conditioning (Concat) or (Average), has changed them. Join prompts with Conditioning (Combine), "
        "or write them as one."
    )


def _sample(
    executor: Callable[..., Any], model: Any, sigmas: Any, extra_args: dict[str, Any], *rest: Any, **named: Any
) -> Any:
    """Wrapper around a sampling that reports the weights' effects afterwards."""
    options = extra_args["model_options"].setdefault("transformer_options", {})
    if MARKER in options:  # our wrappers are both on the model and in the conditioning
        return executor(model, sigmas, extra_args, *rest, **named)
    seen = options[MARKER] = _Seen()
    result = executor(model, sigmas, extra_args, *rest, **named)
    if seen.num_rows and not all(map(bool, (*seen.are_finite, result.isfinite().all()))):
        raise ValueError(
            "With these weights the picture is no longer made of finite numbers: Weigh Attention, or the scheme "
            "negpip, multiplies by more than this model's number type can hold. Take weights nearer to 1. If it "
            "happens without weights as well, the model itself needs another number type."
        )
    seen.report()
    return result


def _predict(
    executor: Callable[..., Any], model: Any, conds: Sequence[list[Entry] | None], *rest: Any, **named: Any
) -> Any:
    """Wrapper around the predictions of a step: give entries markers of one length, so that they can share a batch."""
    entries = [entry for some in conds if some is not None for entry in some]
    marked = [entry for entry in entries if MARKER in entry["model_conds"]]
    if not marked or any(READY in entry for entry in entries):
        return executor(model, conds, *rest, **named)
    seen = _seen_in(*rest, **named)
    for entry in marked:
        node_id = getattr(entry["model_conds"][MARKER], "node_id", None)
        if seen is not None and node_id is not None:
            seen.node_ids[entry["uuid"]] = node_id
    is_filled = is_filled_in_front(model)
    longest = max(_rows_as_read(entry, is_filled).shape[1] for entry in marked)
    placed = _placed(model, marked, seen, *rest, **named)
    num_fields = max((one.rows.shape[0] for one in placed.values()), default=0)
    ready = [
        some if some is None else [_ready(entry, longest, is_filled, placed, num_fields) for entry in some]
        for some in conds
    ]
    try:
        return executor(model, ready, *rest, **named)
    except AttributeError as error:
        # prompt-control's hook lacks a part once the host has copied it to put it beside ours
        beside = {type(hook).__name__ for entry in marked for hook in getattr(entry.get("hooks"), "hooks", ())}
        if any(name == "AttentionCoupleHook" and name in str(error) for name in beside):
            raise ValueError(COUPLED) from error
        raise


def _seen_in(*given: Any, **named: Any) -> _Seen | None:
    """Record of this sampling, from the arguments of a step's predictions."""
    return _transformer_options(*given, **named).get(MARKER)


def _transformer_options(*given: Any, **named: Any) -> dict[str, Any]:
    """The host's options among the arguments of a step's predictions."""
    options = [value for value in (*given, *named.values()) if isinstance(value, dict)]
    return next((one["transformer_options"] for one in options if "transformer_options" in one), {})


def _placed(model: Any, marked: Sequence[Entry], seen: _Seen | None, *given: Any, **named: Any) -> dict[int, Acting]:
    """Fields that act in a step, by the identity of their marker."""
    entries = [entry for entry in marked if getattr(entry["model_conds"][MARKER], "fields", ())]
    if not entries:
        return {}
    latent, sigma, *_ = (value for value in (*given, *named.values()) if isinstance(value, Tensor))
    sigmas: Tensor | None = _transformer_options(*given, **named).get("sample_sigmas")
    masks = {} if seen is None else seen.masks
    step = Step(model, latent, sigma.flatten()[0], None if sigmas is None else sigmas.tolist(), masks)
    found: dict[int, Acting] = {}
    for entry in entries:
        marker = entry["model_conds"][MARKER]
        found[id(marker)] = acting(marker.fields, marker.cond.shape[1] // 2, step)
        if seen is not None and step.sigmas is not None:
            seen.num_steps = len(step.sigmas) - 1
            for where in (field.where for field in marker.fields):
                key = where.node_id, where.name
                steps = seen.of_fields.setdefault(key, set())
                steps |= steps_of(where, step, entry.get("timestep_start"), entry.get("timestep_end"))
                if key not in seen.pictures and (made := (id(where), latent.shape)) in masks:
                    mask = masks[made]
                    seen.pictures[key] = [[1.0]] if mask is None else small_picture(mask.mean(0))
    return found


def _ready(entry: Entry, length: int, is_filled: bool, placed: Mapping[int, Acting], num_fields: int) -> Entry:
    """An entry with a marker for ``length`` rows, in which missing rows are NaN.

    ``placed``: fields that act in this step. If any entry has such fields, ``num_fields`` at most, all get weights by
    place, so that they can share a batch.
    """
    inputs = entry["model_conds"]
    marker = torch.full((2 + num_fields, length), torch.nan)
    found = placed.get(id(inputs.get(MARKER)))
    if MARKER in inputs:
        own = _rows_as_read(entry, is_filled)
        num_rows = own.shape[1]
        marker[:2, :num_rows], marker[2:, :num_rows] = own, 0.0
        if found is not None:
            marker[0, num_rows - len(found.bias) : num_rows] += found.bias
            marker[2 : 2 + len(found.rows), num_rows - len(found.bias) : num_rows] = found.rows
    conds = host("comfy.conds")
    inputs = {**inputs, MARKER: conds.CONDRegular(marker.view(1, -1))}
    if num_fields:
        height, width = next(iter(placed.values())).weights.shape[-2:]
        weights = torch.ones(1, num_fields, height, width)
        if found is not None:
            weights = weights.repeat(len(found.weights), 1, 1, 1)
            weights[:, : found.weights.shape[1]] = found.weights
        inputs[PLACES] = conds.CONDNoiseShape(weights)
    copy = {**entry, "model_conds": inputs, READY: True}
    hooks = entry.get("hooks")
    if hooks is not None and all(hook in _hooks().hooks for hook in hooks.hooks):
        copy["hooks"] = None  # no longer needed, and entries with different hooks never share a batch
    return copy


def _rows_as_read(entry: Entry, is_filled: bool) -> Tensor:
    """Bias and factor of each row that the model reads of a marked entry, ``[2, rows]``.

    The entry has the form of the host's sampler. ``is_filled``: the model pads the text's rows at the front.
    """
    inputs = entry["model_conds"]
    own = inputs[MARKER].cond.view(2, -1)
    llama = inputs.get("encoder_hidden_states_llama3")
    num_rows = _num_rows(inputs["c_crossattn"].cond, None if llama is None else llama.cond)
    num_filled = num_rows - own.shape[1] if is_filled else 0
    if own.shape[1] != num_rows - num_filled:
        raise ValueError(_changed(own.shape[1], num_rows))
    return torch.cat([_plain(num_filled), own], 1)


def _plain(num_rows: int, num_fields: int = 0) -> Tensor:
    """Bias and factor of unchanged rows, and that they have no fields: ``[2 + fields, rows]``."""
    return torch.tensor([PLAIN.bias, PLAIN.factor, *[0.0] * num_fields])[:, None].expand(-1, num_rows)


def _num_changed(marker: Tensor) -> int:
    """Number of rows with effects or fields in a marker, ``[2 + fields, rows]``."""
    return int((marker != _plain(1, len(marker) - 2)).any(0).sum())


def _check_places(model: Any, weights: Tensor, x: Tensor) -> None:
    """Refuse weights by place in a model whose places are unknown, or in a part of the picture."""
    if not has_places(model):
        raise ValueError(
            f"Place Phrase does not know the places of this model ({type(model).__name__}) yet: it works with Stable "
            "Diffusion 1, 2 and XL. Take it out, or take Conditioning (Set Mask)."
        )
    if weights.shape[0] != x.shape[0] or weights.shape[-2:] != x.shape[-2:]:
        raise ValueError(
            "A placed phrase cannot act where another node cuts the picture into parts, such as tiles: nobody can tell "
            "then where in the picture it draws. Take out that node or Place Phrase."
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
    given: Tensor | None = inputs.pop(MARKER, None)
    if given is None:
        return executor(x, t, c_concat, c_crossattn, control, options, **inputs)
    weights: Tensor | None = inputs.pop(PLACES, None)
    num_fields = 0 if weights is None else weights.shape[1]
    # a wrapper that cuts the picture into tiles may have repeated only what it knows
    marker = given.expand(len(x), -1) if len(given) == 1 else given
    rows = [own[:, ~own[0].isnan()] for own in marker.cpu().view(len(marker), 2 + num_fields, -1)]
    num_rows = max(_num_changed(own) for own in rows)
    if not num_rows:
        return executor(x, t, c_concat, c_crossattn, control, options, **inputs)
    model = executor.class_obj  # type: ignore[attr-defined]
    weigh = weigher_of(model)
    assert c_crossattn is not None  # all families have the text there
    num_keys = _num_rows(c_crossattn, inputs.get("encoder_hidden_states_llama3"))
    # the host repeats shorter texts in a batch until all have equal length
    tiled = [own.repeat(1, num_keys // own.shape[1]) if own.numel() else _plain(num_keys, num_fields) for own in rows]
    bias, factor, *of_fields = torch.stack(tiled, dim=1)
    weighing = Weighing(bias, factor, x.device)
    if weights is not None:
        _check_places(model, weights, x)
        weighing.places = Places(weights.cpu(), torch.stack(of_fields, 1), x.device)
    options = weigh(weighing, Call(model.diffusion_model, options, inputs))
    result = executor(x, t, c_concat, c_crossattn, control, options, **inputs)
    seen = options.get(MARKER)
    if not weighing.num_layers and not (seen is not None and seen.num_layers):  # a cache may answer later steps
        raise ValueError(
            "Weigh Attention found no attention layer of this model in which text is read: another node replaces them, "
            "or this ComfyUI is too old to tell."
        )
    if seen is not None:
        seen.num_rows = max(seen.num_rows, num_rows)
        seen.num_layers = max(seen.num_layers, weighing.num_layers)
        seen.has_control = seen.has_control or control is not None
        seen.are_finite.append(weighing.is_finite)
        uuids = options.get("uuids", ())
        for index, uuid in enumerate(uuids):
            own = rows[index * len(rows) // len(uuids)]
            seen.note(uuid, _num_changed(own), weighing.num_layers)
    return result


_WRAPPERS: dict[str, Callable[..., Any]] = {
    "outer_sample": _check_rows,
    "sampler_sample": _sample,
    "calc_cond_batch": _predict,
    "apply_model": _apply,
}
"""Wrappers by the host's names of the wrapped functions (``comfy.patcher_extension.WrappersMP``)."""
