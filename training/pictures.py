"""Pictures for training DALL·E's two halves: squares of one size, augmented differently in each epoch.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, listings 1 and 2.
"""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .data import Example, Problem

Listing = Literal["dvae", "prior"]
"""Listing in the paper that pictures are cropped by, 1 or 2."""


def picture_of(example: Example, size: int, rng: random.Random | None, what: Listing = "dvae") -> Tensor | Problem:
    """Crop a picture to a square.

    With a random generator, as in the paper. For the discrete VAE: a square of the short side's length at a random
    place, reduced by area to between 9/8 and 12/8 of the size (or less, if it is smaller), then a square of the size at
    a random place in it, mirrored or not. For the prior, whose captions say left and right: the first square at 3/8 to
    5/8 of the way, reduced to between 1 and 9/8 of the size, not mirrored. Without a generator: the central square,
    reduced by area.
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
    if rng is None:
        left, top = ((length - short) // 2 for length in image.size)
        target = size
    elif what == "dvae":
        left, top = (rng.randint(0, length - short) for length in image.size)
        target = rng.randint(min(short, round(9 / 8 * size)), min(short, round(12 / 8 * size)))
    else:
        # an exclusive end, unless it equals the beginning
        ends = ((3 * (length - short) // 8, 5 * (length - short) // 8) for length in image.size)
        left, top = (rng.randint(start, max(start, end - 1)) for start, end in ends)
        target = rng.randint(size, min(short, round(9 / 8 * size)))
    image = image.crop((left, top, left + short, top + short))
    image = image.resize((target, target), Image.Resampling.BOX)
    if rng is not None:
        left, top = (rng.randint(0, target - size) for _ in range(2))
        image = image.crop((left, top, left + size, top + size))
        if what == "dvae" and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
