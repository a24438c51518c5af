"""Several prompts whose rows stand side by side in an attention, each of which some places of the picture read.

Source: docs/reference/attention.md, "Regions".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from .fields import HIDDEN, logarithms, means
from .queries import Queries


class PromptKeys(NamedTuple):
    """Keys of one prompt in a layer."""

    prompt: int
    """Number of the prompt in its image: 0 is the base."""
    images: list[int]
    """Images of the batch that read it."""
    keys: slice


class JoinedPrompts(NamedTuple):
    """Images that read the same prompts, each place one of them: by one softmax over all of their keys."""

    picked: slice | Tensor
    """Index of the images in the batch."""
    keys: slice
    """Keys of the prompts."""
    mask: Tensor | None
    """Bias of each key at each query, ``[images, 1, queries, keys]``; None for one prompt."""


class SharedAttention:
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
        self._blends = (blends.gather(1, owners.long().clamp(min=0)) > 0) & (owners >= 0)
        self._shares, self._device = shares, device
        self._owners = owners.long()
        self._by_layout: dict[tuple[Queries, torch.dtype], list[Tensor]] = {}
        self._are_hard: dict[Queries, bool] = {}
        self._joined: dict[tuple[Queries, torch.dtype], list[JoinedPrompts]] = {}
        images_by_keys: dict[tuple[int, int, int], list[int]] = {}
        for image, key_owners in enumerate(owners):
            for prompt in range(shares.shape[1]):
                places = (key_owners == prompt).nonzero().flatten().tolist()
                if places and bool(shares[image, prompt].any()):
                    images_by_keys.setdefault((prompt, places[0], places[-1] + 1), []).append(image)
        self.parts = [
            PromptKeys(prompt, images, slice(first, end)) for (prompt, first, end), images in images_by_keys.items()
        ]
        """Keys that are read, by prompt."""
        self._picks = [_in_batch(part.images, device) for part in self.parts]

    def read_again(self, num_rows: int) -> None:
        """Add the last keys once more, for layers that read them twice."""
        self._owners, self._blends = (
            torch.cat([keys, keys[:, -num_rows:]], 1) for keys in (self._owners, self._blends)
        )

    def is_hard(self, queries: Queries) -> bool:
        """Whether each query of a layer reads one prompt alone: then one softmax over all, with masks, is the same."""
        if queries not in self._are_hard:
            shares = self._at(queries)
            self._are_hard[queries] = bool(((shares == 0) | (shares == 1)).all())
        return self._are_hard[queries]

    def bias(self, queries: Queries, num_references: int, *, is_between: bool = False) -> Tensor:
        """Bias of each key at each query where text and picture read each other: ``[batch, queries, keys]``, float32.

        A place of the picture reads prompts by their shares. Rows of text read their own prompt. Reference
        images, the last queries, read all; padding reads the base. In a block that ``is_between`` others, all read the
        prompts that blend.
        """
        owners, blends = self._owners.to(self._device), self._blends.to(self._device)
        num_queries = queries.before + math.prod(queries.grid) + queries.behind
        bias = torch.zeros(len(owners), num_queries, owners.shape[1], device=self._device)
        bias.masked_fill_((owners != 0)[:, None], HIDDEN)
        if queries.text:
            is_own = owners[:, :, None] == owners[:, None]
            bias[:, queries.text.start : queries.text.stop] = torch.where(is_own, 0.0, HIDDEN)
        if math.prod(queries.grid):
            logs = logarithms(self._shares, (queries.grid[-2], queries.grid[-1])).flatten(2).to(self._device)
            number = owners.clamp(min=0)[:, None].expand(-1, logs.shape[-1], -1)
            read = logs.transpose(1, 2).gather(2, number)
            bias[:, queries.picture] = read.masked_fill_((owners < 0)[:, None], HIDDEN)
        if num_references:
            bias[:, -num_references:] = torch.where(owners < 0, HIDDEN, 0.0)[:, None]
        return bias.masked_fill_(blends[:, None], 0.0) if is_between else bias

    def products(
        self, queries: Queries, num_references: int, *, is_between: bool = False
    ) -> list[tuple[Tensor, Tensor]]:
        """The same bias as products of a number of each query and one of each key, as `columns_of` takes them."""
        logs = logarithms(self._shares, (queries.grid[-2], queries.grid[-1])).flatten(2)
        read = self._owners if not is_between else self._owners.masked_fill(self._blends, -1)
        found: list[tuple[Tensor, Tensor]] = []
        for prompt in range(logs.shape[1]):
            numbers = pad(logs[:, prompt], (queries.before, queries.behind), value=HIDDEN if prompt else 0.0)
            numbers[:, queries.text.start : queries.text.stop] = torch.where(self._owners == prompt, 0.0, HIDDEN)
            if num_references:
                numbers[:, -num_references:] = 0.0
            found.append((numbers, (read == prompt).float()))
        if bool((self._owners < 0).any()):
            found.append((torch.ones_like(found[0][0]), torch.where(self._owners < 0, HIDDEN, 0.0)))
        return found

    def _at(self, queries: Queries) -> Tensor:
        """Share of each prompt at each query, ``[batch, prompts, queries]``: the mean one for those without a place.

        On the CPU, in float32.
        """
        shares = means(self._shares, (queries.grid[-2], queries.grid[-1]), of_layer=True).flatten(2)
        mean = self._shares.double().flatten(2).mean(2, keepdim=True)
        before, after = (mean.expand(-1, -1, number) for number in (queries.before, queries.behind))
        return torch.cat([before, shares, after], 2).float()

    def _of_parts(self, queries: Queries, dtype: torch.dtype) -> list[Tensor]:
        """Shares of the parts at each query of a layer, ``[images, queries, 1]`` on the device."""
        if (queries, dtype) not in self._by_layout:
            shares = self._at(queries)
            self._by_layout[queries, dtype] = [
                shares[part.images, part.prompt][..., None].to(self._device, dtype) for part in self.parts
            ]
        return self._by_layout[queries, dtype]

    def _joined_prompts(self, queries: Queries, dtype: torch.dtype, most_of_masks: int) -> list[JoinedPrompts]:
        """All images, joined by the prompts they read; empty if masks are no masks, or take more bytes than that."""
        if (queries, dtype) not in self._joined:
            images_by_parts: dict[tuple[int, ...], list[int]] = {}
            for image in range(len(self._owners)):
                numbers = tuple(number for number, part in enumerate(self.parts) if image in part.images)
                images_by_parts.setdefault(numbers, []).append(image)
            joined: list[JoinedPrompts] = []
            if self.is_hard(queries) and self._bytes_of_masks(images_by_parts, queries, dtype) <= most_of_masks:
                joined = [self._join(images, parts, queries, dtype) for parts, images in images_by_parts.items()]
            self._joined[queries, dtype] = joined
        return self._joined[queries, dtype]

    def _bytes_of_masks(
        self, images_by_parts: dict[tuple[int, ...], list[int]], queries: Queries, dtype: torch.dtype
    ) -> int:
        """Bytes of the masks of images that read several prompts."""
        num_keys = sum(
            len(images) * len(range(self._owners.shape[1])[self._keys_of(parts)])
            for parts, images in images_by_parts.items()
            if len(parts) > 1
        )
        return num_keys * (queries.before + math.prod(queries.grid) + queries.behind) * dtype.itemsize

    def _keys_of(self, numbers: tuple[int, ...]) -> slice:
        """Keys from the first to the last of some parts."""
        parts = [self.parts[number].keys for number in numbers]
        return slice(min(keys.start for keys in parts), max(keys.stop for keys in parts))

    def _join(self, images: list[int], parts: tuple[int, ...], queries: Queries, dtype: torch.dtype) -> JoinedPrompts:
        """Images that read the same parts."""
        keys, picked = self._keys_of(parts), _in_batch(images, self._device)
        if len(parts) == 1:
            return JoinedPrompts(picked, keys, None)
        owners = self._owners[images, keys].to(self._device)[:, None]  # [images, 1, keys]
        shares = self._at(queries)[images].to(self._device).transpose(1, 2)  # [images, queries, prompts]
        read = shares.gather(2, owners.clamp(min=0).expand(-1, shares.shape[1], -1))
        mask = torch.where((read > 0) & (owners >= 0), 0.0, HIDDEN)
        return JoinedPrompts(picked, keys, mask[:, None].to(dtype))

    def attend(
        self,
        queries: Queries,
        most_of_masks: int,
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

        The mask has four dimensions, the last one for keys. Prompts that each place reads one of have one softmax, if
        their masks take at most ``most_of_masks`` bytes.
        """
        is_by_head = value.dim() == 4 and key.dim() == 3

        def of_keys(picked: slice | Tensor, keys: slice, mask: Tensor | None) -> Tensor:
            queried, looked_up, values = (tensor[picked] for tensor in (query, key, value))
            values = values[:, keys] if is_by_head else values[..., keys, :]
            return attention(queried, looked_up[..., keys, :], values, heads, mask, *rest, **options)

        joined = self._joined_prompts(queries, query.dtype, most_of_masks) if mask is None and most_of_masks else ()
        stretches = [(each.picked, each) for each in joined if isinstance(each.picked, slice)]
        if joined and len(stretches) == len(joined):
            results = [of_keys(*each) for _, each in sorted(stretches, key=lambda one: one[0].start)]
            return results[0] if len(results) == 1 else torch.cat(results)
        result: Tensor | None = None
        for number, ((_, images, keys), picked) in enumerate(zip(self.parts, self._picks, strict=True)):
            key_mask = None if mask is None else (mask[picked] if len(mask) > 1 else mask)[..., keys]
            attended = of_keys(picked, keys, key_mask)
            share = self._of_parts(queries, attended.dtype)[number]
            share = share if attended.dim() == 3 else share[:, None]
            if result is None and len(images) == len(query):
                result = attended * share
                continue
            if result is None:
                result = attended.new_zeros(len(query), *attended.shape[1:])
            if isinstance(picked, slice):
                result[picked].addcmul_(attended, share)
            else:
                result.index_add_(0, picked, attended * share)
        assert result is not None  # the shares of an image add up to 1
        return result


def _in_batch(images: list[int], device: torch.device | str) -> slice | Tensor:
    """Index of some images of a batch: a slice where they follow each other, which copies nothing."""
    if images == [*range(images[0], images[0] + len(images))]:
        return slice(images[0], images[0] + len(images))
    return torch.tensor(images, device=device)
