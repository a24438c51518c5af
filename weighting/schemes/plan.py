"""What a weighting scheme wants to know of an encoder, said before anything is encoded, and how the answers are folded.

A `Plan` holds no tensor: it lists versions of a prompt, each of them chunks and what is hidden in them. So it can be
counted, drawn, gathered with the plans of other prompts, and divided between calls of the encoder.

Source: docs/performance.md, "Plans".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Generic, Literal, NamedTuple, TypeVar

from ...encoder.encoding import Encoding
from ..chunks import TokenChunk
from ..embeddings import TokenId

T = TypeVar("T")
Result = TypeVar("Result")

Visible = bytes | None
"""Which positions of a chunk may be attended, a byte 0 or 1 for each: 77 for all queries alike, or 77 x 77, query after
query. None: nothing is hidden."""
VisibleFn = Callable[[TokenChunk], Visible]
"""A chunk to what is hidden in it."""


class Ask(NamedTuple):
    """One encoding of one chunk. Equal asks have equal answers."""

    ids: tuple[TokenId, ...]
    """77 ids."""
    visible: Visible
    """On top of causality."""
    is_causal: bool
    """Whether a position is kept from seeing later ones."""


Call = Literal["starts", "goes on"]


@dataclass(frozen=True)
class Variant:
    """A version of a prompt: as many encodings as it has chunks."""

    chunks: tuple[TokenChunk, ...]
    """Its tokens. Their weights are not the encoder's business."""
    visible: tuple[Visible, ...]
    """For each chunk what is hidden."""
    title: str
    """What a page writes beside its mask."""
    is_causal: bool = True
    """As in `Ask`."""
    is_aside: bool = False
    """Whether it is no version of the prompt, but something else that a scheme looks at, such as the empty prompt."""
    call: Call | None = None
    """Whether it is the first in a call of the encoder that a host makes just so, or goes on with that of the variant
    before it. Such a call has its chunks in this order and no others, because the last bits depend on that. None: its
    chunks may be encoded with any others."""

    def asks(self) -> list[Ask]:
        """Its encodings in order."""
        return [Ask(chunk.ids, seen, self.is_causal) for chunk, seen in zip(self.chunks, self.visible, strict=True)]


@dataclass(frozen=True)
class Plan(Generic[T]):
    """Encodings that are wanted, and what becomes of them."""

    variants: Callable[[], Iterable[Variant]]
    """Gives them in the order in which they are folded, made anew each time: a prompt can have thousands."""
    combine: Callable[[Iterator[Encoding]], T]
    """Takes one `Encoding` for each variant. Holds no more of them than it needs, and can be called again."""

    def then(self, function: Callable[[T], Result]) -> Plan[Result]:
        """The same plan with something done to its result."""
        return Plan(self.variants, lambda rows: function(self.combine(rows)))

    def then_with(self, aside: Variant, function: Callable[[T, Encoding], Result]) -> Plan[Result]:
        """The same plan with one more variant at its end, and something done to its result and that."""
        return Plan(lambda: chain(self.variants(), [aside]), lambda rows: function(self.combine(rows), next(rows)))


def different_asks(variants: Iterable[Variant], limit: int) -> int:
    """How many different encodings some variants take; at most one more than the limit, where counting ends."""
    found: set[Ask] = set()
    for variant in variants:
        found.update(variant.asks())
        if len(found) > limit:
            return limit + 1
    return len(found)


def versions_of_first(variants: Iterable[Variant]) -> list[Variant]:
    """The versions of the first prompt in a plan, which has several where a syntax joins or blends prompts."""
    first: list[Variant] = []
    for variant in variants:
        if first and variant.call == "starts":
            break
        first.append(variant)
    return [variant for variant in first if not variant.is_aside]


def gathered(plans: Sequence[Plan[T]]) -> Plan[list[T]]:
    """Several plans as one, for all their results in order."""
    return Plan(
        lambda: chain.from_iterable(plan.variants() for plan in plans),
        lambda rows: [plan.combine(rows) for plan in plans],
    )


def uncausal(plan: Plan[T]) -> Plan[T]:
    """The same with no position kept from seeing later ones."""
    return Plan(lambda: (replace(variant, is_causal=False) for variant in plan.variants()), plan.combine)


def both(one: Visible, other: Visible) -> Visible:
    """What two masks leave visible together; None if that is everything.

    >>> both(bytes([1, 0]), bytes([1, 1, 0, 1])) == bytes([1, 0, 0, 0]), both(None, bytes([1, 1]))
    (True, None)
    """
    if one is None or other is None:
        seen = one or other
    else:
        size = max(len(one), len(other))
        a, b = (int.from_bytes(flags * (size // len(flags)), "big") for flags in (one, other))
        seen = (a & b).to_bytes(size, "big")
    return None if seen is None or all(seen) else seen
