"""Images as the discrete VAE reads them, and back.

Its likelihood is defined between 0 and 1, both excluded, so pixels are first scaled into [ε, 1 - ε].

Source: A. Ramesh et al., 2021, equation 3; ``map_pixels`` and ``unmap_pixels`` of ``dall-e`` 0.1, bit-identical.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 0.1
"""ε."""


def map_pixels(images: Tensor) -> Tensor:
    """Scale pixels from [0, 1] to [ε, 1 - ε].

    >>> map_pixels(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.1000, 0.5000, 0.9000])
    """
    return (1 - 2 * EPS) * images + EPS


def unmap_pixels(mapped: Tensor) -> Tensor:
    """Scale pixels back to [0, 1] and clamp them."""
    return torch.clamp((mapped - EPS) / (1 - 2 * EPS), 0, 1)


def cropped(images: Tensor, multiple: int) -> Tensor:
    """Crop the centre of images to the largest multiple that fits on each side, as ComfyUI does for a VAE.

    Args:
        images: ``[..., h, w]``.
        multiple: Pixels along each side of a token.

    Returns:
        A view of them, or the images themselves if they need no cropping.

    Raises:
        ValueError: If a side is shorter than one token.

    >>> tuple(cropped(torch.zeros(1, 3, 21, 16), 8).shape)
    (1, 3, 16, 16)
    """
    height, width = images.shape[-2:]
    if min(height, width) < multiple:
        raise ValueError(f"images of {width} x {height} pixels: no side may be shorter than a token, {multiple} pixels")
    for dim, size in ((-2, height), (-1, width)):
        images = images.narrow(dim, size % multiple // 2, size - size % multiple)
    return images
