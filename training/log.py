"""The log of a run: one JSON object per line, each with its ``step``; and durations in readable form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..output.files import written_whole

LOG_NAME = "log.jsonl"
"""File name in a run's folder."""


def append(folder: Path, entry: Mapping[str, float]) -> None:
    """Append a line.

    Args:
        folder: The run's folder.
        entry: ``step`` and its measurements.

    Raises:
        OSError: If it cannot be written.
    """
    with (folder / LOG_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def cut_after(folder: Path, step: int) -> None:
    """Remove entries that a killed run wrote after its checkpoint.

    Args:
        folder: The run's folder, possibly without a log.
        step: Step of the checkpoint.

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
    """Format a duration.

    >>> duration(75), duration(7300)
    ('1 min 15 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
