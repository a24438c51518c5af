"""Runs commands in a process with little memory, one after the other, and sees those that end it or never end.

The process is this file as a program: it reads command lines as JSON, and answers each with its exit status and what it
wrote to the error stream.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 700 * 2**20
"""Address space that a command may take beyond that of the idle program."""


class Outcome(NamedTuple):
    """The end of a command."""

    status: int | str
    """Its exit status, or what it ended in instead."""
    told: str
    """Text on the error stream."""


class Limited:
    """A process that runs commands. It is started again after a command that ended it."""

    def __init__(self, seconds: float, memory: int = MEMORY, root: Path = ROOT) -> None:
        """Set its limits.

        Args:
            seconds: Longest time for a command.
            memory: Most address space beyond that of the idle program, in bytes.
            root: Repository whose commands are run.
        """
        self._seconds, self._memory, self._root = seconds, memory, root
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Limited:
        """Do nothing: the process is started when it is needed."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self._end()

    def run(self, command: list[str]) -> Outcome:
        """Run a command."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(self._memory), str(self._root)],
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
            process.stdin.write(json.dumps(command) + "\n")
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


def _answers(memory: int, root: Path) -> None:
    spec = importlib.util.spec_from_file_location(
        "weighted_clip", root / "__init__.py", submodule_search_locations=[str(root)]
    )
    assert spec
    assert spec.loader
    module = sys.modules["weighted_clip"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    import resource
    from importlib import import_module

    import torch

    for name in ("dalle.published", "dalle.dalle", "encoder.full_clip", "encoder.families"):
        import_module(f"weighted_clip.{name}")
    with torch.no_grad():  # what PyTorch allocates at first use
        torch.nn.Linear(64, 64)(torch.zeros(64, 64))
    from weighted_clip.commands.program import main

    idle = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (idle + memory, idle + memory))
    answers = sys.stdout
    for line in sys.stdin:
        errors = io.StringIO()
        status: Any
        try:
            with redirect_stderr(errors), redirect_stdout(io.StringIO()):
                status = main(json.loads(line))
        except SystemExit as error:
            status = error.code
        except BaseException as error:
            status, errors = f"{type(error).__name__}: {str(error)[:500]}", io.StringIO()
        answers.write(json.dumps([status, errors.getvalue()[:5000]]) + "\n")
        answers.flush()


if __name__ == "__main__":
    _answers(int(sys.argv[1]), Path(sys.argv[2]))
