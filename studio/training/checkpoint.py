"""Checkpoints of a run, written atomically: all that it needs to continue as if it had not been stopped."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...encoder.files.torch_archive import check_archive
from ...encoder.foreign_text import parse_json
from ...encoder.quoting import quote
from ...weighting.text.prompt import shortened
from ..output.files import WriteError, written_whole
from . import log

if TYPE_CHECKING:
    from .scaling.grad_scaling import GradientScales

NAME = "checkpoint.pt"
"""File name within a run's folder."""
MOST_WEIGHT = torch.finfo(torch.float16).max
"""Largest weight that is written: the largest number of float16, in which hosts load models."""
MOST_IN_A_ROW = 3
"""Number of non-finite steps in a row that ends a run."""
LENGTH = ("steps", "options.steps", "options.epochs")
"""Properties that give the length of a run, which may be increased."""
MAY_CHANGE = ("options.watch", "options.checkpointing", "options.val_every")
"""Other properties that do not change what is learned."""
MAX_BYTES = 2**44
MAX_PICKLE_BYTES = 32 * 2**20
"""Maximum size of a checkpoint's pickle. The largest CLIP's has some 2 MiB."""
MAX_NAMED = 8
"""Properties named in a message."""
MAX_TOLD = 60
"""Characters of a value in a message."""
_GROUPS = {"rates": "", "captions": "", "augmentation": ""}
"""Prefixes of flags whose options are stored in groups; for other groups, the group's name."""
_FLAGS = {"by_part": "rate-of", "frozen_layers": "freeze-layers", "least_area": "random-crop", "is_mirrored": "mirror"}
"""Option names that differ from their fields' names."""
_ADVICE = "Put back the file that the run wrote, or begin anew with another --out"
_IMPLEMENTATION = ("fused", "foreach", "capturable", "differentiable")
_IS_SQUARE = re.compile("_sq$|var")
_KEPT = re.compile(r"checkpoint-(\d+)\.pt")


class NotFiniteError(ValueError):
    """Raised when a run can only end, as its losses, gradients or weights are not finite."""


def save(folder: Path, state: Mapping[str, Any], name: str = NAME) -> None:
    """Write a state of tensors, numbers, strings, and lists and dicts of them; if it fails, the last one is kept."""
    with written_whole(folder / name) as place:
        try:
            torch.save(dict(state), place)
        except RuntimeError as error:  # PyTorch's own writer raises this for a full disk
            raise WriteError(f"{folder / name} cannot be written: is the disk full? ({error})") from error


def keep(folder: Path, step: int) -> None:
    """Keep this step's checkpoint under a separate name, before the next one replaces it."""
    path = folder / _kept_name(step)
    path.unlink(missing_ok=True)
    try:
        os.link(folder / NAME, path)
    except OSError:  # a disk without hard links
        with written_whole(path) as place:
            shutil.copyfile(folder / NAME, place)


def kept_steps(folder: Path) -> list[int]:
    """Steps of the earlier checkpoints that are kept, ascending."""
    matches = (_KEPT.fullmatch(path.name) for path in folder.glob(_kept_name("*")))
    return sorted(int(match[1]) for match in matches if match)


def remove_kept(folder: Path, step: int, count: int) -> None:
    """Keep only the ``count`` newest of the checkpoints before a step."""
    earlier = [earlier_step for earlier_step in kept_steps(folder) if earlier_step < step]
    for earlier_step in earlier[: max(0, len(earlier) - count)]:
        (folder / _kept_name(earlier_step)).unlink()


def _kept_name(step: int | str) -> str:
    return f"checkpoint-{step}.pt"


def load(folder: Path, name: str = NAME) -> dict[str, Any]:
    """Read a file of the last state; ValueError if there is none, or it is not such a state."""
    path = folder / name
    if not path.exists():
        advice = "so there is nothing to go on with; leave out --resume to begin" if name == NAME else _ADVICE
        raise ValueError(f"{path} is not there, {advice}")
    try:
        check_archive(path, MAX_BYTES, max_pickle_bytes=MAX_PICKLE_BYTES)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = torch.load(path, map_location="cpu", weights_only=True)  # runs no code, whatever the file holds
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # of any kind, as torch reads whatever the file holds
        raise ValueError(f"{path} cannot be read: it is damaged, or not of a training run. {_ADVICE}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} cannot be read: it holds {_told(state)}, not the state of a run. {_ADVICE}")
    return cast("dict[str, Any]", state)


class CurrentRun(NamedTuple):
    """The current run, which the checkpoint must match."""

    state: Mapping[str, Any]
    """Its state, as it would be saved now."""
    check: Callable[[dict[str, Any]], None]
    """Raises a ValueError if a state with the same properties is invalid; called before anything changes."""
    num_steps: int
    """Its length."""
    follow_length: Iterable[str]
    """Properties that change with the length of the run."""
    defaults: Mapping[str, Any]
    """Values of properties that an older checkpoint lacks."""


def load_same(
    folder: Path, run: CurrentRun, say: Callable[[str], None], *, is_main_process: bool
) -> dict[str, Any] | None:
    """Read the state to resume from; None if the run stopped before its first checkpoint, and so starts over.

    Raises:
        ValueError: If there is no run, it has other properties, or a file of it is damaged.
    """
    path = folder / NAME
    if not path.exists() and (folder / log.LOG_NAME).is_file():
        if is_main_process:
            log.cut_after(folder, -1)
        say("begins again, as the run had no checkpoint yet")
        return None
    state = load(folder)
    properties = state.get("about")
    if not isinstance(properties, dict):
        raise ValueError(f"{path} is not the checkpoint of a run: it has no properties of one. {_ADVICE}")
    now = run.state["about"]
    saved = {**{name: value for name, value in run.defaults.items() if name in now}, **properties}
    for name in {f"options.{group}" for group in _GROUPS} & saved.keys() & run.defaults.keys():
        saved[name] = _completed(saved[name], run.defaults[name])
    is_as_long = all(saved.get(name) == now.get(name) for name in LENGTH)
    check_same(folder, saved, now, {*LENGTH, *MAY_CHANGE, *(() if is_as_long else run.follow_length)})
    step = state.get("step")
    if not is_as_long and type(step) is int and step > run.num_steps:
        raise ValueError(f"{path} is at step {step:,} of {run.num_steps:,}; raise --steps")
    with naming(path):
        check_keys(state, run.state, "the checkpoint")
        run.check(state)
    return state


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name a file in errors about what it holds."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be resumed: {error}. {_ADVICE}") from error


# ---- what a state must be


def check_state(
    state: dict[str, Any],
    like: Mapping[str, Any],
    num_steps: int,
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    optimizer: torch.optim.Optimizer,
    scales: GradientScales | None,
) -> None:
    """Check the parts that the states of all runs have, and take options of the optimizer from the current run."""
    step = state["step"]
    check_count(step, num_steps, "its step")
    for name in ("model", "average", "scaler"):
        check_like(state[name], like[name], name)
    for name in ("model", "average"):
        check_weights(state[name] or {})
    if state["average"] is not None:
        check_count(int(state["average"]["n_averaged"]), step, "average.n_averaged")
    if scales is None:
        check_like(state["scales"], None, "scales")
    else:
        scales.check_state_dict(state["scales"], step)
    may_be_new = scales is not None or state["scaler"] is not None  # which skip the first updates
    check_optimizer(state["optimizer"], make, optimizer, step, may_be_new=may_be_new)


def check_like(saved: object, like: object, name: str) -> None:
    """Check that a value is of the kind, sizes and keys of another, and finite."""
    if isinstance(like, Tensor):
        if (
            not isinstance(saved, Tensor)
            or (saved.layout, saved.device.type) != (torch.strided, "cpu")
            or (saved.shape, saved.dtype) != (like.shape, like.dtype)
        ):
            raise ValueError(f"{name} is {_told(saved)}, and this run has {_told(like)}")
        if saved.is_floating_point() and not saved.isfinite().all():
            raise ValueError(f"{name} holds numbers that are not finite")
    elif isinstance(like, Mapping):
        check_keys(saved, like, name)
        for key, value in like.items():
            check_like(cast("Mapping[Any, Any]", saved)[key], value, f"{name}.{key}")
    elif isinstance(like, (list, tuple)):
        if type(saved) is not type(like) or len(cast("list[Any]", saved)) != len(like):
            raise ValueError(f"{name} is {_told(saved)}, and this run has {_told(like)}")
        for number, (value, expected) in enumerate(zip(cast("list[Any]", saved), like, strict=True)):
            check_like(value, expected, f"{name}.{number}")
    elif isinstance(like, float):
        if type(saved) is not float or not math.isfinite(saved):
            raise ValueError(f"{name} is {_told(saved)}, and must be a finite number")
    elif type(saved) is not type(like):
        raise ValueError(f"{name} is {_told(saved)}, and this run has {_told(like)}")


def check_keys(saved: object, like: Mapping[Any, Any], name: str) -> None:
    """Check that a value is a dict with the keys of another."""
    if not isinstance(saved, dict):
        raise ValueError(f"{name} is {_told(saved)}, and must be a dict")
    for keys, known_keys, what in ((like, saved, "lacks"), (saved, like, "has what this run does not:")):
        if wrong := [key for key in keys if key not in known_keys]:
            raise ValueError(f"{name} {what} {_told(wrong[0])}")


def check_count(value: object, maximum: int, name: str) -> None:
    """Check that a value is a number from 0 to another."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError(f"{name} is {_told(value)}, and must be a number from 0 to {maximum:,}")


def check_optimizer(
    saved: Any,
    make: Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
    optimizer: torch.optim.Optimizer,
    step: int,
    *,
    may_be_new: bool = False,
) -> None:
    """Check the state of an optimizer, and replace its options, which the run's own determine."""
    like = optimizer.state_dict()
    check_keys(saved, like, "optimizer")
    groups, current_groups = saved["param_groups"], like["param_groups"]
    if not isinstance(groups, list) or len(groups) != len(current_groups):
        raise ValueError(f"optimizer.param_groups is {_told(groups)}, and this run has {_told(current_groups)}")
    for number, (group, expected) in enumerate(zip(cast("list[Any]", groups), current_groups, strict=True)):
        name = f"optimizer.param_groups.{number}"
        if not isinstance(group, dict) or not {"params", "lr"} <= group.keys():
            raise ValueError(f"{name} is {_told(group)}, and must be a dict with params and lr")
        # other PyTorchs have other keys
        shared = [key for key in expected if key in group and key not in _IMPLEMENTATION]
        for key in shared:
            check_like(group[key], expected[key], f"{name}.{key}")
            if key != "lr" and group[key] != expected[key]:
                raise ValueError(f"{name}.{key} is {_told(group[key])}, and this run has {_told(expected[key])}")
        groups[number] = {**expected, "lr": group["lr"]}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = saved["state"]
    if not isinstance(state, dict):
        raise ValueError(f"optimizer.state is {_told(state)}, and must be a dict")
    if not state and (may_be_new or step < MOST_IN_A_ROW):
        return
    check_keys(state, dict.fromkeys(range(len(parameters))), "optimizer.state")
    fresh_states: dict[tuple[torch.Size, torch.dtype], dict[str, Any]] = {}
    for number, parameter in enumerate(parameters):
        kind = parameter.shape, parameter.dtype
        if kind not in fresh_states:
            sample = nn.Parameter(torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device))
            sample.grad = torch.zeros_like(sample)
            fresh = make([{"params": [sample]}])
            fresh.step()
            fresh_states[kind] = fresh.state_dict()["state"][0]
        name = f"optimizer.state.{number}"
        check_like(state[number], fresh_states[kind], name)
        for key, value in state[number].items():
            if key == "step":
                check_count(int(value), step, f"{name}.step")
            elif _IS_SQUARE.search(key) and (value < 0).any():
                raise ValueError(f"{name}.{key} holds numbers below 0")


def check_weights(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that are not finite in float16, in which hosts load models."""
    for name, tensor in tensors.items():
        part = local(tensor)
        if part.is_floating_point() and part.numel() and not (largest := part.abs().max()) <= MOST_WEIGHT:
            raise NotFiniteError(
                f"the weights {name} have become {largest:.3g}, and only those of up to {MOST_WEIGHT:,.0f} are "
                "written, the most in half precision: try a lower --rate"
            )


def local(tensor: Any) -> Tensor:
    """This process's part of a sharded tensor; any other as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _told(value: object) -> str:
    """A value in a message, shortened."""
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, (dict, list, tuple)):
        return f"a {type(value).__name__} of {len(cast('list[Any]', value)):,}"
    return quote(value, MAX_TOLD)


def _completed(saved: object, defaults: str) -> object:
    """A saved group of options, with defaults for options newer than the checkpoint."""
    try:
        group, all_of_it = parse_json(cast("str", saved)), parse_json(defaults)
        return json.dumps({**all_of_it, **group})
    except (TypeError, ValueError):  # of a damaged checkpoint
        return saved


def _differences(name: object, then: object, now: object) -> list[tuple[str, object, object]]:
    """Option name and both values of a property that differs; for a group, of each option that differs."""
    label = _plain(name).removeprefix("options.")
    try:
        groups: list[Any] = [parse_json(value) if isinstance(value, str) else None for value in (then, now)]
    except ValueError:
        groups = []
    if not groups or not all(isinstance(group, dict) for group in groups):
        return [(label, then, now)]
    differing = [key for key in {**groups[0], **groups[1]} if groups[0].get(key) != groups[1].get(key)]
    place = _GROUPS.get(label, f"{label}.")
    return [(place + _FLAGS.get(key, _plain(key)), groups[0].get(key), groups[1].get(key)) for key in differing]


def _plain(value: object) -> str:
    return shortened(value, MAX_TOLD) if isinstance(value, str) and value.isprintable() else _told(value)


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """State of a model without its frozen parameters."""
    frozen = _frozen(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state returned by `trained_state` into a model."""
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - _frozen(model):
        raise ValueError("the checkpoint is of another model; begin anew with another --out")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def check_new(folder: Path, names: Iterable[str]) -> None:
    """Refuse to start a run over another one."""
    if any((folder / name).exists() for name in (NAME, *names)):
        raise ValueError(f"--out {folder}: there is a run in it; go on with it by --resume, or choose another folder")


def check_same(folder: Path, saved: Mapping[str, Any], current: Mapping[str, Any], free: Container[str] = ()) -> None:
    """Refuse to continue a run with other properties, apart from free ones."""
    changed = [
        name
        for name in current
        if type(saved.get(name)) is not type(current[name]) or (saved[name] != current[name] and name not in free)
    ]
    changed += [name for name in saved if name not in current]
    if changed:
        parts = [part for name in changed for part in _differences(name, saved.get(name), current.get(name))]
        named = ", ".join(
            f"{name} ({_plain(then)} then, {_plain(now)} now)" if name != "data" else name
            for name, then, now in parts[:MAX_NAMED]
        )
        raise ValueError(
            f"{folder / NAME} is of a run with other {named}. Undo the change, or begin anew with another --out"
        )
