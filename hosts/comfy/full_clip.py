"""A complete CLIP as a model that ComfyUI can manage: memory is the host's, computation is ours.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...encoder.config import Crop
from ...encoder.full_clip import FullClip, load_full_clip
from ...encoder.reranking import image_features
from ...encoder.tokenizer import default_tokenizer
from ...weighting.features import TextFeatures, text_features
from ...weighting.towers import layout_of
from .native import Hosted, managed, working

logger = logging.getLogger(__name__)


def load_hosted(path: str, *, dtype: torch.dtype, device: str, activation: Any = None) -> Hosted[FullClip]:
    """Read a complete CLIP and let the host manage its memory; ``activation`` as in `load_full_clip`.

    Raises:
        CheckpointError: If the file cannot be used.
    """
    clip = load_full_clip(path, dtype=dtype, activation=activation)
    logger.info("%s: %s", clip.name, clip.origin)
    return Hosted(clip, managed(torch.nn.ModuleDict({"text": clip.text, "vision": clip.vision}), device))


def encode_texts(hosted: Hosted[FullClip], texts: Sequence[str], syntax: str) -> list[TextFeatures]:
    """Vectors of some texts; the host loads the model into memory, and may interrupt.

    Args:
        hosted: The model.
        texts: Any strings.
        syntax: Syntax of their weights, which are left out.
    """
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
