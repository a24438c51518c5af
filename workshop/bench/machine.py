"""The machine in plain words, as needed to interpret times, and the peak of a process's memory on Linux."""

from __future__ import annotations

import ctypes
import datetime
import importlib.metadata
import os
import platform
import re
import sys
from pathlib import Path

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
    from ...encoder.kernels import processor_name  # imports torch

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
        _give_back_what_is_free()
        self._before = _resident("VmRSS")
        self._is_new = _forget_the_peak()

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


def _forget_the_peak() -> bool:
    """Reset the peak; return whether that was possible."""
    try:
        _CLEAR_REFS.write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def _give_back_what_is_free() -> None:
    """Return freed memory to the system, as the allocator would hide later use of it."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
        if trim is not None:
            trim(0)
