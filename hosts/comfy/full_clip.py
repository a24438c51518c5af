"""A complete CLIP as a model that ComfyUI can manage: memory is the host's, computation is ours.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...encoder.config import Crop
from ...encoder.full_clip import FullClip, load_full_clip
from ...encoder.reranking import image_features
from ...encoder.tokenizer import default_tokenizer
from ...weighting.features import TextFeatures, text_features
from ...weighting.towers import layout_of
from .contract import host
from .native import managed
from .types import ModelPatcher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostedClip:
    """Value of a WEIGHTED_CLIP_FULL link."""

    clip: FullClip
    """Both towers."""
    patcher: ModelPatcher
    """The host's ModelPatcher around them."""


def load_hosted(path: str, *, dtype: torch.dtype, device: str, activation: Any = None) -> HostedClip:
    """Read a complete CLIP and let the host manage its memory; ``activation`` as in `load_full_clip`.

    Raises:
        CheckpointError: If the file cannot be used.
    """
    clip = load_full_clip(path, dtype=dtype, activation=activation)
    logger.info("%s: %s", clip.name, clip.origin)
    return HostedClip(clip, managed(torch.nn.ModuleDict({"text": clip.text, "vision": clip.vision}), device))


def encode_texts(hosted: HostedClip, texts: Sequence[str], syntax: str) -> list[TextFeatures]:
    """Vectors of some texts; the host loads the model into memory, and may interrupt.

    Args:
        hosted: The model.
        texts: Any strings.
        syntax: Syntax of their weights, which are left out.
    """
    model_management = host("comfy.model_management")

    model_management.load_models_gpu([hosted.patcher])
    clip = hosted.clip
    layout = layout_of(clip.text.config)

    def encode(chunks: Sequence[Sequence[int]]) -> Tensor:
        model_management.throw_exception_if_processing_interrupted()
        return clip.text_features(chunks)

    return [text_features(text, syntax, default_tokenizer(), layout, encode) for text in texts]


def encode_images(hosted: HostedClip, images: Tensor, crop: Crop) -> Tensor:
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
    model_management = host("comfy.model_management")

    if not len(images):
        raise ValueError("there are no images to compare: the batch is empty")
    bar = host("comfy.utils").ProgressBar(len(images))

    def on_progress(count: int) -> None:
        bar.update_absolute(count)
        model_management.throw_exception_if_processing_interrupted()

    model_management.load_models_gpu([hosted.patcher])
    return image_features(hosted.clip, images, crop, on_progress=on_progress)
