"""A safetensors file as the towers that are in it, with everything checked that can be wrong with it.

Owns what is said of files that cannot be used. ``layouts.py`` knows the keys, ``checkpoint.py`` makes models of what is
read here. Pickled files are refused: loading one can run code.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from .config import CLIP_L, HEAD_DIM, TOWERS, VISION_TOWERS, TextConfig, VisionConfig
from .layouts import (
    CLASS_NAME,
    PATCH_NAME,
    POSITION_NAME,
    PROJECTION_NAME,
    TOKEN_NAME,
    VISUAL_PROJECTION_NAME,
    FoundTower,
    Shapes,
    Source,
    find_towers,
    find_vision_tower,
)

_PICKLE_SUFFIXES = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}


class CheckpointError(ValueError):
    """A file that no text encoder can be read from; the message names the file and, where there is one, the key."""


@dataclass(frozen=True)
class TensorFile:
    """An open safetensors file. Every method raises CheckpointError where the file is not as it should be."""

    path: Path
    """Where it is, for messages."""
    handle: Any
    """What safetensors gives the tensors from."""
    shapes: Shapes
    """Shape of the tensor behind each key."""

    def towers(self) -> list[FoundTower]:
        """The text towers in it, at least one."""
        found = find_towers(self.shapes)
        if found:
            return found
        hint = ""
        if any(key.startswith("model.diffusion_model.") for key in self.shapes):
            hint = " It holds a diffusion model but no CLIP text encoder."
        elif any("lora" in key for key in self.shapes):
            hint = " It looks like a LoRA."
        some = ", ".join(repr(key) for key in list(self.shapes)[:3]) or "none at all"
        raise CheckpointError(
            f"{self.path}: no CLIP text encoder in it: no key ends in {TOKEN_NAME.removeprefix('embeddings.')!r} where "
            f"one is expected.{hint} First keys: {some}"
        )

    def config(self, tower: FoundTower) -> TextConfig:
        """Sizes as the shapes have them, the rest as the tower was released."""

        def size(name: str, axis: int) -> int:
            return self._size(tower, name, axis, num_axes=2)

        token_key = tower.source(TOKEN_NAME, self.shapes).key
        width, vocab_size = size(TOKEN_NAME, 1), size(TOKEN_NAME, 0)
        if width < HEAD_DIM or width % HEAD_DIM:
            raise CheckpointError(
                f"{self.path}: key {token_key!r} has width {width}, expected a multiple of {HEAD_DIM}"
            )
        if vocab_size != CLIP_L.vocab_size:
            raise CheckpointError(
                f"{self.path}: key {token_key!r} has {vocab_size} tokens, expected {CLIP_L.vocab_size} as CLIP has"
            )
        is_projected = tower.source(PROJECTION_NAME, self.shapes).key in self.shapes
        return replace(
            TOWERS[tower.name],
            hidden_dim=width,
            num_heads=width // HEAD_DIM,
            context_length=size(POSITION_NAME, 0),
            num_layers=self._num_layers(tower),
            mlp_dim=size("encoder.layers.0.mlp.fc1.weight", 0),
            projection_dim=size(PROJECTION_NAME, 0) if is_projected else None,
        )

    def vision_tower(self) -> FoundTower:
        """The image tower in it."""
        found = find_vision_tower(self.shapes)
        if found:
            return found
        hint = " It is a CLIP without its image half." if find_towers(self.shapes) else ""
        raise CheckpointError(
            f"{self.path}: no CLIP image encoder in it.{hint} A whole CLIP is wanted, such as the model.safetensors of "
            "openai/clip-vit-large-patch14"
        )

    def vision_config(self, tower: FoundTower) -> VisionConfig:
        """Sizes as the shapes have them, the rest as the encoder of that width was released."""

        def size(name: str, axis: int, num_axes: int = 2) -> int:
            return self._size(tower, name, axis, num_axes=num_axes)

        width, patch_size = size(CLASS_NAME, 0, 1), size(PATCH_NAME, 3, 4)
        released = next((config for config in VISION_TOWERS.values() if config.hidden_dim == width), None)
        if released is None and (width < HEAD_DIM or width % HEAD_DIM):
            key = tower.source(CLASS_NAME, self.shapes).key
            raise CheckpointError(f"{self.path}: key {key!r} has width {width}, expected a multiple of {HEAD_DIM}")
        num_patches = size(POSITION_NAME, 0) - 1
        grid = math.isqrt(max(num_patches, 0))
        if grid < 1 or grid**2 != num_patches:
            key = tower.source(POSITION_NAME, self.shapes).key
            raise CheckpointError(
                f"{self.path}: key {key!r} has {num_patches + 1} positions, expected 1 and those of a square of patches"
            )
        is_projected = tower.source(VISUAL_PROJECTION_NAME, self.shapes).key in self.shapes
        return VisionConfig(
            image_size=grid * patch_size,
            patch_size=patch_size,
            hidden_dim=width,
            num_heads=released.num_heads if released else width // HEAD_DIM,
            num_layers=self._num_layers(tower),
            mlp_dim=size("encoder.layers.0.mlp.fc1.weight", 0),
            activation=released.activation if released else "quick_gelu",
            projection_dim=size(VISUAL_PROJECTION_NAME, 0) if is_projected else None,
        )

    def scale(self, key: str) -> float | None:
        """A number that the file has under a key, or None."""
        if key not in self.shapes:
            return None
        tensor = self.tensor(Source(key, None, is_transposed=False))
        if tensor.numel() != 1:
            raise CheckpointError(f"{self.path}: key {key!r} has shape {list(tensor.shape)}, expected one number")
        return float(tensor)

    def sources(self, tower: FoundTower, model: nn.Module) -> dict[str, Source]:
        """Where each parameter of the model is, with the right shape."""
        sources = {name: tower.source(name, self.shapes) for name, _ in model.named_parameters()}
        for name, parameter in model.named_parameters():
            shape, expected = self._shape(sources[name]), sources[name].stored_shape(tuple(parameter.shape))
            if shape != expected:
                raise CheckpointError(
                    f"{self.path}: key {sources[name].key!r} has shape {list(shape)}, expected {list(expected)} beside "
                    "the other shapes of this file"
                )
        known = {source.key for source in sources.values()}
        for key in self.shapes:
            if key.startswith(tower.layer_prefix) and key not in known:
                raise CheckpointError(
                    f"{self.path}: key {key!r} is in no layer of a plain CLIP encoder; the file may be quantised, "
                    "or of another kind of model"
                )
        return sources

    def tensor(self, source: Source) -> Tensor:
        """The values of one parameter."""
        stored = self.shapes[source.key]
        if source.third is None:
            tensor: Tensor = self.handle.get_tensor(source.key)
        else:
            rows = stored[0] // 3
            tensor = self.handle.get_slice(source.key)[rows * source.third : rows * (source.third + 1)]
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{self.path}: key {source.key!r} holds {tensor.dtype}, expected floating point numbers"
            )
        finite = torch.isfinite(tensor.float())
        if not bool(finite.all()):
            bad = int((~finite).sum())
            raise CheckpointError(
                f"{self.path}: key {source.key!r} holds {bad} values that are NaN or infinite, of {tensor.numel()}"
            )
        return tensor.T.contiguous() if source.is_transposed else tensor

    def _size(self, tower: FoundTower, name: str, axis: int, *, num_axes: int) -> int:
        """Length of an axis of a parameter of ours."""
        source = tower.source(name, self.shapes)
        shape = self._shape(source)
        if len(shape) != num_axes:
            wanted = {1: "one axis", 2: "two axes"}.get(num_axes, f"{num_axes} axes")
            raise CheckpointError(f"{self.path}: key {source.key!r} has shape {list(shape)}, expected {wanted}")
        return shape[num_axes - 1 - axis] if source.is_transposed else shape[axis]

    def _num_layers(self, tower: FoundTower) -> int:
        """How many layers a tower has, none of them missing."""
        for index in range(len(tower.layers)):
            if str(index) not in tower.layers:
                raise CheckpointError(
                    f"{self.path}: layer {index} of {len(tower.layers)} is missing; the file looks incomplete"
                )
        return len(tower.layers)

    def _shape(self, source: Source) -> tuple[int, ...]:
        if source.key not in self.shapes:
            raise CheckpointError(f"{self.path}: key {source.key!r} is missing; the file looks incomplete")
        return self.shapes[source.key]


@contextmanager
def open_tensor_file(path: Path) -> Generator[TensorFile]:
    """The open file; what safetensors raises on it, also later on, comes out as a CheckpointError."""
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
            yield TensorFile(path, file, shapes)
    except SafetensorError as error:
        raise CheckpointError(
            f"{path}: not a readable safetensors file, perhaps cut off in download ({error})"
        ) from error
