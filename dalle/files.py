"""Discrete VAEs as safetensors files: sizes in the metadata, keys as OpenAI names them.

Keys are OpenAI's own, prefixed with ``encoder.`` or ``decoder.``. Nothing here reads a pickle; ``published.py`` does,
for one command.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import nn

from ..encoder.files.safetensors_file import FLOATS, opened, why_unread
from ..output.export import save_tensors
from ..output.files import written_whole
from .config import DVAEConfig
from .dvae import DVAE

FORMAT = "dvae"
"""Value of the metadata entry ``format``."""
CONVERT = "python run.py convert-dvae ENCODER DECODER OUT"
"""Command that converts OpenAI's pickles."""
PICKLE_SUFFIXES = (".bin", ".ckpt", ".pkl", ".pt", ".pth")
MAX_HEADER_BYTES = 2**20

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Model = TypeVar("Model", bound=nn.Module)
Sizes = TypeVar("Sizes", bound="DataclassInstance")


class DVAEFileError(ValueError):
    """Raised for a file that cannot be read as a discrete VAE; the message names the file."""


def save_dvae(model: DVAE, path: Path, about: Mapping[str, str] | None = None, *, may_replace: bool = True) -> None:
    """Write a discrete VAE atomically.

    Args:
        model: Model to write.
        path: Output file.
        about: Further metadata entries, such as the origin of the model.
        may_replace: Whether an existing file may be replaced; otherwise it is an error.

    Raises:
        OSError: If it cannot be written; an existing file is left as it was.
    """
    metadata = {**(about or {}), "format": FORMAT, "config": json.dumps(asdict(model.config))}
    save_model(model, path, metadata, may_replace=may_replace)


def save_model(model: nn.Module, path: Path, metadata: Mapping[str, str], *, may_replace: bool = True) -> None:
    """Write the tensors of a model and its metadata atomically."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with written_whole(path, may_replace=may_replace) as place:
        save_tensors(tensors, place, dict(metadata))


def load_dvae(path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu") -> DVAE:
    """Read a discrete VAE.

    Args:
        path: A file of `save_dvae`, or of the command ``convert-dvae``.
        dtype: Type of the weights and of the arithmetic.
        device: Device of the model.

    Returns:
        The model, in evaluation mode without gradients.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    path, advice = Path(path), f". Convert it first: {CONVERT}"
    return load_model(path, lambda metadata: DVAE(_config(path, metadata)), "a dVAE", dtype, device, advice)


def load_model(
    path: Path,
    build: Callable[[Mapping[str, str]], Model],
    what: str,
    dtype: torch.dtype,
    device: torch.device | str,
    advice: str = "",
) -> Model:
    """Read a model whose sizes are in the metadata.

    Args:
        path: Safetensors file.
        build: Makes the model from the metadata, with parameters that take no memory (device ``meta``).
        what: Expected content of the file, with its article.
        dtype: Type of the weights and of the arithmetic.
        device: Device of the model.
        advice: End of the message about a pickled file.

    Returns:
        The model, in evaluation mode without gradients.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise DVAEFileError(f"{path}: pickled models are not loaded, because loading one can run code{advice}")
    try:
        with opened(path, MAX_HEADER_BYTES) as file:
            with torch.device("meta"):
                model = build(file.metadata() or {})
            _read(path, file, model, what, dtype, device)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DVAEFileError(f"{path}: there is no such file") from error
    except (SafetensorError, OSError) as error:
        raise DVAEFileError(f"{path}: {why_unread(error)}") from error
    return model.to(device).eval().requires_grad_(False)


def _read(path: Path, file: Any, model: nn.Module, what: str, dtype: torch.dtype, device: torch.device | str) -> None:
    """Load the tensors of an open file into a model."""
    shapes = {key: list(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    expected = {name: list(parameter.shape) for name, parameter in model.state_dict().items()}
    for name, shape in expected.items():
        if name not in shapes:
            raise DVAEFileError(f"{path}: key {name!r} is missing; the file looks incomplete")
        if shapes[name] != shape:
            raise DVAEFileError(
                f"{path}: key {name!r} has shape {shapes[name]!s:.200}, expected {shape} by the sizes in its metadata"
            )
    if more := [key for key in shapes if key not in expected]:
        raise DVAEFileError(f"{path}: key {more[0]!r:.200} is no part of {what}")
    state: dict[str, torch.Tensor] = {}
    for name in expected:
        stored = file.get_slice(name).get_dtype()
        if stored not in FLOATS:
            raise DVAEFileError(f"{path}: key {name!r} holds {stored}, expected one of {', '.join(FLOATS)}")
        tensor = file.get_tensor(name)
        if not bool(torch.isfinite(tensor.float()).all()):
            raise DVAEFileError(f"{path}: key {name!r} holds values that are NaN or infinite")
        # a copy: safetensors returns a view of the file, which may change
        state[name] = tensor.to(device=device, dtype=dtype, copy=True)
    model.load_state_dict(state, assign=True)


def read_sizes(path: Path, text: str, kind: type[Sizes]) -> Sizes:
    """Parse sizes from the metadata."""
    try:
        given = json.loads(text)
        names = {field.name for field in fields(kind)}
        if not isinstance(given, dict) or set(given) != names:
            raise ValueError(f"expected the entries {', '.join(sorted(names))}")
        return kind(**given)
    except (ValueError, RecursionError) as error:
        raise DVAEFileError(f"{path}: the sizes in its metadata cannot be used: {error}") from error


def _config(path: Path, metadata: Mapping[str, str]) -> DVAEConfig:
    """Sizes named by the metadata."""
    if metadata.get("format") != FORMAT or "config" not in metadata:
        raise DVAEFileError(
            f"{path}: this is no dVAE of ours: its metadata has no sizes of one. OpenAI's encoder.pkl and decoder.pkl "
            f"are converted by {CONVERT}"
        )
    return read_sizes(path, metadata["config"], DVAEConfig)
