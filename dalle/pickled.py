"""OpenAI's discrete VAE as published: two pickled modules, read without running any of their code.

OpenAI published ``encoder.pkl`` and ``decoder.pkl``: not tensors by name but whole modules, and unpickling a module
imports and calls whatever the file names. So they are read by PyTorch's ``weights_only`` unpickler, which refuses every
global that is not on a list, and the list below has no code on it: each class is replaced by an empty one of the same
name, which only holds the attributes that the file assigns. Neither the package ``dall_e`` nor any class of
``torch.nn`` is used. Only tensors are taken from the empty shells, by name.

No host imports this module (a contract in ``pyproject.toml`` enforces that); the command ``convert-dvae`` does.
"""

from __future__ import annotations

import math
import pickle
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import DVAEConfig
from .dvae import DVAE
from .files import DVAEFileError

MAX_BYTES = 4 * 2**30
"""Maximum file size; OpenAI's files have 0.2 GiB each."""
ZIP = b"PK\x03\x04"
"""First bytes of a zip file."""
MAX_DEPTH = 16
"""Maximum nesting depth of modules; OpenAI's have 6."""


class _Shell:
    """Replacement for a pickled module: attributes without any behaviour."""


def _shell(module: str, name: str) -> type[_Shell]:
    """Create an empty class with the name of another one, so that the unpickler finds it."""
    return type(name, (_Shell,), {"__module__": module, "__qualname__": name})


ENCODER, DECODER = _shell("dall_e.encoder", "Encoder"), _shell("dall_e.decoder", "Decoder")
SHELLS: tuple[type[_Shell], ...] = (
    ENCODER,
    DECODER,
    _shell("dall_e.encoder", "EncoderBlock"),
    _shell("dall_e.decoder", "DecoderBlock"),
    _shell("dall_e.utils", "Conv2d"),
    _shell("torch.nn.modules.container", "Sequential"),
    _shell("torch.nn.modules.activation", "ReLU"),
    _shell("torch.nn.modules.pooling", "MaxPool2d"),
    _shell("torch.nn.modules.upsampling", "Upsample"),
    _shell("torch.nn.modules.linear", "Identity"),
)
"""Replacements for the modules in the two files; none of the real methods can be called."""
ALLOWED: tuple[Any, ...] = (
    *SHELLS,
    torch.device,  # a module of dall_e stores the device it was made on
    set,  # a module of torch stores which of its buffers are not saved
)
"""Globals a file may name besides those PyTorch's unpickler always allows: tensors, parameters, ordered dicts."""


def read_published(encoder: Path, decoder: Path) -> DVAE:
    """Build a discrete VAE from OpenAI's two files.

    Args:
        encoder: ``encoder.pkl``.
        decoder: ``decoder.pkl``.

    Returns:
        The model, float32, in evaluation mode without gradients.

    Raises:
        DVAEFileError: If a file names anything but `ALLOWED`, is not a complete pickle, or holds another module or
            other shapes.
    """
    tensors = {
        **{f"encoder.{name}": tensor for name, tensor in _tensors(encoder, ENCODER).items()},
        **{f"decoder.{name}": tensor for name, tensor in _tensors(decoder, DECODER).items()},
    }
    try:
        config = _config(tensors)
        with torch.device("meta"):
            model = DVAE(config)
        model.load_state_dict(tensors, assign=True)
    except (ValueError, RuntimeError) as error:
        raise DVAEFileError(f"{encoder} and {decoder} are not the two halves of one dVAE: {error}") from error
    return model.eval().requires_grad_(False)


def _config(tensors: Mapping[str, Tensor]) -> DVAEConfig:
    """Infer the sizes from the shapes."""

    def size(name: str, axis: int) -> int:
        if name not in tensors or tensors[name].ndim != 4:
            raise ValueError(f"there is no convolution {name!r}")
        return tensors[name].shape[axis]

    blocks = sum(
        name.startswith("encoder.blocks.group_1.block_") and name.endswith(".res_path.conv_1.w") for name in tensors
    )
    return DVAEConfig(
        vocab_size=size("encoder.blocks.output.conv.w", 0),
        hidden_dim=size("encoder.blocks.input.w", 0),
        num_blocks=blocks,
        init_dim=size("decoder.blocks.input.w", 0),
    )


def _tensors(path: Path, kind: type[_Shell]) -> dict[str, Tensor]:
    """Parameters of a pickled module by name, float32."""
    if not hasattr(torch.serialization, "safe_globals"):
        raise DVAEFileError(f"convert-dvae needs PyTorch 2.5 or newer, this is {torch.__version__}")
    try:
        about = path.stat()
    except (OSError, ValueError) as error:
        raise DVAEFileError(f"{path}: there is no such file") from error
    if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
        raise DVAEFileError(f"{path}: this is no file of at most {MAX_BYTES:,} bytes")
    with path.open("rb") as file:
        if file.read(4) != ZIP:  # the tensors-only unpickler does not know modules in the older format
            raise DVAEFileError(f"{path}: no zip file, as PyTorch has written since 1.6; older files are not read")
    try:
        with torch.serialization.safe_globals(list(ALLOWED)):
            root = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DVAEFileError(
            f"{path}: refused, because it is not made of the parts of OpenAI's dVAE alone, and anything else could run "
            f"code ({_reason(error)})"
        ) from error
    except Exception as error:  # a broken file fails in many ways
        raise DVAEFileError(f"{path}: no whole file of OpenAI's: {_reason(error)}") from error
    if type(root) is not kind:
        raise DVAEFileError(f"{path}: it holds {type(root).__name__}, expected dall_e's {kind.__name__}")
    found: dict[str, Tensor] = {}
    _collect(root, "", found, path, 0)
    return found


def _reason(error: Exception) -> str:
    """PyTorch's message without its advice, which is to trust the file."""
    told = str(error).partition("WeightsUnpickler error:")[2] or str(error) or type(error).__name__
    return told.partition("Please use")[0].strip().partition("\n")[0][:300]


def _collect(shell: Any, prefix: str, found: dict[str, Tensor], path: Path, depth: int) -> None:
    """Collect the parameters of a shell and of those nested in it."""
    if not isinstance(shell, _Shell) or depth > MAX_DEPTH:
        raise DVAEFileError(f"{path}: {prefix or 'the whole'} is no module of OpenAI's")
    for name, tensor in _named(shell, "_parameters", path):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
            raise DVAEFileError(f"{path}: {prefix}{name} is no tensor of numbers")
        if not math.isfinite(float(tensor.detach().float().abs().amax())):
            raise DVAEFileError(f"{path}: {prefix}{name} holds values that are NaN or infinite")
        found[f"{prefix}{name}"] = tensor.detach().float().clone(memory_format=torch.contiguous_format)
    for name, inner in _named(shell, "_modules", path):
        _collect(inner, f"{prefix}{name}.", found, path, depth + 1)


def _named(shell: _Shell, attribute: str, path: Path) -> list[tuple[str, Any]]:
    """Entries of a dict attribute of a module."""
    entries = vars(shell).get(attribute, {})
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        raise DVAEFileError(f"{path}: {attribute} of {type(shell).__name__} is no dict by names")
    return list(entries.items())
