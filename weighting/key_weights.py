"""Weights of text rows in one call of a diffusion model: a bias of their keys' logits, and factors of their values.

Which attention reads text, and where its keys stand, is each host's to know.

Source: docs/reference/attention.md, "Weights in the attention".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from copy import copy
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .placing.columns import Columns, columns_of, with_columns
from .placing.field_bias import FieldBias
from .placing.queries import Queries, QueriesError
from .placing.shared_attention import SharedAttention
from .reading.view import counted

MAX_BYTES = 2**30
"""Largest size of a bias by place in a layer."""


MOST_OF_TABLE = 2**26
"""Largest size of a bias by place in a layer that is a table, where it can be columns."""
JOINED_BYTES = 2**26
"""Largest size of the masks by which several prompts are read in one softmax, in a layer that reads text alone."""

OneWeighing = TypeVar("OneWeighing", bound="AttentionWeighting")


class Watching(Protocol):
    """Maps of words that are watched in a call, as `AttentionWeighting` makes them."""

    def picked(self, mask: Tensor | None) -> slice | list[int] | None:
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
        attend: Callable[[Tensor], Tensor],
        value: Tensor,
        dim: int,
        picked: slice | list[int] | None,
        /,
        *,
        is_by_row: bool,
        is_middle: bool = False,
    ) -> None:
        """Add the maps of a layer.

        Args:
            layer: Its order among the layers.
            queries: Layout of its queries.
            around: Numbers of keys before the text's and after them.
            attend: Its attention as a function of its values alone.
            value: Its values, as in `one_hot_values`.
            dim: As there.
            picked: Images that ``attend`` takes; None for all.
            is_by_row: As there.
            is_middle: Whether it is in the middle block of a U-Net.
        """
        ...


class AttentionWeighting:
    """Weights for one call of a model, and the layers in which they acted; hosts supply the error messages."""

    most_of_table: ClassVar[int] = MOST_OF_TABLE
    """Largest size of a table of the bias at every query, where columns can take its place."""
    of_others: ClassVar[str]
    """Message for a batch to which another pack has added prompts without weights."""
    unplaced: ClassVar[str]
    """Message about a `QueriesError`, in which its fields can be named."""
    too_large: ClassVar[str]
    """Message about a bias of too many ``gib`` for ``keys`` at ``queries`` in a batch of ``prompts``."""

    def __init__(self, bias: Tensor, factor: Tensor, device: torch.device | str = "cpu") -> None:
        """Store the effect on each text key, both ``[batch, keys]`` in float32.

        The bias is added to logits, ``-inf`` hides a key; the factor multiplies values. Both are on the CPU, where they
        can be read without waiting for a GPU; ``device`` is the model's.
        """
        self._has_bias = bool((bias != 0).any())
        self._has_factor = bool((factor != 1).any())
        self._enlarges = bool((factor.abs() > 1).any())
        self.bias, self.factor, self.device = bias, factor, torch.device(device)
        self._form: tuple[Hashable, ...] = ()
        """Changes of the keys since then."""
        self._kept: dict[Hashable, Tensor] = {}
        """What layers need on the device, by all that it depends on; shared with `again`."""
        self.places: FieldBias | None = None
        """Fields of the text's keys, in addition to their bias."""
        self.shared: SharedAttention | None = None
        """Prompts that the text's keys belong to, if they are several."""
        self.maps: Watching | None = None
        """Maps of words that are watched in this call."""
        self.queries = Queries(())
        """Layout of the queries of layers with fields or several prompts."""
        self.is_middle = False
        """Whether the layer is in the middle block of a U-Net."""
        self.is_text_alone = False
        """Whether all queries are the text's keys, or padding after them."""
        self.is_last = False
        """Whether the text's keys are the last ones of a layer instead of the first."""
        self.num_layers = 0
        """Number of attention layers in which it acted so far."""
        self._largest: list[Tensor] = []
        """Largest size of the values that each layer multiplied; NaN if any is none."""
        self.joins_prompts = self.device.type != "cpu"
        """Whether a layer of text alone reads several prompts in one softmax, where each query reads but one of them.

        That takes fewer operators and more arithmetic.
        """
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
        """Check that each query reads the prompt that its weights are for; another pack may add others."""
        if query.shape[0] != self.bias.shape[0]:
            raise ValueError(self.of_others)

    @property
    def is_finite(self) -> Tensor | None:
        """Whether all values that it multiplied are still numbers, if any could not be; reading it waits for a GPU."""
        return torch.stack(self._largest).isfinite().all() if self._largest else None

    @property
    def num_bytes(self) -> int:
        """Bytes of what is kept for layers."""
        return sum(tensor.nbytes for tensor in self._kept.values())

    def again(self: OneWeighing) -> OneWeighing:
        """The same weights for another call, which shares what is made for layers; this one must not be called."""
        other = copy(self)
        other.places, other.shared = copy(self.places), copy(self.shared)
        other._largest, other.closing = [], ExitStack()
        return other

    def _on_device(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """What layers need on the device, made once."""
        full_key = self._form, key
        if full_key not in self._kept:
            self._kept[full_key] = make().to(self.device)
        return self._kept[full_key]

    def of_hidden(self: OneWeighing) -> OneWeighing:
        """A copy in which only weights of 0 act, i.e. hidden keys; for queries without a place."""
        bias = self.bias if self.places is None else self.bias + self.places.least
        hidden = type(self)(bias.masked_fill(bias != -torch.inf, 0.0), torch.ones(bias.shape), self.device)
        hidden.shared, hidden.is_text_alone = self.shared, True
        hidden._form, hidden._kept = (*self._form, "hidden"), self._kept
        return hidden

    def read_again(self, num_rows: int) -> None:
        """Add the last rows once more, for layers that read them twice."""
        self.bias, self.factor = (torch.cat([rows, rows[..., -num_rows:]], -1) for rows in (self.bias, self.factor))
        self._form = *self._form, ("again", num_rows)
        for each in (self.places, self.shared, self.maps):
            if each is not None:
                each.read_again(num_rows)

    def insert(self, at: int, number: int) -> None:
        """Insert the keys without a word that a model puts among the text's; not with fields or several prompts."""
        self._form = *self._form, ("insert", at, number)
        self.bias, self.factor = (
            torch.cat([rows[:, :at], torch.full_like(rows[:, :1], plain).expand(-1, number), rows[:, at:]], 1)
            for rows, plain in ((self.bias, 0.0), (self.factor, 1.0))
        )

    def cut(self, number: int) -> None:
        """Keep only the first keys of text; not with fields or several prompts."""
        self._form = *self._form, ("cut", number)
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
        key, or ``[batch, keys, heads, head_dim]`` with a key of three dimensions.
        """
        self.check_batch(query)
        self.num_layers += 1
        plain_attention = attention
        num_others = key.shape[-2] - self.bias.shape[1]
        around = (num_others, 0) if self.is_last else (0, num_others)
        bias, columns = None, None
        is_between, is_masked = self._is_between, self._is_masked(query, key.shape[-2], options)
        if self.places is not None or is_masked:
            columns = self._columns(
                attention, query, heads, around, options, is_masked=is_masked, is_between=is_between
            )
        if columns is not None:
            attention = with_columns(plain_attention, columns)
        elif self.places is not None or is_masked:
            bias = self._bias_by_place(query, around, options, is_masked=is_masked, is_between=is_between)
        elif self._has_bias:
            bias = self._on_device(
                ("bias", around, query.dtype),
                lambda: pad(_bounded_bias(self.bias[:, None, None], query.dtype), around),
            )
        if bias is not None:
            mask = bias if mask is None else _with_mask(bias, mask)
        if self._has_factor:
            shape = (-1, 1, key.shape[2], 1) if key.dim() == 4 else (-1, key.shape[1], *[1] * (value.dim() - 2))
            factor = self._on_device(
                ("factor", around, value.dtype),
                lambda: pad(self.factor, around, value=1.0).to(value.dtype),
            )
            value = self.checked(value * factor.view(shape))
        is_apart = self.shared is not None and not self._is_joint and not is_masked
        if self.shared is not None and is_apart:
            key_mask = None if mask is None else _in_four_dimensions(mask)
            queries = self._queries_of(query, options)
            most_of_masks = JOINED_BYTES if self.joins_prompts else 0
            attend = partial(self.shared.attend, queries, most_of_masks, attention, query, key)
        else:
            key_mask, attend = mask, partial(attention, query, key)
        result = attend(value, heads, key_mask, *rest, **options)
        if self.maps is not None and not self.is_text_alone:
            queries = self._queries_of(query, options)
            picked = None if is_apart else self.maps.picked(key_mask)

            def of_images(values: Tensor) -> Tensor:
                if picked is None:
                    return attend(values, heads, key_mask, *rest, **options)
                masks = key_mask if key_mask is None or len(key_mask) == 1 else key_mask[picked]
                read = attention if columns is None else with_columns(plain_attention, columns.picked(picked))
                return read(query[picked], key[picked], values, heads, masks, *rest, **options)

            is_by_row = value.dim() == 4 and key.dim() == 3
            dim = query.shape[-1] // (heads if query.dim() == 3 else 1)
            of_layer = {"is_by_row": is_by_row, "is_middle": self.is_middle}
            self.maps.add(self.num_layers, queries, around, of_images, value, dim, picked, **of_layer)
        return result

    def checked(self, values: Tensor) -> Tensor:
        """Values that were multiplied, noted if any is no number; some models make 0 of it, which no picture shows."""
        if self._enlarges:
            self._largest.append(torch.linalg.vector_norm(values, torch.inf))
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

    def _is_masked(self, query: Tensor, num_keys: int, options: Mapping[str, Any]) -> bool:
        """Whether prompts have masks in a layer, being rows of one softmax."""
        if self.shared is None:
            return False
        if self._is_joint:
            return not (self._is_between and self.shared.all_blend)
        num_bytes = len(query) * query.shape[-2] * num_keys * query.element_size()
        return (
            self.joins_prompts and num_bytes <= JOINED_BYTES and self.shared.is_hard(self._queries_of(query, options))
        )

    def _queries_of(self, query: Tensor, options: Mapping[str, Any]) -> Queries:
        """Layout of the queries of a layer, checked against them."""
        if self.is_text_alone:
            return Queries((0, 0), before=query.shape[-2], text=range(self.bias.shape[1]))
        try:
            return self.queries.check(query.shape[-2], self.num_references(options))
        except QueriesError as error:
            raise ValueError(self.unplaced.format(**vars(error))) from error

    def _columns(
        self,
        attention: Callable[..., Tensor],
        query: Tensor,
        heads: int,
        around: tuple[int, int],
        options: Mapping[str, Any],
        *,
        is_masked: bool,
        is_between: bool,
    ) -> Columns | None:
        """The bias by place as columns, where text and picture share an attention and a table of it would be large.

        None for smaller ones, for functions that ignore the scale of logits, and for fewer keys, or heads of them, than
        queries have.
        """
        (batch, num_text), num_queries = self.bias.shape, query.shape[-2]
        num_keys = num_text + sum(around)
        num_bytes = batch * num_queries * num_keys * query.element_size()
        if not self._is_joint or num_bytes <= self.most_of_table or not getattr(attention, "takes_scale", False):
            return None
        if options.get("enable_gqa") or self.is_text_alone or num_keys != num_queries:
            return None
        queries, num_references = self._queries_of(query, options), self.num_references(options)
        dim = query.shape[-1] // (heads if query.dim() == 3 else 1)
        scale = options.get("scale", dim**-0.5)

        def make(part: int) -> Tensor:
            products = [(torch.ones(batch, num_queries), self.bias)]
            if self.places is not None:
                products += self.places.products(queries)
            if self.shared is not None and is_masked:
                products += self.shared.products(queries, num_references, is_between=is_between)
            return columns_of([(one, pad(key, around)) for one, key in products], scale)[part].to(query.dtype)

        key = "columns", queries, num_references, around, query.dtype, scale, is_between
        return Columns(*(self._on_device((*key, part), lambda part=part: make(part)) for part in range(2)))

    def _bias_by_place(
        self, query: Tensor, around: tuple[int, int], options: Mapping[str, Any], *, is_masked: bool, is_between: bool
    ) -> Tensor:
        """Bias of all keys at each query, ``[batch, 1, queries, keys]``, with other keys ``around`` the text's."""
        queries, num_references = self._queries_of(query, options), self.num_references(options)
        batch, num_text = self.bias.shape
        shape = batch, 1, query.shape[-2], num_text + sum(around)
        size = math.prod(shape) * query.element_size()
        if size > MAX_BYTES:
            sizes = {"gib": size / 2**30, "keys": shape[3], "queries": shape[2]}
            raise ValueError(self.too_large.format(**sizes, prompts=counted(batch, "prompt")))

        def make() -> Tensor:
            bias = query.new_zeros(shape)
            text = bias[..., around[0] : around[0] + num_text]
            if self.places is None:
                text[:] = _bounded_bias(self.bias.to(self.device)[:, None, None], query.dtype)
            else:
                by_image = zip(self.places.biases(queries), self.bias.to(self.device), strict=True)
                for index, (by_place, of_keys) in enumerate(by_image):
                    text[index, 0] = _bounded_bias(by_place.add_(of_keys), query.dtype)
            if self.shared is not None and is_masked:
                by_prompt = self.shared.bias(queries, num_references, is_between=is_between)
                text += by_prompt[:, None].to(query.dtype)
            return bias

        return self._on_device((queries, num_references, around, query.dtype, is_between), make)


def _bounded_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
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
