"""Captioned pictures of coloured shapes: data small enough to watch a discrete VAE and models built on it learn.

A caption names size, colour, kind and place of the one shape in its picture. 64 of all 540 combinations are held out.
`Judge` recognises the shape in a picture by its pixels alone, without a model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from ..output.files import folder_written_whole
from .scenes import COLORS
from .scenes import KINDS as SCENE_KINDS

KINDS = (*SCENE_KINDS, "ring")
PLACES = {
    "at the top left": (1 / 6, 1 / 6),
    "at the top": (1 / 2, 1 / 6),
    "at the top right": (5 / 6, 1 / 6),
    "on the left": (1 / 6, 1 / 2),
    "in the middle": (1 / 2, 1 / 2),
    "on the right": (5 / 6, 1 / 2),
    "at the bottom left": (1 / 6, 5 / 6),
    "at the bottom": (1 / 2, 5 / 6),
    "at the bottom right": (5 / 6, 5 / 6),
}
"""Centres, relative to the side of an unshrunk picture."""
NUM_HELD_OUT = 64


@dataclass(frozen=True)
class Style:
    """Drawing style. The defaults are for training a discrete VAE: wholly inside, on varying backgrounds."""

    side: int = 96
    """Side of the drawn picture, in pixels; other numbers refer to 96."""
    radii: tuple[float, float] = (16, 24)
    """Radii of small and large shapes."""
    spread: float = 0.75
    """Distance of places from the centre; 1 for `PLACES` as they are."""
    background: tuple[int, int] = (5, 90)
    """Darkest and brightest value of a channel."""


APART = Style(radii=(8, 13), spread=1.0, background=(20, 50))
"""Smaller shapes in places farther apart."""


class Shape(NamedTuple):
    """The content of a picture."""

    size: str
    color: str
    kind: str
    place: str

    @property
    def caption(self) -> str:
        """Caption, such as "a small red ring at the top"."""
        return f"a {self.size} {self.color} {self.kind} {self.place}"


def combinations() -> list[Shape]:
    """All 540 combinations."""
    return [Shape(*words) for words in product(("small", "large"), COLORS, KINDS, PLACES)]


def split() -> tuple[list[Shape], list[Shape]]:
    """Split all combinations: 476 to learn from, and 64 held out."""
    shapes = combinations()
    random.Random(0).shuffle(shapes)
    return shapes[NUM_HELD_OUT:], shapes[:NUM_HELD_OUT]


def draw(shape: Shape, rng: random.Random, style: Style) -> Image.Image:
    """Draw a shape; background, place, size and colour vary from picture to picture."""
    unit = style.side / 96
    background = (rng.randint(*style.background), rng.randint(*style.background), rng.randint(*style.background))
    picture = Image.new("RGB", (style.side, style.side), background)
    canvas = ImageDraw.Draw(picture)
    x, y = (
        (0.5 + (share - 0.5) * style.spread) * style.side + rng.uniform(-2, 2) * unit for share in PLACES[shape.place]
    )
    r = style.radii[shape.size == "large"] * rng.uniform(0.94, 1.06) * unit
    red, green, blue = (min(255, max(0, value + rng.randint(-12, 12))) for value in COLORS[shape.color])
    fill = (red, green, blue)
    if shape.kind == "circle":
        canvas.ellipse((x - r, y - r, x + r, y + r), fill=fill)
    elif shape.kind == "ring":
        canvas.ellipse((x - r, y - r, x + r, y + r), outline=fill, width=round(r * 0.35))
    elif shape.kind == "square":
        canvas.rectangle((x - 0.9 * r, y - 0.9 * r, x + 0.9 * r, y + 0.9 * r), fill=fill)
    elif shape.kind == "triangle":
        canvas.polygon([(x, y - 1.1 * r), (x + 1.1 * r, y + 0.8 * r), (x - 1.1 * r, y + 0.8 * r)], fill=fill)
    else:
        for width, height in ((r, 0.35 * r), (0.35 * r, r)):
            canvas.rectangle((x - width, y - height, x + width, y + height), fill=fill)
    return picture


def write_shapes(folder: Path, size: int = 48, copies: tuple[int, int] = (20, 4), seed: int = 0) -> Mapping[str, int]:
    """Write pictures, each with its caption: ``train`` and ``held_out``, of different combinations."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and is no empty folder; choose another one")
    rng, counts = random.Random(seed), dict[str, int]()
    with folder_written_whole(folder) as whole:
        for name, shapes, count in zip(("train", "held_out"), split(), copies, strict=True):
            place = whole / name
            place.mkdir()
            for number, shape in enumerate(shapes * count):
                picture = draw(shape, rng, Style()).resize((size, size), Image.Resampling.BOX)
                picture.save(place / f"{number:05}.png")
                (place / f"{number:05}.txt").write_text(shape.caption, encoding="utf-8")
            counts[name] = len(shapes) * count
    return counts


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
