"""Plans: the encodings a weighting scheme needs, declared before anything is encoded, and how they are folded.

A `Plan` holds no tensor: it lists versions of a prompt, each with its chunks and masks. So it can be counted, drawn,
combined with the plans of other prompts, and split between calls of the encoder.

Source: docs/performance.md, "Plans".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, TypeVar

from ..encoder.encoding import Encoding
from .text.chunks import TokenChunk
from .text.embeddings import TokenId

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Result = TypeVar("Result")

Visible = bytes | None
"""Positions of a chunk that may be attended to, a byte 0 or 1 for each: 77 for all queries alike, or 77 x 77, query
after query. None: nothing is hidden."""
VisibleFn = Callable[[TokenChunk], Visible]
"""Function from a chunk to its mask."""


class Ask(NamedTuple):
    """One encoding of one chunk. Equal asks have equal answers."""

    ids: tuple[TokenId, ...]
    """77 ids."""
    visible: Visible
    """Mask on top of causality."""
    is_causal: bool
    """Whether positions see only earlier ones."""


Call = Literal["starts", "goes on"]


@dataclass(frozen=True)
class Variant:
    """A version of a prompt, with one encoding per chunk."""

    chunks: tuple[TokenChunk, ...]
    """Its tokens. The encoder ignores their weights."""
    visible: tuple[Visible, ...]
    """Mask of each chunk."""
    title: str
    """Title shown with its mask."""
    is_causal: bool = True
    """As in `Ask`."""
    is_aside: bool = False
    """Whether it is not a version of the prompt but something else that a scheme needs, such as the empty prompt."""
    call: Call | None = None
    """Whether it is the first in a call of the encoder that reproduces a host's call, or continues that of the variant
    before it. Such a call has exactly its chunks in this order, because the last bits depend on that. None: its chunks
    may be batched with any others."""

    def asks(self) -> list[Ask]:
        """Its encodings in order."""
        return [Ask(chunk.ids, seen, self.is_causal) for chunk, seen in zip(self.chunks, self.visible, strict=True)]


@dataclass(frozen=True)
class Plan(Generic[T]):
    """Encodings that are needed, and how they are combined."""

    variants: Callable[[], Iterable[Variant]]
    """Function that returns them in the order in which they are folded, each time anew: a prompt can have thousands."""
    combine: Callable[[Iterator[Encoding]], T]
    """Function that takes one `Encoding` per variant. It holds no more of them than it needs, and can be called
    again."""

    def then(self, function: Callable[[T], Result]) -> Plan[Result]:
        """The same plan with a function applied to its result."""
        return Plan(self.variants, lambda rows: function(self.combine(rows)))

    def then_with(self, aside: Variant, function: Callable[[T, Encoding], Result]) -> Plan[Result]:
        """The same plan with one more variant at its end, and a function applied to its result and that variant's."""
        return Plan(lambda: chain(self.variants(), [aside]), lambda rows: function(self.combine(rows), next(rows)))


def different_asks(variants: Iterable[Variant], limit: int) -> int:
    """Number of different encodings of some variants; counting ends at one more than the limit."""
    asks: set[Ask] = set()
    for variant in variants:
        asks.update(variant.asks())
        if len(asks) > limit:
            return limit + 1
    return len(asks)


def versions_of_first(variants: Iterable[Variant]) -> list[Variant]:
    """Versions of the first prompt in a plan; a syntax that joins or blends prompts has several."""
    versions: list[Variant] = []
    for variant in variants:
        if versions and variant.call == "starts":
            break
        versions.append(variant)
    return [variant for variant in versions if not variant.is_aside]


def gathered(plans: Sequence[Plan[T]]) -> Plan[list[T]]:
    """Combine several plans into one that returns all their results in order."""
    return Plan(
        lambda: chain.from_iterable(plan.variants() for plan in plans),
        lambda rows: [plan.combine(rows) for plan in plans],
    )


def intersection(first: Visible, second: Visible) -> Visible:
    """Intersection of two masks; None if nothing is hidden.

    >>> intersection(bytes([1, 0]), bytes([1, 1, 0, 1])) == bytes([1, 0, 0, 0]), intersection(None, bytes([1, 1]))
    (True, None)
    """
    if first is None or second is None:
        seen = first or second
    else:
        size = max(len(first), len(second))
        a, b = (int.from_bytes(flags * (size // len(flags)), "big") for flags in (first, second))
        seen = (a & b).to_bytes(size, "big")
    return None if seen is None or all(seen) else seen


def mask_tensor(visible: Sequence[Visible], length: int) -> Tensor | None:
    """Masks of chunks for an encoder.

    Args:
        visible: One mask per chunk.
        length: Positions in a chunk.

    Returns:
        Bool ``[chunks, 1 or length, length]``, True = may be attended; None if nothing is hidden.
    """
    if all(seen is None for seen in visible):
        return None
    import torch  # not above: commands that encode nothing read plans

    size = max(len(seen) for seen in visible if seen is not None)
    everything = b"\1" * length
    flags = b"".join(chunk_mask * (size // len(chunk_mask)) for chunk_mask in (seen or everything for seen in visible))
    return torch.frombuffer(bytearray(flags), dtype=torch.bool).view(len(visible), -1, length)


def variant_mask(variant: Variant, length: int) -> Tensor:
    """Mask of a version of a prompt, including causality.

    Args:
        variant: The version.
        length: Positions in a chunk.

    Returns:
        Bool ``[chunks, length, length]``, query by key, True = may be attended.
    """
    import torch

    from ..encoder.masks import causal_mask

    base = causal_mask(length) if variant.is_causal else torch.ones(1, length, length, dtype=torch.bool)
    mask = mask_tensor(variant.visible, length)
    return base.repeat(len(variant.visible), 1, 1) if mask is None else base & mask
