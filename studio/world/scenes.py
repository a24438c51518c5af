"""Scenes of one to three coloured shapes: drawn by rule, with captions that name colour and kind, but no place."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...encoder.quoting import quote

COLORS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 50),
    "purple": (140, 60, 180),
    "white": (245, 245, 245),
}
KINDS = ("circle", "square", "triangle", "cross")
TEXTURES = {"plain": (1, 1, 1, 1), "striped": (1, 1, 0, 0), "dotted": (1, 0, 0, 0), "checked": (1, 0, 0, 1)}
"""Kinds of discs: which quarters of each square of 4 x 4 pixels are coloured, from the upper left one to the lower
right."""
WORDS = ("a", "and", *COLORS, *KINDS)
"""All that captions of shapes are made of."""
DISC_WORDS = ("a", "and", "disc", *COLORS, *TEXTURES)
"""All that captions of discs are made of."""
BACKGROUND = (64, 64, 64)
SIDE = 32
"""Side of a picture, in pixels; places and radii are in pixels too."""
RADII = {1: (5.0, 7.0), 2: (5.0, 7.0), 3: (4.0, 5.5)}
"""Least and largest radius, by the number of things."""
GAP = 1.5
"""Least distance between the circles around two things."""


class Thing(NamedTuple):
    """A coloured shape, or a disc whose kind is its texture, in its place."""

    color: str
    kind: str
    x: float = SIDE / 2
    y: float = SIDE / 2
    radius: float = 6.0

    @property
    def phrase(self) -> str:
        """Words of a caption, such as "a red circle" or "a red striped disc"."""
        return f"a {self.color} {self.noun}"

    @property
    def noun(self) -> str:
        """The same without article and colour."""
        return f"{self.kind} disc" if self.kind in TEXTURES else self.kind


class Scene(NamedTuple):
    """Things that do not touch each other, in the order of the caption."""

    things: tuple[Thing, ...]

    @property
    def caption(self) -> str:
        """Caption, such as "a red circle and a blue square"."""
        return " and ".join(thing.phrase for thing in self.things)


def random_scene(
    rng: random.Random,
    num_things: int | None = None,
    *,
    colors_differ: bool = False,
    kinds: Sequence[str] = KINDS,
) -> Scene:
    """Scene of one to three things, half of all scenes having two; any colours and kinds, at any place."""
    number = rng.choice((1, 2, 2, 3)) if num_things is None else num_things
    colors = rng.sample(list(COLORS), number) if colors_differ else rng.choices(list(COLORS), k=number)
    while True:
        things: list[Thing] = []
        for color in colors:
            radius = rng.uniform(*RADII[number])
            x, y = rng.uniform(radius, SIDE - radius), rng.uniform(radius, SIDE - radius)
            things.append(Thing(color, rng.choice(kinds), x, y, radius))
        if all(_are_apart(one, other) for index, one in enumerate(things) for other in things[:index]):
            return Scene(tuple(things))


def _are_apart(one: Thing, other: Thing) -> bool:
    return (one.x - other.x) ** 2 + (one.y - other.y) ** 2 >= (one.radius + other.radius + GAP) ** 2


def covered(kind: str, x: float, y: float, radius: float, side: int = SIDE) -> np.ndarray:
    """Pixels that a shape covers, ``[side, side]``, bool: those whose centres lie in it."""
    places = np.arange(side) + 0.5
    dx, dy = places[None, :] - x, places[:, None] - y
    if kind in TEXTURES:
        return covered("circle", x, y, radius, side) & np.array(TEXTURES[kind], bool)[quarters(side)]
    if kind == "circle":
        return dx**2 + dy**2 <= radius**2
    if kind == "square":
        return (abs(dx) <= 0.85 * radius) & (abs(dy) <= 0.85 * radius)
    if kind == "triangle":
        return (dy <= 0.8 * radius) & (abs(dx) <= 0.58 * (dy + radius))
    if kind == "cross":
        near, far = 0.35 * radius, radius
        return ((abs(dx) <= near) & (abs(dy) <= far)) | ((abs(dy) <= near) & (abs(dx) <= far))
    raise ValueError(f"no kind of shape: {quote(kind)}; there are {', '.join((*KINDS, *TEXTURES))}")


def quarters(side: int = SIDE) -> np.ndarray:
    """Number of each pixel's quarter in its square of 4 x 4, ``[side, side]``, 0..3."""
    rows, columns = np.mgrid[:side, :side] % 4 // 2
    return rows * 2 + columns


def draw(things: Sequence[Thing]) -> np.ndarray:
    """Picture of things, ``[SIDE, SIDE, 3]``, uint8."""
    picture = np.full((SIDE, SIDE, 3), BACKGROUND, np.uint8)
    for thing in things:
        picture[covered(thing.kind, thing.x, thing.y, thing.radius)] = COLORS[thing.color]
    return picture


def pictures(scenes: Sequence[Scene]) -> Tensor:
    """Pictures of scenes, ``[scenes, 3, SIDE, SIDE]``, float32 in 0..1."""
    drawn = np.stack([draw(scene.things) for scene in scenes])
    return torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255
