"""Ctrl-C in a training run: the step that it is in is finished, and a checkpoint written."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol


class Stoppable(Protocol):
    """A run that ends after its step once it is told to."""

    is_stopped: bool
    say: Callable[[str], None]


@contextmanager
def stopping(run: Stoppable) -> Generator[None, None, None]:
    """Let Ctrl-C end a run after its step; a second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        run.is_stopped = True
        run.say("stopping after this step, with a checkpoint; Ctrl-C again ends at once")

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
