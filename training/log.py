"""The log of a run: one JSON object a line, each with its ``step``; and times for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..output.files import written_whole

LOG_NAME = "log.jsonl"
"""Of the file in a run's folder."""


def append(folder: Path, entry: Mapping[str, float]) -> None:
    """Add a line.

    Args:
        folder: Of the run.
        entry: ``step``, and what was measured then.

    Raises:
        OSError: If it cannot be written.
    """
    with (folder / LOG_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def cut_after(folder: Path, step: int) -> None:
    """Take out what a killed run has written after its checkpoint.

    Args:
        folder: Of the run; it may have no log.
        step: Of the checkpoint.

    Raises:
        OSError: If it cannot be written.
    """
    path = folder / LOG_NAME
    if not path.is_file():
        return
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    kept = [line for line in lines if json.loads(line)["step"] <= step]
    with written_whole(path) as place:
        place.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(75), duration(7300)
    ('1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
