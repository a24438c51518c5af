"""Phrases of a CONDITIONING placed in the picture and in time.

Source: docs/places.md.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from ...weighting.areas import Area, read_area
from ...weighting.fields import check_field
from ...weighting.prompt import shortened
from ...weighting.view import counted
from .attention import NOT_ACTING, with_field
from .fields import Field
from .types import Conditioning
from .words import rows_of


class Placement(NamedTuple):
    """Place, time and weights of a phrase."""

    inside: float = 1.0
    outside: float = 0.0
    area: str = ""
    """Area as typed; empty for the whole picture."""
    start: float = 0.0
    end: float = 1.0
    in_steps: bool = False
    mask: Tensor | None = None
    """MASK of the host, ``[pictures, height, width]`` or ``[height, width]``, 0 to 1."""


def place_phrase(
    conditioning: Conditioning, phrase: str, placement: Placement, node_id: str | None = None
) -> tuple[Conditioning, str]:
    """Place a phrase of a conditioning.

    Args:
        conditioning: Conditioning of our encode nodes.
        phrase: The phrase; all places where it stands in the prompt are meant.
        placement: Its place, time and weights.
        node_id: Node to notify after sampling.

    Returns:
        A copy of the conditioning, or the same one if no weight differs from 1; and a report.

    Raises:
        ValueError: If the placement has no meaning, or the phrase's rows cannot be told, do not exist or have a weight
            below 0.
    """
    phrase = phrase.strip()
    if not phrase:
        raise ValueError("phrase is empty: write some words of the prompt that are to be placed.")
    inside, outside, typed, start, end, in_steps, mask = placement
    check_field(inside, outside, start, end, in_steps=in_steps)
    area = read_area(typed)
    mask = _checked(mask)
    fields: list[Field | None] = []
    for rows, values in conditioning:
        found = rows_of(phrase, rows, values)
        fields.append(
            Field(found, phrase, *placement[:2], area, mask, start, end, in_steps, node_id) if found else None
        )
    num_found = sum(field is not None for field in fields)
    if not num_found:
        raise ValueError(f"“{shortened(phrase)}” is not in the prompt.")
    num_rows = sum(len(field.rows) for field in fields if field is not None)
    lines = [f"“{phrase}”: {counted(num_rows, 'row')}"]
    if num_found < len(fields):
        lines[0] += f", in {num_found} of the {len(fields)} entries of this CONDITIONING"
    if inside == outside == 1.0 or (area is mask is None and inside == 1.0):
        return conditioning, f"{lines[0]}\nits weight is 1 everywhere: the CONDITIONING is as it came in"
    lines += _about(placement, area)
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
        raise ValueError("mask is 0 everywhere: paint the place of the phrase.")
    return mask


def _about(placement: Placement, area: Area | None) -> list[str]:
    """Lines of a report about place, time and weights."""
    where = [f"area “{area.text}”"] if area else []
    if placement.mask is not None:
        where.append("the mask")
    place = " and ".join(where)
    lines = [f"weight {placement.inside:g} everywhere"]
    if place:
        lines = [f"weight {placement.inside:g} in {place}, {placement.outside:g} outside"]
    unit = "step" if placement.in_steps else "part of the way"
    if placement.in_steps or (placement.start, placement.end) != (0.0, 1.0):
        lines.append(f"from {unit} {placement.start:g} to before {unit} {placement.end:g}")
    return lines
