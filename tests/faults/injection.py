"""Errors raised in the middle: at a chosen operation of PyTorch, or at a chosen step of our own Python."""

from __future__ import annotations

import dis
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves


class Interrupted(BaseException):
    """As ComfyUI's InterruptProcessingException in its newer versions."""


ERRORS: list[BaseException] = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"),
    MemoryError(),
    KeyboardInterrupt(),
    Interrupted(),
]


class FailingAt(TorchFunctionMode):
    """PyTorch whose call of a number fails, functions and methods counted; every tensor made before is watched."""

    def __init__(self, number: int | None = None, error: BaseException | None = None) -> None:
        super().__init__()
        self.number, self.error = number, error
        self.count = 0
        self.made: list[weakref.ref[Tensor]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.__name__ in ("__get__", "_set_grad_enabled"):  # shapes, devices, ...; a flag, which cannot fail
            return function(*args, **(kwargs or {}))
        if self.count == self.number and self.error is not None:
            raise self.error
        self.count += 1
        result = function(*args, **(kwargs or {}))
        # not of masks: PyTorch itself loses a reference to those that attention is given, if such a mode is on
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        self.made += [weakref.ref(leaf) for leaf in leaves if not isinstance(leaf, nn.Parameter)]
        return result

    def num_alive(self) -> int:
        """Number of tensors created that are still referenced."""
        return sum(made() is not None for made in self.made)


def num_operations(work: Callable[[], Any]) -> int:
    """Number of PyTorch operations in some work."""
    with FailingAt() as mode:
        work()
    return mode.count


def failure(work: Callable[[], Any], number: int, error: BaseException) -> FailingAt:
    """Do some work of which one operation fails, and see the very same error come out, wrapped in nothing.

    Args:
        work: Work to do.
        number: Number of the operation, from 0.
        error: Error to raise.

    Returns:
        The mode, with everything created before.
    """
    error.__traceback__ = error.__context__ = None
    mode = FailingAt(number, error)
    caught = None
    has_gradients = torch.is_grad_enabled()
    try:
        with mode:
            work()
    except BaseException as raised:
        caught = raised
    assert torch.is_grad_enabled() == has_gradients, f"operation {number} failed and gradients stayed switched"
    assert caught is error, f"operation {number} failed and nothing was raised, or something else: {caught!r}"
    assert caught.__cause__ is None
    caught.__traceback__ = caught.__context__ = None
    return mode


@contextmanager
def interrupted_at(step: int, codes: set[CodeType]) -> Iterator[list[int]]:
    """Python in which Ctrl-C comes at one step of some functions.

    Args:
        step: Its number, counted over all places of these functions where Python lets a signal in, from 0.
        codes: Code objects of the functions.

    Yields:
        A list whose only entry counts the steps.
    """
    count = [0]
    open_at = {code: _open_at(code) for code in codes}

    def at_step(frame: FrameType, event: str, argument: Any) -> Any:
        del argument
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti in open_at[frame.f_code]:
            if count[0] == step:
                count[0] += 1
                raise KeyboardInterrupt
            count[0] += 1
        return at_step

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return at_step(frame, event, argument) if frame.f_code in codes else None

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        yield count
    finally:
        sys.settrace(before)


def _open_at(code: CodeType) -> set[int]:
    """Instructions before which Python checks for signals: after calls, at starts and backward jumps."""
    pairs = pairwise(dis.get_instructions(code))
    return {after.offset for before, after in pairs if before.opname.startswith(("CALL", "RESUME", "JUMP"))}
