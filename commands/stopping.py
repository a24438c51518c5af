"""Early end of a command: by Ctrl-C or SIGTERM, in training after the current step; or when another process ends."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol

from .console import show
from .processes import Place, heartbeat, is_of_another, leave

SECONDS_OF_ONE_SIGNAL = 2.0
"""Time within which SIGTERM counts as one: ``timeout`` and job managers send it to a process and again to its group."""


class Termination:
    """Handler that lets SIGTERM do what Ctrl-C does at that moment; a second one ends the process at once."""

    came: float | None = None
    """Time of the first signal."""

    def __call__(self, _: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if self.came is None:
            self.came = now
            on_interrupt = signal.getsignal(signal.SIGINT)  # ignored where a shell started the program with &
            (on_interrupt if callable(on_interrupt) else signal.default_int_handler)(signal.SIGINT, frame)
        elif now - self.came > SECONDS_OF_ONE_SIGNAL:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)


@contextmanager
def terminable() -> Generator[Termination, None, None]:
    """Let SIGTERM do what Ctrl-C does, unless something else handles it; only in the main thread."""
    termination = Termination()
    is_ours = threading.current_thread() is threading.main_thread()
    if is_ours and (is_ours := signal.getsignal(signal.SIGTERM) is signal.SIG_DFL):
        signal.signal(signal.SIGTERM, termination)
    try:
        yield termination
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


class Stoppable(Protocol):
    """A run that can be told to end after its current step."""

    is_stopped: bool
    say: Callable[[str], None]
    step: int
    accelerator: Any
    """Accelerator of accelerate, which is imported only in training."""


def voice(accelerator: Any) -> Callable[[str], None]:
    """Function that shows lines to users: the first of several processes speaks for all."""

    def say(line: str) -> None:
        if accelerator.is_main_process:
            show(line, flush=True)

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

    with holding_interrupt(stop):
        if run.accelerator.num_processes == 1:
            yield
        else:
            with _with_others(run):
                yield


@contextmanager
def _with_others(run: Stoppable) -> Generator[None, None, None]:
    """End this process, with a line, when another one ends. The launcher's SIGTERM, which follows, is as Ctrl-C."""
    place = Place(run.accelerator.process_index, run.accelerator.local_process_index, run.accelerator.num_processes)

    def on_lost(why: str) -> None:
        leave(place, why, run.step)

    try:
        with heartbeat(place, on_lost):
            yield
            run.accelerator.wait_for_everyone()
    except RuntimeError as error:
        if is_of_another(error):
            on_lost("another process has ended")
        raise
