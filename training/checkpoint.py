"""Checkpoints of a run, written atomically: all that it needs to continue as if it had not been stopped."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..output.files import WriteError, written_whole
from . import log

NAME = "checkpoint.pt"
"""File name within a run's folder."""


def save(folder: Path, state: Mapping[str, Any], name: str = NAME) -> None:
    """Write a state, replacing the last one.

    Args:
        folder: The run's folder.
        state: Tensors, numbers, strings, and lists and dicts of them.
        name: File name.

    Raises:
        OSError: If it cannot be written; the last one is kept.
    """
    with written_whole(folder / name) as place:
        try:
            torch.save(dict(state), place)
        except RuntimeError as error:  # PyTorch's own writer raises this for a full disk
            raise WriteError(f"{folder / name} cannot be written: is the disk full? ({error})") from error


def load(folder: Path, name: str = NAME) -> dict[str, Any]:
    """Read the last state.

    Raises:
        ValueError: If there is none, or the file is not such a state.
    """
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path} is not there, so there is nothing to go on with; leave out --resume to begin")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # runs no code, whatever the file holds
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def load_same(
    folder: Path, about: Mapping[str, Any], say: Callable[[str], None], *, is_main_process: bool
) -> dict[str, Any] | None:
    """Read the state to resume from.

    Args:
        folder: The run's folder.
        about: Properties of the current run, for `check_same`.
        say: Called with a line if the run starts over.
        is_main_process: Whether this process writes the log.

    Returns:
        The last state, or None if the run stopped before its first checkpoint and starts over.

    Raises:
        ValueError: If there is no run, or it has other properties.
    """
    if not (folder / NAME).is_file() and (folder / log.LOG_NAME).is_file():
        if is_main_process:
            log.cut_after(folder, -1)
        say("begins again, as the run had no checkpoint yet")
        return None
    state = load(folder)
    check_same(folder, state["about"], about)
    return state


def trained_state(model: nn.Module) -> dict[str, Tensor]:
    """State of a model without its frozen parameters."""
    frozen = _frozen(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state returned by `trained_state` into a model.

    Raises:
        ValueError: If it belongs to a model with other parameters.
    """
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - _frozen(model):
        raise ValueError("the checkpoint is of another model; begin anew with another --out")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def check_new(folder: Path, names: Iterable[str]) -> None:
    """Refuse to start a run over another one.

    Args:
        folder: The run's folder, which need not exist.
        names: Names of files a run leaves, besides `NAME`.

    Raises:
        ValueError: If one of them is in the folder.
    """
    if any((folder / name).exists() for name in (NAME, *names)):
        raise ValueError(f"--out {folder}: there is a run in it; go on with it by --resume, or choose another folder")


def check_same(folder: Path, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Refuse to continue a run with other properties.

    Args:
        folder: The run's folder.
        found: Properties saved with the state, by name.
        about: Properties of the current run; the prefix ``options.`` is left out of messages.

    Raises:
        ValueError: If they differ; the message says how.
    """
    changed = [name for name in about if about[name] != found.get(name)]
    if changed:
        named = ", ".join(
            name.removeprefix("options.") + (f" ({found.get(name)} then, {about[name]} now)" if name != "data" else "")
            for name in changed
        )
        raise ValueError(
            f"{folder / NAME} is of a run with other {named}. Undo the change, or begin anew with another --out"
        )
