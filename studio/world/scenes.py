"""Pictures of coloured shapes, drawn by rule, with captions.

Scenes of one to three things are for the small worlds; their captions name colour and kind, but no place. Single shapes
are for watching a discrete VAE, and models built on it, learn; their captions name size, colour, kind and place, and 64
of all 540 combinations are held out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...encoder.quoting import quote
from ..output.files import folder_written_whole

if TYPE_CHECKING:
    from PIL import Image

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
RADII = {1: (5.0, 7.0), 2: (5.0, 7.0), 3: (4.0, 5.5), 4: (3.0, 4.5)}
"""Least and largest radius, by the number of things; training shows at most three."""
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
        if all(_are_apart(thing, earlier) for index, thing in enumerate(things) for earlier in things[:index]):
            return Scene(tuple(things))


def _are_apart(first: Thing, second: Thing) -> bool:
    return (first.x - second.x) ** 2 + (first.y - second.y) ** 2 >= (first.radius + second.radius + GAP) ** 2


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


# ---- single shapes

SHAPE_KINDS = (*KINDS, "ring")
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


class Style(NamedTuple):
    """Drawing style. The defaults are for training a discrete VAE: wholly inside, on varying backgrounds."""

    side: int = 96
    """Side of the drawn picture, in pixels; other numbers refer to 96."""
    radii: tuple[float, float] = (16, 24)
    """Radii of small and large shapes."""
    spread: float = 0.75
    """Distance of places from the centre; 1 for `PLACES` as they are."""
    background: tuple[int, int] = (5, 90)
    """Darkest and brightest value of a channel."""


PLAIN = Style()
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
    return [Shape(*words) for words in product(("small", "large"), COLORS, SHAPE_KINDS, PLACES)]


def split() -> tuple[list[Shape], list[Shape]]:
    """Split all combinations: 476 to learn from, and 64 held out."""
    shapes = combinations()
    random.Random(0).shuffle(shapes)
    return shapes[NUM_HELD_OUT:], shapes[:NUM_HELD_OUT]


def draw_shape(shape: Shape, rng: random.Random, style: Style = PLAIN) -> Image.Image:
    """Draw a shape; background, place, size and colour vary from picture to picture."""
    background = [rng.randint(*style.background) for _ in range(3)]
    dx, dy, scale = rng.uniform(-2, 2), rng.uniform(-2, 2), rng.uniform(0.94, 1.06)
    fill = [min(255, max(0, value + rng.randint(-12, 12))) for value in COLORS[shape.color]]
    return drawn_shape(shape, style, (dx, dy), scale, fill, background)


def drawn_shape(
    shape: Shape,
    style: Style,
    shift: tuple[float, float],
    scale: float,
    color: Sequence[int],
    background: Sequence[int],
) -> Image.Image:
    """Draw a shape, moved by some pixels and scaled, in a colour."""
    from PIL import Image, ImageDraw

    picture, unit = Image.new("RGB", (style.side, style.side), tuple(background)), style.side / 96
    canvas, fill = ImageDraw.Draw(picture), tuple(color)
    x, y = (
        (0.5 + (share - 0.5) * style.spread) * style.side + pixels * unit
        for share, pixels in zip(PLACES[shape.place], shift, strict=True)
    )
    r = style.radii[shape.size == "large"] * scale * unit
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


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder under construction; ValueError if it is there and not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} is there already, and is no empty folder; choose another one")
    with folder_written_whole(folder) as whole:
        yield whole


def write_example(folder: Path, number: int, picture: Image.Image, caption: str) -> None:
    """Write a picture and its caption: ``00000.png``, ``00000.txt``."""
    picture.save(folder / f"{number:05}.png")
    (folder / f"{number:05}.txt").write_text(caption, encoding="utf-8")


def write_shapes(folder: Path, size: int = 48, copies: tuple[int, int] = (20, 4), seed: int = 0) -> Mapping[str, int]:
    """Write pictures, each with its caption: ``train`` and ``held_out``, of different combinations."""
    from PIL import Image

    rng, counts = random.Random(seed), dict[str, int]()
    with new_folder(folder) as whole:
        for name, shapes, count in zip(("train", "held_out"), split(), copies, strict=True):
            place = whole / name
            place.mkdir()
            for number, shape in enumerate(shapes * count):
                picture = draw_shape(shape, rng).resize((size, size), Image.Resampling.BOX)
                write_example(place, number, picture, shape.caption)
            counts[name] = len(shapes) * count
    return counts
