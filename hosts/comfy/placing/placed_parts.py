"""Parts of a prompt with places that its text gives them: entries of a conditioning with areas, masks and regions.

Source: behaviour of comfyui-prompt-control 3.0.0-beta.9 (b24d93b) and ComfyUI 0.29.0; docs/reference/syntaxes.md,
"Places".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ....weighting.text.prompt import shortened
from ....weighting.timed.regions import RegionError, RegionPlace, shares_of
from ..types import Conditioning
from .placements import place_region, read_place


class PlacedPart(NamedTuple):
    """A part of a prompt between ANDs and COUPLEs."""

    entries: Conditioning
    """Its texts, each in its time."""
    weight: float
    place: RegionPlace | None
    """Its place; None for the whole picture."""


def placed_entries(parts: Sequence[PlacedPart]) -> Conditioning:
    """Entries of all parts, those that COUPLE joins as regions of the first of them.

    Raises:
        RegionError: If parts cannot be joined.
    """
    conditioning: Conditioning = []
    for group in _groups(parts):
        if len(group) > 1:
            conditioning += _coupled(group)
            continue
        for entries, weight, place in group:
            strength = {"strength": weight} if len(parts) > 1 or place is not None else {}
            values = {**strength, **_where(place)}
            conditioning += [[hidden, {**entry_values, **values}] for hidden, entry_values in entries]
    return conditioning


def _groups(parts: Sequence[PlacedPart]) -> Iterator[list[PlacedPart]]:
    """Parts that COUPLE joins, together."""
    groups: list[list[PlacedPart]] = []
    for part in parts:
        if not groups or part.place is None or not part.place.is_coupled:
            groups.append([])
        groups[-1].append(part)
    for group in groups:
        is_placed = len(group) > 1 or group[0].place is not None
        yield [part for part in group if part.weight != 0 or not is_placed]  # as in prompt-control


def check_parts(parts: Sequence[PlacedPart]) -> int:
    """Number of parts that are not left out; a RegionError if some cannot be joined."""
    groups = list(_groups(parts))
    for group in groups:
        if len(group) > 1:
            _check_coupled(group)
    return sum(map(len, groups))


def _check_coupled(group: Sequence[PlacedPart]) -> None:
    for number, part in enumerate(group):
        place = part.place or RegionPlace("")
        name = shortened(place.text) if place.text else "the base prompt"
        if number and place.has_area:
            raise RegionError(f"“{name}”: an AREA after COUPLE has no effect in prompt-control. Take MASK.")
        if part.weight != 1 and not place.has_area:
            raise RegionError(
                f"“{name}” has the weight {part.weight:g}. With COUPLE, prompt-control multiplies the rows of text "
                "by it, which is not read here. Weight a region with its MASK: COUPLE(x1 x2, y1 y2, weight)."
            )


def _coupled(group: Sequence[PlacedPart]) -> Conditioning:
    """A base prompt with regions, each with its share of each place."""
    places = [part.place or RegionPlace("") for part in group]
    _check_coupled(group)
    values = {"area": area, "set_area_to_bounds": False} if (area := _area(places[0])) else {}
    result = [[hidden, {**entry_values, **values}] for hidden, entry_values in group[0].entries]
    for part, share in zip(group[1:], shares_of(places)[1:], strict=True):
        if bool(share.any()):
            result, _ = place_region(result, part.entries, 1.0, read_place(mask=share))
    return result


def _area(place: RegionPlace) -> tuple[Any, ...] | None:
    return ("percentage", *place.percentages) if place.percentages is not None else place.pixels


def _where(place: RegionPlace | None) -> dict[str, Any]:
    """Keys of an entry for a place in the picture, as ComfyUI's nodes for areas and masks set them."""
    values: dict[str, Any] = {}
    if place is None:
        return values
    if (area := _area(place)) is not None:
        values["area"] = area
    if (mask := place.mask()) is not None:
        values |= {"mask": mask, "mask_strength": place.mask_weight}
    return {**values, "set_area_to_bounds": False} if values else {}
