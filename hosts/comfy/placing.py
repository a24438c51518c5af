"""Phrases of a CONDITIONING placed in the picture and in time.

Source: docs/places.md.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...weighting.areas import read_area
from ...weighting.fields import check_times, check_weight
from ...weighting.prompt import shortened
from ...weighting.view import counted
from .attention import NOT_ACTING, with_field
from .fields import Field, Where
from .types import Conditioning
from .words import rows_of


class Placement(NamedTuple):
    """Place and time as typed."""

    area: str = ""
    """Empty for the whole picture."""
    start: float = 0.0
    end: float = 1.0
    in_steps: bool = False
    mask: Tensor | None = None
    """MASK of the host, ``[pictures, height, width]`` or ``[height, width]``, 0 to 1."""
    node_id: str | None = None
    """Node to notify after sampling."""

    def checked(self, name: str) -> Where:
        """Place and time of what messages call by this name; a ValueError if they have no meaning."""
        check_times(self.start, self.end, in_steps=self.in_steps)
        area, mask = read_area(self.area), _checked(self.mask)
        return Where(name, area, mask, self.start, self.end, self.in_steps, self.node_id)


def place_phrase(
    conditioning: Conditioning, phrase: str, inside: float, outside: float, placement: Placement
) -> tuple[Conditioning, str]:
    """Place a phrase of a conditioning.

    Args:
        conditioning: Conditioning of our encode nodes.
        phrase: The phrase; all places where it stands in the prompt are meant.
        inside: Its weight there, from 0.
        outside: Its weight elsewhere.
        placement: Its place and time.

    Returns:
        A copy of the conditioning, or the same one if no weight differs from 1; and a report.

    Raises:
        ValueError: If the placement has no meaning, or the phrase's rows cannot be told, do not exist or have a weight
            below 0.
    """
    phrase = phrase.strip()
    if not phrase:
        raise ValueError("phrase is empty: write some words of the prompt that are to be placed.")
    check_weight("inside", inside)
    check_weight("outside", outside)
    where = placement.checked(f"“{phrase}”")
    fields: list[Field | None] = []
    for rows, values in conditioning:
        found = rows_of(phrase, rows, values)
        fields.append(Field(found, inside, outside, where, phrase) if found else None)
    num_found = sum(field is not None for field in fields)
    if not num_found:
        raise ValueError(f"“{shortened(phrase)}” is not in the prompt.")
    num_rows = sum(len(field.rows) for field in fields if field is not None)
    lines = [f"“{phrase}”: {counted(num_rows, 'row')}"]
    if num_found < len(fields):
        lines[0] += f", in {num_found} of the {len(fields)} entries of this CONDITIONING"
    place = place_in_words(where)
    if inside == outside == 1.0 or (not place and inside == 1.0):
        return conditioning, f"{lines[0]}\nits weight is 1 everywhere: the CONDITIONING is as it came in"
    lines.append(f"weight {inside:g} in {place}, {outside:g} outside" if place else f"weight {inside:g} everywhere")
    lines += time_lines(where)
    return with_field(conditioning, fields), "\n".join([*lines, NOT_ACTING])


def _checked(mask: Tensor | None) -> Tensor | None:
    if mask is None:
        return None
    mask = mask.detach().float().cpu()
    mask = mask[None] if mask.dim() == 2 else mask
    if mask.dim() != 3 or not mask.numel():
        raise ValueError(f"mask must be a MASK, [pictures, height, width]; got {list(mask.shape)}.")
    if not bool(mask.isfinite().all()) or bool((mask < 0).any()) or bool((mask > 1).any()):
        raise ValueError("mask must hold numbers from 0 to 1.")
    if not bool(mask.any()):
        raise ValueError("mask is 0 everywhere: paint the place.")
    return mask


def place_in_words(where: Where) -> str:
    """A place for a report; empty if it is the whole picture."""
    parts = [f"area “{where.area.text}”"] if where.area else []
    return " and ".join([*parts, *(["the mask"] if where.mask is not None else [])])


def time_lines(where: Where) -> list[str]:
    """Line of a report about a time; none if it is the whole sampling."""
    if not where.in_steps and (where.start, where.end) == (0.0, 1.0):
        return []
    unit = "step" if where.in_steps else "part of the way"
    return [f"from {unit} {where.start:g} to before {unit} {where.end:g}"]
