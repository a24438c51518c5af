"""Runs work in a process with little memory, one piece after the other, and sees what ends it or never ends.

The process is this file as a program: it reads command lines as JSON, and answers each with its exit status and what it
wrote to the error stream.
"""

from __future__ import annotations

import io
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from pathlib import Path
from threading import Timer
from time import process_time
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
load: Callable[[], None] = runpy.run_path(str(ROOT / "__main__.py"))["load_package"]
MEMORY = 700 * 2**20
"""Address space that a command may take beyond that of the idle program."""


class Outcome(NamedTuple):
    """The end of a piece of work."""

    status: int | str
    """Its exit status, or what it ended in instead."""
    told: str
    """Text on the error stream."""
    seconds: float = 0.0
    """Processor time that it took."""


class Limited:
    """A process that does such work. It is started again after a piece that ended it."""

    def __init__(self, seconds: float, memory: int = MEMORY) -> None:
        """Set its limits: seconds for a piece of work, and bytes of address space beyond that of the idle program."""
        self._seconds, self._memory = seconds, memory
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Limited:
        """Do nothing: the process is started when it is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._end()

    def run(self, piece: list[Any]) -> Outcome:
        """Do a piece of work."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.limited", str(self._memory)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                text=True,
                encoding="utf-8",
            )
        process = self._process
        assert process.stdin
        assert process.stdout
        timer = Timer(self._seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(piece) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError:
            line = ""
        is_late = timer.finished.is_set()
        timer.cancel()
        if line:
            return Outcome(*json.loads(line))
        status = self._end()
        return Outcome("never ended" if is_late else f"ended the process, status {status}", "")

    def _end(self) -> int:
        if self._process is None:
            return 0
        process, self._process = self._process, None
        assert process.stdin
        assert process.stdout
        process.kill()
        process.stdout.close()
        return process.wait()


def refused(outcome: Outcome) -> bool:
    """Whether a command ended in one line of words, and neither in a traceback nor for lack of memory."""
    told = outcome.told.strip()
    return outcome.status == 1 and len(told.splitlines()) == 1 and "not enough memory" not in told


def _commands() -> Callable[[list[Any]], Outcome]:
    import torch

    for name in (
        "studio.dalle.torch_file",
        "studio.dalle.published",
        "studio.dalle.full_model",
        "encoder.models.clip",
        "encoder.models.prefix",
    ):
        import_module(f"weighted_clip.{name}")
    with torch.no_grad():  # what PyTorch allocates at first use
        torch.nn.Linear(64, 64)(torch.zeros(64, 64))
    from weighted_clip.studio.commands.program import main

    def run(command: list[Any]) -> Outcome:
        errors = io.StringIO()
        try:
            with redirect_stderr(errors), redirect_stdout(io.StringIO()):
                status: Any = main(command)
        except SystemExit as error:
            status = error.code
        return Outcome(status, errors.getvalue()[:5000])

    return run


def _answers(memory: int) -> None:
    load()
    import resource

    run = _commands()
    idle = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (idle + memory, idle + memory))
    answers = sys.stdout
    for line in sys.stdin:
        started = process_time()
        try:
            outcome = run(json.loads(line))
        except BaseException as error:
            outcome = Outcome(f"{type(error).__name__}: {str(error)[:500]}", "")
        outcome = outcome._replace(seconds=process_time() - started)
        answers.write(json.dumps(outcome) + "\n")
        answers.flush()


if __name__ == "__main__":
    _answers(int(sys.argv[1]))
