"""Execution of plans: equal encodings once, in calls of bounded size, folded as they come.

Source: docs/performance.md, "Plans".
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch

from ..encoder.encoding import EncodeFn, Encoding
from .masks import mask_tensor
from .schemes.plan import Ask, Call, Plan, Variant

T = TypeVar("T")

Check = Callable[[], None]
"""Called before each call of an encoder. An exception it raises ends the work."""


def ask(
    plan: Plan[T], encode: EncodeFn, *, max_chunks: int, keeps_calls: bool = False, check: Check | None = None
) -> T:
    """Carry out a plan.

    Args:
        plan: The plan.
        encode: The encoder.
        max_chunks: Maximum number of chunks per call.
        keeps_calls: Whether to make calls exactly as a host would, whatever their size, for bit-identical results.
            Otherwise their chunks are batched with any others.
        check: Called before each call of the encoder.

    Returns:
        The plan's result.
    """
    return plan.combine(_answers(plan.variants(), encode, max_chunks, keeps_calls, check))


def _answers(
    variants: Iterable[Variant], encode: EncodeFn, max_chunks: int, keeps_calls: bool, check: Check | None
) -> Iterator[Encoding]:
    """Answers for each variant, encoded when first needed and released after their last use."""
    numbers: dict[Ask, int] = {}
    wanted: list[list[int]] = []
    calls: list[Call | None] = []
    for variant in variants:
        wanted.append([numbers.setdefault(one, len(numbers)) for one in variant.asks()])
        calls.append(variant.call if keeps_calls else None)
    asks = list(numbers)
    left = Counter(number for some, call in zip(wanted, calls, strict=True) if call is None for number in some)
    waiting = _waiting(wanted, calls)
    known: dict[int, Encoding] = {}

    def run(some: Sequence[int]) -> Encoding:
        if check is not None:
            check()
        encoding = _encoded([asks[number] for number in some], encode)
        rows = map(Encoding, encoding.hidden, encoding.pooled)
        known.update((number, row) for number, row in zip(some, rows, strict=True) if left[number])
        return encoding

    for index, some in enumerate(wanted):
        if calls[index] == "goes on":
            continue
        if calls[index] == "starts":
            end = next((i for i in range(index + 1, len(calls)) if calls[i] != "goes on"), len(calls))
            encoding = run([number for part in wanted[index:end] for number in part])
            sizes = [len(part) for part in wanted[index:end]]
            yield from map(Encoding, encoding.hidden.split(sizes), encoding.pooled.split(sizes))
            continue
        while any(number not in known for number in some):
            run(_batch(waiting, asks, max_chunks))
        yield Encoding(*map(torch.stack, zip(*(known[number] for number in some), strict=True)))
        left.subtract(some)
        for number in some:
            if not left[number]:
                known.pop(number, None)


def _waiting(wanted: Sequence[Sequence[int]], calls: Sequence[Call | None]) -> deque[int]:
    """Encodings that no call makes before they are needed, in the order in which they are needed."""
    is_seen: set[int] = set()
    waiting: deque[int] = deque()
    for some, call in zip(wanted, calls, strict=True):
        if call is None:
            waiting.extend(dict.fromkeys(number for number in some if number not in is_seen))
        is_seen.update(some)
    return waiting


def _batch(waiting: deque[int], asks: Sequence[Ask], max_chunks: int) -> list[int]:
    """Take the next encodings that can share a call."""
    batch = [waiting.popleft()]
    while waiting and len(batch) < max_chunks and asks[waiting[0]].is_causal == asks[batch[0]].is_causal:
        batch.append(waiting.popleft())
    return batch


def _encoded(asks: Sequence[Ask], encode: EncodeFn) -> Encoding:
    """Call the encoder once."""
    ids = [one.ids for one in asks]
    return encode(ids, mask_tensor([one.visible for one in asks], len(ids[0])), is_causal=asks[0].is_causal)
