"""Words of a CONDITIONING, the phrases placed among them and its regions, as plain data that the page draws.

Source: docs/places.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from ....weighting.phrases.words import Word, Words
from ....weighting.placing.areas import area_mask
from ....weighting.placing.fields import MAX_CELLS, small_picture
from ....weighting.reading.view import VERSION, chip_of
from ....weighting.text.prompt import shortened
from ..attention.fields import Field, Where
from ..attention.marker import fields_of, is_pass, regions_of
from ..attention.regions import Region
from ..attention.words import WORDS, Carried
from ..types import Conditioning

MAX_TEXTS = 20
"""Maximum number of texts that are sent to the page."""
MAX_CHARACTERS = 40
"""Maximum number of characters of a region's text that name it."""
_NO_WORDS = Words((), ())


def placed_views(conditioning: Conditioning, node_id: str | None = None) -> list[dict[str, Any]]:
    """Views of a conditioning's texts with their placed phrases and regions, each different one once.

    A view has the keys that the ruler draws (`weighting.reading.view.view`), without those of options. It also has

    - ``label``: the times of its entries, if there are several views;
    - ``places``: its placed phrases and regions, each with the values of the node Place Phrase or Regional Prompt, its
      ``name``, ``node``, ``is_own`` (of the node with this id), ``has_mask`` and ``picture``: rows of the mask in few
      cells, from 0 to 1, or None if it depends on the picture's size; a region also with its first ``words``, empty if
      they are not known;
    - in each chip ``places``: the numbers of its phrases in that list.

    Args:
        conditioning: Conditioning; if another pack's node encoded it, only its regions are known.
        node_id: Node that asks.
    """
    labelled_views: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for _, values in conditioning:
        if is_pass(values):
            continue
        fields, regions = fields_of(values), regions_of(values)
        texts = _words_of(values.get(WORDS))
        for words in texts or ([_NO_WORDS] if fields or regions else []):
            view = _view(words, fields, regions, node_id)
            _, labels = labelled_views.setdefault(json.dumps(view), (view, []))
            labels.append(_times(values))
    views = [
        {**view, "label": ", ".join(dict.fromkeys(filter(None, labels)))} for view, labels in labelled_views.values()
    ]
    if len(views) == 1:
        views[0]["label"] = ""
    if len(views) > MAX_TEXTS:
        views[MAX_TEXTS - 1]["num_more"] = len(views) - MAX_TEXTS
    return views[:MAX_TEXTS]


def _words_of(carried: Carried | None) -> list[Words]:
    """Different texts of an entry, if they are known."""
    parts = carried.parts if carried else ()
    return list(dict.fromkeys(words for part in parts for words in part.values()))


def _view(words: Words, fields: Sequence[Field], regions: Sequence[Region], node_id: str | None) -> dict[str, Any]:
    chunks = [_chunk()]
    numbers = [
        # rows of the base prompt come before the regions' rows
        words.numbers_of(field.phrase) if not regions or min(field.rows) < regions[0].rows.start else ()
        for field in fields
    ]
    before: Word | None = None
    for number, word in enumerate(words.words):
        if word is None:
            chunks[-1]["has_break"] = True
            chunks.append(_chunk())
        else:
            places = [place for place, field_numbers in enumerate(numbers) if number in field_numbers]
            chunks[-1]["num_tokens"] += 1
            chunks[-1]["chips"].append({**_chip(word, before), "places": places})
        before = word
    return {
        "version": VERSION,
        "text": _text(words),
        "num_tokens": sum(chunk["num_tokens"] for chunk in chunks),
        "chunks": chunks,
        "issues": [],
        "places": [*(_phrase(field, node_id) for field in fields), *_regions(regions, node_id)],
    }


def _text(words: Words) -> str:
    """Words with a space where there was something between them."""
    typed_words = [word for word in words.words if word]
    spaces = ["" if earlier.span.end == later.span.start else " " for earlier, later in pairwise(typed_words)]
    return "".join(space + word.typed for space, word in zip(["", *spaces], typed_words, strict=False))


def _chunk() -> dict[str, Any]:
    return {"num_tokens": 0, "capacity": None, "has_break": False, "chips": []}


def _chip(word: Word, before: Word | None) -> dict[str, Any]:
    joins = (
        before is not None
        and before.span.end == word.span.start
        and before.typed[-1].isalnum() == word.typed[0].isalnum()
    )
    return chip_of(word.typed, (0, 0), [0], joins=joins, is_hidden=False)


def _phrase(field: Field, node_id: str | None) -> dict[str, Any]:
    weights = {"inside": field.inside, "outside": field.outside}
    return {**_place(field.where, node_id), "phrase": field.phrase, **weights}


def _regions(regions: Sequence[Region], node_id: str | None) -> list[dict[str, Any]]:
    """Regions; texts of one that follow each other in time are named by the first."""
    firsts = {region.where.name: region for region in reversed(regions)}
    return [_region(region, node_id) for region in reversed(firsts.values())]


def _region(region: Region, node_id: str | None) -> dict[str, Any]:
    words = shortened(next(map(_text, _words_of(region.words)), ""), MAX_CHARACTERS)
    return {**_place(region.where, node_id), "words": words, "strength": region.strength}


def _place(where: Where, node_id: str | None) -> dict[str, Any]:
    return {
        "name": where.name,
        "node": where.node_id,
        "is_own": node_id is not None and where.node_id == node_id,
        "area": where.area_text,
        "has_mask": where.mask is not None,
        "picture": _picture(where),
        "start": where.start,
        "end": where.end,
        "unit": "steps" if where.in_steps else "percent",
    }


def _picture(where: Where) -> list[list[float]] | None:
    """A mask in few cells; None if it depends on the picture: an area in pixels, boxes, or where a word is read."""
    area, mask = where.area, torch.ones(1, 1) if where.mask is None else where.mask.mean(0)
    if where.watch is not None or where.boxes:
        return None
    if area is not None:
        if area.across.is_pixels or area.down.is_pixels:
            return None
        mask = mask.expand(MAX_CELLS, MAX_CELLS) if where.mask is None else mask
        cells = mask.shape[0], mask.shape[1]
        mask = mask * area_mask(area, cells, cells)
    return small_picture(mask)


def _times(values: Mapping[str, Any]) -> str:
    """Times of an entry, in words; empty for the whole way."""
    start, end = (float(values.get(name, whole)) for name, whole in (("start_percent", 0.0), ("end_percent", 1.0)))
    return "" if (start, end) == (0.0, 1.0) else f"from {start:.2g} to {end:.2g} of the way"
