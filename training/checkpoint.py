"""The state of a run on the disk, whole or not at all: what it needs to go on as if it had not been stopped."""

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
"""Of the file in a run's folder."""


def save(folder: Path, state: Mapping[str, Any], name: str = NAME) -> None:
    """Write a state in the place of the last one.

    Args:
        folder: Of the run.
        state: Tensors, numbers, strings, and lists and dicts of them.
        name: Of the file.

    Raises:
        OSError: If it cannot be written; the last one is still there.
    """
    with written_whole(folder / name) as place:
        try:
            torch.save(dict(state), place)
        except RuntimeError as error:  # PyTorch's own writer has no other words for a full disk
            raise WriteError(f"{folder / name} cannot be written: is the disk full? ({error})") from error


def load(folder: Path, name: str = NAME) -> dict[str, Any]:
    """Read the last state.

    Raises:
        ValueError: If there is none, or the file is no such state.
    """
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path} is not there, so there is nothing to go on with; leave out --resume to begin")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)  # runs no code, whatever is in it
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def load_same(
    folder: Path, about: Mapping[str, Any], say: Callable[[str], None], *, is_main_process: bool
) -> dict[str, Any] | None:
    """Read what a run goes on with.

    Args:
        folder: Of the run.
        about: What the run is now, for `check_same`.
        say: Called with a line where the run begins again.
        is_main_process: Whether this one of the processes writes the log.

    Returns:
        The last state; None if the run has ended before its first checkpoint, and begins again.

    Raises:
        ValueError: If there is no run, or it is one of something else.
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
    """The state of a model without the parameters that are not trained."""
    frozen = _frozen(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def load_trained_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put the state that `trained_state` gave into a model.

    Raises:
        ValueError: If it is of a model with other parameters.
    """
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - _frozen(model):
        raise ValueError("the checkpoint is of another model; begin anew with another --out")


def _frozen(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def check_new(folder: Path, names: Iterable[str]) -> None:
    """Refuse to begin a run over another one.

    Args:
        folder: Of the run; it may not be there.
        names: Of files that a run leaves, beside `NAME`.

    Raises:
        ValueError: If one of them is in the folder.
    """
    if any((folder / name).exists() for name in (NAME, *names)):
        raise ValueError(f"--out {folder}: there is a run in it; go on with it by --resume, or choose another folder")


def check_same(folder: Path, found: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Refuse to go on with a run of something else.

    Args:
        folder: Of the run.
        found: What the state was saved of, by name.
        about: What the run is now; ``options.`` before a name is not said.

    Raises:
        ValueError: If they differ; the message says in what.
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
