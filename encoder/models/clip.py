"""A complete CLIP: text tower, image tower, and the scale that their similarity was trained with.

Source: A. Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", 2021.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from ..files.checkpoint import load_weights
from ..files.config_file import origin_of
from ..files.tensor_file import FETCH, CheckpointError, open_tensor_file
from .config import Activation
from .fast_layers import Fast
from .kernels import IMAGE_CHOICE
from .layers import PLAIN
from .text_model import TextModel
from .vision_model import VisionModel

DEFAULT_LOGIT_SCALE = 100.0
"""1 / temperature of OpenAI's models, the cap in their training."""


@dataclass(frozen=True)
class FullClip:
    """Both towers, projecting into one space."""

    text: TextModel
    """Text tower with its projection."""
    vision: VisionModel
    """Image tower with its projection, of the same width."""
    logit_scale: float = DEFAULT_LOGIT_SCALE
    """Factor of cosines before a softmax: 1 / temperature."""
    name: str = ""
    """Name of the file."""
    origin: str = ""
    """Origin of its heads and activation, in words."""
    logit_bias: float | None = None
    """Number added to the scores before a sigmoid, if SigLIP's loss was trained with; else None."""

    @torch.no_grad()
    def text_features(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """Encode chunks of token ids.

        Args:
            ids: 77 ids per text.

        Returns:
            ``[texts, p]``, float32, of unit length (equation 64), on the CPU.
        """
        device = self.text.final_layer_norm.weight.device
        projected = self.text(torch.tensor(ids, device=device)).projected
        return functional.normalize(projected.float(), dim=-1).cpu()

    @torch.no_grad()
    def image_features(self, pixels: Tensor) -> Tensor:
        """Encode preprocessed images.

        Args:
            pixels: ``[images, 3, image_size, image_size]``, normalised.

        Returns:
            ``[images, p]``, float32, of unit length (equation 64), on the CPU.

        Raises:
            ValueError: If the images have another shape.
        """
        weight = self.vision.post_layer_norm.weight
        is_fast = weight.device.type == "cpu" and weight.dtype == torch.float32
        projected = self.vision.project(pixels.to(weight.device), Fast(IMAGE_CHOICE.now()) if is_fast else PLAIN)
        IMAGE_CHOICE.answered()
        assert projected is not None
        return functional.normalize(projected.float(), dim=-1).cpu()


def load_full_clip(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    activation: Activation | None = None,
) -> FullClip:
    """Read both towers from a safetensors file.

    Args:
        path: The file.
        dtype: Type of the weights and of the computation.
        device: Device of the model.
        activation: Non-linearity of both towers. None: that of the config beside the file, if there is one; or
            quick_gelu for B and L, gelu for H and bigG, as OpenAI and OpenCLIP released them. OpenCLIP's own B and L
            mostly have gelu.

    Returns:
        The model, in evaluation mode without gradients.

    Raises:
        CheckpointError: If the file cannot be used, or lacks one tower or a projection.
    """
    with open_tensor_file(Path(path)) as file:
        seen, read = file.vision_tower(), file.towers()[0]
        vision_config, text_config = file.vision_config(seen), file.config(read)
        told = file.told
        if not told[read.name].file:
            text_config = replace(text_config, activation=vision_config.activation)
            told[read.name] = told[read.name]._replace(activation=vision_config.activation)
        if activation is not None:
            text_config = replace(text_config, activation=activation)
            vision_config = replace(vision_config, activation=activation)
        for half, config in (("text", text_config), ("image", vision_config)):
            if config.projection_dim is None:
                raise CheckpointError(
                    f"its {half} encoder has no projection, so texts and images cannot be compared. "
                    f"Checkpoints of Stable Diffusion 1.x leave it out. {FETCH}"
                )
        if text_config.projection_dim != vision_config.projection_dim:
            raise CheckpointError(
                f"its text encoder ends {text_config.projection_dim} wide and its image encoder "
                f"{vision_config.projection_dim} wide: they are not of one model"
            )
        with torch.device("meta"):
            text, vision = TextModel(text_config), VisionModel(vision_config)
        load_weights(file, read, text, dtype, device)
        load_weights(file, seen, vision, dtype, device)
        scale, bias = file.log_scale("logit_scale"), file.log_scale("logit_bias")
    origin = origin_of({"text encoder": told[read.name], "image encoder": told[seen.name]}, activation or "")
    factor = DEFAULT_LOGIT_SCALE if scale is None else math.exp(scale)
    return FullClip(text, vision, factor, Path(path).name, origin, bias)
