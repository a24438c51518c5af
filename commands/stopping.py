"""Early end of a training run: by Ctrl-C, after the current step; or when another of its processes ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol

from .console import show
from .processes import Place, heartbeat, is_of_another, leave


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
        run.say("stopping after this step, with a checkpoint; Ctrl-C again ends at once")

    with holding_interrupt(stop):
        if run.accelerator.num_processes == 1:
            yield
        else:
            with _with_others(run):
                yield


@contextmanager
def _with_others(run: Stoppable) -> Generator[None, None, None]:
    """End this process, with a line, when another one ends."""
    place = Place(run.accelerator.process_index, run.accelerator.local_process_index, run.accelerator.num_processes)

    def on_lost(why: str) -> None:
        leave(place, why, run.step)

    def terminate(*_: object) -> None:
        on_lost("it is told to, as the launcher does when another process has ended")

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with heartbeat(place, on_lost):
            yield
            run.accelerator.wait_for_everyone()
    except RuntimeError as error:
        if is_of_another(error):
            on_lost("another process has ended")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
