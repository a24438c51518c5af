"""Phrases and prompts placed in the picture and in time, from CONDITIONING to CONDITIONING.

Source: docs/places.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from ....weighting.placing.areas import read_area, read_where
from ....weighting.placing.fields import check_times, check_weight
from ....weighting.placing.places import PlacedPhrase
from ....weighting.reading.view import counted
from ....weighting.text.phrases import without_commas
from ....weighting.text.prompt import shortened
from ..attention.attention import NOT_ACTING, with_field, with_region, with_watch
from ..attention.fields import Field, Where
from ..attention.marker import regions_of
from ..attention.recorder import Watch
from ..attention.region_passes import loras_in_words
from ..attention.words import WORDS, absent, rows_of
from ..attention.wrappers import has_only_loras
from ..types import Conditioning
from . import placing_problems
from .boxes import read_boxes


def read_place(
    area: str = "",
    start: float = 0.0,
    end: float = 1.0,
    *,
    in_steps: bool = False,
    mask: Tensor | None = None,
    node_id: str | None = None,
    boxes: Any = None,
) -> Where:
    """Read a place and time as typed, with a MASK and boxes of the host; a ValueError if they have no meaning."""
    check_times(start, end, in_steps=in_steps)
    word, mask = read_where(area), placing_problems.checked_mask(mask)
    watch = Watch([word], keeps=False) if word else None
    return Where("", None if word else read_area(area), mask, start, end, in_steps, node_id, watch, read_boxes(boxes))


def place_phrase(
    conditioning: Conditioning, phrase: str, inside: float, outside: float, where: Where
) -> tuple[Conditioning, str]:
    """Place a phrase of a conditioning.

    Args:
        conditioning: Conditioning of our encode nodes.
        phrase: The phrase; all places where it stands in the prompt are meant.
        inside: Its weight there, from 0.
        outside: Its weight elsewhere.
        where: Its place and time.

    Returns:
        A copy of the conditioning, or the same one if no weight differs from 1; and a report.

    Raises:
        ValueError: If the phrase's rows cannot be told, do not exist or have a weight below 0.
    """
    phrase = without_commas(phrase)
    if not phrase:
        raise ValueError(placing_problems.EMPTY)
    check_weight("inside", inside)
    check_weight("outside", outside)
    name = f"“{shortened(phrase)}”"
    where = where._replace(name=name)
    fields: list[Field | None] = []
    for rows, values in conditioning:
        phrase_rows = all_rows_of(phrase, rows, values)
        fields.append(Field(phrase_rows, inside, outside, where, phrase) if phrase_rows else None)
    num_found = sum(field is not None for field in fields)
    if not num_found:
        raise ValueError(absent(phrase))
    num_rows = sum(len(field.rows) for field in fields if field is not None)
    lines = [f"{name}: {counted(num_rows, 'row')}"]
    if num_found < len(fields):
        lines[0] += f", in {num_found} of the {len(fields)} entries of this CONDITIONING"
    place = place_in_words(where)
    if inside == outside == 1.0 or (not place and inside == 1.0):
        return conditioning, f"{lines[0]}\nits weight is 1 everywhere: conditioning unchanged"
    lines.append(f"weight {inside:g} in {place}, {outside:g} outside" if place else f"weight {inside:g} everywhere")
    lines += time_lines(where, [values for (_, values), field in zip(conditioning, fields, strict=True) if field])
    placed = _watched(with_field(conditioning, fields), where, [field.rows if field else () for field in fields])
    return placed, "\n".join([*lines, NOT_ACTING])


def place_lines(conditioning: Conditioning, places: Sequence[PlacedPhrase]) -> tuple[Conditioning, list[str]]:
    """Place the phrases of our WebUI script's lines, of which one may be in none of a picture's texts.

    Returns:
        The conditioning as `place_phrase` gives it, and lines of a report.
    """
    lines: list[str] = []
    for place in places:
        if not any(all_rows_of(place.phrase, rows, values) for rows, values in conditioning):
            lines.append(f"“{shortened(place.line)}” places nothing: these words are not in the prompt")
            continue
        where = Where("", place.area, None, place.start, place.end, place.in_steps)
        conditioning, report = place_phrase(conditioning, place.phrase, place.inside, place.outside, where)
        lines.append(report)
    return conditioning, lines


def _watched(
    conditioning: Conditioning, where: Where, placed_rows: Sequence[Sequence[int]] | None = None
) -> Conditioning:
    """Watch the word by whose map something is placed; it must have none of the ``placed_rows``, entry by entry."""
    if where.watch is None:
        return conditioning
    (word,) = where.watch.names
    word_rows = [all_rows_of(word, rows, values) for rows, values in conditioning]
    if not any(word_rows):
        raise ValueError(placing_problems.absent_place(word, where.name))
    if any(
        set(watched) & set(placed) for watched, placed in zip(word_rows, placed_rows or (), strict=bool(placed_rows))
    ):
        raise ValueError(placing_problems.own_map(where.name, where.area_text))
    return with_watch(conditioning, where.watch, [[rows] for rows in word_rows])


def all_rows_of(phrase: str, rows: Tensor, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Rows of a phrase in an entry of a conditioning and in its regions, counted from 0; errors as in `rows_of`."""
    all_rows = rows_of(phrase, rows, values)
    for region in regions_of(values):
        if region.words is not None:
            region_rows = rows_of(phrase, region.text, {WORDS: region.words})
            all_rows += tuple(region.rows.start + row for row in region_rows)
    return all_rows


def place_region(
    base: Conditioning, region: Conditioning, strength: float, where: Where, *, blends: bool = False
) -> tuple[Conditioning, str]:
    """Add a separate prompt for one area to a base prompt, which fills the rest of the picture.

    Args:
        base: The base prompt, perhaps with regions.
        region: The prompt; its rows are taken, all else stays the base's.
        strength: Factor of its mask, from 0.
        where: Its place and time.
        blends: `Region.blends`.

    Returns:
        A copy of the base, or the same one at strength 0; and a report.

    Raises:
        ValueError: If one prediction cannot read both prompts.
    """
    check_weight("strength", strength)
    number = 1 + max(
        (len({earlier_region.where.name for earlier_region in regions_of(values)}) for _, values in base), default=0
    )
    where = where._replace(name=f"region {number}")
    _check_beside(base, region)
    times = [times_of(values) for _, values in region]
    for (_, end), (start, _) in pairwise(sorted(times)):
        if start < end:
            raise ValueError(placing_problems.at_once(len(region)))
    longest = max(rows.shape[1] for rows, _ in region)
    lines = [f"{where.name}: {counted(longest, 'row')}"]
    if len(region) > 1:
        lines[0] += f", {len(region)} texts one after the other"
    if not strength:
        return base, f"{lines[0]}\nits strength is 0: conditioning unchanged"
    lines.append(f"strength {strength:g} in {place_in_words(where) or 'the whole picture'}")
    if blends:
        lines.append("in every other block, in models in which text and picture share an attention")
    lines += [
        *time_lines(where, [values for _, values in region]),
        "pooled vector, ControlNet and all else are the base's",
        *([f"{loras}: one more pass of the model in each of its steps"] if (loras := loras_in_words(region)) else []),
    ]
    base = _watched(base, where)
    return with_region(base, region, strength, where, times, blends), "\n".join([*lines, NOT_ACTING])


def _check_beside(base: Conditioning, region: Conditioning) -> None:
    """Refuse prompts that cannot be read in one prediction of the model."""
    if not base or not region:
        raise ValueError("base and region must hold a prompt each; one of them is empty.")
    widths = [sorted({rows.shape[-1] for rows, _ in entries}) for entries in (base, region)]
    if widths[0] != widths[1]:
        base_width, region_width = (" and ".join(map(str, width)) for width in widths)
        raise ValueError(
            f"The rows of base are {base_width} wide, those of region {region_width}: text encoders of "
            "different models made them. Encode both with the same CLIP."
        )
    for rows, values in region:
        if len(rows) > 1:
            raise ValueError(f"The region has {len(rows)} prompts in one entry; it can be one only.")
        if regions_of(values):
            raise ValueError(placing_problems.NESTED)
        additions = [name for key, name in placing_problems.ALONE.items() if values.get(key) is not None]
        if has_only_loras(values.get("hooks")) and "hooks" in values:
            additions.remove(placing_problems.ALONE["hooks"])
        if values.get("strength", 1.0) != 1.0:
            additions.append(placing_problems.strength_words(values["strength"]))
        if additions:
            raise ValueError(placing_problems.comes_with(additions))


def times_of(values: Mapping[str, Any]) -> tuple[float, float]:
    """Parts of the way between which an entry is sampled; the host's hooks have made one for each text of a LoRA."""
    start = max(values.get("start_percent", 0.0), values.get("clip_start_percent", 0.0))
    return start, min(values.get("end_percent", 1.0), values.get("clip_end_percent", 1.0))


def place_in_words(where: Where) -> str:
    """A place for a report; empty if it is the whole picture."""
    parts = [f"area “{shortened(where.area_text)}”"] if where.area_text else []
    return " and ".join([*parts, *(["the mask"] if where.mask is not None else [])])


def time_lines(where: Where, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of a report about a time, in texts with times of their own; none if it is the whole sampling."""
    if not where.in_steps and (where.start, where.end) == (0.0, 1.0):
        return []
    unit = "step" if where.in_steps else "part of the way"
    lines = [f"from {unit} {where.start:g} to before {unit} {where.end:g}"]
    times = [(values.get("start_percent", 0.0), values.get("end_percent", 1.0)) for values in entries]
    num_apart = sum(max(start, where.start) >= min(end, where.end) for start, end in times)
    if num_apart and not where.in_steps:
        texts = "the text" if len(times) == 1 else f"{num_apart} of the {len(times)} texts"
        lines.append(f"it acts in 0 steps of {texts}, whose time does not meet this one")
    return lines
