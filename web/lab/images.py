"""Conversion between the page's pictures and tensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ...encoder.image_file import open_image
from .model import LabError, without_folder

SHOWN_SIDE = 384
"""Approximate length of the longer side of a decoded image on the page, in pixels."""


def opened_upload(path: Path) -> Image.Image:
    """Read an uploaded picture.

    Raises:
        LabError: If it cannot be read.
    """
    try:
        return open_image(path)
    except ValueError as error:
        raise LabError(without_folder(error, path)) from error


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
