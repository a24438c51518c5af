"""Time of one encode by part, from PyTorch's profiler: matrix products, attention, the rest, and the gaps between."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping

from .page import milliseconds
from .timing import Run

PRODUCTS = ("addmm", "mm", "bmm", "baddbmm", "linear", "_linear_pointwise", "mkldnn_linear", "_mkl_linear")
"""PyTorch's operators for matrix products; attention written out as products counts here, too."""
PARTS = ("Products", "Attention", "Element-wise", "Between")
HEAD = ("By", *(f"{part}, ms" for part in PARTS), "All, ms", "Products, GFLOP/s")


def breakdown(runs: Mapping[str, Run], repetitions: int) -> dict[str, dict[str, float]]:
    """Measure the seconds of one call by `PARTS`, and ``All``.

    PyTorch's operators are timed with its profiler on, the whole without it; the gaps between are Python, and anything
    that the profiler cannot see.

    Args:
        runs: Functions to call, by name.
        repetitions: Number of calls, each with the profiler and without.
    """
    from torch.profiler import ProfilerActivity, profile

    found: dict[str, dict[str, float]] = {}
    for name, run in runs.items():
        run()
        taken: list[float] = []
        for _ in range(repetitions):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            for _ in range(repetitions):
                run()
        parts: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        for event in seen.key_averages():
            parts[_part(event.key)] += event.self_cpu_time_total / 1e6 / repetitions
        everything = statistics.median(taken)
        operators = sum(parts.values())
        found[name] = parts | {"Between": max(0.0, everything - operators), "All": everything}
    return found


def rows_of(found: Mapping[str, Mapping[str, float]], flop: float) -> list[list[str]]:
    """The cells of `HEAD`, for products of ``flop`` operations."""
    return [
        [name, *(milliseconds(parts[part]) for part in (*PARTS, "All")), f"{flop / parts['Products'] / 1e9:.0f}"]
        for name, parts in found.items()
    ]


def _part(operator: str) -> str:
    name = operator.rpartition("::")[2]
    if name in PRODUCTS:
        return "Products"
    return "Attention" if "scaled_dot_product" in name else "Element-wise"
