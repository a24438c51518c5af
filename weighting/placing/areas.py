"""Areas of a picture as people type them: ``left half``, ``bottom left third``, ``0.1 0.5, 0 1 ~0.05``.

Source: docs/places.md, "Areas".
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from ..text.prompt import shortened

if TYPE_CHECKING:
    from torch import Tensor

FORMS = "left half, bottom left third, center, or x1 x2, y1 y2 such as 0 0.5, 0.2 1"
"""Examples of areas, for messages."""
SIZES = {"half": 1 / 2, "third": 1 / 3, "quarter": 1 / 4}
"""Sizes by name, the default first."""
SIDES = {"left": (0, 0.0), "right": (0, 1.0), "top": (1, 0.0), "bottom": (1, 1.0)}
"""Axis and side by name: 0 is across, 1 down; 0.0 is the side where it begins."""
CENTERS = ("center", "centre", "middle")
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+")


class AreaError(ValueError):
    """Raised for an area that is not understood, empty or outside the picture; the message quotes it."""


class Extent(NamedTuple):
    """Extent of an area along one axis."""

    start: float = 0.0
    end: float = 1.0
    is_pixels: bool = False
    """Whether both count pixels instead of parts of the picture."""


class Area(NamedTuple):
    """A rectangle of the picture."""

    across: Extent = Extent()
    down: Extent = Extent()
    feather: float = 0.0
    """Width of the soft edges, in parts of the picture; they do not soften the picture's own edges."""
    text: str = ""
    """Text it was read from."""


def read_area(text: str) -> Area | None:
    """Read an area.

    Args:
        text: The area as typed.

    Returns:
        The area; None for an empty text, which is the whole picture.

    Raises:
        AreaError: If it is not understood, empty, or outside the picture.

    >>> read_area("bottom left third").across.end == 1 / 3
    True
    >>> read_area("0 0.5, 0 512").down
    Extent(start=0.0, end=512.0, is_pixels=True)
    """
    typed = text.strip()
    if not typed:
        return None
    name = shortened(typed)
    rest, mark, written = typed.lower().partition("~")
    feather = 0.0
    if mark:
        if not _NUMBER.fullmatch(written.strip()) or float(written) > 1:
            raise AreaError(f"The soft edge of the area “{name}” is not a number from 0 to 1.")
        feather = float(written)
    sides = [side.split() for side in rest.split(",")]
    if [len(side) for side in sides] == [2, 2] and all(_NUMBER.fullmatch(one) for side in sides for one in side):
        (x1, x2), (y1, y2) = (map(float, side) for side in sides)
        return Area(_extent(x1, x2, name), _extent(y1, y2, name), feather, name)
    across, down = _named(rest.split(), name)
    return Area(across, down, feather, name)


WHERE = "where "
"""Beginning of a place that is where a word of the prompt is read."""


def read_where(text: str) -> str:
    """Word of a place such as ``where red cat``; empty for any other text. An AreaError says that the word is missing.

    >>> read_where("Where  red cat"), read_where("left half")
    ('red cat', '')
    """
    typed = " ".join(text.split())
    if typed.lower() == WHERE.strip():
        raise AreaError(f"The area “{typed}” lacks a word of the prompt: write, for example, where red cat.")
    return typed[len(WHERE) :] if typed.lower().startswith(WHERE) else ""


def _extent(start: float, end: float, typed: str) -> Extent:
    is_pixels = max(start, end) > 1
    if is_pixels and not (start.is_integer() and end.is_integer()):
        raise AreaError(
            f"The area “{typed}” mixes parts of the picture and pixels: give both of “{start:g} {end:g}” up to 1, or "
            "both in whole pixels."
        )
    if not start < end:
        raise AreaError(f"The area “{typed}” is empty: “{start:g} {end:g}” does not go from less to more.")
    return Extent(start, end, is_pixels)


def _named(words: list[str], typed: str) -> tuple[Extent, Extent]:
    """Extents across and down of an area in words."""
    size = next(iter(SIZES.values()))
    if words and words[-1] in SIZES:
        size = SIZES[words.pop()]
    centered = Extent(0.5 - size / 2, 0.5 + size / 2)
    found: dict[int, Extent] = {}
    is_centered = False
    for word in words:
        if word in CENTERS and not is_centered:
            is_centered = True
        elif word in SIDES and SIDES[word][0] not in found:
            axis, side = SIDES[word]
            found[axis] = Extent(1 - size, 1.0) if side else Extent(0.0, size)
        else:
            raise AreaError(f"The area “{typed}” is not understood: write, for example, {FORMS}.")
    if not words or (is_centered and len(found) == 2):
        raise AreaError(f"The area “{typed}” is not understood: write, for example, {FORMS}.")
    rest = centered if is_centered else Extent()
    return found.get(0, rest), found.get(1, rest)


def area_mask(area: Area, cells: tuple[int, int], pixels: tuple[int, int]) -> Tensor:
    """Share of each cell of a picture that lies in an area.

    Args:
        area: The area.
        cells: Rows and columns of cells.
        pixels: Height and width of the picture.

    Returns:
        ``[rows, columns]``, float32, from 0 to 1.

    Raises:
        AreaError: If it reaches out of the picture.
    """
    import torch  # the command line reads areas without it

    shares = []
    for extent, number, size, axis in zip((area.down, area.across), cells, pixels, ("high", "wide"), strict=True):
        start, end = (one / size if extent.is_pixels else one for one in extent[:2])
        if end > 1:
            raise AreaError(
                f"The area “{area.text}” reaches to pixel {extent.end:g}, but the picture is {size} {axis}."
            )
        shares.append(torch.tensor(_shares(start, end, area.feather, number)))
    return shares[0][:, None] * shares[1]


def _shares(start: float, end: float, feather: float, number: int) -> list[float]:
    """Share of each of some equal cells that lies between two borders, each softened over the width ``feather``.

    The borders of the picture, at 0 and 1, are not softened.
    """
    start, end = (-feather - 1 if start <= 0 else start), (2 + feather if end >= 1 else end)

    def until(place: float) -> float:
        return _ramp_integral(place - start, feather) - _ramp_integral(place - end, feather)

    return [round((until((i + 1) / number) - until(i / number)) * number, 9) for i in range(number)]


def _ramp_integral(place: float, width: float) -> float:
    """Integral up to a place of what rises from 0 to 1 over a width around 0."""
    if abs(place) >= width / 2:
        return max(place, 0.0)
    return math.pow(place + width / 2, 2) / (2 * width)
