"""Many versions of a prompt, each common beginning once: a text encoder that shares prefixes within a call.

In a causal encoder the states at a position depend on what stands there and before, and on nothing behind. So chunks
that begin alike, same tokens and same mask, have the same states up to where they part: encodings of a prompt that hide
different words, texts of a schedule, cells of a grid. Positions are run in segments, from left to right, and in each
segment only the chunks that differ by then; keys and values of what lies before are kept for the next.

The result differs from full passes by rounding, as matrices of other shapes are multiplied.

Source: docs/masks.md, "Shared prefixes".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .layers import Block
from .masks import causal_mask, check_mask
from .text_model import Encoding, TextEncoder, first_eos

SEGMENT_COST = 24
"""What a segment more takes, as a number of positions run: its matrices are smaller, and it reads the weights again."""
WORTH = 0.85
"""Sharing is chosen if it runs at most this part of the positions of full passes, segments counted."""


class Segment(NamedTuple):
    """Positions of which some chunks are the same."""

    start: int
    end: int
    groups: tuple[int, ...]
    """For each chunk the number of its group, from 0; chunks of a group are the same up to ``end``."""

    @property
    def num_groups(self) -> int:
        """How many different chunks there are by then."""
        return max(self.groups) + 1

    @property
    def cost(self) -> int:
        """Positions that are run."""
        return self.num_groups * (self.end - self.start)


class PrefixTextEncoder(TextEncoder):
    """A `TextEncoder` that runs a beginning shared by several chunks of a call once, where that pays."""

    @torch.no_grad()
    def __call__(self, ids: Sequence[Sequence[Any]], mask: Tensor | None = None, *, is_causal: bool = True) -> Encoding:
        """Encode chunks; as `TextEncoder`, to within rounding."""
        if not is_causal or len(ids) == 1:
            return super().__call__(ids, mask, is_causal=is_causal)
        length = len(ids[0])
        if mask is not None:
            mask = check_mask(mask, len(ids), length).expand(len(ids), length, length)
        segments = plan(_keys(ids, mask))
        if sum(segment.cost + SEGMENT_COST for segment in segments) > WORTH * len(ids) * length:
            return super().__call__(ids, mask)
        return self._run(ids, mask, segments)

    def _run(self, ids: Sequence[Sequence[Any]], mask: Tensor | None, segments: Sequence[Segment]) -> Encoding:
        model = self.model
        device = model.final_layer_norm.weight.device
        plain, vectors = self.split(ids)
        tokens = torch.tensor(plain, dtype=torch.long, device=device)
        length = tokens.shape[1]
        visible = causal_mask(length).expand(len(ids), -1, -1)
        visible = (visible if mask is None else visible & mask.to(visible.device)).to(device)
        embedded = model.embeddings(tokens, vectors)  # [b, s, d]

        blocks = [block for block in model.encoder.layers if isinstance(block, Block)]
        pasts: list[tuple[Tensor, Tensor] | None] = [None] * len(blocks)
        before: Segment | None = None
        chosen: list[Tensor] = []
        last: list[Tensor] = []
        for segment in segments:
            rows = torch.tensor([segment.groups.index(group) for group in range(segment.num_groups)], device=device)
            place = slice(segment.start, segment.end)
            if before is not None:
                parents = torch.tensor(before.groups, device=device)[rows]
                pasts = [None if past is None else (past[0][parents], past[1][parents]) for past in pasts]
            hidden = embedded[rows, place]  # [groups, positions, d]
            allowed = visible[rows, place, : segment.end].unsqueeze(1)
            states = [hidden]
            for index, block in enumerate(blocks):
                hidden, pasts[index] = _run_block(block, states[-1], pasts[index], allowed)
                states.append(hidden)
            groups = torch.tensor(segment.groups, device=device)
            chosen.append(states[-self.clip_skip][groups])
            last.append(states[-1][groups])
            before = segment

        normed = model.final_layer_norm(torch.cat(last, dim=1))  # [b, s, d]
        if self.clip_skip == 1 and self.final_norm:
            result = normed
        else:
            result = torch.cat(chosen, dim=1)
            result = model.final_layer_norm(result) if self.final_norm else result
        pooled = normed[torch.arange(len(ids), device=device), first_eos(tokens, model.config.eos_id)]
        if self.projected and model.text_projection is not None:
            pooled = model.text_projection(pooled)
        return self.widened(result, pooled)


def plan(keys: Sequence[Sequence[Hashable]]) -> list[Segment]:
    """Cut positions into segments so that little is run twice.

    Args:
        keys: For each chunk, for each position, all that its states depend on beside those of earlier positions.

    Returns:
        Segments that cover all positions, from left to right; their number of groups grows.

    >>> [(s.start, s.end, s.groups) for s in plan(["a" * 40 + "b" * 40, "a" * 40 + "c" * 40])]
    [(0, 40, (0, 0)), (40, 80, (0, 1))]
    """
    segments: list[Segment] = []
    groups = (0,) * len(keys)
    for position, column in enumerate(zip(*keys, strict=True)):
        numbers: dict[tuple[int, Hashable], int] = {}
        refined = tuple(numbers.setdefault(pair, len(numbers)) for pair in zip(groups, column, strict=True))
        if segments and max(refined) == max(groups):
            segments[-1] = segments[-1]._replace(end=position + 1)
        else:
            segments.append(Segment(position, position + 1, refined))
        groups = refined
    merged: list[Segment] = []
    for segment in reversed(segments):  # a segment may be run as finely as the one behind it
        if merged and (merged[-1].num_groups - segment.num_groups) * (segment.end - segment.start) <= SEGMENT_COST:
            merged[-1] = merged[-1]._replace(start=segment.start)
        else:
            merged.append(segment)
    return merged[::-1]


def _keys(ids: Sequence[Sequence[Any]], mask: Tensor | None) -> list[list[Hashable]]:
    if mask is None:
        return [list(chunk) for chunk in ids]
    rows = mask.cpu().numpy()
    return [
        [(token, rows[row, place, : place + 1].tobytes()) for place, token in enumerate(chunk)]
        for row, chunk in enumerate(ids)
    ]


def _run_block(
    block: Block, hidden: Tensor, past: tuple[Tensor, Tensor] | None, allowed: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """`Block.forward` for some positions, with keys and values ``[groups, h, positions, e]`` of those before."""
    q, k, v = block.self_attn.heads(block.layer_norm1(hidden))
    if past is not None:
        k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
    hidden = hidden + block.self_attn.mix(q, k, v, allowed, is_causal=False)
    return hidden + block.mlp(block.layer_norm2(hidden)), (k, v)
