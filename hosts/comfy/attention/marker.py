"""Markers of a CONDITIONING's entries: effects on rows, fields, regions and watched words.

Each entry holds its marker among its model's inputs (``model_conds``), so that it follows the entry through areas,
masks and time ranges. A fingerprint of the rows, made when the prompt is encoded and again when it is sampled, shows
that the effects are for these rows.

Source: behaviour of ComfyUI 0.29.0; docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..contract import host
from ..titles import PLACE_PHRASE, REGIONAL_PROMPT
from .fields import Field
from .fingerprint import are_same, fingerprint
from .recorder import WatchedWords
from .regions import Region
from .steps import MARKER, plain
from .text_rows import num_rows_read

Entry = dict[str, Any]
"""An entry of a conditioning in the form of the host's sampler."""


def fields_of(values: Mapping[str, Any]) -> tuple[Field, ...]:
    """Fields of an entry of a conditioning, given its dictionary, in the order in which they were attached."""
    return getattr(values.get("model_conds", {}).get(MARKER), "fields", ())


def is_pass(values: Mapping[str, Any]) -> bool:
    """Whether an entry, from its dictionary, is the pass of a region with LoRAs."""
    return getattr(values.get("model_conds", {}).get(MARKER), "own_pass", None) is not None


def regions_of(values: Mapping[str, Any]) -> tuple[Region, ...]:
    """Regions of an entry of a conditioning, from its dictionary."""
    return getattr(values.get("model_conds", {}).get(MARKER), "regions", ())


@cache
def marker_class() -> Any:
    """Class of markers, which only `predict` can make into something that the host passes to a model."""

    class Marker(host("comfy.conds").CONDRegular):
        def __init__(
            self,
            cond: Tensor,
            rows: Tensor,
            node_id: str | None = None,
            fields: tuple[Field, ...] = (),
            regions: tuple[Region, ...] = (),
            watches: tuple[WatchedWords, ...] = (),
            own_pass: str | None = None,
        ) -> None:
            super().__init__(cond)
            self.rows = rows  # fingerprint of the rows that the effects are for
            self.node_id = node_id
            self.fields = fields
            self.regions = regions
            self.watches = watches
            self.own_pass = own_pass  # name of the region whose LoRAs it is for

        def _copy_with(self, cond: Tensor, **changed: Any) -> Marker:
            names = ("rows", "node_id", "fields", "regions", "watches", "own_pass")
            return Marker(cond, **{name: getattr(self, name) for name in names} | changed)

        def with_field(self, field: Field) -> Marker:
            return self._copy_with(self.cond, fields=(*self.fields, field))

        def with_watch(self, watched: WatchedWords) -> Marker:
            return self._copy_with(self.cond, watches=(*self.watches, watched))

        def for_pass(self, name: str) -> Marker:
            return self._copy_with(self.cond, own_pass=name)

        def with_region(self, region: Region, region_marker: Any) -> Marker:
            both = torch.cat([self.cond.view(2, -1), region_marker.cond.view(2, -1)], 1).view(1, -1)

            def moved(rows: Sequence[int]) -> tuple[int, ...]:
                return tuple(region.rows.start + row for row in rows)

            return self._copy_with(
                both,
                fields=(*self.fields, *(field._replace(rows=moved(field.rows)) for field in region_marker.fields)),
                regions=(*self.regions, region),
                watches=(
                    *self.watches,
                    *(watched._replace(rows=tuple(map(moved, watched.rows))) for watched in region_marker.watches),
                ),
            )

        @property
        def num_own(self) -> int:  # of rows that are the entry's, not those of regions
            return self.cond.shape[1] // 2 - sum(len(region.rows) for region in self.regions)

        def process_cond(self, *_: Any, **__: Any) -> Any:
            raise ValueError(
                f"What Attention Weights, {PLACE_PHRASE} or {REGIONAL_PROMPT} added would be lost: another node has "
                "replaced the hooks that the CONDITIONING came with, or the MODEL that is connected to Attention "
                "Weights is sampled instead of its MODEL output. Sample with the MODEL output of Attention Weights."
            )

    return Marker


def marker_of(rows: Tensor, values: Mapping[str, Any]) -> Any:
    """The marker of an entry of a conditioning; one without effects if it has none."""
    marker = values.get("model_conds", {}).get(MARKER)
    if marker is not None:
        return marker
    return marker_class()(plain(num_rows_read(rows, values)).reshape(1, -1), fingerprint(rows))


def marker_for(rows: Tensor, marker: Any) -> Any:
    """The marker if it is for these rows, one without effects if they are zeros; others are refused."""
    current = fingerprint(rows)
    if are_same(marker.rows, current):
        return marker
    if bool(current.any()):
        raise ValueError(rows_changed(marker.rows.shape[1], current.shape[1]))
    return marker_class()(plain(marker.num_own).reshape(1, -1), current, marker.node_id)


def rows_changed(num_own: int, num_found: int) -> str:
    """Message about rows that are not those that were weighed."""
    received = "others" if num_found == num_own else f"{num_found}"
    return (
        f"Attention Weights, {PLACE_PHRASE} or {REGIONAL_PROMPT} got {num_own} rows of text, but the sampler got "
        f"{received}: a node between them, such as Conditioning (Concat) or (Average), has changed them. Join prompts "
        "with Conditioning (Combine), or write them as one."
    )
