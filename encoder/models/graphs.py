"""CUDA graphs of the text tower's passes, captured by hand, so that a prompt is one launch instead of some 160.

Off unless asked for, as no card has shown them right yet. A graph is captured when the same kind of pass comes a second
time, and dropped when the weights are elsewhere in memory.

Source: docs/performance.md, "On a GPU".
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..encoding import Encoding
from ..quoting import quote

VARIABLE = "WEIGHTED_CLIP_CUDA_GRAPHS"
"""Environment variable that asks for graphs: 1, or 0 for none."""
MOST_GRAPHS = 8
"""Most kinds of passes whose graphs are kept, the last used."""

Run = Callable[[Tensor], Encoding]
"""A pass, from its packed inputs on the device."""


class Captured(NamedTuple):
    """A captured pass."""

    inputs: Tensor
    """Where it reads its packed inputs."""
    replay: Callable[[], object]
    """Run it."""
    outputs: Encoding
    """Where it leaves its result."""


def capture(run: Run, packed: Tensor) -> Captured:
    """Capture a pass on a CUDA device, given inputs of its kind there; a RuntimeError says why it cannot be."""
    inputs, stream = packed.clone(), torch.cuda.Stream(packed.device)
    stream.wait_stream(torch.cuda.current_stream(packed.device))
    with torch.cuda.stream(stream):  # libraries prepare themselves in a pass that is not captured
        run(inputs)
    torch.cuda.current_stream(packed.device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = run(inputs)
    return Captured(inputs, graph.replay, outputs)


class Graphs:
    """Graphs of one encoder's passes. Thread-safe."""

    def __init__(self, capture: Callable[[Run, Tensor], Captured] = capture) -> None:
        """Start without any."""
        self._capture, self._lock = capture, Lock()
        self._passes: OrderedDict[Hashable, Captured | None] = OrderedDict()
        self._weights: Hashable = None
        self._problem = ""

    def run(self, key: Hashable, packed: Tensor, model: nn.Module, run: Run) -> Encoding:
        """Encode by the graph of a kind of pass, if it came before; else by the pass itself.

        Args:
            key: All that the pass depends on but its inputs and the values of the weights.
            packed: Its inputs, on the CPU.
            model: Owner of the weights.
            run: The pass.
        """
        weights = tuple((each.data_ptr(), each.dtype, each.device) for each in model.parameters())
        device = weights[0][2]
        with self._lock:
            if weights != self._weights:
                self._passes.clear()
                self._weights = weights
            is_known = key in self._passes
            captured = self._passes.pop(key, None)
            if is_known and captured is None and not self._problem:
                try:
                    captured = self._capture(run, packed.to(device))
                except RuntimeError as error:
                    self._problem = str(error).partition("\n")[0]
            self._passes[key] = captured
            while len(self._passes) > MOST_GRAPHS:
                self._passes.popitem(last=False)
            if captured is not None:
                captured.inputs.copy_(packed, non_blocking=True)
                captured.replay()
                return Encoding(captured.outputs.hidden.clone(), captured.outputs.pooled.clone())
        return run(packed.to(device, non_blocking=True))

    def how_computed(self, device: str) -> str:
        """How many there are, or why there are none, in words."""
        if device != "cuda":
            return f"no CUDA graphs, as the encoder is on the device {device} ({VARIABLE}=1)"
        if self._problem:
            return f"no CUDA graphs: {self._problem} ({VARIABLE}=1)"
        return f"CUDA graphs: {sum(captured is not None for captured in self._passes.values())}"


def are_wanted() -> bool:
    """Whether `VARIABLE` asks for graphs; a ValueError quotes what is neither 0 nor 1."""
    written = os.environ.get(VARIABLE, "").strip()
    if written not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE}={quote(written)}: take 1 for CUDA graphs, or 0 for none")
    return written == "1"
