"""Reading CLIP's text encoders from safetensors files, making seeded ones without a file, and writing towers.

``layouts.py`` defines the supported files: those of Hugging Face, OpenAI, OpenCLIP and ComfyUI, and checkpoints of
Stable Diffusion 1.x, 2.x and SDXL. ``tensor_file.py`` reads them. Sizes come from the tensors' shapes; what shapes do
not tell comes from a config beside the file (``config_file.py``) or is that of the released tower. Towers are written
with Hugging Face's keys, for other programs; ``studio/output/`` writes the bytes.

Source: the ``model.safetensors`` of openai/clip-vit-large-patch14. ComfyUI 0.29 recognises a text encoder by the prefix
``text_model.``: without it, it finds none of its weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..models.config import CLIP_L, HEAD_DIM, VISION_TOWERS, Activation, TextConfig, VisionConfig, sizes_of
from ..models.layers import ABOUT
from ..models.linear import overflow
from ..models.text_model import TextModel
from ..models.vision_model import VisionModel
from ..quoting import quote
from .config_file import Told, origin_of
from .layouts import HUGGING_FACE, HUGGING_FACE_VISION, LAYER_NUMBER, POSITION_NAME, PROJECTION_NAME, FoundTower
from .tensor_file import CheckpointError, TensorFile, open_tensor_file

Model = TypeVar("Model", bound=nn.Module)

MAX_GROUPS = 20
"""Maximum number of groups of ignored keys listed; the rest are only counted."""


@dataclass(frozen=True)
class TowerReport:
    """Report on one text tower of a file, and the keys it used."""

    tower: str
    """ComfyUI's name for it: ``clip_l``, ``clip_g`` or ``clip_h``."""
    layout: str
    """Name of the file layout."""
    config: TextConfig
    """Sizes inferred from shapes."""
    told: Told
    """Heads and activation of the file, and their origin."""
    is_activation_given: bool
    """Whether the caller chose the activation."""
    dtypes: tuple[str, ...]
    """Types of the used tensors in the file, e.g. ``float16``."""
    used: tuple[str, ...]
    """Keys loaded into the model."""
    missing: tuple[str, ...]
    """Optional keys missing in the file. A missing required key is an error."""

    def __str__(self) -> str:
        """Summarise in a few lines."""
        config = self.config
        assumed = f"by {self.told.file}" if self.told.file else f"assumed, as {self.tower} was released"
        origin = "as chosen" if self.is_activation_given else assumed
        lines = [
            f"{self.tower}: {self.layout}, {config.num_layers} layers of width {config.hidden_dim}, "
            f"stored as {', '.join(self.dtypes)}",
            f"  activation {config.activation} ({origin})",
            *(["  rotary positions"] if config.positions == "rotary" else []),
            f"  used {len(self.used)} tensors",
        ]
        if self.missing:
            lines.append(f"  not in the file, done without: {', '.join(self.missing)}")
        return "\n".join(lines)


@dataclass(frozen=True)
class LoadReport:
    """Report on every key in a file: loaded, missing or ignored."""

    file: str
    """Name of the file."""
    towers: tuple[TowerReport, ...]
    """Towers that were read, in the order L, G, H."""
    ignored: tuple[str, ...]
    """Keys of other parts: U-Net, VAE, image tower, a second copy of a text tower, ..."""

    @property
    def layout(self) -> str:
        """Kind of file."""
        return ", ".join(dict.fromkeys(tower.layout for tower in self.towers))

    @property
    def origin(self) -> str:
        """Origin of heads and activations."""
        told = {tower.tower: tower.told for tower in self.towers}
        chosen = [tower.config.activation for tower in self.towers if tower.is_activation_given]
        return origin_of(told, *chosen[:1])

    def __str__(self) -> str:
        """Summarise in a few lines, with ignored keys counted by their first part."""
        lines = [f"{self.file}: {self.layout}; {self.origin}"]
        lines += ["  " + str(tower).replace("\n", "\n  ") for tower in self.towers]
        if self.ignored:
            groups = Counter(key.split(".")[0] for key in self.ignored)
            some = [f"{group:.60} ({count})" for group, count in groups.most_common(MAX_GROUPS)]
            left = [f"and {len(groups) - MAX_GROUPS} more"] if len(groups) > MAX_GROUPS else []
            lines.append("  ignored: " + ", ".join(some + left))
        return "\n".join(lines)


def load_text_models(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    activation: Activation | None = None,
) -> tuple[dict[str, TextModel], LoadReport]:
    """Read every text tower of a safetensors file.

    Args:
        path: The file.
        dtype: Type of the models' weights and computation.
        device: Device of the models.
        activation: Non-linearity of every tower. None: that of the config beside the file, if there is one; or
            quick_gelu for ``clip_l`` and gelu for the others, as released. OpenCLIP's own ViT-L/14 has gelu.

    Returns:
        The models by name, ``clip_l``, ``clip_g`` and ``clip_h`` in this order, in evaluation mode without gradients,
        and a report on the file's keys.

    Raises:
        CheckpointError: If the file is missing, pickled, truncated, of another family, or holds wrong shapes, NaN or
            infinity or values beyond ``dtype``.
    """
    models: dict[str, TextModel] = {}
    reports: list[TowerReport] = []
    with open_tensor_file(Path(path)) as file:
        for tower in file.towers():
            config = file.config(tower)
            if activation is not None:
                config = replace(config, activation=activation)
            with torch.device("meta"):
                model = models[tower.name] = TextModel(config)
            dtypes, used = load_weights(file, tower, model, dtype, device)
            if config.positions == "rotary":  # the empty table that indicates it
                used = (*used, tower.source(POSITION_NAME, file.shapes).key)
            report = TowerReport(
                tower=tower.name,
                layout=tower.place.layout,
                config=config,
                told=file.told[tower.name],
                is_activation_given=activation is not None,
                dtypes=dtypes,
                used=used,
                missing=() if config.projection_dim else (PROJECTION_NAME,),
            )
            reports.append(report)
        ignored = set(file.shapes).difference(*(report.used for report in reports))
    return models, LoadReport(file.path.name, tuple(reports), tuple(sorted(ignored)))


def seeded_text_model(config: TextConfig = CLIP_L, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> TextModel:
    """Model with random weights that depend only on ``seed``: real architecture, meaningless results.

    LayerNorm gains vary around 1 and biases around 0. With the usual gain 1 and bias 0 every row of the last hidden
    state would have mean zero, and the mean ratios of some weighting schemes would be rounding noise.

    Args:
        config: Sizes.
        seed: Seed of the generator.
        dtype: Type of the weights.

    Returns:
        The model, in evaluation mode without gradients.
    """
    return _seeded(TextModel, config, seed).to(dtype)


def seeded_vision_model(
    config: VisionConfig = VISION_TOWERS["L/14"], *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> VisionModel:
    """Same as `seeded_text_model`, for an image tower."""
    return _seeded(VisionModel, config, seed).to(dtype)


def _seeded(kind: Callable[[Any], Model], config: TextConfig | VisionConfig, seed: int) -> Model:
    generator = torch.Generator().manual_seed(seed)
    with torch.device("meta"):
        model = kind(config)
    model.to_empty(device="cpu")
    for name, parameter in model.named_parameters():
        if "layer_norm" not in name:
            parameter.data.uniform_(-0.09, 0.09, generator=generator)  # standard deviation 0.05; faster than normal
        elif name.endswith("weight"):
            parameter.data.normal_(1.0, 0.2, generator=generator)
        else:
            parameter.data.normal_(0.0, 0.1, generator=generator)
    return model.eval().requires_grad_(False)


def load_weights(
    file: TensorFile, tower: FoundTower, model: nn.Module, dtype: torch.dtype, device: torch.device | str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Fill a model created without memory from a tower of a file."""
    sources = file.sources(tower, model)
    tensors = {name: file.tensor(source) for name, source in sources.items()}
    # copies: safetensors' tensors map the file, which could then not be replaced (Windows) or overwritten
    copies = {name: tensor.to(device, dtype, copy=True) for name, tensor in tensors.items()}
    for name, copy in copies.items():
        problem = overflow(tensors[name], copy)
        if problem:
            raise CheckpointError(f"key {quote(sources[name].key, 200)} {problem}")
    model.load_state_dict(copies, assign=True)
    model.to(device).eval().requires_grad_(False)
    dtypes = tuple(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}))
    return dtypes, tuple(
        dict.fromkeys(key for source in sources.values() for key in (source.key, source.later_key) if key)
    )


def hugging_face_tensors(
    model: TextModel | VisionModel, parameters: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Parameters of a tower under the keys known to transformers, ComfyUI, A1111 and Forge.

    Args:
        model: The tower.
        parameters: Values by our names instead of the model's own, such as their moving averages.

    Returns:
        Contiguous tensors by key, on the CPU, in their original types. For a tower with rotary positions this includes
        a position table of width 0, which hosts refuse: without it they would use uninitialised memory as a table.
    """
    table = HUGGING_FACE if isinstance(model, TextModel) else HUGGING_FACE_VISION
    keys: dict[str, str] = {}
    for key, name in table.items():
        keys.setdefault(name, key)
    tensors: dict[str, Tensor] = {}
    for name, tensor in (dict(model.named_parameters()) if parameters is None else parameters).items():
        match = LAYER_NUMBER.search(name)
        key = keys[LAYER_NUMBER.sub("{}", name)].format(match.group() if match else "")
        tensors[key] = tensor.detach().cpu().contiguous()
    if isinstance(model, TextModel) and model.config.positions == "rotary":
        tensors[keys[POSITION_NAME]] = torch.zeros(model.config.context_length, 0)
    return tensors


def config_of(text: TextConfig, vision: VisionConfig) -> dict[str, Any] | None:
    """`clip_config`; None for a CLIP that its tensors alone would be taken for."""
    released = next((one for one in VISION_TOWERS.values() if one.hidden_dim == vision.hidden_dim), None)
    usual = VisionConfig() if released is None else released
    heads = vision.hidden_dim // HEAD_DIM if released is None else released.num_heads
    told = {(one.activation, one.layer_norm_eps) for one in (text, vision)}
    is_usual = told == {(usual.activation, usual.layer_norm_eps)}
    if is_usual and (text.num_heads, vision.num_heads) == (text.hidden_dim // HEAD_DIM, heads):
        return None
    return clip_config(text, vision)


def clip_config(text: TextConfig, vision: VisionConfig) -> dict[str, Any]:
    """Contents of transformers' ``config.json`` for both towers."""
    return {
        "architectures": ["CLIPModel"],
        "model_type": "clip",
        "projection_dim": text.projection_dim,
        "text_config": text_config(text),
        "vision_config": {
            **_shared(vision),
            "model_type": "clip_vision_model",
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
        },
    }


def text_config(config: TextConfig) -> dict[str, Any]:
    """Contents of transformers' ``config.json`` for a text tower."""
    return {
        **_shared(config),
        "model_type": "clip_text_model",
        "max_position_embeddings": config.context_length,
        "vocab_size": config.vocab_size,
        "bos_token_id": config.bos_id,
        "eos_token_id": config.eos_id,
    }


def _shared(config: TextConfig | VisionConfig) -> dict[str, Any]:
    return {
        **sizes_of(config),
        "hidden_act": config.activation,
        "layer_norm_eps": config.layer_norm_eps,
        **({} if config.projection_dim is None else {"projection_dim": config.projection_dim}),
    }


def position_metadata(config: TextConfig) -> dict[str, str]:
    """Metadata entries about a text tower's positions; empty if they are learned, as hosts expect."""
    return {"positions": "rotary", "rotary": ABOUT} if config.positions == "rotary" else {}
