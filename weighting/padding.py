"""What an encoder, and the diffusion model behind it, may see of the padding behind a short prompt.

Source: docs/masks.md; docs/lecture.md Definition 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..encoder.masks import padding_mask
from .chunking import ChunkedSection
from .chunks import ChunkLayout, TokenChunk
from .scheme_api import MaskFn, hide_nothing

PADDINGS = ("attend", "mask", "mask EOS too", "drop")
"""What becomes of padding, default first. The encoder may see all of it, as Stable Diffusion was trained; or none of
it; or not the EOS in front of it either, which is the lecture's Definition 3.2 to the letter. ``drop``: its rows are
left out of the result, so that the diffusion model does not see them."""


def padding_mask_fn(padding: str, layout: ChunkLayout) -> MaskFn:
    """The mask that a padding policy puts on every encoding of a prompt.

    Args:
        padding: One of `PADDINGS`.
        layout: The fixed parts of a chunk.

    Returns:
        A function from chunks to ``[chunks, 1, 77]``, bool, or to None. Padding is told by its place, so that a typed
        end-of-text token does not hide what follows it; ``mask EOS too`` goes by the id.
    """

    def mask_padding(chunks: Sequence[TokenChunk]) -> Tensor:
        lengths = torch.tensor([[chunk.num_content + 2] for chunk in chunks])
        return (torch.arange(layout.length) < lengths).unsqueeze(1)  # [chunks, 1, 77]

    def mask_eos_too(chunks: Sequence[TokenChunk]) -> Tensor:
        ids = torch.tensor([[i if isinstance(i, int) else -1 for i in chunk.ids] for chunk in chunks])
        return padding_mask(ids, eos_id=layout.eos_id, pad_id=layout.pad_id, convention="lecture")

    if padding in ("attend", "drop"):
        return hide_nothing
    # where padding has an id of its own, Definition 3.2 hides that and leaves EOS: the same as masking by place
    return mask_eos_too if padding == "mask EOS too" and layout.pad_id == layout.eos_id else mask_padding


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
