"""Recognise the things in a picture by its pixels alone, without a model.

Each pixel takes the nearest of the background and the colours; connected pixels of one colour are a thing, and its
kind, place and radius are those of the shape that overlaps it best. Two things of one colour that touch are two if they
match better apart, cut where they are thinnest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .scenes import (
    BACKGROUND,
    COLORS,
    KINDS,
    PLACES,
    PLAIN,
    SHAPE_KINDS,
    TEXTURES,
    Shape,
    Thing,
    covered,
    drawn_shape,
    quarters,
)

MIN_AREA = 20
"""Pixels below which something is no thing."""
MIN_TEXTURED = 10
"""The same of a disc, of which a quarter may be coloured."""
MIN_OVERLAP = 0.6
"""Share of a thing and its best shape together that both cover; below, it is of no kind."""
_WINDOW = 24
"""Side of the square in which things are compared with shapes, centred on each one's extent."""
_RADII = tuple(half / 2 for half in range(6, 19))
_OFFSETS = (0.0, 0.25, 0.5, 0.75)
_TEXTURES = {kind: torch.from_numpy(np.array(cell, bool)[quarters()]) for kind, cell in TEXTURES.items()}
"""Pixels that each texture colours, ``[SIDE, SIDE]``, bool."""
NO_KIND = "thing"


class Found(NamedTuple):
    """A thing found in a picture."""

    thing: Thing
    """Its kind is `NO_KIND` if it looks like no shape; what looks like no texture is no disc."""
    sureness: float
    """Overlap with the best shape, divided by their union: 0..1."""
    area: Tensor
    """Its pixels, ``[SIDE, SIDE]``, bool."""


def things_in(pictures: Tensor) -> list[list[Found]]:
    """Shapes in pictures, ``[n, 3, SIDE, SIDE]`` in 0..1, the largest first."""
    things: list[list[Found]] = [[] for _ in pictures]
    for name, masks in _colored(pictures):
        for number, area in _components(masks):
            things[number] += _recognised(name, area)
    return _largest_first(things)


def discs_in(pictures: Tensor) -> list[list[Found]]:
    """Discs in pictures, ``[n, 3, SIDE, SIDE]`` in 0..1, the largest first, each of the texture it is most like."""
    things: list[list[Found]] = [[] for _ in pictures]
    for name, masks in _colored(pictures):
        near = F.max_pool2d(masks[:, None].float(), 3, 1, 1)  # parts of a texture are two pixels apart
        filled = 1 - F.max_pool2d(1 - near, 3, 1, 1)[:, 0]
        for number, whole in _components(near[:, 0] > 0):
            disc = _disc(name, whole & masks[number], whole & (filled[number] > 0))
            if disc is not None:
                things[number].append(disc)
    return _largest_first(things)


def _disc(color: str, area: Tensor, filled: Tensor) -> Found | None:
    """Pixels as a disc of the texture that overlaps them best, or None; ``filled`` are they and those between them."""
    if int(area.sum()) < MIN_TEXTURED:
        return None
    overlaps: dict[str, float] = {}
    for kind, texture in _TEXTURES.items():
        cells = texture & filled
        overlaps[kind] = float((area & cells).sum() / (area | cells).sum())
    kind = max(overlaps, key=overlaps.__getitem__)
    if overlaps[kind] < MIN_OVERLAP:
        return None
    y, x = (filled.nonzero().double() + 0.5).mean(0).tolist()
    return Found(Thing(color, kind, x, y, (float(filled.sum()) / np.pi) ** 0.5), overlaps[kind], area)


def _largest_first(by_picture: list[list[Found]]) -> list[list[Found]]:
    return [sorted(things, key=lambda thing: -int(thing.area.sum())) for things in by_picture]


def _colored(pictures: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Name of each colour and the pixels nearest to it, ``[n, s, s]``."""
    if not len(pictures):
        return
    palette = torch.tensor([BACKGROUND, *COLORS.values()], dtype=torch.float32, device=pictures.device) / 255
    pixels = pictures.float().clamp(0, 1).permute(0, 2, 3, 1)  # [n, s, s, 3]
    nearest = (
        torch.cdist(pixels.flatten(1, 2), palette[None].expand(len(pixels), -1, -1)).argmin(2).reshape(pixels.shape[:3])
    )
    for index, name in enumerate(COLORS, 1):
        yield name, nearest == index


def _components(masks: Tensor, min_area: int = MIN_AREA) -> Iterator[tuple[int, Tensor]]:
    """Number of the picture and pixels of each connected part, ``[s, s]``, of masks ``[n, s, s]``."""
    labels = torch.arange(1, masks.numel() + 1, dtype=torch.float32, device=masks.device).reshape(masks.shape) * masks
    while True:
        wider = torch.maximum(
            F.max_pool2d(labels[:, None], (3, 1), 1, (1, 0)), F.max_pool2d(labels[:, None], (1, 3), 1, (0, 1))
        )
        wider = wider[:, 0] * masks
        if torch.equal(wider, labels):
            break
        labels = wider
    for number, label in enumerate(labels):
        names, counts = label.unique(return_counts=True)
        for name, count in zip(names.tolist(), counts.tolist(), strict=True):
            if name and count >= min_area:
                yield number, label == name


def _recognised(color: str, area: Tensor) -> list[Found]:
    """A connected part as one thing, or as several if these match shapes better."""
    whole = _best(color, area)
    if whole.sureness < 0.8:
        pieces = [_best(color, piece) for piece in _pieces(area)]
        if len(pieces) > 1 and min(piece.sureness for piece in pieces) > max(whole.sureness, MIN_OVERLAP):
            return pieces
    return [whole]


def _pieces(area: Tensor) -> list[Tensor]:
    """Parts into which an area falls when its border is taken off; each pixel goes with the nearest."""
    cores = -F.max_pool2d(-F.pad(area.float(), (1, 1, 1, 1))[None, None], 3, 1)[0]
    parts = [part for _, part in _components(cores > 0, 1) if int(part.sum()) >= MIN_AREA // 4]
    if len(parts) < 2:
        return [area]
    places = area.nonzero().float()
    distances = torch.stack([torch.cdist(places, part.nonzero().float()).min(1).values for part in parts])
    pieces = [torch.zeros_like(area) for _ in parts]
    for (row, column), nearest in zip(area.nonzero().tolist(), distances.argmin(0).tolist(), strict=True):
        pieces[nearest][row, column] = True
    return [piece for piece in pieces if int(piece.sum()) >= MIN_AREA]


def _best(color: str, area: Tensor) -> Found:
    rows, columns = area.nonzero(as_tuple=True)
    top, left = _corner(int(rows.min()), int(rows.max())), _corner(int(columns.min()), int(columns.max()))
    window = F.pad(area.float(), (_WINDOW,) * 4)[top + _WINDOW :, left + _WINDOW :][:_WINDOW, :_WINDOW].flatten()
    shapes, areas, names = _shapes()
    shared = shapes @ window
    overlaps = shared / (areas + area.sum() - shared)
    sureness = float(overlaps.max())
    kind = names[int(overlaps.argmax())][0]
    alike = [
        names[index][1:] for index in (overlaps == sureness).nonzero().flatten().tolist() if names[index][0] == kind
    ]
    x, y, radius = np.mean(alike, 0).tolist()
    return Found(Thing(color, kind if sureness >= MIN_OVERLAP else NO_KIND, left + x, top + y, radius), sureness, area)


def _corner(first: int, last: int) -> int:
    """First row or column of the window around an extent."""
    return (first + last + 1) // 2 - _WINDOW // 2


@cache
def _shapes() -> tuple[Tensor, Tensor, list[tuple[str, float, float, float]]]:
    """Shapes, each in its window, ``[shapes, pixels]``; their areas; kind, place in the window and radius of each."""
    drawn: list[np.ndarray] = []
    names: list[tuple[str, float, float, float]] = []
    middle = _WINDOW  # of a field twice as wide
    for kind, (radius, dx, dy) in product(KINDS, product(_RADII, _OFFSETS, _OFFSETS)):
        field = covered(kind, middle + dx, middle + dy, radius, 2 * _WINDOW)
        rows, columns = field.nonzero()
        top, left = _corner(rows.min(), rows.max()), _corner(columns.min(), columns.max())
        drawn.append(field[top : top + _WINDOW, left : left + _WINDOW].flatten())
        names.append((kind, middle + dx - left, middle + dy - top, radius))
    shapes = torch.from_numpy(np.stack(drawn)).float()
    return shapes, shapes.sum(1), names


def assigned(things: Sequence[Found], scene_things: Sequence[Thing]) -> list[Found | None]:
    """Findings for each wanted thing: the same colour and kind, or else one of the same colour; each once."""
    unused = list(things)
    result: list[Found | None] = [None] * len(scene_things)
    for is_alike in (lambda a, b: a[:2] == b[:2], lambda a, b: a.color == b.color):
        for index, thing in enumerate(scene_things):
            if result[index] is None:
                match = next((candidate for candidate in unused if is_alike(candidate.thing, thing)), None)
                if match is not None:
                    unused.remove(match)
                    result[index] = match
    return result


# ---- single shapes

SHAPE_SIDE = 48
"""Side of the pictures that are judged."""


class ShapeJudge:
    """Recogniser that compares a picture with every possible drawing."""

    def __init__(self) -> None:
        """Draw them all."""
        from PIL import Image

        drawings: list[np.ndarray] = []
        self.shapes: list[Shape] = []
        """Shape of each drawing, in white."""
        for size, kind, place in product(("small", "large"), SHAPE_KINDS, PLACES):
            shape = Shape(size, "white", kind, place)
            for dx, dy, scale in product((-2, 0, 2), (-2, 0, 2), (0.94, 1.0, 1.06)):
                picture = drawn_shape(shape, PLAIN, (dx, dy), scale, COLORS["white"], (0, 0, 0)).convert("L")
                picture = picture.resize((SHAPE_SIDE, SHAPE_SIDE), Image.Resampling.BOX)
                drawings.append(np.array(picture, np.float32) / 245)
                self.shapes.append(shape)
        self.drawings = torch.from_numpy(np.stack(drawings)).flatten(1)

    def __call__(self, pictures: Tensor) -> list[Shape]:
        """Shapes shown by pictures ``[n, 3, 48, 48]`` in 0..1."""
        x = 255 * pictures.float().flatten(2)
        background = x.median(2, keepdim=True).values
        farthest = (x - background).norm(dim=1).topk(SHAPE_SIDE * SHAPE_SIDE // 25, 1).indices
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
