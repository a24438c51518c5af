"""Several processes started by torchrun that divide the work, and the early end of a command.

A process knows only its own number. A command ends by Ctrl-C or SIGTERM, in training after the current step; or when
another process ends.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from types import FrameType
from typing import Any, NoReturn, Protocol

from .console import drop_unwritable, show

INTERRUPTED, TERMINATED = 130, 143
"""Exit statuses after Ctrl-C and SIGTERM, as in shells."""
SECONDS_BETWEEN_BEATS = 5.0
MOST_MISSED = 8
"""Number of consecutive heartbeats a process may miss before the others consider it dead."""


@dataclass(frozen=True)
class Process:
    """Position of this process among several."""

    rank: int = 0
    """Its number among all processes."""
    local_rank: int = 0
    """Its number on its machine."""
    num_processes: int = 1
    """Number of processes."""

    @property
    def is_first(self) -> bool:
        """Whether this is the process that reports for all."""
        return self.rank == 0


def process_of(environ: Mapping[str, str]) -> Process:
    """Number that torchrun gives to this process.

    >>> process_of({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"})
    Process(rank=3, local_rank=1, num_processes=4)
    """
    values = [environ.get(name, default) for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))]
    try:
        rank, local_rank, num_processes = map(int, values)
    except ValueError:
        rank, local_rank, num_processes = -1, -1, 0
    if not (0 <= rank < num_processes and local_rank >= 0):
        raise ValueError(
            "RANK {}, LOCAL_RANK {} and WORLD_SIZE {} in the environment are no place among processes; start them with "
            "torchrun, or unset these".format(*values)
        )
    return Process(rank, local_rank, num_processes)


def alone(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Let a command keep other runs out of its folder ``out``, which the first process creates."""

    @wraps(run)
    def run_alone(arguments: argparse.Namespace) -> int:
        from ..output.files import alone_in

        with alone_in(arguments.out, is_first=process_of(os.environ).is_first):
            return run(arguments)

    return run_alone


def is_of_another(error: RuntimeError) -> bool:
    """Whether PyTorch reports by this error that another process, which this one waited for, has ended."""
    from torch import distributed

    is_known = distributed.is_available() and isinstance(error, getattr(distributed, "DistError", ()))
    return is_known or "gloo" in str(error)


def leave(process: Process, why: str, step: int | None = None) -> NoReturn:
    """End this process immediately with one line, as it can do nothing without the others."""
    when = "" if step is None else f" after step {step:,}"
    line = (
        f"weighted-clip: process {process.rank + 1} of {process.num_processes} ends{when}: {why}. The same command "
        "with --resume goes on from the last checkpoint\n"
    )
    os.write(2, line.encode())  # in one piece, and possible from within a signal handler or another thread
    os._exit(1)  # a normal exit may wait for the others


def end(status: int) -> NoReturn:
    """End this process; at once if it was connected to others.

    PyTorch keeps the connection, of which a thread that drops a tensor while Python ends aborts the process.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        sys.exit(status)
    with suppress(OSError, ValueError):  # whoever read it is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


@contextmanager
def heartbeat(process: Process, on_lost: Callable[[str], object]) -> Generator[None, None, None]:
    """Show the other processes that this one is alive, and watch them, for the duration of the context.

    When a process is killed, its connections are usually closed, and waiting processes notice. If its machine is gone,
    or it hangs, or the processes communicate by NCCL, they might wait for half an hour. So every few seconds each
    writes a number into the store through which they found each other.
    """
    from torch import distributed

    api: Any = distributed  # some of its names are not declared as public
    store = api.PrefixStore("weighted-clip/heartbeat", next(iter(api.rendezvous("env://")))[0])
    is_over = threading.Event()
    peers = [rank for rank in range(process.num_processes) if rank != process.rank]
    missed = dict.fromkeys(peers, 0)

    def beat() -> None:  # waits for ever where a machine is cut off
        seen, num_beats = dict.fromkeys(peers, b""), 0
        while not is_over.wait(SECONDS_BETWEEN_BEATS):
            num_beats += 1
            for rank in peers:
                with suppress(RuntimeError):  # the process with the store is gone
                    store.set(str(process.rank), str(num_beats))
                    heard = store.get(str(rank)) if store.check([str(rank)]) else b""
                    if heard != seen[rank]:
                        seen[rank], missed[rank] = heard, 0

    def watch() -> None:
        while not is_over.wait(SECONDS_BETWEEN_BEATS):
            for rank in peers:
                missed[rank] += 1
                if missed[rank] > MOST_MISSED:
                    seconds = missed[rank] * SECONDS_BETWEEN_BEATS
                    on_lost(f"nothing was heard of process {rank + 1} for {seconds:.0f} seconds")

    threads = [threading.Thread(target=part, daemon=True) for part in (beat, watch)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(SECONDS_BETWEEN_BEATS)


TERMINATING = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
"""Signals that end a program; Windows has no SIGHUP."""
SECONDS_OF_ONE_SIGNAL = 2.0
"""Time within which SIGTERM counts as one: ``timeout`` and job managers send it to a process and again to its group."""


class Termination:
    """Handler that lets a signal do what Ctrl-C does at that moment; a second one ends the process at once."""

    came: float | None = None
    """Time of the first signal."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.came is None:
            self.came = now
            on_interrupt = signal.getsignal(signal.SIGINT)  # ignored where a shell started the program with &
            (on_interrupt if callable(on_interrupt) else signal.default_int_handler)(signal.SIGINT, frame)
        elif now - self.came > SECONDS_OF_ONE_SIGNAL:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


@contextmanager
def terminable() -> Generator[Termination, None, None]:
    """Let SIGTERM, and SIGHUP of a closed terminal, do what Ctrl-C does; only in the main thread.

    A signal that something else handles or ignores, as under ``nohup``, stays as it is.
    """
    termination = Termination()
    is_main = threading.current_thread() is threading.main_thread()
    handled = [signum for signum in TERMINATING if is_main and signal.getsignal(signum) is signal.SIG_DFL]
    for signum in handled:
        signal.signal(signum, termination)
    try:
        yield termination
    finally:
        for signum in handled:
            signal.signal(signum, signal.SIG_DFL)


class Stoppable(Protocol):
    """A run that can be told to end after its current step."""

    is_stopped: bool
    say: Callable[[str], None]
    step: int
    accelerator: Any
    """Accelerator of accelerate, which is imported only in training."""


def voice(accelerator: Any) -> Callable[[str], None]:
    """Function that shows lines to users: the first of several processes speaks for all.

    Lines that cannot be written are dropped. A closed pipe, as behind ``| head``, ends the program as SIGTERM does.
    """

    def say(line: str) -> None:
        if not accelerator.is_main_process:
            return
        try:
            show(line, flush=True)
        except OSError as error:
            drop_unwritable()
            if isinstance(error, BrokenPipeError) and callable(signal.getsignal(signal.SIGTERM)):
                signal.raise_signal(signal.SIGTERM)

    return say


@contextmanager
def holding_interrupt(act: Callable[[], None]) -> Generator[None, None, None]:
    """Let Ctrl-C call a function; a second one interrupts immediately. Outside the main thread nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        act()

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def stopping(run: Stoppable) -> Generator[None, None, None]:
    """Let Ctrl-C end a run after its step; a second one ends it immediately. Of several processes, all end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop() -> None:
        run.is_stopped = True
        with suppress(RuntimeError):  # if it came while another line was being written
            run.say("stopping after this step, with a checkpoint; Ctrl-C again ends at once")

    with holding_interrupt(stop), nullcontext() if run.accelerator.num_processes == 1 else _with_others(run):
        yield


@contextmanager
def _with_others(run: Stoppable) -> Generator[None, None, None]:
    """End this process, with a line, when another one ends. The launcher's SIGTERM, which follows, is as Ctrl-C."""
    process = Process(run.accelerator.process_index, run.accelerator.local_process_index, run.accelerator.num_processes)

    def on_lost(why: str) -> None:
        leave(process, why, run.step)

    try:
        with heartbeat(process, on_lost):
            yield
            run.accelerator.wait_for_everyone()
    except RuntimeError as error:
        if is_of_another(error):
            on_lost("another process has ended")
        raise
