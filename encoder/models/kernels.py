"""Kernels for the matrix products of our encoders, chosen by timing them on this machine.

``plain`` is PyTorch's own linear, which is MKL on x86. ``onednn`` and ``mkl`` are these libraries on weights reordered
beforehand, see `linear.py`; none is further from exact sums than ``plain``.

On an unknown machine the first answer of a process is computed by ``plain``. Then all are timed once, which takes up to
three seconds, and the choice is saved in a file for the processor, its threads and the version of torch. Texts, few
rows by weights that are packed once, and images, many rows by weights that are packed each time, are two choices.

Source: docs/performance.md, "On a CPU".
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from .linear import ONEDNN, Packed, PackedByMKL, PackedByOneDNN, blank_linear, has_packed_mkl

Kernel = Literal["plain", "onednn", "mkl"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
PACKED: Mapping[Kernel, type[Packed]] = {"onednn": PackedByOneDNN, "mkl": PackedByMKL}
"""Class of packed weights of each kernel that has any."""
Run = Callable[[], object]
VARIABLE = "WEIGHTED_CLIP_KERNEL"
"""Environment variable that names the kernel; then nothing is measured or written."""

LEAST_GAIN = 1.05
"""Minimum speedup over ``plain`` for another kernel to be chosen."""
MOST_SECONDS = 3.0
"""Measuring ends after the round in which this is reached; on a quiet machine it takes one or two."""
NUM_BLOCKS = 4
"""Blocks whose weights are multiplied in turn: with three copies 340 MB, as many as a pass of CLIP-L reads, so that
none is still in the processor's cache."""

_FIELD = re.compile(r"^(model name|cpu family|model)[\t ]*: (.+)$", re.MULTILINE)


class Choice:
    """Choice of the kernel for one kind of work in this process."""

    def __init__(self, measure: Callable[[], Kernel], work: str = "", place: Callable[[], Path] | None = None) -> None:
        """Start without a choice."""
        self._measure = measure
        self._work = work
        self._place = place or kept_at
        self._chosen: Kernel | None = None
        self._has_answered = False
        self._lock = Lock()

    def now(self) -> Kernel:
        """Return the kernel for the next answer; measures after the first answer if no choice is saved."""
        forced = _forced()
        if forced is not None:
            return forced
        with self._lock:
            if self._chosen is None:
                self._chosen = "plain" if len(available()) == 1 else self._kept()
            if self._chosen is None and self._has_answered:
                self._chosen = self._measure()
                self._keep(self._chosen)
            return self._chosen or "plain"

    def answered(self) -> None:
        """Record that an answer was given: from now on there is time to measure."""
        self._has_answered = True

    def _kept(self) -> Kernel | None:
        try:
            found = json.loads(self._place().read_text(encoding="utf-8")).get(machine() + self._work)
        except (OSError, ValueError, AttributeError):
            return None
        return next((kernel for kernel in available() if kernel == found), None)

    def _keep(self, kernel: Kernel) -> None:
        """Save the choice if possible; otherwise every process measures again."""
        place = self._place()
        try:
            try:
                known = dict(json.loads(place.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError):
                known = {}
            place.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=place.parent, delete=False, encoding="utf-8") as file:
                written = Path(file.name)
            try:
                written.write_text(json.dumps(known | {machine() + self._work: kernel}, indent=1), encoding="utf-8")
                written.replace(place)
            finally:
                written.unlink(missing_ok=True)
        except OSError:
            return


def kept_at() -> Path:
    """File where choices are saved, in the user's cache folder."""
    folder = os.environ.get("LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME")
    return Path(folder or Path.home() / ".cache", "weighted-clip", "kernels.json")


@lru_cache(maxsize=1)
def available() -> tuple[Kernel, ...]:
    """Kernels that run on this machine; ``plain`` runs on every one."""
    onednn: tuple[Kernel, ...] = () if ONEDNN is None else ("onednn",)
    mkl: tuple[Kernel, ...] = ("mkl",) if has_packed_mkl() else ()
    return ("plain", *onednn, *mkl)


def machine() -> str:
    """Key of the choice: processor, threads, torch, the kernels to choose from and how they are timed, in words."""
    try:
        name = processor_name(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        name = None
    kind = torch.backends.cpu.get_cpu_capability()
    return (
        f"{name or platform.processor() or platform.machine()}, {kind}, threads: {torch.get_num_threads()}, "
        f"torch {torch.__version__}, {'/'.join(available())}, timed on {NUM_BLOCKS} blocks"
    )


def processor_name(info: str) -> str | None:
    r"""Name of the processor, with family and model where given: virtual machines name several generations alike.

    >>> processor_name("cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n")
    'AMD EPYC, family 25, model 17'
    >>> processor_name("Features : fp asimd\n") is None
    True
    """
    fields = dict(_FIELD.findall(info)[::-1])  # those of the first core
    name = fields.get("model name")
    if name is None or not {"cpu family", "model"} <= fields.keys():
        return name
    return f"{name}, family {fields['cpu family']}, model {fields['model']}"


@torch.no_grad()
def measured_on_texts(repetitions: int = 20) -> Kernel:
    """Return the fastest kernel for a chunk of CLIP-L and for its last words, by weights that are packed already."""
    sizes = (768, 2304), (768, 768), (768, 3072), (3072, 768)
    inputs = {(size, rows): _zeros(rows, size) for size in (768, 3072) for rows in (26, 77)}

    def block() -> Iterator[Mapping[Kernel, Run]]:
        layers = _layers(*sizes)
        packs: list[dict[Kernel, Packed]] = [
            {kernel: PACKED[kernel]([layer]) for kernel in available() if kernel in PACKED} for layer in layers
        ]
        for rows in (26, 77):  # a pass reads all weights before it reads the first again
            for layer, packed in zip(layers, packs, strict=True):
                x = inputs[layer.in_features, rows]
                runs: dict[Kernel, Run] = {kernel: partial(product, x) for kernel, product in packed.items()}
                yield _plain(layer, x) | runs

    return _fastest([list(block()) for _ in range(NUM_BLOCKS)], repetitions)


@torch.no_grad()
def measured_on_images(repetitions: int = 4) -> Kernel:
    """Return the fastest kernel for two images in CLIP-L's image tower, packing included."""
    sizes = (1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)
    inputs = {size: _zeros(514, size) for size in (1024, 4096)}

    def packing(kernel: Kernel, layer: nn.Linear, x: Tensor) -> object:
        return PACKED[kernel]([layer])(x)

    def block() -> Iterator[Mapping[Kernel, Run]]:
        for layer in _layers(*sizes):
            x = inputs[layer.in_features]
            runs: dict[Kernel, Run] = {k: partial(packing, k, layer, x) for k in available() if k in PACKED}
            yield _plain(layer, x) | runs

    return _fastest([list(block()) for _ in range(NUM_BLOCKS)], repetitions)


def _plain(layer: nn.Linear, x: Tensor) -> dict[Kernel, Run]:
    return {"plain": partial(functional.linear, x, layer.weight, layer.bias)}


def _zeros(*shape: int) -> Tensor:
    """Zeros, whatever PyTorch's default device and type are."""
    return torch.zeros(shape, device="cpu", dtype=torch.float32)


def _layers(*sizes: tuple[int, int]) -> list[nn.Linear]:
    """Layers of zeros, as values make no difference to the time."""
    layers = [blank_linear(*size) for size in sizes]
    for layer in layers:
        layer.weight.zero_()
        layer.bias.zero_()
    return layers


def _fastest(blocks: Sequence[Sequence[Mapping[Kernel, Run]]], repetitions: int, attempts: int = 3) -> Kernel:
    """Time the kernels in turn, each time on the next of some blocks that are alike."""
    begun = time.perf_counter()
    shortest: list[dict[Kernel, float]] = [
        dict.fromkeys(runs, math.inf) for runs in blocks[0]
    ]  # what is longer was disturbed
    for number in range(attempts * repetitions):
        for runs, times in zip(blocks[number % len(blocks)], shortest, strict=True):
            for kernel, run in runs.items():
                start = time.perf_counter()
                run()
                times[kernel] = min(times[kernel], time.perf_counter() - start)
        total: dict[Kernel, float] = {kernel: sum(times[kernel] for times in shortest) for kernel in shortest[0]}
        fastest: Kernel = min(total, key=total.__getitem__)
        is_late = time.perf_counter() - begun > MOST_SECONDS
        if (is_late or (number + 1) % repetitions == 0) and total["plain"] >= LEAST_GAIN * total[fastest]:
            return fastest
        if is_late:
            break
    return "plain"


def _forced() -> Kernel | None:
    written = os.environ.get(VARIABLE, "").strip()
    if not written:
        return None
    kernel = next((kernel for kernel in KERNELS if kernel == written), None)
    if kernel is None:
        raise ValueError(f"{VARIABLE}={written} is no kernel; allowed are {', '.join(KERNELS)}")
    if kernel not in available():
        raise ValueError(
            f"{VARIABLE}={written}: this PyTorch cannot multiply so on this processor; allowed here: "
            f"{', '.join(available())}"
        )
    return kernel


CHOICE = Choice(measured_on_texts)
"""The choice of this process for text encoders."""
IMAGE_CHOICE = Choice(measured_on_images, ", images")
"""The choice of this process for image towers."""
