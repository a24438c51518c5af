"""Messages of ``encode --batch`` while it runs, as plain lines on the error stream."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from .console import PROGRESS_SECONDS, show
from .processes import Place
from .prompt_lines import PromptLines

MAX_SHOWN = 20
"""Maximum number of problems printed per process; the rest are only counted."""


class Report:
    """Counts the work of a process, and reports it on the error stream."""

    def __init__(self, lines: PromptLines, place: Place, size: int) -> None:
        self.lines = lines
        self.place = place
        self.size = size
        self.num_written = self.num_there = self.num_prompts = self.num_problems = 0
        self._began = self._told = time.monotonic()

    def tell(self, line: int, problems: Sequence[str]) -> None:
        """Print the problems of a prompt, or only count them if there were many."""
        for problem in problems:
            self.num_problems += 1
            if self.num_problems <= MAX_SHOWN:
                self._print(f"{self.lines.where(line + 1)}: {problem}")
            elif self.num_problems == MAX_SHOWN + 1:
                self._print("further problems are only counted")

    def skip(self) -> None:
        """Count a shard that already existed."""
        self.num_there += 1

    def add(self, num_prompts: int) -> None:
        """Count a written shard, and report from time to time."""
        self.num_written += 1
        self.num_prompts += num_prompts
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            self._print(self._counts())

    def end(self, how: str) -> None:
        """Print the last line."""
        self._print(f"{how}: {self._counts()}")

    def _counts(self) -> str:
        total = ""
        if self.lines.num_lines is not None:
            num_shards = -(-self.lines.num_lines // self.size)
            total = f" of {len(range(self.place.rank, num_shards, self.place.num_processes))}"
        there = f" ({self.num_there} were there)" if self.num_there else ""
        rate = self.num_prompts / max(time.monotonic() - self._began, 1e-9)
        problems = "1 problem" if self.num_problems == 1 else f"{self.num_problems} problems"
        return (
            f"{self.num_written + self.num_there}{total} shards{there}, {self.num_prompts} prompts encoded, "
            f"{rate:.1f} a second, {problems}"
        )

    def _print(self, text: str) -> None:
        show(f"{self.place.name}{text}", sys.stderr, flush=True)
