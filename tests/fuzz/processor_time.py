"""Growth of a call's processor time with its text: unlike steps of the interpreter, it includes that of `re`."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from math import log2
from typing import Any

from weighted_clip.workshop.bench.timing import without_collector

KIB = 1024
TINY = tuple(round(12 * 1.25**step) for step in range(18))
"""Characters, 12 to 533, with which what is exponential takes long, and nothing else. A quarter more takes at most 30
times as long as what stayed below `FLOOR`, so that it is stopped in time."""
PROBE = (2 * KIB, 8 * KIB)
LIKELY = 5.0
"""Times as long for four times as much: what takes 3.2 times as long for twice as much at the full length
does this here."""
SIZES = (2 * KIB, 4 * KIB, 8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB)
FLOOR = 0.05
"""Seconds; shorter calls are not judged: their growth is that of the clock, or of memory behind a cache."""
REPEATS = 30
"""Times that what looks too slow is measured again before it is said to be."""

Call = Callable[[str], Any]
MakeText = Callable[[int], str]
"""Makes a text of about as many characters."""


def most_growth(short: int, long: int) -> float:
    """Largest allowed growth for a longer text: threefold for twice the length, where four would be quadratic."""
    times = long / short
    return max(1.5 * times, times ** log2(3))


def seconds(call: Call, text: str) -> float:
    """Processor time of a call, of all threads of this process."""
    began = time.process_time()
    call(text)
    return time.process_time() - began


def stays_short(taken: float, size: int) -> bool:
    """Whether a call that took so long would stay below the floor up to the longest text, if it were quadratic."""
    return taken * (SIZES[-1] / size) ** 2 < FLOOR


def too_fast_growth(call: Call, text: MakeText, repeats: int = REPEATS) -> str:
    """Lengths where the time of a call grows by more than `most_growth`; empty if there are none.

    Sizes ascend, so that what is quadratic or worse is found before it takes long, and end where what is quadratic
    would stay below the floor up to the last. What looks so is measured again, a short and a long text in turn: a
    processor that is slower for a while is so for both.
    """
    with without_collector():
        lengths = (*TINY, *SIZES)
        before = seconds(call, text(lengths[0]))
        for short, long in pairwise(lengths):
            after, most = seconds(call, text(long)), most_growth(short, long)
            left = repeats
            while after > FLOOR and after > most * before and left:
                before, after = min(before, seconds(call, text(short))), min(after, seconds(call, text(long)))
                left -= 1
            if after > FLOOR and after > most * before:
                return f"{short:,} characters take {before:.3f} s, {long:,} take {after:.3f} s"
            if long >= SIZES[0] and stays_short(after, long):
                return ""
            before = after
    return ""


def may_grow_too_fast(call: Call, text: MakeText) -> bool:
    """Whether a call should be measured at full length, decided at an eighth of it and of its cost."""
    with without_collector():
        short, long = (seconds(call, text(size)) for size in PROBE)
        for _ in range(REPEATS):
            if stays_short(long, PROBE[1]) or long < LIKELY * short:
                return False
            short, long = (
                min(least, seconds(call, text(size))) for least, size in zip((short, long), PROBE, strict=True)
            )
    return long > LIKELY * short
