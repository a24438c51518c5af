"""Conversion between the page's pictures and tensors."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

SHOWN_SIDE = 384
"""Approximate length of the longer side of a decoded image on the page, in pixels."""


def pixels_of(picture: Image.Image) -> Tensor:
    """``[3, h, w]``, 0 to 1, float32."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255).movedim(-1, 0)


def picture_of(pixels: Tensor) -> Image.Image:
    """Picture of ``[3, h, w]``, 0 to 1."""
    return Image.fromarray(pixels.movedim(0, -1).clamp(0, 1).mul(255).round().byte().cpu().numpy())


def enlarged(pixels: Tensor) -> Image.Image:
    """The same picture; a small one has every pixel repeated."""
    image = picture_of(pixels)
    times = max(1, SHOWN_SIDE // max(image.size))
    return image.resize((image.width * times, image.height * times), Image.Resampling.NEAREST)
