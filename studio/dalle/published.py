"""Published weights: OpenAI's discrete VAE and ru-DALL-E's prior, read from pickles without running any of their code.

``torch_file.py`` opens the files and refuses every global that is not on a list. OpenAI published ``encoder.pkl`` and
``decoder.pkl``: not tensors by name but whole modules, and unpickling a module imports and calls whatever the file
names. The list for them has no code on it: each class is replaced by an empty one of the same name, which only holds
the attributes that the file assigns. Neither the package ``dall_e`` nor any class of ``torch.nn`` is used. Only tensors
are taken from the empty shells, by name.

A file of ru-DALL-E holds only tensors: the state dict of rudalle's model. It does not hold the number of heads, which
follows from the width for the published models. The version, which decides the layout, shows only in the masks that may
be in it.

No host imports this module (a contract in ``pyproject.toml`` enforces that); ``convert-dvae`` and ``convert-rudalle``
do.

Source: ``dall-e`` 0.1; rudalle 1.1.3, by the names and shapes of its model's state dict and what the model computes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...encoder.models.config import MASK_VARIANTS, MaskVariant
from ...encoder.quoting import quote
from ...encoder.sparse_masks import column_mask, convolutional_mask, row_mask
from .config import DVAEConfig, PriorConfig
from .dvae import DVAE
from .prior import Prior
from .torch_file import check_shapes, check_tensors, load
from .weight_files import DVAEFileError

MAX_DVAE_BYTES = 4 * 2**30
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
            raise ValueError(f"there is no convolution {quote(name, 200)}")
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
    root = load(path, MAX_DVAE_BYTES, "OpenAI's", REFUSAL, ALLOWED)
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


MAX_PRIOR_BYTES = 64 * 2**30
"""Maximum file size; the largest published model, Kandinsky, has 12 billion parameters."""
VARIANTS: tuple[MaskVariant, ...] = tuple(name for name in MASK_VARIANTS if name != "dalle")
HEADS = {768: 12, 2048: 16, 3840: 60}
"""Attention heads by width: rudalle's dummy model, the models with 1.3 billion parameters, Kandinsky."""

_NAMES = {
    "text_embeddings.weight": "text_embedding.weight",
    "image_embeddings.weight": "image_embedding.weight",
    "text_pos_embeddings.weight": "text_position_embedding.weight",
    "image_row_embeddings.weight": "row_embedding.weight",
    "image_col_embeddings.weight": "column_embedding.weight",
    "transformer.final_layernorm": "final_layer_norm",
    "to_logits.0": "head_layer_norm",
}
_LAYER_NAMES = {
    "input_layernorm": "layer_norm1",
    "attention.dense": "self_attn.out_proj",
    "before_first_addition_layernorm": "attention_norm",
    "post_attention_layernorm": "layer_norm2",
    "mlp.dense_h_to_4h": "mlp.fc1",
    "mlp.dense_4h_to_h": "mlp.fc2",
    "before_second_addition_layernorm": "mlp_norm",
}
_MASKS = {
    "transformer.row_mask": "row",
    "transformer.col_mask": "column",
    "transformer.conv_mask": "convolutional",
}


def read_rudalle(path: Path, variant: MaskVariant | None = None, num_heads: int | None = None) -> Prior:
    """Build a prior from a file of ru-DALL-E's weights, ``pytorch_model*.bin``.

    Args:
        path: The file.
        variant: One of `VARIANTS`, or None to infer it from the file's masks.
        num_heads: Attention heads in each layer, or None to look the width up in `HEADS`.

    Returns:
        The model, in the file's own types, in evaluation mode without gradients. Its tensors are read from the file
        when first used.

    Raises:
        DVAEFileError: If the file cannot be used.
    """
    state = load(path, MAX_PRIOR_BYTES, "PyTorch's", "it holds more than tensors, which could run code")
    if isinstance(state, dict):
        named = ((name, tensor) for name, tensor in state.items() if isinstance(name, str))
        check_tensors(path, {name: tensor for name, tensor in named if isinstance(tensor, Tensor)})
    try:
        return prior_of(state, variant, num_heads)
    except ValueError as error:
        raise DVAEFileError(f"{path}: {error}") from error


def prior_of(state: Mapping[str, Tensor], variant: MaskVariant | None = None, num_heads: int | None = None) -> Prior:
    """Build a prior from ru-DALL-E's state dict; some tensors are shared with it, not copied."""
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise ValueError("it holds no tensors by name")
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor) or not (tensor.is_floating_point() or name in _MASKS):
            raise ValueError(f"{quote(name, 200)} is no tensor of numbers")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{quote(name, 200)} holds values that are NaN or infinite")
    sizes = _sizes(state, num_heads)
    config = replace(sizes, variant=_variant(state, sizes, variant))
    tensors: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name not in _MASKS:
            tensors.update(_renamed(name, tensor.detach(), config))
    with torch.device("meta"):
        prior = Prior(config)
    check_shapes(tensors, prior.state_dict(), "a model of ru-DALL-E")
    prior.load_state_dict(tensors, assign=True)
    return prior.eval().requires_grad_(False)


def _sizes(state: Mapping[str, Tensor], num_heads: int | None) -> PriorConfig:
    """Sizes inferred from shapes; ``variant`` is only a placeholder."""

    def size(name: str, axis: int = 0) -> int:
        if name not in state or state[name].ndim != 2:
            raise ValueError(f"there is no matrix {quote(name, 200)}: this is no state dict of ru-DALL-E's transformer")
        return state[name].shape[axis]

    text_length, width = size("text_pos_embeddings.weight") - 1, size("text_embeddings.weight", 1)
    num_heads = HEADS.get(width) if num_heads is None else num_heads
    if num_heads is None:
        raise ValueError(f"a width of {width} is none of the published models: say how many attention heads it has")
    layers = {match[1] for name in state if (match := re.match(r"transformer\.layers\.(\d+)\.", name))}
    return PriorConfig(
        text_vocab_size=size("text_embeddings.weight") - text_length,
        text_length=text_length,
        rows=size("image_row_embeddings.weight"),
        columns=size("image_col_embeddings.weight"),
        image_vocab_size=size("image_embeddings.weight"),
        hidden_dim=width,
        num_heads=num_heads,
        num_layers=len(layers),
        mlp_dim=size("transformer.layers.0.mlp.dense_h_to_4h.weight"),
        activation="gelu_tanh",
        variant=VARIANTS[0],
    )


def _variant(state: Mapping[str, Tensor], sizes: PriorConfig, given: MaskVariant | None) -> MaskVariant:
    """The given variant, or the only one whose masks are those of the file."""
    if given is not None and given not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {quote(given)}")
    masks = {kind: state[name].bool() for name, kind in _MASKS.items() if name in state}
    at = (sizes.text_length, sizes.grid)
    plain = {"row": row_mask(*at)[0], "column": column_mask(*at)[0]}
    possible: list[MaskVariant] = []
    for variant in VARIANTS:
        ours = {**plain, "convolutional": convolutional_mask(*at, variant=variant)[0]}
        if all(torch.equal(ours[kind], mask) for kind, mask in masks.items()):
            possible.append(variant)
    if not possible:
        raise ValueError("its masks are those of no version of ru-DALL-E that is known here")
    if given is None and len(possible) > 1:
        raise ValueError(f"it does not say of which version it is: choose one of {', '.join(possible)}")
    if given is not None and given not in possible:
        raise ValueError(f"its masks are those of {possible[0]}, not of {given}")
    return given or possible[0]


def _renamed(name: str, tensor: Tensor, config: PriorConfig) -> dict[str, Tensor]:
    """Our tensors for one of theirs."""
    stem, _, kind = name.rpartition(".")
    if name == "text_pos_embeddings.weight":
        # version 3 also has a row for the start, which it never reads
        return {_NAMES[name]: tensor[: config.first_image_position].clone()}
    if name in _NAMES:
        return {_NAMES[name]: tensor}
    if stem in _NAMES:
        return {f"{_NAMES[stem]}.{kind}": tensor}
    if stem == "to_logits.1":
        texts = config.text_vocab_size + config.text_length
        return {f"text_head.{kind}": tensor[:texts].clone(), f"image_head.{kind}": tensor[texts:].clone()}
    match = re.fullmatch(r"transformer\.layers\.(\d+)\.([\w.]+)", stem)
    if match and match[2] == "attention.query_key_value":
        parts = tensor.chunk(3)
        return {
            f"layers.{match[1]}.self_attn.{part}_proj.{kind}": own.clone()
            for part, own in zip("qkv", parts, strict=True)
        }
    if match and match[2] in _LAYER_NAMES:
        return {f"layers.{match[1]}.{_LAYER_NAMES[match[2]]}.{kind}": tensor}
    raise ValueError(f"{quote(name, 200)} is no part of ru-DALL-E's transformer")
