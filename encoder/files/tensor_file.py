"""A safetensors file as the towers it contains, fully checked.

Defines the messages about unusable files. ``layouts.py`` knows the keys, ``checkpoint.py`` builds models from what is
read here. Pickled files are refused: loading one can run code.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..models.config import CLIP_L, HEAD_DIM, MAX_POSITIONS, TOWERS, VISION_TOWERS, Positions, TextConfig, VisionConfig
from ..models.layers import ABOUT
from ..quoting import quote
from .config_file import ConfigFileError, Half, TowerProperties, properties_beside, read_json
from .layouts import (
    CLASS_NAME,
    KEPT_POSITIONS,
    OPENCLIP,
    OPENCLIP_VISION,
    PATCH_NAME,
    POSITION_NAME,
    PROJECTION_NAME,
    TOKEN_NAME,
    VISUAL_PROJECTION_NAME,
    FoundTower,
    ParameterLocation,
    Shapes,
    find_towers,
    find_vision_tower,
)
from .safetensors_file import FLOATS, RefusedFile, Shards, opened, why_unread

MAX_HEADER_BYTES = 16 * 2**20
"""Maximum header size. An SDXL checkpoint's has a third of a million bytes; recipes of merged files can be longer."""
MAX_WIDTH = 8192
"""Largest hidden, projection or patch width accepted. The widest released tower has 1664."""
MAX_MLP_DIM = 65536
"""Largest inner width of an MLP. The widest released one has 8192."""
MAX_LAYERS = 256
"""Maximum number of layers in a tower. The deepest released one has 48."""
MAX_IMAGE_SIZE = 2048
"""Largest side of an image, in pixels. The largest in use is 448."""
MAX_PARAMETERS = 4_000_000_000
"""Maximum number of parameters of a tower, 16 GB in float32. The largest released one has 1.9 billion. Other tensors in
a file are not read."""
MAX_LOG_SCALE = 20.0
"""Largest absolute value of a stored logarithmic scale; training caps it at 4.6."""

FETCH = (
    "Fetch a whole CLIP: model.safetensors (1.7 GB) from https://huggingface.co/openai/clip-vit-large-patch14 has both "
    "halves"
)
"""Advice where a half of a CLIP is missing."""

_ALONE = ("", "text.")
"""Prefixes of the towers of files that are no part of a larger model."""
_PICKLE_SUFFIXES = {".bin", ".ckpt", ".pkl", ".pt", ".pth"}
_INDEX_SUFFIX = ".safetensors.index.json"
_IN_FOLDERS = ("model.safetensors", f"model{_INDEX_SUFFIX}", "open_clip_model.safetensors")
"""Files of a model in a folder of Hugging Face, the first of which is read; the second lists several files."""
MAX_SHARDS = 16
"""Maximum number of files of one model. Hugging Face divides models of more than 5 GB, some into more than 50 files."""


class CheckpointError(ValueError):
    """Raised for a file without a readable text encoder; the message names the file and, if possible, the key."""


@dataclass(frozen=True)
class TensorFile:
    """An open safetensors file. Every method raises CheckpointError for an invalid file."""

    path: Path
    """Path of the file."""
    handle: Any
    """Handle from which safetensors reads tensors."""
    shapes: Shapes
    """Shape of each tensor by key."""
    properties: dict[str, TowerProperties] = field(default_factory=dict)
    """Properties that no tensor tells, by tower, of the towers whose sizes were read."""

    def towers(self) -> list[FoundTower]:
        """Text towers in the file, at least one."""
        towers = find_towers(self.shapes)
        if towers:
            return towers
        hint = ""
        if any(key.startswith("model.diffusion_model.") for key in self.shapes):
            hint = " It holds a diffusion model but no CLIP text encoder."
        elif any("lora" in key for key in self.shapes):
            hint = " It looks like a LoRA."
        elif find_vision_tower(self.shapes):
            hint = f" It is a CLIP without its text half. {FETCH}"
        first_keys = ", ".join(quote(key, 200) for key in list(self.shapes)[:3]) or "none at all"
        raise CheckpointError(
            f"no CLIP text encoder in it: no key ends in {TOKEN_NAME.removeprefix('embeddings.')!r} where "
            f"one is expected.{hint} First keys: {first_keys}"
        )

    def config(self, tower: FoundTower) -> TextConfig:
        """Sizes from the shapes, the rest from a config next to the file or from the released tower."""
        size = partial(self._size, tower)
        token_key = tower.source(TOKEN_NAME, self.shapes).key
        width, vocab_size = size(TOKEN_NAME, 1), size(TOKEN_NAME, 0, limit=CLIP_L.vocab_size)
        if vocab_size != CLIP_L.vocab_size:
            raise _about_key(token_key, f"has {vocab_size} tokens, expected {CLIP_L.vocab_size} as CLIP has")
        positions = self._positions(tower)
        context_length = size(POSITION_NAME, 0, limit=MAX_POSITIONS)
        if context_length < 3:
            key = tower.source(POSITION_NAME, self.shapes).key
            raise _about_key(key, f"has {context_length} positions; BOS, a token and EOS need 3")
        sizes = {"max_position_embeddings": context_length, "vocab_size": vocab_size}
        shared = self._shared(tower, "text", width, sizes, TOWERS[tower.name], token_key, PROJECTION_NAME)
        if positions == "rotary" and width // shared["num_heads"] % 2:
            raise CheckpointError(f"its {shared['num_heads']} heads are of odd width, and its positions are rotary")
        return replace(TOWERS[tower.name], context_length=context_length, positions=positions, **shared)

    def _shared(
        self,
        tower: FoundTower,
        half: Half,
        width: int,
        more: Mapping[str, int],
        released: TextConfig | VisionConfig,
        width_key: str,
        projection_name: str,
    ) -> dict[str, Any]:
        """Fields that the configs of both halves have; ``more`` are sizes of one half, by Hugging Face's names."""
        is_projected = tower.source(projection_name, self.shapes).key in self.shapes
        projection_dim = self._size(tower, projection_name, 0) if is_projected else None
        num_layers = self._num_layers(tower)
        mlp_dim = self._size(tower, "encoder.layers.0.mlp.fc1.weight", 0, limit=MAX_MLP_DIM)
        sizes = {
            "hidden_size": width,
            "intermediate_size": mlp_dim,
            "num_hidden_layers": num_layers,
            "projection_dim": projection_dim,
            **more,
        }
        properties = self._properties(tower, half, sizes, released, width_key)
        return {
            "hidden_dim": width,
            "num_heads": properties.num_heads,
            "num_layers": num_layers,
            "mlp_dim": mlp_dim,
            "activation": properties.activation,
            "layer_norm_eps": properties.layer_norm_eps,
            "projection_dim": projection_dim,
        }

    def _properties(
        self,
        tower: FoundTower,
        half: Half,
        sizes: Mapping[str, int | None],
        released: TextConfig | VisionConfig,
        width_key: str,
    ) -> TowerProperties:
        """Properties from a config next to the file, if it is a separate model; else as in a released tower."""
        properties: TowerProperties | str = ""
        if tower.location.prefix in _ALONE:
            is_open_clip = tower.location.table in (OPENCLIP, OPENCLIP_VISION)
            try:
                properties = properties_beside(self.path, half, sizes, is_open_clip=is_open_clip)
            except ConfigFileError as error:
                # as a problem of the system: one of the file is remembered, and this can be mended beside it
                raise CheckpointError(str(error)) from OSError(str(error))
        if isinstance(properties, str):
            width = sizes["hidden_size"] or 0
            is_released = width == released.hidden_dim
            if not is_released and (width < HEAD_DIM or width % HEAD_DIM):
                raise _about_key(width_key, f"has width {width}, expected a multiple of {HEAD_DIM}")
            heads = released.num_heads if is_released else width // HEAD_DIM
            properties = TowerProperties(heads, released.activation, released.layer_norm_eps, ignored=properties)
        self.properties[tower.name] = properties
        return properties

    def _positions(self, tower: FoundTower) -> Positions:
        """Learned if the file has a table of positions; rotary if the table is 0 wide, as written by ``train``."""
        key = tower.source(POSITION_NAME, self.shapes).key
        shape, metadata = self.shapes.get(key, ()), self.handle.metadata() or {}
        said = metadata.get("positions", "learned")
        positions: Positions = "rotary" if len(shape) == 2 and shape[1] == 0 else "learned"
        if (said == "rotary") != (positions == "rotary"):  # other meanings of the name in a file are not our concern
            raise CheckpointError(
                f"its metadata say positions={quote(said)}, and key {quote(key, 200)} has shape {quote(list(shape))}, "
                f"as {positions} positions have it: a table as wide as the encoder for learned ones, 0 wide for rotary "
                "ones"
            )
        if positions == "rotary" and metadata.get("rotary") != ABOUT:
            raise CheckpointError(
                f"its metadata say rotary={quote(metadata.get('rotary'), 200)}; the rotary positions that are read are "
                f"rotary={ABOUT!r}"
            )
        return positions

    def vision_tower(self) -> FoundTower:
        """The image tower in the file."""
        tower = find_vision_tower(self.shapes)
        if tower:
            return tower
        hint = " It is a CLIP without its image half." if find_towers(self.shapes) else ""
        raise CheckpointError(f"no CLIP image encoder in it.{hint} {FETCH}")

    def vision_config(self, tower: FoundTower) -> VisionConfig:
        """Sizes from the shapes, the rest from a config next to the file or the released encoder of that width."""
        size = partial(self._size, tower)
        width, patch_size = size(CLASS_NAME, 0, num_axes=1), size(PATCH_NAME, 3, num_axes=4, limit=MAX_IMAGE_SIZE)
        num_patches = size(POSITION_NAME, 0, limit=MAX_POSITIONS) - 1
        grid = math.isqrt(max(num_patches, 0))
        if grid < 1 or grid**2 != num_patches:
            key = tower.source(POSITION_NAME, self.shapes).key
            raise _about_key(key, f"has {num_patches + 1} positions, expected 1 and those of a square of patches")
        if grid * patch_size > MAX_IMAGE_SIZE:
            raise CheckpointError(
                f"its image encoder takes pictures of {grid * patch_size} pixels along each side, at most "
                f"{MAX_IMAGE_SIZE} are possible here"
            )
        sizes = {"image_size": grid * patch_size, "patch_size": patch_size}
        released = next((config for config in VISION_TOWERS.values() if config.hidden_dim == width), VisionConfig())
        width_key = tower.source(CLASS_NAME, self.shapes).key
        shared = self._shared(tower, "vision", width, sizes, released, width_key, VISUAL_PROJECTION_NAME)
        return VisionConfig(**sizes, **shared)

    def log_scale(self, key: str) -> float | None:
        """Logarithm of a scale stored under a key, or None."""
        if key not in self.shapes:
            return None
        shape = self.shapes[key]
        if shape not in ((), (1,)):
            raise _about_key(key, f"has shape {quote(list(shape))}, expected one number")
        number = float(self.tensor(ParameterLocation(key, None, is_transposed=False)))
        if abs(number) > MAX_LOG_SCALE:
            allowed = f"{-MAX_LOG_SCALE:g} to {MAX_LOG_SCALE:g}"
            raise _about_key(key, f"holds {number:g}, the logarithm of a scale is {allowed}")
        return number

    def sources(self, tower: FoundTower, model: nn.Module) -> dict[str, ParameterLocation]:
        """Location of each parameter of the model, checked for its shape."""
        count = sum(parameter.numel() for parameter in model.parameters())
        if count > MAX_PARAMETERS:
            raise CheckpointError(f"one encoder in it has {count:,} parameters, at most {MAX_PARAMETERS:,} are read")
        sources = {name: tower.source(name, self.shapes) for name, _ in model.named_parameters()}
        for name, parameter in model.named_parameters():
            shape, expected = self._shape(sources[name]), sources[name].stored_shape(tuple(parameter.shape))
            if shape != expected:
                beside = f"expected {list(expected)} beside the other shapes of this file"
                raise _about_key(sources[name].key, f"has shape {quote(list(shape))}, {beside}")
        source_keys = {source.key for source in sources.values()}
        for key in self.shapes:
            if key.startswith(tower.location.layer_prefix) and key not in source_keys:
                why = "the file may be quantised, or of another kind of model"
                raise _about_key(key, f"is in no layer of a plain CLIP encoder; {why}")
        return sources

    def tensor(self, source: ParameterLocation) -> Tensor:
        """Values of one parameter."""
        stored = self.shapes[source.key]
        dtype = self.handle.get_slice(source.key).get_dtype()
        if dtype not in FLOATS:
            raise _about_key(source.key, f"holds {dtype}, expected floating point numbers: {', '.join(FLOATS)}")
        if source.third is None:
            tensor: Tensor = self.handle.get_tensor(source.key)
        else:
            rows = stored[0] // 3
            tensor = self.handle.get_slice(source.key)[rows * source.third : rows * (source.third + 1)]
        finite = torch.isfinite(tensor.float())
        if not bool(finite.all()):
            bad = int((~finite).sum())
            what = f"{bad} values that are NaN, infinite or beyond float32, of {tensor.numel()}"
            raise _about_key(source.key, f"holds {what}")
        if source.later_key is not None:
            later = self.tensor(source._replace(key=source.later_key, later_key=None))
            if later.shape != tensor.shape:
                expected = f"expected {list(tensor.shape)} as {quote(source.key, 200)} has"
                raise _about_key(source.later_key, f"has shape {quote(list(later.shape))}, {expected}")
            tensor = torch.cat([tensor[:KEPT_POSITIONS], later[KEPT_POSITIONS:]])
        return tensor.T.contiguous() if source.is_transposed else tensor

    def _size(self, tower: FoundTower, name: str, axis: int, *, num_axes: int = 2, limit: int = MAX_WIDTH) -> int:
        """Length of an axis of one of our parameters, at least 1."""
        source = tower.source(name, self.shapes)
        shape = self._shape(source)
        if len(shape) != num_axes:
            axes = {1: "one axis", 2: "two axes"}.get(num_axes, f"{num_axes} axes")
            raise _about_key(source.key, f"has shape {quote(list(shape))}, expected {axes}")
        size = shape[num_axes - 1 - axis] if source.is_transposed else shape[axis]
        if not 1 <= size <= limit:
            raise _about_key(source.key, f"has shape {quote(list(shape))}, and {size} is not between 1 and {limit}")
        return size

    def _num_layers(self, tower: FoundTower) -> int:
        """Number of layers in a tower, none of them missing."""
        if len(tower.layers) > MAX_LAYERS:
            raise CheckpointError(f"{len(tower.layers)} layers in one encoder, at most {MAX_LAYERS} are read")
        for index in range(len(tower.layers)):
            if str(index) not in tower.layers:
                raise CheckpointError(f"layer {index} of {len(tower.layers)} is missing; the file looks incomplete")
        return len(tower.layers)

    def _shape(self, source: ParameterLocation) -> tuple[int, ...]:
        if source.key not in self.shapes:
            raise _about_key(source.key, "is missing; the file looks incomplete")
        return self.shapes[source.key]


def _about_key(key: str, what: str) -> CheckpointError:
    """Error about a key of a file."""
    return CheckpointError(f"key {quote(key, 200)} {what}")


@contextmanager
def open_tensor_file(path: Path) -> Generator[TensorFile]:
    """Open the weights of a model: a file, or those in a folder as Hugging Face's libraries write it.

    Problems with it, at any time within the context, are raised as a CheckpointError that names the file.
    """
    try:
        if path.is_dir():
            path = path / _name_in(path)
        if path.suffix.lower() in _PICKLE_SUFFIXES:
            raise CheckpointError(
                "pickled checkpoints are not loaded, because loading one can run code. Convert it to .safetensors "
                "first, for instance with the host's own converter, or download the .safetensors version"
            )
        with _opened(path) as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
            yield TensorFile(path, file, shapes)
    except CheckpointError as error:
        error.args = (f"{path}: {error}",)
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: {why_unread(error)}") from error


def _name_in(folder: Path) -> str:
    """Name of the model's file in a folder; of a pickled one, which is refused, if there is no other."""
    names = sorted(path.name for path in folder.iterdir())
    pickled = (name for name in names if Path(name).suffix.lower() in _PICKLE_SUFFIXES)
    name = next((name for name in _IN_FOLDERS if name in names), None) or next(pickled, None)
    if name is None:
        candidates = [
            name for name in names if name.endswith(".safetensors") or (folder / name / _IN_FOLDERS[0]).is_file()
        ]
        raise CheckpointError(
            f"none of {', '.join(_IN_FOLDERS)} is in this folder. Name a .safetensors file, or a folder that has one "
            f"of these{': ' if candidates else ''}{', '.join(map(quote, candidates[:3]))}"
        )
    return name


@contextmanager
def _opened(path: Path) -> Generator[Any]:
    """Open a file, or all that an index lists."""
    if not path.name.endswith(_INDEX_SUFFIX):
        with opened(path, MAX_HEADER_BYTES) as file:
            yield file
        return
    try:
        index = read_json(path)
    except ConfigFileError as error:
        raise RefusedFile(str(error)) from error
    if index is None:
        raise FileNotFoundError(path)
    listed = index.get("weight_map")
    files = cast("list[Any]", [*listed.values()]) if isinstance(listed, dict) else []
    for name in files:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise RefusedFile(f"its weight_map lists {quote(name)}, expected .safetensors files beside it")
    names = sorted(set(files))
    if not 1 <= len(names) <= MAX_SHARDS:
        raise RefusedFile(f"its weight_map lists {len(names)} files, expected 1 to {MAX_SHARDS}")
    with ExitStack() as stack:
        try:
            opened_files = [stack.enter_context(opened(path.with_name(name), MAX_HEADER_BYTES)) for name in names]
        except FileNotFoundError as error:
            raise RefusedFile(f"a file that it lists is not there: {error}") from error
        yield Shards(opened_files)
