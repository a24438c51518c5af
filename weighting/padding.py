"""What an encoder, and the diffusion model behind it, may see of the padding after a short prompt.

Source: docs/masks.md; docs/lecture.md Definition 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .chunking import ChunkedSection
from .chunks import ChunkLayout, TokenChunk
from .schemes.api import Weighted, hide_nothing
from .schemes.plan import Visible, VisibleFn, both

if TYPE_CHECKING:
    from torch import Tensor

PADDINGS = ("attend", "mask", "mask EOS too", "drop", "clean", "clean EOS too")
"""What becomes of padding, default first. The encoder may see all of it, as Stable Diffusion was trained; or none of
it; or not the EOS in front of it either, which is the lecture's Definition 3.2 to the letter. ``drop``: its rows are
left out of the result, so that the diffusion model does not see them. ``clean``: its rows are those of the empty
prompt, which have read no words; ``clean EOS too``: so is the row of the EOS in front of it."""

BEHIND_CONTENT = {"clean": 2, "clean EOS too": 1}
"""Policies that put rows of the empty prompt in, and how far behind BOS and content these begin."""


def padding_visible(padding: str, layout: ChunkLayout) -> VisibleFn:
    """What a padding policy hides in every encoding of a prompt.

    Args:
        padding: One of `PADDINGS`.
        layout: The fixed parts of a chunk.

    Returns:
        A function from a chunk to a flag for each of its positions. Padding is told by its place, so that a typed
        end-of-text token does not hide what follows it; ``mask EOS too`` goes by the id.
    """

    def before_padding(chunk: TokenChunk) -> Visible:
        length = chunk.num_content + 2
        return None if length >= layout.length else b"\1" * length + b"\0" * (layout.length - length)

    def before_eos(chunk: TokenChunk) -> Visible:
        return both(bytes(token_id != layout.pad_id for token_id in chunk.ids), None)

    if padding not in ("mask", "mask EOS too"):
        return hide_nothing
    # where padding has an id of its own, Definition 3.2 hides that and leaves EOS: the same as masking by place
    return before_eos if padding == "mask EOS too" and layout.pad_id == layout.eos_id else before_padding


def rows_kept(sections: Sequence[ChunkedSection]) -> tuple[int, ...]:
    """How many rows of each chunk of a result are not padding.

    Args:
        sections: The prompt.

    Returns:
        For each chunk of the result BOS, content and EOS; where prompts are blended, of the fullest.
    """
    return tuple(
        max(prompt[index].num_content + 2 for prompt in section.prompts if index < len(prompt))
        for section in sections
        for index in range(max(map(len, section.prompts)))
    )


def cleaned(weighted: Weighted, chunks: Sequence[TokenChunk], padding: str, empty: Tensor) -> Weighted:
    """Put rows of the empty prompt in for the padding of each chunk, by a policy of `BEHIND_CONTENT`.

    Padding is told by its place, as for masks.

    Args:
        weighted: The result of a scheme; one that leaves rows out lacks them here too.
        chunks: The prompt.
        padding: The policy.
        empty: E, ``[77, dim]``.

    Returns:
        The result with every row before the padding, and the pooled vector, as they were.
    """
    first = [chunk.num_content + BEHIND_CONTENT[padding] for chunk in chunks]
    rows = [row for row, place in enumerate(weighted.places) if place.position >= first[place.chunk]]
    hidden = weighted.hidden.clone()
    hidden[:, rows] = empty[[weighted.places[row].position for row in rows]]
    return weighted._replace(hidden=hidden)
