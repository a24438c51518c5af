"""CLIP's image tower: preprocessed images in; hidden states, pooled and projected vectors out.

A vision transformer: the image is cut into patches, each patch is mapped to one vector, a class vector is prepended,
and the blocks of the text tower run over all of them, without a mask.

Shapes: b = images, g = patches along a side, s = 1 + g * g positions, d = hidden_dim, p = projection_dim.

Source: A. Dosovitskiy et al., "An Image is Worth 16x16 Words", 2021; A. Radford et al., "Learning Transferable Visual
Models From Natural Language Supervision", 2021; docs/lecture.md Definitions 5.2 to 5.8 for the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from .config import VisionConfig
from .layers import PLAIN, Arithmetic, Embedding, EncoderBlock, TransformerEncoder, projection


class VisionOutput(NamedTuple):
    """Output of the image tower for one batch of images."""

    hidden: Tensor
    """``[b, s, d]``: the last layer before the final norm; the class vector's row first."""
    pooled: Tensor
    """``[b, d]``: the class vector's row of the last layer after the post norm."""
    projected: Tensor | None
    """``[b, p]``: pooled times the projection, or None without one."""
    hidden_states: tuple[Tensor, ...]
    """H_0 (embeddings after the pre norm) to H_N, each ``[b, s, d]``."""


class PatchEmbeddings(nn.Module):
    """A vector for each patch after a class vector, plus a learned position embedding for each."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(config.hidden_dim))
        self.patch_embedding = nn.Conv2d(3, config.hidden_dim, config.patch_size, config.patch_size, bias=False)
        self.position_embedding = Embedding(config.grid**2 + 1, config.hidden_dim)

    def forward(self, pixels: Tensor) -> Tensor:
        """Embed ``[b, 3, image_size, image_size]`` as ``[b, s, d]``."""
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)  # [b, d, g, g] -> [b, g * g, d]
        first = self.class_embedding.expand(len(pixels), 1, -1)
        return torch.cat([first, patches], dim=1) + self.position_embedding.weight


class VisionModel(nn.Module):
    """CLIP image encoder.

    >>> config = VisionConfig(image_size=28, hidden_dim=8, num_heads=2, num_layers=2, mlp_dim=16, projection_dim=6)
    >>> output = VisionModel(config)(torch.zeros(1, 3, 28, 28))
    >>> tuple(output.hidden.shape), tuple(output.projected.shape)
    ((1, 5, 8), (1, 6))
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = PatchEmbeddings(config)
        self.pre_layer_norm = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)
        self.encoder = TransformerEncoder(config)
        self.post_layer_norm = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)
        self.visual_projection = projection(config)

    def forward(self, pixels: Tensor) -> VisionOutput:
        """Encode images.

        Args:
            pixels: ``[b, 3, image_size, image_size]``, normalised as in ``images.py``.

        Raises:
            ValueError: If the images have another shape.
        """
        states = self.encoder(self._embedded(pixels), None, is_causal=False)
        pooled, projected = self._pooled(states[-1])
        return VisionOutput(states[-1], pooled, projected, tuple(states))

    def project(self, pixels: Tensor, arithmetic: Arithmetic = PLAIN) -> Tensor | None:
        """Encode images to projected vectors ``[b, p]`` only, without keeping any layer's states.

        Args:
            pixels: As in `forward`.
            arithmetic: Computation of the blocks.

        Returns:
            Projected vectors, or None without a projection.

        Raises:
            ValueError: As in `forward`.
        """
        hidden = self._embedded(pixels)
        *before, last = cast("Sequence[EncoderBlock]", self.encoder.layers)
        for block in before:
            hidden = block(hidden, None, is_causal=False, arithmetic=arithmetic)
        attention = last.self_attn

        def all_positions(_k: Tensor, _v: Tensor) -> tuple[Tensor, Tensor]:
            normed = arithmetic.norm(last.layer_norm1, hidden)
            k, v = arithmetic.products((attention.k_proj, attention.v_proj), normed)
            k, v = (states.unflatten(-1, (attention.num_heads, -1)).transpose(1, 2) for states in (k, v))
            return k, v  # [b, h, s, e] each

        # only the class vector's row of the last block is pooled
        first = last(hidden[:, :1], None, is_causal=False, past=all_positions, arithmetic=arithmetic)
        return self._pooled(first)[1]

    def _embedded(self, pixels: Tensor) -> Tensor:
        """Compute H_0, ``[b, s, d]``."""
        size = self.config.image_size
        if pixels.ndim != 4 or pixels.shape[1:] != (3, size, size):
            raise ValueError(f"images must be [images, 3, {size}, {size}], got {list(pixels.shape)}")
        return self.pre_layer_norm(self.embeddings(pixels.to(self.embeddings.class_embedding.dtype)))

    def _pooled(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the pooled and projected vectors of H_N."""
        pooled = self.post_layer_norm(hidden[:, 0])  # [b, s, d] -> [b, d]
        return pooled, None if self.visual_projection is None else self.visual_projection(pooled)
