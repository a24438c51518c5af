"""Several prompts whose rows stand side by side in an attention, each of which some places of the picture read.

Source: docs/reference/attention.md, "Regions".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .fields import HIDDEN, logarithms, means
from .queries import Queries


class Part(NamedTuple):
    """Keys of one prompt in a layer."""

    prompt: int
    """Number of the prompt in its image: 0 is the base."""
    images: list[int]
    """Images of the batch that read it."""
    keys: slice


class Shared:
    """Prompts in one call of a model."""

    def __init__(
        self, owners: Tensor, shares: Tensor, blending: Tensor | None = None, device: torch.device | str = "cpu"
    ) -> None:
        """Store each key's prompt, ``[batch, keys]``, -1 for none, and shares by place, as in `Reading`.

        ``blending`` is above 0 for prompts that blend, ``[batch, prompts]``. All are on the CPU; ``device`` is the
        model's. In a cross attention the keys of a prompt are in sequence.
        """
        blends = torch.zeros(shares.shape[:2]) if blending is None else blending
        self.any_blends, self.all_blend = bool((blends > 0).any()), bool((blends > 0).all())
        self._blends = (blends.gather(1, owners.long().clamp(min=0)) > 0).to(device)
        self._shares, self._device = shares, device
        self._owners = owners.long().to(device)
        self._by_layout: dict[Queries, Tensor] = {}
        found: dict[tuple[int, int, int], list[int]] = {}
        for image, own in enumerate(owners):
            for prompt in range(shares.shape[1]):
                places = (own == prompt).nonzero().flatten().tolist()
                if places and bool(shares[image, prompt].any()):
                    found.setdefault((prompt, places[0], places[-1] + 1), []).append(image)
        self.parts = [Part(prompt, images, slice(first, end)) for (prompt, first, end), images in found.items()]
        """Keys that are read, by prompt."""

    def read_again(self, num_rows: int) -> None:
        """Add the last keys once more, for layers that read them twice."""
        self._owners, self._blends = (
            torch.cat([keys, keys[:, -num_rows:]], 1) for keys in (self._owners, self._blends)
        )

    def bias(self, queries: Queries, num_references: int, *, is_between: bool = False) -> Tensor:
        """Bias of each key at each query where text and picture read each other: ``[batch, queries, keys]``, float32.

        A place of the picture reads prompts by their shares. Rows of text read those of their own prompt. Reference
        images, the last queries, read all; padding reads the base. In a block that ``is_between`` others, all read the
        prompts that blend.
        """
        owners = self._owners
        num_queries = queries.before + math.prod(queries.grid) + queries.behind
        found = torch.zeros(len(owners), num_queries, owners.shape[1], device=self._device)
        found.masked_fill_((owners > 0)[:, None], HIDDEN)
        is_own = owners[:, :, None] == owners[:, None]
        found[:, queries.text.start : queries.text.stop] = torch.where(is_own, 0.0, HIDDEN)
        if math.prod(queries.grid):
            logs = logarithms(self._shares, (queries.grid[-2], queries.grid[-1])).flatten(2).to(self._device)
            number = owners[:, None].expand(-1, logs.shape[-1], -1)
            found[:, queries.picture] = logs.transpose(1, 2).gather(2, number)
        if num_references:
            found[:, -num_references:] = 0.0
        return found.masked_fill_(self._blends[:, None], 0.0) if is_between else found

    def _at(self, queries: Queries) -> Tensor:
        """Share of each prompt at each query, ``[batch, prompts, queries]``: the mean one for those without a place."""
        if queries not in self._by_layout:
            shares = means(self._shares, (queries.grid[-2], queries.grid[-1]), of_layer=True).flatten(2)
            mean = self._shares.double().flatten(2).mean(2, keepdim=True)
            before, behind = (mean.expand(-1, -1, number) for number in (queries.before, queries.behind))
            self._by_layout[queries] = torch.cat([before, shares, behind], 2).float().to(self._device)
        return self._by_layout[queries]

    def attend(
        self,
        queries: Queries,
        attention: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """The host's attention to each prompt by itself, mixed by their shares; shapes as in `Weighing.attend`.

        The mask has four dimensions, the last of which is that of the keys.
        """
        shares = self._at(queries)
        result: Tensor | None = None
        for prompt, images, keys in self.parts:
            own = [one if len(images) == len(query) else one[images] for one in (query, key, value)]
            is_by_head = value.dim() == 4 and key.dim() == 3
            read = attention(
                own[0],
                own[1][..., keys, :],
                own[2][:, keys] if is_by_head else own[2][..., keys, :],
                heads,
                None if mask is None else (mask[images] if len(mask) > 1 else mask)[..., keys],
                *rest,
                **options,
            )
            share = shares[images, prompt][..., None].to(read.dtype)  # [images, queries, 1]
            if result is None:
                result = read.new_zeros(len(query), *read.shape[1:])
            result[images] += read * (share if read.dim() == 3 else share[:, None])
        assert result is not None  # the shares of an image add up to 1
        return result
