"""Timing: one function repeatedly, or several in turn, statistics of the times, and our contestants.

Also runs inside ComfyUI's own Python, so it imports only the standard library.
"""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import EncodeFn
    from ...encoder.text_model import TextEncoder, TextModel
    from ...weighting.encoders import Encoders
    from ..peers.transformers import Transformers

Run = Callable[[], Any]

_processor_seconds = time.perf_counter if sys.platform == "win32" else time.process_time
"""Clock least affected by a busy machine; on Windows it has steps of 16 milliseconds, too coarse for a short text."""


class Ratio(NamedTuple):
    """Comparison of two functions that were timed in turn."""

    ours: float
    """Median time of ours, seconds."""
    peer: float
    """Median time of the peer, seconds."""
    ratio: float
    """The first divided by the second: below 1, ours takes less time."""
    low: float
    """First quartile of the ratios of single rounds."""
    high: float
    """Third quartile."""


def best_time(run: Run, *, seconds: float, repetitions: int) -> float:
    """Shortest of several processor times, for a function that always does the same: longer ones were disturbed.

    It is called at least so often, and at least for so many seconds.
    """
    best, spent, count = math.inf, 0.0, 0
    while spent < seconds or count < repetitions:
        start = _processor_seconds()
        run()
        taken = _processor_seconds() - start
        best, spent, count = min(best, taken), spent + taken, count + 1
    return best


def times_in_turn(
    contestants: Mapping[str, Run], *, repetitions: int, warm_up: int = 2, inner: int = 1
) -> dict[str, list[float]]:
    """Time several functions in one loop, A B C, C B A, A B C, ..., so that a slow moment affects all of them.

    Rounds of ``warm_up`` do not count. A time is the mean of ``inner`` calls: more than one for very short functions.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for number in range(-warm_up, repetitions):
        for name in names if number % 2 == 0 else reversed(names):
            run = contestants[name]
            start = time.perf_counter()
            for _ in range(inner):
                run()
            taken = (time.perf_counter() - start) / inner
            if number >= 0:
                times[name].append(taken)
    return times


def compare(ours: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Medians, their ratio, and the quartiles of the ratios of single rounds.

    >>> compare([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    Ratio(ours=2.0, peer=2.0, ratio=1.0, low=0.75, high=1.25)
    """
    ratios = [one / other for one, other in zip(ours, peer, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    middle, peer_middle = statistics.median(ours), statistics.median(peer)
    return Ratio(middle, peer_middle, middle / peer_middle, low, high)


@contextmanager
def without_collector() -> Iterator[None]:
    """Disable Python's cyclic garbage collector, which visits every object that a long text becomes."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def growth(short: float, long: float, factor: float) -> float:
    """The exponent p of ``time ~ length ** p`` from two times, the second for a text ``factor`` times as long.

    >>> growth(0.5, 5.0, 10), growth(0.5, 50.0, 10)
    (1.0, 2.0)
    """
    return math.log(long / short) / math.log(factor)


# ---- functions that encode the next prompt of a sequence from its text

TRANSFORMERS = "transformers"
MEMORY_BYTES = 64 * 2**20
"""Default cache size of our encoders, here whatever the environment says."""


def native(model: TextModel, max_bytes: int = MEMORY_BYTES) -> TextEncoder:
    """The encoder that users get, with an empty cache of at most ``max_bytes``."""
    from ...encoder.prefix import encoders_for

    return encoders_for({"clip_l": model}, max_bytes=max_bytes)[1]["clip_l"]


def ours(encode: EncodeFn, prompts: Iterator[str], **choices: str) -> Callable[[], Tensor]:
    """Encode the next text by ours, to hidden states ``[1, 77 * chunks, dim]``, with fields of `EncodeOptions`."""
    encoders = _door(encode)
    return lambda: encoders(next(prompts), **choices).hidden


def ours_together(
    encode: EncodeFn, prompts: Iterator[Sequence[str]], *, is_together: bool = True, **choices: str
) -> Callable[[], Tensor]:
    """Encode the next texts, of one chunk each, by ours, to hidden states ``[prompts, 77, dim]``.

    They are encoded together or one by one, with fields of `EncodeOptions`.
    """
    import torch

    from ...weighting.options import EncodeOptions

    encoders, options = _door(encode), EncodeOptions(**choices)  # pyright: ignore[reportArgumentType]

    def run() -> Tensor:
        texts = next(prompts)
        windows = [texts] if is_together else [[text] for text in texts]
        return torch.cat([one.hidden for some in windows for one in encoders.prepare(some, options).run()])

    return run


def _door(encode: EncodeFn) -> Encoders:
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.encoders import Encoders
    from ...weighting.towers import Reader

    return Encoders({"clip_l": Reader(default_tokenizer())}, {"clip_l": encode})


def best_batch(
    theirs: Transformers,
    prompts: Callable[[], Iterator[Sequence[str]]],
    sizes: Sequence[int],
    repetitions: int = 2,
    warm_up: int = 1,
) -> int:
    """Fastest of several batch sizes for the peer, by the median of its times; ``prompts`` is called for each size."""
    runs = {str(size): theirs.batch(prompts(), size) for size in sizes}
    taken = times_in_turn(runs, repetitions=repetitions, warm_up=warm_up)
    return min(sizes, key=lambda size: statistics.median(taken[str(size)]))
