"""Weights of text rows in one call of a diffusion model: a bias of their keys' logits, and factors of their values.

Which attention reads text, and where its keys stand, is each host's to know.

Source: docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from .placing.field_bias import Places
from .placing.queries import Queries, QueriesError
from .placing.shared_attention import Shared
from .reading.view import counted

MAX_BYTES = 2**30
"""Largest size of a bias by place in a layer."""


OneWeighing = TypeVar("OneWeighing", bound="Weighing")


class Watching(Protocol):
    """Maps of words that are watched in a call, as `Weighing` makes them."""

    def picked(self, mask: Tensor | None) -> list[int] | None:
        """Images of the batch that have words, if an attention with this mask can read them alone; None: it cannot."""
        ...

    def read_again(self, num_rows: int) -> None:
        """Add the last keys once more, for layers that read them twice."""
        ...

    def add(
        self,
        layer: int,
        queries: Queries,
        around: tuple[int, int],
        read: Callable[[Tensor], Tensor],
        value: Tensor,
        dim: int,
        picked: list[int] | None,
        *,
        is_by_row: bool,
        is_middle: bool = False,
    ) -> None:
        """Add the maps of a layer.

        Args:
            layer: Its order among the layers.
            queries: Layout of its queries.
            around: Numbers of keys in front of the text's and behind them.
            read: Its attention as a function of its values alone.
            value: Its values, as in `shares_by_head`.
            dim: As there.
            picked: Images that ``read`` takes; None for all.
            is_by_row: As in `shares_by_head`.
            is_middle: Whether it is in the middle block of a U-Net.
        """
        ...


class Weighing:
    """Weights for one call of a model, and the layers in which they acted; hosts say how it is told what is wrong."""

    of_others: ClassVar[str]
    """Message where something else puts other prompts beside those that the weights are for."""
    unplaced: ClassVar[str]
    """Message about a `QueriesError`, in which its fields can be named."""
    too_large: ClassVar[str]
    """Message about a bias of too many ``gib`` for ``keys`` at ``queries`` in a batch of ``prompts``."""

    def __init__(self, bias: Tensor, factor: Tensor, device: torch.device | str = "cpu") -> None:
        """Store the effect on each text key, both ``[batch, keys]`` in float32.

        The bias is added to logits, ``-inf`` hides a key; the factor multiplies values. Both should be given on the
        CPU, so that reading them does not wait for a GPU; ``device`` is the model's.
        """
        self._has_bias = bool((bias != 0).any())
        self._has_factor = bool((factor != 1).any())
        self._enlarges = bool((factor.abs() > 1).any())
        self.bias = bias.to(device)
        self.factor = factor.to(device)
        self.places: Places | None = None
        """Fields of the text's keys, beside their bias."""
        self.shared: Shared | None = None
        """Prompts that the text's keys belong to, if they are several."""
        self.maps: Watching | None = None
        """Maps of words that are watched in this call."""
        self.queries = Queries(())
        """Layout of the queries of layers with fields or several prompts."""
        self.is_middle = False
        """Whether the layer is in the middle block of a U-Net."""
        self.is_text_alone = False
        """Whether all queries are the text's keys, or padding behind them."""
        self._by_place: dict[tuple[Any, ...], Tensor] = {}
        """Bias by place of layers with the same layout."""
        self.is_last = False
        """Whether the text's keys are the last ones of a layer instead of the first."""
        self.num_layers = 0
        """Number of attention layers in which it acted so far."""
        self.is_finite = torch.ones((), dtype=torch.bool, device=device)
        """Whether all values that it multiplied are still numbers; reading it waits for a GPU."""
        self.closing = ExitStack()
        """Closed after the call of the model."""

    @property
    def has_places(self) -> bool:
        """Whether it has to know which query is which place."""
        return not (self.places is self.shared is self.maps is None)

    def num_references(self, options: Mapping[str, Any]) -> int:
        """Number of queries of reference images, which come last, from an attention's options."""
        return 0

    def check_batch(self, query: Tensor) -> None:
        """Check that each query reads the prompt that its weights are for; another pack may put others beside it."""
        if query.shape[0] != self.bias.shape[0]:
            raise ValueError(self.of_others)

    def of_hidden(self: OneWeighing) -> OneWeighing:
        """A copy in which only weights of 0 act, i.e. hidden keys; for queries without a place."""
        bias = (self.bias if self.places is None else self.bias + self.places.least).cpu()
        found = type(self)(bias.masked_fill(bias != -torch.inf, 0.0), torch.ones(bias.shape), self.bias.device)
        found.shared, found.is_text_alone = self.shared, True
        return found

    def read_again(self, num_rows: int) -> None:
        """Add the last rows once more, for layers that read them twice."""
        self.bias, self.factor = (torch.cat([rows, rows[..., -num_rows:]], -1) for rows in (self.bias, self.factor))
        for each in (self.places, self.shared, self.maps):
            if each is not None:
                each.read_again(num_rows)

    def insert(self, at: int, number: int) -> None:
        """Insert keys of no word that a model puts among those of the text; not beside fields or several prompts."""
        self.bias, self.factor = (
            torch.cat([rows[:, :at], torch.full_like(rows[:, :1], plain).expand(-1, number), rows[:, at:]], 1)
            for rows, plain in ((self.bias, 0.0), (self.factor, 1.0))
        )

    def cut(self, number: int) -> None:
        """Leave out the keys of text behind the first ones; not beside fields or several prompts."""
        self.bias, self.factor = self.bias[:, :number], self.factor[:, :number]

    def attend(
        self,
        attention: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        heads: int,
        mask: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """The host's attention with the weights applied; ``mask`` is another mask of keys, in the host's form.

        Query and key are ``[batch, positions, dim]`` or ``[batch, heads, positions, head_dim]``; the value is like the
        key, or ``[batch, keys, heads, head_dim]`` beside a key of three dimensions.
        """
        self.check_batch(query)
        self.num_layers += 1
        others = key.shape[-2] - self.bias.shape[1]
        around = (others, 0) if self.is_last else (0, others)
        bias: Tensor | None = None
        is_between = self._is_between
        if self.places is not None or self._is_masked(is_between):
            bias = self._bias_by_place(query, around, options, is_between)
        elif self._has_bias:
            bias = torch.nn.functional.pad(_held(self.bias[:, None, None], query.dtype), around)
        if bias is not None:
            mask = bias if mask is None else _with_mask(bias, mask)
        if self._has_factor:
            factor = torch.nn.functional.pad(self.factor, around, value=1.0)
            shape = (-1, 1, key.shape[2], 1) if key.dim() == 4 else (-1, key.shape[1], *[1] * (value.dim() - 2))
            value = value * factor.view(shape).to(value.dtype)
            value = self.checked(value)
        is_apart = self.shared is not None and not self._is_joint
        if self.shared is not None and is_apart:
            own = None if mask is None else _in_four_dimensions(mask)
            queries = self._queries_of(query, options)
            read = partial(self.shared.attend, queries, attention, query, key)
        else:
            own, read = mask, partial(attention, query, key)
        result = read(value, heads, own, *rest, **options)
        if self.maps is not None and not self.is_text_alone:
            queries = self._queries_of(query, options)
            picked = None if is_apart else self.maps.picked(own)

            def of_images(values: Tensor) -> Tensor:
                if picked is None:
                    return read(values, heads, own, *rest, **options)
                masks = own if own is None or len(own) == 1 else own[picked]
                return attention(query[picked], key[picked], values, heads, masks, *rest, **options)

            is_by_row = value.dim() == 4 and key.dim() == 3
            dim = query.shape[-1] // (heads if query.dim() == 3 else 1)
            of_layer = {"is_by_row": is_by_row, "is_middle": self.is_middle}
            self.maps.add(self.num_layers, queries, around, of_images, value, dim, picked, **of_layer)
        return result

    def checked(self, values: Tensor) -> Tensor:
        """Values that were multiplied, noted if any is no number; some models make 0 of it, which no picture shows."""
        if self._enlarges:
            self.is_finite = self.is_finite & values.isfinite().all()
        return values

    @property
    def _is_joint(self) -> bool:
        """Whether text is among the queries."""
        return self.is_text_alone or bool(self.queries.text)

    @property
    def _is_between(self) -> bool:
        """Whether this is one of every second block, in which prompts that blend have no mask."""
        is_second = self._is_joint and not self.is_text_alone and self.num_layers % 2 == 0
        return is_second and self.shared is not None and self.shared.any_blends

    def _is_masked(self, is_between: bool) -> bool:
        """Whether prompts have masks in a layer, being rows of one softmax."""
        return self.shared is not None and self._is_joint and not (is_between and self.shared.all_blend)

    def _queries_of(self, query: Tensor, options: Mapping[str, Any]) -> Queries:
        """Layout of the queries of a layer, checked against them."""
        if self.is_text_alone:
            return Queries((0, 0), before=query.shape[-2], text=range(self.bias.shape[1]))
        try:
            return self.queries.check(query.shape[-2], self.num_references(options))
        except QueriesError as error:
            raise ValueError(self.unplaced.format(**vars(error))) from error

    def _bias_by_place(
        self, query: Tensor, around: tuple[int, int], options: Mapping[str, Any], is_between: bool
    ) -> Tensor:
        """Bias of all keys at each query, ``[batch, 1, queries, keys]``, with others ``around`` those of the text."""
        num_queries = query.shape[-2]
        queries = self._queries_of(query, options)
        key = queries, around, query.dtype, is_between
        if key not in self._by_place:
            batch, num_text = self.bias.shape
            shape = batch, 1, num_queries, num_text + sum(around)
            size = math.prod(shape) * query.element_size()
            if size > MAX_BYTES:
                sizes = {"gib": size / 2**30, "keys": shape[3], "queries": num_queries}
                raise ValueError(self.too_large.format(**sizes, prompts=counted(batch, "prompt")))
            found = query.new_zeros(shape)
            text = found[..., around[0] : around[0] + num_text]
            if self.places is None:
                text[:] = _held(self.bias[:, None, None], query.dtype)
            else:
                for index, by_place in enumerate(self.places.biases(queries)):
                    text[index, 0] = _held(by_place.add_(self.bias[index]), query.dtype)
            if self.shared is not None and self._is_masked(is_between):
                by_prompt = self.shared.bias(queries, self.num_references(options), is_between=is_between)
                text += by_prompt[:, None].to(query.dtype)
            self._by_place[key] = found
        return self._by_place[key]


def _held(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """A bias in a number type, within what cannot make a row of only -inf, or one with inf, whose softmax is NaN."""
    limit = torch.finfo(dtype).max / 2
    return bias.clamp(-limit, limit).to(dtype)


def _in_four_dimensions(mask: Tensor) -> Tensor:
    """The host's mask as ``[batch, heads, queries, keys]``, each but the last possibly 1."""
    while mask.dim() < 4:
        mask = mask.unsqueeze(0 if mask.dim() == 2 else 1)
    return mask


def _with_mask(bias: Tensor, mask: Tensor) -> Tensor:
    """Combine bias and the host's own mask, which is boolean (may be attended) or additive."""
    mask = _in_four_dimensions(mask)
    if mask.dtype == torch.bool:
        return bias.masked_fill(~mask, torch.finfo(bias.dtype).min / 2)
    return bias + mask.to(bias.dtype)
