"""Blocks in few passes over memory: joined products by the kernel of `kernels.py`, and results written in place.

For inference only, without gradients. All kernels but ``plain`` multiply by a copy of the weights in an order of their
own, made when a model first encodes, and again whenever its weights have changed. Without room for the copy, or if it
is not wanted, small products are left to PyTorch, and for large ones each matrix is copied when needed.

Source: docs/performance.md, "On a CPU".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .kernels import PACKED, Kernel
from .layers import Arithmetic, EncoderBlock, quick_gelu
from .linear import PackedLayers, layer_norm, linear

PACK_ROWS = 256
"""Minimum number of rows for which a copy that is used once pays off."""
ROWS_IN_CACHE = 128
"""Number of rows activated at a time on a CPU. More would be read from memory again in each of three steps."""
LEAST_FREE = 2**29
"""Bytes that must remain free for the copy to be made or kept."""

Layers = Sequence[nn.Linear]


class Fast(Arithmetic):
    """Parts of a block for one call of an encoder."""

    def __init__(self, kernel: Kernel, packs: dict[int, PackedLayers] | None = None) -> None:
        """Choose the kernel and the weights."""
        self.kernel: Kernel = kernel
        self.packs = packs or {}

    def norm(self, layer: nn.LayerNorm, hidden: Tensor) -> Tensor:
        """Layer norm in the type of the states."""
        return layer_norm(hidden, layer)

    def products(self, layers: Layers, x: Tensor) -> tuple[Tensor, ...]:
        """Products of ``[..., in]``, computed as one if the weights are packed."""
        packed = self.packs.get(id(layers[0]))
        is_large = x.numel() // x.shape[-1] >= PACK_ROWS
        if packed is None and self.kernel in PACKED and is_large and can_pack(layers):
            packed = PACKED[self.kernel](layers)
        if packed is None:
            if x.device.type != "cpu":  # once for all
                x = x.to(layers[0].weight.dtype)
            return tuple(linear(x, layer) for layer in layers)
        if x.ndim == 2:
            return packed(x)
        return tuple(result.unflatten(0, x.shape[:-1]) for result in packed(x.flatten(0, -2)))

    def activated(self, activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply the activation, in place for CLIP's quick GELU, with the same result."""
        if activation is not quick_gelu:
            return activation(x)
        rows = x.flatten(0, -2)  # a copy if the rows are not one after the other
        for part in rows.split(ROWS_IN_CACHE) if x.device.type == "cpu" else (rows,):
            part.mul_(torch.mul(part, 1.702).sigmoid_())
        return rows.view(x.shape)

    def added(self, hidden: Tensor, change: Tensor) -> Tensor:
        """Add in place to ``change`` if it has the states' type."""
        return change.add_(hidden) if change.dtype == hidden.dtype else hidden + change


class Packs:
    """Packed weights of models, for as long as the models live. Thread-safe."""

    def __init__(self) -> None:
        self._found: WeakKeyDictionary[nn.Module, tuple[Hashable, dict[int, PackedLayers]]] = WeakKeyDictionary()
        self._lock = Lock()

    def of(
        self,
        model: nn.Module,
        products: Sequence[Layers],
        kernel: Kernel,
        now: Hashable,
        state: Callable[[], Hashable],
    ) -> dict[int, PackedLayers]:
        """Return packed weights, cached or new.

        Args:
            model: Owner of the weights.
            products: Layers that are multiplied together.
            kernel: A kernel of `kernels.py` with packed weights.
            now: Value that changes whenever the weights do, from the beginning of the call.
            state: Returns the current such value.

        Returns:
            Weights by the id of a product's first layer; empty without room, or if they cannot be packed.
        """
        with self._lock:
            size = sum(layer.weight.nbytes for layers in products for layer in layers)
            version, packs = self._found.get(model, (None, {}))
            if packs and version == (kernel, now) and has_room(0):
                return packs
            self._found.pop(model, None)
            del packs
            if not all(map(can_pack, products)) or not has_room(size):
                return {}
            packs = {id(layers[0]): PACKED[kernel](layers) for layers in products}
            if state() != now:  # another thread has changed them meanwhile
                return {}
            self._found[model] = (kernel, now), packs
            return packs

    def num_bytes(self, model: nn.Module) -> int:
        """Memory used by the copy of a model's weights."""
        return sum(packed.num_bytes for packed in self._found.get(model, (None, {}))[1].values())


PACKS = Packs()


def arithmetic_for(
    model: nn.Module,
    blocks: Sequence[EncoderBlock],
    kernel: Kernel,
    now: Hashable,
    state: Callable[[], Hashable],
    *,
    is_packed: bool = True,
) -> Fast:
    """Return the arithmetic of a model's blocks for the next call."""
    if kernel not in PACKED or not is_packed:
        return Fast(kernel)
    products = [layers for block in blocks for layers in products_of(block)]
    return Fast(kernel, PACKS.of(model, products, kernel, now, state))


def products_of(block: EncoderBlock) -> list[Layers]:
    """Layers of a block, grouped by common inputs."""
    attention, mlp = block.self_attn, block.mlp
    return [(attention.q_proj, attention.k_proj, attention.v_proj), (attention.out_proj,), (mlp.fc1,), (mlp.fc2,)]


def can_pack(layers: Layers) -> bool:
    """Whether weights of these layers can be packed: float32 on the CPU, and none replaced by another module."""
    return all(
        type(layer) is nn.Linear and layer.weight.dtype == torch.float32 and layer.weight.device.type == "cpu"
        for layer in layers
    )


def has_room(size: int) -> bool:
    """Whether ``size`` bytes plus `LEAST_FREE` are free; True if unknown."""
    free = free_bytes()
    return free is None or free >= size + LEAST_FREE


class _GroupFiles(NamedTuple):
    """Files of a control group, and fields of its statistics."""

    limit: str
    used: str
    cached: tuple[str, str]
    """Memory of files, which can be dropped."""


_STAT = "memory.stat"
_BY_CONTROLLER = {
    "": _GroupFiles("memory.max", "memory.current", ("inactive_file ", "active_file ")),
    "memory": _GroupFiles(
        "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file ", "total_active_file ")
    ),
}
"""Names in version 2, whose controllers are not named, and in version 1, where each has its folder."""
_NO_LIMIT = 2**60
"""Version 1 writes a number of this size where there is no limit."""


def free_bytes(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory available without swapping, or None if unknown."""
    if sys.platform == "linux":
        try:
            lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        except OSError:
            return None
        available = next((line for line in lines if line.startswith("MemAvailable:")), None)
        return None if available is None else min([int(available.split()[1]) * 1024, *_left_in_groups(proc, groups)])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _left_in_groups(proc: Path, groups: Path) -> Iterator[int]:
    """Yield the memory left below each limit on this process's groups and their parents."""
    try:
        groups_of_process = (proc / "self" / "cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in groups_of_process:
        _, controller, path = line.split(":", 2)
        if controller not in _BY_CONTROLLER:
            continue
        names, root = _BY_CONTROLLER[controller], groups / controller
        group = root / path.lstrip("/")
        # in a container the path may be one outside of it: then only the root is there
        for folder in (group, *group.parents):
            with suppress(OSError):  # where no limit can be set, there are no such files
                limit = _text(folder / names.limit)
                if limit.isdecimal() and int(limit) < _NO_LIMIT:
                    lines = _text(folder / _STAT).splitlines()
                    cached = sum(int(line.split()[1]) for line in lines if line.startswith(names.cached))
                    yield int(limit) - int(_text(folder / names.used)) + cached
            if folder == root:
                break


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
