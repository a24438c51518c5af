"""Image augmentation: a different random crop in each epoch, mirrored or not, in other colours or grey.

Source: the training transform of open_clip 3.3, which is torchvision's RandomResizedCrop, ColorJitter and Grayscale on
Pillow's images. torchvision itself is not needed: its build for a GPU does not load beside a PyTorch without one.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

ASPECTS = (3 / 4, 4 / 3)
"""Minimum and maximum aspect ratio, width to height, of a crop before it is squeezed to a square."""
_TRIES = 10


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of training images. It is not used for measuring."""

    least_area: float = 1.0
    """Minimum share of an image's area in a random crop; 1 for the whole image, cropped as for measuring."""
    is_mirrored: bool = False
    """Whether a random half of the images is mirrored horizontally."""

    jitter: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Largest change of brightness, contrast, saturation, as shares, and of hue, up to half a turn."""
    jitter_prob: float = 0.8
    """Probability of such a change, if there is any."""
    gray_prob: float = 0.0
    """Probability of an image in shades of grey."""

    def __post_init__(self) -> None:
        if not all(0 <= most <= 1 for most in self.jitter) or self.jitter[3] > 0.5:
            raise ValueError(f"--color-jitter: changes from 0 to 1, of the hue to 0.5, not {self.jitter}")
        for flag, value in {"--color-jitter-prob": self.jitter_prob, "--gray-prob": self.gray_prob}.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{flag} is a probability from 0 to 1, not {value}")
        if not 0 < self.least_area <= 1:
            raise ValueError(f"the least share of an image that is seen must be above 0, at most 1: {self.least_area}")

    def __call__(self, image: Image.Image, size: int, rng: random.Random) -> Image.Image:
        """Augment an image."""
        from PIL import Image

        if self.least_area < 1:
            left, top, width, height = random_part(image.width, image.height, self.least_area, rng)
            part = image.convert("RGB").crop((left, top, left + width, top + height))
            image = part.resize((size, size), Image.Resampling.BICUBIC)
        if self.is_mirrored and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if any(self.jitter) and rng.random() < self.jitter_prob:
            image = self._jittered(image.convert("RGB"), rng)
        if self.gray_prob and rng.random() < self.gray_prob:
            image = image.convert("RGB").convert("L").convert("RGB")
        return image

    def _jittered(self, image: Image.Image, rng: random.Random) -> Image.Image:
        """Change brightness, contrast, saturation and hue, in a random order."""
        from PIL import ImageEnhance

        changes = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color, None)
        for number in rng.sample(range(4), 4):
            most, change = self.jitter[number], changes[number]
            if not most:
                continue
            if change is not None:
                image = change(image).enhance(rng.uniform(1 - most, 1 + most))
            else:
                image = turned(image, rng.uniform(-most, most))
        return image


def turned(image: Image.Image, turn: float) -> Image.Image:
    """Image with other hues, by a part of a turn."""
    from PIL import Image

    hue, *others = image.convert("HSV").split()
    shift = int(turn * 255)
    return Image.merge("HSV", [hue.point([(value + shift) % 256 for value in range(256)]), *others]).convert("RGB")


def random_part(width: int, height: int, least_area: float, rng: random.Random) -> tuple[int, int, int, int]:
    """Random crop of an image: uniform in area and place, log-uniform in aspect ratio.

    If ten draws do not fit, it is as much of the centre as `ASPECTS` allow.
    """
    low, high = ASPECTS
    for _ in range(_TRIES):
        area = width * height * rng.uniform(least_area, 1)
        aspect = math.exp(rng.uniform(math.log(low), math.log(high)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, width - w), rng.randint(0, height - h), w, h
    w, h = min(width, round(height * high)), min(height, round(width / low))
    return (width - w) // 2, (height - h) // 2, w, h
