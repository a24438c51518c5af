"""Timing one function repeatedly or several in turn, the machine that they run on, and our contestants.

Also runs inside ComfyUI's own Python, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import importlib.metadata
import math
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

    from ...encoder.encoding import EncodeFn
    from ...encoder.models.text_model import TextEncoder, TextModel
    from ...weighting.encoders import Encoders
    from ..peers.transformers import Transformers

Run = Callable[[], Any]

_processor_seconds = time.perf_counter if sys.platform == "win32" else time.process_time
"""Clock least affected by a busy machine; on Windows it has steps of 16 milliseconds, too coarse for a short text."""


class Ratio(NamedTuple):
    """Comparison of two functions that were timed in turn."""

    first: float
    """Median time of the first, seconds."""
    peer: float
    """Median time of the second, seconds."""
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
        elapsed = _processor_seconds() - start
        best, spent, count = min(best, elapsed), spent + elapsed, count + 1
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
            seconds = (time.perf_counter() - start) / inner
            if number >= 0:
                times[name].append(seconds)
    return times


def compare(way_times: Sequence[float], peer: Sequence[float]) -> Ratio:
    """Medians, their ratio, and the quartiles of the ratios of single rounds.

    >>> compare([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    Ratio(first=2.0, peer=2.0, ratio=1.0, low=0.75, high=1.25)
    """
    ratios = [way_time / peer_time for way_time, peer_time in zip(way_times, peer, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    middle, peer_middle = statistics.median(way_times), statistics.median(peer)
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


# ---- the machine in plain words, as needed to interpret times

_CPU_INFO = Path("/proc/cpuinfo")
_FLAGS = {
    "avx2": "AVX2",
    "avx512f": "AVX512",
    "avx512_bf16": "AVX512-BF16",
    "avx512_vnni": "AVX512-VNNI",
    "amx_tile": "AMX",
    "asimd": "NEON",
    "sve": "SVE",
}


def machine() -> str:
    """Cores, instruction sets, versions, threads and load, as a Markdown list."""
    import torch

    cores, flags = _processor()
    lines = [
        cores + (f", with {', '.join(flags)}" if flags else ""),
        f"{platform.system()}, Python {platform.python_version()}",
        f"{with_torch()}, float32, kernels for {torch.backends.cpu.get_cpu_capability()}",
        ", ".join(f"{package} {version(package)}" for package in ("tokenizers", "transformers", "compel")),
    ]
    lines += load("the minute before the start")
    return "\n".join(f"- {line}" for line in lines)


def measured(*packages: str) -> str:
    """Time, machine and packages of a section's measurement, as a sentence; called before measuring."""
    day = datetime.datetime.now(datetime.timezone.utc).date()
    parts = [f"Measured on {day} on {_processor()[0]}", with_torch()]
    parts += [f"{package} {version(package)}" for package in packages]
    return "; ".join([", ".join(parts), *load("the minute before")]) + "."


def processor() -> str:
    """Name of the processor and its number of cores."""
    return _processor()[0]


def load(when: str) -> list[str]:
    """Load of the machine in the last minute, in words, if the system reports it."""
    return [f"load average over {when}: {os.getloadavg()[0]:.1f}"] if hasattr(os, "getloadavg") else []


def with_torch() -> str:
    """Version of torch and its number of threads."""
    import torch

    num_threads = torch.get_num_threads()
    return f"torch {torch.__version__} on {num_threads} thread{'s' * (num_threads > 1)}"


def version(package: str) -> str:
    """Installed version of a package, or a note that it is not found."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not found"


def _processor() -> tuple[str, list[str]]:
    """Cores and model of the processor, and its instruction sets that matter here."""
    from ...encoder.models.kernels import processor_name  # imports torch

    num_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    architecture = platform.machine() or "unknown"
    if not _CPU_INFO.is_file():
        return f"{num_cores} CPU cores, {platform.processor() or architecture}", []
    info = _CPU_INFO.read_text(encoding="utf-8", errors="replace")
    name = processor_name(info)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", info, re.MULTILINE)
    has = set(flags[1].split()) if flags else set[str]()
    named = f"{name} ({architecture})" if name else architecture
    return f"{num_cores} CPU cores, {named}", [_FLAGS[flag] for flag in _FLAGS if flag in has]


# ---- memory

MIB = 1024**2
"""Bytes of a mebibyte."""
_STATUS, _CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class MemoryPeak:
    """Peak of this process's resident memory from now on, minus what is resident now."""

    def __init__(self) -> None:
        if sys.platform == "linux":  # freed memory goes back to the system, or later use of it would be hidden
            getattr(ctypes.CDLL(None), "malloc_trim", int)(0)  # only in glibc
        self._before, self._is_new = _resident("VmRSS"), False
        with suppress(OSError):  # where the peak cannot be forgotten
            _CLEAR_REFS.write_text("5", encoding="utf-8")
            self._is_new = True

    def taken(self) -> int | None:
        """Return the difference in bytes; None if the system does not report it."""
        after = _resident("VmHWM")
        return after - self._before if self._is_new and self._before is not None and after is not None else None


def _resident(name: str) -> int | None:
    """Resident memory in bytes on Linux; None elsewhere."""
    if not _STATUS.is_file():
        return None
    match = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(encoding="utf-8"), re.MULTILINE)
    return None if match is None else int(match[1]) * 1024


# ---- functions that encode the next prompt of a sequence from its text

TRANSFORMERS = "transformers"
MEMORY_BYTES = 64 * 2**20
"""Default cache size of our encoders, here whatever the environment says."""


def native(model: TextModel, max_bytes: int = MEMORY_BYTES) -> TextEncoder:
    """The encoder that users get, with an empty cache of at most ``max_bytes``."""
    from ...encoder.models.prefix import encoders_for

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
        return torch.cat([encoded.hidden for window in windows for encoded in encoders.prepare(window, options).run()])

    return run


def _door(encode: EncodeFn) -> Encoders:
    from ...encoder.tokenizer import default_tokenizer
    from ...weighting.encoders import Encoders
    from ...weighting.towers import Reader

    return Encoders({"clip_l": Reader(default_tokenizer())}, {"clip_l": encode})


def in_order(encode: Callable[[dict[str, Any], str], Any], settings: dict[str, Any], prompts: Iterator[str]) -> Run:
    """Encode the next text with some settings, by a peer or by our path in a host."""
    return lambda: encode(settings, next(prompts))


def best_batch(
    peer_model: Transformers,
    prompts: Callable[[], Iterator[Sequence[str]]],
    sizes: Sequence[int],
    repetitions: int = 2,
    warm_up: int = 1,
) -> int:
    """Fastest of several batch sizes for the peer, by the median of its times; ``prompts`` is called for each size."""
    runs = {str(size): peer_model.batch(prompts(), size) for size in sizes}
    durations = times_in_turn(runs, repetitions=repetitions, warm_up=warm_up)
    return min(sizes, key=lambda size: statistics.median(durations[str(size)]))
