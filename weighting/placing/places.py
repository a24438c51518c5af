"""Lines that place phrases of a prompt, for hosts without nodes: ``red cat: left half ~0.1, 0-0.4, outside 0.2``.

    line   = phrase ":" part {"," part}
    part   = area | time | weight
    time   = number "-" number ["steps"]
    weight = ("inside" | "outside") number

Behind the last colon parts stand in any order. No area has a hyphen, and none begins with the name of a weight: so what
is neither a time nor a weight is the area, with the comma that it may have itself.

Source: docs/places.md, "In the WebUI".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ..text.prompt import shortened
from .areas import Area, read_area
from .fields import check_times, check_weight

MAX_PLACES = 100
"""Maximum number of lines with a phrase."""
FORM = (
    "A line is a phrase, a colon and, with commas between: where, such as left half; when, such as 0-0.4, or 0-3 "
    "steps; weights, such as inside 2, outside 0.3."
)
"""Lines that are understood, in words."""
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_TIME = re.compile(rf"{_NUMBER}\s*[-–]\s*{_NUMBER}\s*(steps?)?", re.IGNORECASE)
_WEIGHT = re.compile(r"(inside|outside)\b\s*(.*)", re.IGNORECASE)


class PlaceError(ValueError):
    """Raised for a line that is not understood; the message quotes it and says what is allowed."""


class PlacedPhrase(NamedTuple):
    """Place, time and weights of a phrase."""

    phrase: str
    area: Area | None = None
    """None for the whole picture."""
    inside: float = 1.0
    outside: float = 0.0
    start: float = 0.0
    """First time at which it acts: a part of the way from noise to the picture, or a step counted from 0."""
    end: float = 1.0
    """First time at which it does not act any more; 1, or the number of steps, is the end of the sampling."""
    in_steps: bool = False
    """Whether times are steps."""
    line: str = ""
    """Line it was read from."""

    @property
    def is_neutral(self) -> bool:
        """Whether its weight is 1 everywhere."""
        return self.inside == 1.0 and (self.area is None or self.outside == 1.0)


def read_places(text: str) -> tuple[PlacedPhrase, ...]:
    """Read lines, of which empty ones are left out.

    Args:
        text: One phrase a line.

    Returns:
        A place for each line. Those of one phrase act together: their weights multiply.

    Raises:
        PlaceError: If a line is not understood, or there are more than `MAX_PLACES`.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > MAX_PLACES:
        raise PlaceError(
            f"Places has {len(lines):,} lines, and at most {MAX_PLACES} are allowed: “{shortened(lines[MAX_PLACES])}” "
            "is one too many."
        )
    return tuple(map(read_place, lines))


def read_place(line: str) -> PlacedPhrase:
    """Read a line.

    Raises:
        PlaceError: If it is not understood.

    >>> read_place("red cat: 0 0.5, 0 1 ~0.1, 0-3 steps, outside 0.2")[2:7]
    (1.0, 0.2, 0.0, 3.0, True)
    >>> read_place("red cat: left half").area.text
    'left half'
    """
    line = line.strip()
    try:
        return _read(line)
    except ValueError as error:
        raise PlaceError(f"Places, “{shortened(line)}”: {error} {FORM}") from error


def _read(line: str) -> PlacedPhrase:
    phrase, colon, rest = (part.strip() for part in line.rpartition(":"))
    if not colon:
        raise ValueError("it has no colon.")
    if not phrase:
        raise ValueError("it has no phrase in front of the colon.")
    if not rest:
        raise ValueError("nothing stands behind the colon.")
    found: dict[str, float] = {}
    times: list[re.Match[str]] = []
    area: list[str] = []
    for part in map(str.strip, rest.split(",")):
        if weight := _WEIGHT.fullmatch(part):
            name = weight[1].lower()
            if name in found:
                raise ValueError(f"{name} stands there twice.")
            found[name] = _weight(name, weight[2])
        elif time := _TIME.fullmatch(part):
            times.append(time)
        else:
            area.append(part)
    if len(times) > 1:
        raise ValueError("two times stand there: write one line for each.")
    if area and not all(area):
        raise ValueError("nothing stands between two commas, or behind the last one.")
    place = PlacedPhrase(phrase, read_area(shortened(", ".join(area))), line=line)._replace(**found)
    for time in times:
        start, end, in_steps, written = float(time[1]), float(time[2]), time[3] is not None, shortened(time[0])
        if end > 1 and not in_steps:
            raise ValueError(f"times go from 0 to 1, got “{written}”; for steps write “{written} steps”.")
        check_times(start, end, in_steps=in_steps)
        place = place._replace(start=start, end=end, in_steps=in_steps)
    return place


def _weight(name: str, written: str) -> float:
    try:
        weight = float(written)
    except ValueError:
        raise ValueError(f"{name} must be 0 or a number above, got “{shortened(written)}”.") from None
    check_weight(name, weight)
    return weight
