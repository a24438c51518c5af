"""Models of ours that ComfyUI manages: the native encoder and a complete CLIP.

Memory is the host's, computation is ours.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from ....encoder.files.checkpoint import LoadReport, load_text_models
from ....encoder.images import image_features
from ....encoder.models.clip import FullClip, load_full_clip
from ....encoder.models.config import Crop, Family, TextConfig
from ....encoder.models.prefix import encoders_for
from ....encoder.models.text_model import TextEncoder
from ....encoder.tokenizer import default_tokenizer
from ....weighting.encoders import EncodedTowers, Prepared
from ....weighting.reading.features import TextFeatures, text_features
from ....weighting.text.embeddings import Embeddings
from ....weighting.towers import Reader, layout_of, native_readers
from ..contract import host
from ..types import Clip, ModelPatcher
from .native_clip import native_clip
from .token_offsets import HostEmbeddings

logger = logging.getLogger(__name__)
Model = TypeVar("Model")


@dataclass(frozen=True)
class Hosted(Generic[Model]):
    """Value of a link that carries a model of ours."""

    model: Model
    patcher: ModelPatcher
    """The host's ModelPatcher around it."""


@dataclass(frozen=True)
class NativeClip:
    """Value of a WEIGHTED_CLIP link: our own encoder, kept in memory by the host."""

    encoders: Mapping[str, TextEncoder]
    """The towers with their layer choice, by name."""
    family: Family
    """The model family they are for."""
    clip: Clip
    """The host's CLIP with the same towers, for other nodes."""
    report: LoadReport
    """Origin of the weights."""

    @property
    def patcher(self) -> ModelPatcher:
        """The host's ModelPatcher around the towers: the CLIP's, without what its clones have."""
        return self.clip.patcher

    def readers(self) -> dict[str, Reader]:
        """Prompt readers for each tower, with the host's embeddings."""
        return native_readers({name: encoder.config for name, encoder in self.encoders.items()}, _embeddings)


def _embeddings(tower: str, config: TextConfig) -> Embeddings | None:
    folder_paths = host("folder_paths")

    folders = folder_paths.get_folder_paths("embeddings")
    return HostEmbeddings(folders, config.hidden_dim, tower) if folders else None


def load_native(
    path: str,
    *,
    clip_skip: int,
    dtype: torch.dtype,
    device: str,
    max_bytes: int | None = None,
    is_packed: bool = True,
) -> NativeClip:
    """Read the text towers of a file and let the host manage their memory.

    Args:
        path: A safetensors file.
        clip_skip: 1 = last layer, 2 = penultimate, ... For models conditioned on the penultimate layer, 1 is 2.
        dtype: Type of the weights and of the computation.
        device: ``auto`` for the host's choice of device for text encoders, or ``cpu``.
        max_bytes: Cache size of the encoder; by default `default_bytes`.
        is_packed: Whether a copy of the weights may be kept for faster products.

    Raises:
        CheckpointError: If the file cannot be used.
        ValueError: If ``clip_skip`` is out of range.
    """
    models, report = load_text_models(path, dtype=dtype)
    logger.info("%s: %s", report.file, report.origin)
    family, encoders = encoders_for(models, clip_skip, max_bytes=max_bytes, is_packed=is_packed)
    return NativeClip(encoders, family, native_clip(family, encoders, device), report)


Role = Literal["text_encoder", "vae", "diffusion_model"]
_DEVICES: Mapping[Role, tuple[str, str]] = {
    "text_encoder": ("text_encoder_device", "text_encoder_offload_device"),
    "vae": ("vae_device", "vae_offload_device"),
    "diffusion_model": ("get_torch_device", "unet_offload_device"),
}
"""The host's functions for a model's compute device and offload device."""


def managed(model: torch.nn.Module, device: str, role: Role = "text_encoder") -> ModelPatcher:
    """Let the host manage the memory of a model on the CPU, by a ModelPatcher around it.

    ``device``: ``auto`` for the host's choice of device for models of this role, or ``cpu``.
    """
    model_management = host("comfy.model_management")

    cpu = torch.device("cpu")
    load_device, offload_device = (
        getattr(model_management, name)() if device == "auto" else cpu for name in _DEVICES[role]
    )
    return host("comfy.model_patcher").ModelPatcher(model, load_device=load_device, offload_device=offload_device)


def working(patcher: ModelPatcher, total: int, **memory: Any) -> tuple[Callable[..., None], Callable[[], None]]:
    """Let the host load a model into memory for some work.

    Args:
        patcher: The host's ModelPatcher around it.
        total: Number of steps of the work, for the host's progress bar.
        memory: Options of the host's ``load_models_gpu``.

    Returns:
        A function that shows how many steps are done, as the ``update_absolute`` of the host's bar; and one that
        raises if the user has interrupted.
    """
    model_management = host("comfy.model_management")

    model_management.load_models_gpu([patcher], **memory)
    bar = host("comfy.utils").ProgressBar(total)
    return bar.update_absolute, model_management.throw_exception_if_processing_interrupted


def encode_native(clip: NativeClip, prepared: Prepared) -> list[EncodedTowers]:
    """Encode prompts with every tower, all together; the host loads the encoder into memory."""
    model_management = host("comfy.model_management")

    model_management.load_models_gpu([clip.patcher])
    return prepared.run(model_management.throw_exception_if_processing_interrupted)


def load_hosted(path: str, *, dtype: torch.dtype, device: str, activation: Any = None) -> Hosted[FullClip]:
    """Read a complete CLIP and let the host manage its memory, as `managed`; ``activation`` as in `load_full_clip`."""
    clip = load_full_clip(path, dtype=dtype, activation=activation)
    logger.info("%s: %s", clip.name, clip.origin)
    return Hosted(clip, managed(torch.nn.ModuleDict({"text": clip.text, "vision": clip.vision}), device))


def encode_texts(hosted: Hosted[FullClip], texts: Sequence[str], syntax: str) -> list[TextFeatures]:
    """Vectors of some texts without their weights, which are left out; the host loads the model, and may interrupt."""
    clip = hosted.model
    _, check = working(hosted.patcher, len(texts))
    layout = layout_of(clip.text.config)

    def encode(chunks: Sequence[Sequence[int]]) -> Tensor:
        check()
        return clip.text_features(chunks)

    return [text_features(text, syntax, default_tokenizer(), layout, encode) for text in texts]


def encode_images(hosted: Hosted[FullClip], images: Tensor, crop: Crop) -> Tensor:
    """Vectors of a host's IMAGE, with the host's progress bar; stops when the host interrupts.

    Args:
        hosted: The model, loaded into memory by the host.
        images: ``[images, height, width, channels]``, float, 0..1.
        crop: Cropping of images to a square.

    Returns:
        ``[images, p]``, of unit length.

    Raises:
        ValueError: If there are no images.
    """
    if not len(images):
        raise ValueError("there are no images to compare: the batch is empty")
    show, check = working(hosted.patcher, len(images))

    def on_progress(count: int) -> None:
        show(count)
        check()

    return image_features(hosted.model, images, crop, on_progress=on_progress)
