"""Reading CLIP text encoders out of safetensors files, and making seeded ones where there is no file.

Layouts read: Hugging Face text models with and without the ``text_model.`` prefix (transformers 5 dropped it),
ComfyUI's ``clip_l`` files, and the text tower inside Stable Diffusion 1.x checkpoints. Sizes come from the tensors'
shapes. Pickled files are refused: loading one can run code.

Source: key names as found in files of openai/clip-vit-large-patch14, Stable Diffusion 1.5 and ComfyUI 0.29.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .config import CLIP_L, HEAD_DIM, TextConfig
from .text_model import TextModel

PREFIXES = {
    "text_model.": "Hugging Face text model",
    "": "Hugging Face text model (transformers 5)",
    "cond_stage_model.transformer.text_model.": "Stable Diffusion 1.x checkpoint",
    "cond_stage_model.transformer.": "Stable Diffusion 1.x checkpoint (transformers 5 names)",
    "clip_l.transformer.text_model.": "ComfyUI clip_l",
    "text_encoders.clip_l.transformer.text_model.": "ComfyUI checkpoint",
}
"""Where the text tower sits in a file, best known first, and what such a file is called."""

_TOKEN_KEY = "embeddings.token_embedding.weight"
_PROJECTION_KEY = "text_projection.weight"
_PICKLE_SUFFIXES = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}


class CheckpointError(ValueError):
    """A file that no text encoder can be read from; the message names the file and, where there is one, the key."""


@dataclass(frozen=True)
class LoadReport:
    """What became of every key of a file."""

    file: str
    """Name of the file."""
    layout: str
    """What kind of file it is."""
    config: TextConfig
    """Sizes read off the shapes."""
    dtypes: tuple[str, ...]
    """Types the used tensors had in the file, e.g. ``float16``."""
    used: tuple[str, ...]
    """Keys that went into the model."""
    missing: tuple[str, ...]
    """Optional keys the file does not have. A missing required key is an error."""
    ignored: tuple[str, ...]
    """Keys that belong to something else: U-Net, VAE, image tower, ..."""

    def __str__(self) -> str:
        """Summarise in a few lines, ignored keys counted by their first part."""
        config = self.config
        lines = [
            f"{self.file}: {self.layout}, {config.num_layers} layers of width {config.hidden_dim}, "
            f"stored as {', '.join(self.dtypes)}",
            f"  used {len(self.used)} tensors",
        ]
        if self.missing:
            lines.append(f"  not in the file, done without: {', '.join(self.missing)}")
        if self.ignored:
            groups = Counter(key.split(".")[0] for key in self.ignored)
            lines.append("  ignored: " + ", ".join(f"{group} ({count})" for group, count in groups.most_common()))
        return "\n".join(lines)


def load_text_model(
    path: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> tuple[TextModel, LoadReport]:
    """Read a text tower from a safetensors file.

    Args:
        path: The file.
        dtype: Type of the model's weights and of its arithmetic.
        device: Where the model shall be.

    Returns:
        The model, in evaluation mode without gradients, and a report on the file's keys.

    Raises:
        CheckpointError: If the file is missing, pickled, truncated, of another family, or holds wrong shapes, NaN or
            infinity.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file")
    if path.suffix.lower() in _PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{path}: pickled checkpoints are not loaded, because loading one can run code. Convert it to .safetensors "
            "first, for instance with the host's own converter, or download the .safetensors version"
        )
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            layout, key_of = _find_layout(path, shapes)
            config = _config_from_shapes(path, {name: shapes[key] for name, key in key_of.items()}, key_of)
            model = _empty_model(config)
            expected = dict(model.named_parameters())
            for name, parameter in expected.items():
                if name not in key_of:
                    raise CheckpointError(f"{path}: key {key_of.prefix + name!r} is missing; the file looks incomplete")
                if shapes[key_of[name]] != tuple(parameter.shape):
                    raise CheckpointError(
                        f"{path}: key {key_of[name]!r} has shape {list(shapes[key_of[name]])}, expected "
                        f"{list(parameter.shape)} beside the other shapes of this file"
                    )
            tensors = {name: file.get_tensor(key_of[name]) for name in expected}
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: not a readable safetensors file, perhaps cut off in download ({error})"
        ) from error

    for name, tensor in tensors.items():
        _check_values(path, key_of[name], tensor)
    dtypes = tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}))
    model.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    used = tuple(key_of[name] for name in expected)
    report = LoadReport(
        file=path.name,
        layout=layout,
        config=config,
        dtypes=dtypes,
        used=used,
        missing=() if config.projection_dim else (_PROJECTION_KEY,),
        ignored=tuple(sorted(set(shapes) - set(used))),
    )
    return model.to(device).eval().requires_grad_(False), report


def seeded_text_model(config: TextConfig = CLIP_L, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> TextModel:
    """A model with random weights that depend only on ``seed``: real wiring, no meaning.

    LayerNorm gains spread around 1 and biases around 0. With the usual gain 1 and bias 0 every row of the last hidden
    state would have mean zero, and the mean ratios of some weighting schemes would be rounding noise.

    Args:
        config: Sizes.
        seed: Seed of the generator.
        dtype: Type of the weights.

    Returns:
        The model, in evaluation mode without gradients.
    """
    generator = torch.Generator().manual_seed(seed)
    model = _empty_model(config).to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        if "layer_norm" not in name:
            parameter.data.uniform_(-0.09, 0.09, generator=generator)  # standard deviation 0.05; faster than normal
        elif name.endswith("weight"):
            parameter.data.normal_(1.0, 0.2, generator=generator)
        else:
            parameter.data.normal_(0.0, 0.1, generator=generator)
    return model.to(dtype).eval().requires_grad_(False)


class _KeyMap(dict[str, str]):
    """Our parameter name to the file's key, with the prefix under which the tower was found."""

    prefix = ""


def _find_layout(path: Path, shapes: dict[str, tuple[int, ...]]) -> tuple[str, _KeyMap]:
    for prefix, layout in PREFIXES.items():
        if prefix + _TOKEN_KEY in shapes:
            key_of = _KeyMap()
            key_of.prefix = prefix
            key_of.update({key.removeprefix(prefix): key for key in shapes if key.startswith(prefix)})
            # the projection stands beside the tower, not in it
            root = prefix.removesuffix("text_model.")
            if root + _PROJECTION_KEY in shapes:
                key_of[_PROJECTION_KEY] = root + _PROJECTION_KEY
            return layout, key_of
    hint = ""
    if any("transformer.resblocks." in key for key in shapes):
        hint = " It looks like an OpenAI or OpenCLIP layout, which is not read yet."
    elif any(key.startswith("model.diffusion_model.") for key in shapes):
        hint = " It holds a diffusion model but no CLIP-L text encoder."
    elif any("lora" in key for key in shapes):
        hint = " It looks like a LoRA."
    some = ", ".join(repr(key) for key in list(shapes)[:3]) or "none at all"
    raise CheckpointError(
        f"{path}: no CLIP text encoder in it: no key ends in {_TOKEN_KEY!r} where one is expected.{hint} "
        f"First keys: {some}"
    )


def _config_from_shapes(path: Path, shapes: dict[str, tuple[int, ...]], key_of: _KeyMap) -> TextConfig:
    def size(name: str, axis: int) -> int:
        if name not in shapes:
            raise CheckpointError(f"{path}: key {key_of.prefix + name!r} is missing; the file looks incomplete")
        if len(shapes[name]) != 2:
            raise CheckpointError(f"{path}: key {key_of[name]!r} has shape {list(shapes[name])}, expected two axes")
        return shapes[name][axis]

    width = size(_TOKEN_KEY, 1)
    if width < HEAD_DIM or width % HEAD_DIM:
        raise CheckpointError(
            f"{path}: key {key_of[_TOKEN_KEY]!r} has width {width}, expected a multiple of {HEAD_DIM}"
        )
    if size(_TOKEN_KEY, 0) != CLIP_L.vocab_size:
        raise CheckpointError(
            f"{path}: key {key_of[_TOKEN_KEY]!r} has {size(_TOKEN_KEY, 0)} tokens, expected {CLIP_L.vocab_size} as "
            "CLIP has"
        )
    layers = {name.split(".")[2] for name in shapes if name.startswith("encoder.layers.")}
    for index in range(len(layers)):
        if str(index) not in layers:
            raise CheckpointError(f"{path}: layer {index} of {len(layers)} is missing; the file looks incomplete")
    return replace(
        CLIP_L,
        hidden_dim=width,
        num_heads=width // HEAD_DIM,
        context_length=size("embeddings.position_embedding.weight", 0),
        num_layers=len(layers),
        mlp_dim=size("encoder.layers.0.mlp.fc1.weight", 0),
        projection_dim=size(_PROJECTION_KEY, 0) if _PROJECTION_KEY in shapes else None,
    )


def _empty_model(config: TextConfig) -> TextModel:
    with torch.device("meta"):
        return TextModel(config)


def _check_values(path: Path, key: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise CheckpointError(f"{path}: key {key!r} holds {tensor.dtype}, expected floating point numbers")
    finite = torch.isfinite(tensor.float())
    if not bool(finite.all()):
        bad = int((~finite).sum())
        raise CheckpointError(f"{path}: key {key!r} holds {bad} values that are NaN or infinite, of {tensor.numel()}")
