"""Visibility of the padding after a short prompt, for an encoder and for the diffusion model.

Source: docs/reference/masks.md; docs/lecture.md Definition 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .chunking import ChunkedSection
from .plan import Visible, VisibleFn, intersection
from .schemes.scheme import WeightedRows, hide_nothing, places_of
from .text.chunks import ChunkLayout, TokenChunk

if TYPE_CHECKING:
    from torch import Tensor

PADDINGS = {
    "attend": "words see all of it, as Stable Diffusion was trained",
    "mask": "words see none of it",
    "mask EOS too": "words do not see the end token either",  # the lecture's Definition 3.2 to the letter
    "drop": "its rows are left out, so the image model does not see them either",
    "clean": "its rows are those of the empty prompt, which carry nothing of your words",
    "clean EOS too": "so is the end token's row",
}
"""Padding policies, default first, with their meaning in menus."""

BEHIND_CONTENT = {"clean": 2, "clean EOS too": 1}
"""Policies that insert rows of the empty prompt, and the distance of these from the end of BOS and content."""


def padding_visible(padding: str, layout: ChunkLayout) -> VisibleFn:
    """Mask of a padding policy for every encoding of a prompt.

    Args:
        padding: One of `PADDINGS`.
        layout: Fixed parts of a chunk.

    Returns:
        Function from a chunk to a flag for each of its positions. Padding is identified by position, so that a typed
        end-of-text token does not hide the rest; ``mask EOS too`` goes by the id.
    """

    def before_padding(chunk: TokenChunk) -> Visible:
        length = chunk.num_content + 2
        return None if length >= layout.length else b"\1" * length + b"\0" * (layout.length - length)

    def before_eos(chunk: TokenChunk) -> Visible:
        return intersection(bytes(token_id != layout.pad_id for token_id in chunk.ids), None)

    if padding not in ("mask", "mask EOS too"):
        return hide_nothing
    # if padding has its own id, Definition 3.2 hides that and leaves EOS: the same as masking by position
    return before_eos if padding == "mask EOS too" and layout.pad_id == layout.eos_id else before_padding


def rows_kept(sections: Sequence[ChunkedSection]) -> tuple[int, ...]:
    """Number of rows of each chunk of a result that are not padding."""
    return tuple(
        max(prompt[index].num_content + 2 for prompt in section.prompts if index < len(prompt))
        for section in sections
        for index in range(max(map(len, section.prompts)))
    )


def cleaned(weighted: WeightedRows, chunks: Sequence[TokenChunk], padding: str, empty: Tensor) -> WeightedRows:
    """Replace the padding of each chunk by rows of the empty prompt, by a policy of `BEHIND_CONTENT`.

    Padding is identified by position, as for masks.

    Args:
        weighted: The result of a scheme; rows it left out stay out.
        chunks: The prompt.
        padding: The policy.
        empty: E, ``[77, dim]``.

    Returns:
        The result, with every row before the padding, and the pooled vector, unchanged.
    """
    first = [chunk.num_content + BEHIND_CONTENT[padding] for chunk in chunks]
    rows = [row for row, place in enumerate(weighted.places) if place.position >= first[place.chunk]]
    padding_rows = empty.index_select(0, places_of([weighted.places[row].position for row in rows], empty))
    hidden = weighted.hidden.index_copy(1, places_of(rows, empty), padding_rows.unsqueeze(0))
    return weighted._replace(hidden=hidden)
