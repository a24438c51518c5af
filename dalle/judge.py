"""Recognise the shape in a picture by its pixels alone, without a model.

The background is the median of each channel, the colour that of the 4 % of the pixels farthest from it. Size, kind and
place are those of the best matching drawing, among all drawings slightly moved and scaled.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .shapes import COLORS, KINDS, PLACES, Shape, Style, draw

SIDE = 48


class _Fixed(random.Random):
    """Random source without chance: black background, the exact colour, and given places and scale."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = list(values)

    def randint(self, a: int, b: int) -> int:
        """Return 0, whatever the bounds."""
        return 0

    def uniform(self, a: float, b: float) -> float:
        """Return the next value."""
        return self.values.pop(0)


class Judge:
    """Recogniser that compares a picture with every possible drawing."""

    def __init__(self) -> None:
        """Draw them all."""
        drawings: list[np.ndarray] = []
        self.shapes: list[Shape] = []
        """Shape of each drawing, in white."""
        for size, kind, place in product(("small", "large"), KINDS, PLACES):
            shape = Shape(size, "white", kind, place)
            for jitter in product((-2, 0, 2), (-2, 0, 2), (0.94, 1.0, 1.06)):
                picture = draw(shape, _Fixed(*jitter), Style(background=(0, 0))).convert("L")
                picture = picture.resize((SIDE, SIDE), Image.Resampling.BOX)
                drawings.append(np.array(picture, np.float32) / 245)
                self.shapes.append(shape)
        self.drawings = torch.from_numpy(np.stack(drawings)).flatten(1)

    def __call__(self, pictures: Tensor) -> list[Shape]:
        """Shapes shown by pictures ``[n, 3, 48, 48]`` in 0..1."""
        x = 255 * pictures.float().flatten(2)
        background = x.median(2, keepdim=True).values
        farthest = (x - background).norm(dim=1).topk(SIDE * SIDE // 25, 1).indices
        front = x.gather(2, farthest[:, None].expand(-1, 3, -1)).mean(2)
        colors = torch.cdist(front, torch.tensor(list(COLORS.values())).float()).argmin(1)
        toward = front - background[:, :, 0]
        covered = ((x - background) * toward[:, :, None]).sum(1) / toward.square().sum(1, keepdim=True).clamp_min(1)
        best = torch.cdist(covered.clamp(0, 1), self.drawings).argmin(1)
        names = list(COLORS)
        return [
            self.shapes[index]._replace(color=names[color])
            for index, color in zip(best.tolist(), colors.tolist(), strict=True)
        ]


def right(said: Sequence[Shape], meant: Sequence[Shape]) -> dict[str, float]:
    """Share of correct answers for each part of a caption."""
    pairs = list(zip(said, meant, strict=True))
    return {part: sum(getattr(a, part) == getattr(b, part) for a, b in pairs) / len(pairs) for part in Shape._fields}
