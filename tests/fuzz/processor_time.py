"""How the processor time of a call grows with its text: unlike steps of the interpreter, it has that of `re` in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from weighted_clip.benchmarks.timing import without_collector

KIB = 1024
TINY = (*range(12, 64, 4), *range(64, 512, 16))
"""Characters with which what is exponential takes long, and nothing else; in steps that are small enough to stop in
time."""
PROBE = (2 * KIB, 8 * KIB)
LIKELY = 5.0
"""Times as long for four times as much: what takes 3.2 times as long for twice as much at the full length
does this here."""
SIZES = (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB)
MOST = 1.5
"""How much faster than a text its time may grow: threefold for twice as much, where four would be quadratic."""
FLOOR = 0.02
"""Seconds; what takes less is not judged: its growth cannot be told from the clock's."""
REPEATS = 4
"""Measurements of what looks too slow, before it is said to be."""

Call = Callable[[str], Any]
MakeText = Callable[[int], str]
"""Makes a text of about as many characters."""


def seconds(call: Call, text: str, repeats: int = 1) -> float:
    """Processor time of a call, of all threads of this process; the least of some calls."""
    taken: list[float] = []
    for _ in range(repeats):
        began = time.process_time()
        call(text)
        taken.append(time.process_time() - began)
    return min(taken)


def too_fast_growth(call: Call, text: MakeText, sizes: Sequence[int] = SIZES) -> str:
    """Where the time of a call grows more than `MOST` times as fast as its text; empty if it never does.

    Sizes ascend, so that what is quadratic or worse is found before it takes long.
    """
    with without_collector():
        before = seconds(call, text(TINY[0]))
        for short, long in pairwise((*TINY, *sizes)):
            after, most = seconds(call, text(long)), MOST * long / short
            if after > FLOOR and after > most * before:
                before = min(before, seconds(call, text(short), REPEATS))
                after = min(after, seconds(call, text(long), REPEATS))
                if after > FLOOR and after > most * before:
                    return f"{short:,} characters take {before:.3f} s, {long:,} take {after:.3f} s"
            before = after
    return ""


def may_grow_too_fast(call: Call, text: MakeText) -> bool:
    """Whether a call should be measured at full length: told at an eighth of it and of its cost."""
    quadratic_floor = FLOOR / (SIZES[-1] // PROBE[1]) ** 2
    with without_collector():
        short, long = (seconds(call, text(size)) for size in PROBE)
        if long < quadratic_floor or long < LIKELY * short:
            return False
        short, long = (seconds(call, text(size), REPEATS) for size in PROBE)
        return long > LIKELY * short
