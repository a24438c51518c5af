"""Pictures as a discrete VAE is trained on them: squares of one size, each a little different in each epoch.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, listing 1.
"""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor

from .data import Example, Problem


def picture_of(example: Example, size: int, rng: random.Random | None) -> Tensor | Problem:
    """A square picture.

    With a random generator as in the paper: a square of the short side's length at a random place, made smaller by area
    to between 9/8 and 12/8 of the size (or less, where it has no more), a square of the size at a random place in it,
    mirrored or not. Without: the square in the middle, made smaller by area.

    Args:
        example: The image.
        size: Pixels along each side.
        rng: Where chance comes from; None for none.

    Returns:
        ``[3, size, size]``, 8-bit; or why there is none: the image is smaller, or cannot be read.
    """
    from PIL import Image

    try:
        image = example.image().convert("RGB")
    except (ValueError, OSError) as error:
        reason = str(error)
        for name in (str(example.path), example.name):
            reason = reason.removeprefix(f"{name}: ")
        return Problem(example.name, reason)
    short = min(image.size)
    if short < size:
        return Problem(example.name, f"its short side has fewer than {size} pixels")
    left, top = ((length - short) // 2 if rng is None else rng.randint(0, length - short) for length in image.size)
    image = image.crop((left, top, left + short, top + short))
    target = size
    if rng is not None:
        target = rng.randint(min(short, round(9 / 8 * size)), min(short, round(12 / 8 * size)))
    image = image.resize((target, target), Image.Resampling.BOX)
    if rng is not None:
        left, top = (rng.randint(0, target - size) for _ in range(2))
        image = image.crop((left, top, left + size, top + size))
        if rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
