"""OpenAI's discrete VAE as published: two pickled modules, read without running any of their code.

OpenAI published ``encoder.pkl`` and ``decoder.pkl``: not tensors by name but whole modules, and unpickling a module
imports and calls whatever the file names. So they are read by ``torch_file.py``, which refuses every global that is not
on a list, and the list below has no code on it: each class is replaced by an empty one of the same
name, which only holds the attributes that the file assigns. Neither the package ``dall_e`` nor any class of
``torch.nn`` is used. Only tensors are taken from the empty shells, by name.

No host imports this module (a contract in ``pyproject.toml`` enforces that); the command ``convert-dvae`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .config import DVAEConfig
from .dvae import DVAE
from .files import DVAEFileError
from .torch_file import check_shapes, check_tensors, load

MAX_BYTES = 4 * 2**30
"""Maximum file size; OpenAI's files have 0.2 GiB each."""
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
ALLOWED: dict[str, Any] = {
    **{f"{shell.__module__}.{shell.__name__}": shell for shell in SHELLS},
    "torch.device": torch.device,  # a module of dall_e stores the device it was made on
    "__builtin__.set": set,  # a module of torch stores which of its buffers are not saved
}
"""Globals a file may name besides those of tensors, by their names in it."""
REFUSAL = "it is not made of the parts of OpenAI's dVAE alone, and anything else could run code"


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
        check_shapes(tensors, model.state_dict(), "OpenAI's dVAE")
        model.load_state_dict(tensors, assign=True)
    except ValueError as error:
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
    root = load(path, MAX_BYTES, "OpenAI's", REFUSAL, ALLOWED)
    if type(root) is not kind:
        raise DVAEFileError(f"{path}: it holds {type(root).__name__}, expected dall_e's {kind.__name__}")
    found = dict(_parameters(root, "", path, set()))
    check_tensors(path, found)
    for name, tensor in found.items():
        if not bool(torch.isfinite(tensor).all()):
            raise DVAEFileError(f"{path}: {name} holds values that are NaN or infinite")
    return {
        name: tensor.detach().float().clone(memory_format=torch.contiguous_format) for name, tensor in found.items()
    }


def _parameters(shell: Any, prefix: str, path: Path, seen: set[int], depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """Parameters of a shell and of those nested in it; each shell and each of its dicts may be met once."""
    if not isinstance(shell, _Shell) or depth > MAX_DEPTH:
        raise DVAEFileError(f"{path}: {prefix or 'the whole'} is no module of OpenAI's")
    for name, tensor in _named(shell, "_parameters", path, seen):
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or not tensor.numel():
            raise DVAEFileError(f"{path}: {prefix}{name:.200} is no tensor of numbers")
        yield f"{prefix}{name}", tensor
    for name, inner in _named(shell, "_modules", path, seen):
        yield from _parameters(inner, f"{prefix}{name}.", path, seen, depth + 1)


def _named(shell: _Shell, attribute: str, path: Path, seen: set[int]) -> list[tuple[str, Any]]:
    """Entries of a dict attribute of a module."""
    entries = vars(shell).get(attribute, {})
    if not isinstance(entries, dict) or not all(isinstance(name, str) for name in entries):
        raise DVAEFileError(f"{path}: {attribute} of {type(shell).__name__} is no dict by names")
    if id(entries) in seen:
        raise DVAEFileError(f"{path}: a module in it is part of several others, or of itself")
    if entries:
        seen.add(id(entries))
    return list(entries.items())
