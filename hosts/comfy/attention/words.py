"""Words of a CONDITIONING: which rows they are, carried by its entries, for nodes that place them.

They are a value in the entry's dictionary that the host ignores, with a fingerprint of the rows: what copies an entry
keeps them, and what changes its rows is noticed.

Source: behaviour of ComfyUI 0.29.0; docs/places.md, "Phrases".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from ....weighting.phrases.words import rows_in_towers, words_of_towers
from ....weighting.pipeline import EncodedPrompt
from ....weighting.text.prompt import shortened
from ..titles import WEIGHTED_CLIP, WEIGHTED_PROMPT
from ..types import Conditioning
from .fingerprint import are_same, fingerprint
from .text_rows import Part, num_rows_read

WORDS = "weighted_clip_words"
"""Key of the words in an entry's dictionary."""


FOREIGN = (
    f"This CONDITIONING does not say which of its rows are words. Put the node {WEIGHTED_CLIP} behind the loader, or "
    f"encode the prompt with {WEIGHTED_PROMPT}: with their first settings they give what the stock node gives."
)
"""Message about a conditioning that no node of ours has encoded."""
BLEND = "its rows are a blend of several prompts"


def without_rows(phrase: str, reason: str) -> str:
    """Message about a phrase of a conditioning whose words have no rows of their own."""
    return f"“{shortened(phrase)}” has no rows of its own in this CONDITIONING: {reason}."


def changed(phrase: str) -> str:
    """Message about a phrase of a conditioning whose rows another node has changed."""
    return (
        f"“{shortened(phrase)}” cannot be found any more: a node behind the text encoder, such as Conditioning "
        "(Average) or (Concat), has changed the rows of this CONDITIONING. Place or watch the phrase before that node, "
        "or join prompts with Conditioning (Combine)."
    )


def absent(phrase: str) -> str:
    """Message about a phrase that is in none of a conditioning's prompts."""
    return f"“{shortened(phrase)}” is not in the prompt."


class Carried(NamedTuple):
    """Words of an entry."""

    parts: tuple[Part, ...]
    """Its rows, part behind part; none if ``unknown``."""
    rows: Tensor
    """Fingerprint of the rows that they are for."""
    unknown: str = ""
    """Reason why its words have no rows of their own."""


def with_words(conditioning: Conditioning, parts: Sequence[Part] | str) -> Conditioning:
    """A copy of a conditioning with its words, or with the reason why they have no rows of their own."""
    unknown = parts if isinstance(parts, str) else ""
    known = () if isinstance(parts, str) else tuple(parts)
    if any(num_rows_read(rows, values) > sum(map(_num_rows, known)) for rows, values in conditioning):
        known, unknown = (), unknown or "another node's text encoder made its rows"  # CLIP NegPip's, as it pairs rows
    return [[rows, {**values, WORDS: Carried(known, fingerprint(rows), unknown)}] for rows, values in conditioning]


def words_or_blend(prompts: Mapping[str, EncodedPrompt]) -> tuple[Part] | str:
    """Words of CLIP text towers side by side, or the reason why their rows are not theirs alone."""
    words = words_of_towers(prompts)
    return BLEND if words is None else (words,)


def _num_rows(part: Part) -> int:
    return min(len(words.rows) for words in part.values())


def rows_of(phrase: str, rows: Tensor, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Rows of a phrase in an entry of a conditioning, counted from 0; none if it is absent.

    Raises:
        ValueError: If the entry has no words, they have no rows, its rows have changed, or its text towers have the
            phrase in different rows.
    """
    carried: Carried | None = values.get(WORDS)
    if carried is None:
        raise ValueError(FOREIGN)
    if carried.unknown:
        raise ValueError(without_rows(phrase, carried.unknown))
    if not are_same(carried.rows, fingerprint(rows)):
        raise ValueError(changed(phrase))
    found: list[int] = []
    start = 0
    for part in carried.parts:
        num_rows = _num_rows(part)
        found += [start + row for row in rows_in_towers(part, phrase, num_rows)]
        start += num_rows
    return tuple(found)
