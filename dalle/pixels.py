"""Images as the discrete VAE reads them, and back.

Its likelihood lives between 0 and 1, both excluded, so pixels are first brought inside by ε on either side.

Source: A. Ramesh et al., 2021, equation 3; ``map_pixels`` and ``unmap_pixels`` of ``dall-e`` 0.1, which these equal to
the bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 0.1
"""ε."""


def map_pixels(images: Tensor) -> Tensor:
    """Bring pixels from [0, 1] into [ε, 1 - ε].

    >>> map_pixels(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.1000, 0.5000, 0.9000])
    """
    return (1 - 2 * EPS) * images + EPS


def unmap_pixels(mapped: Tensor) -> Tensor:
    """Bring pixels back to [0, 1]; what lies outside is cut off there."""
    return torch.clamp((mapped - EPS) / (1 - 2 * EPS), 0, 1)
