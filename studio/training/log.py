"""The log of a run: one JSON object per line, each with its ``step``; and durations in readable form."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..output.files import write_text

LOG_NAME = "log.jsonl"
"""File name in a run's folder."""


def append(folder: Path, entry: Mapping[str, float]) -> None:
    """Append a line."""
    with (folder / LOG_NAME).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def cut_after(folder: Path, step: int) -> None:
    """Remove entries that a killed run wrote after its checkpoint."""
    path = folder / LOG_NAME
    if not path.is_file():
        return
    lines: list[str] = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.endswith(b"}"):  # the last one, cut off
            continue
        try:
            entry = json.loads(line)
            if type(entry["step"]) is not int or not all(map(_is_number, entry.values())):
                raise TypeError
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: it is no JSON object of step and numbers; remove it") from error
        if entry["step"] <= step:
            lines.append(line.decode())
    write_text(path, "".join(f"{line}\n" for line in lines))


def _is_number(value: Any) -> bool:
    """Whether a value is a number that can be drawn; raises an OverflowError if it is too large."""
    return type(value) in (int, float) and type(float(value)) is float


def number_of(count: int, things: str) -> str:
    """A number of things, whose name is given in the plural.

    >>> number_of(2, "usable pairs"), number_of(1, "usable pairs"), number_of(1, "processes")
    ('2 usable pairs', '1 usable pair', '1 process')
    """
    return f"{count:,} {things if count != 1 else things.removesuffix('es' if things.endswith('sses') else 's')}"


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


BOARD_NAME = "tensorboard"
"""Name of its folder within a run's folder."""


@contextmanager
def board(folder: Path, step: int) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Begin or continue a run's TensorBoard files, until the context ends.

    Entries of a killed run beyond ``step`` are not shown. Without TensorBoard, the function yielded does nothing.
    """
    if importlib.util.find_spec("tensorboard") is None:
        yield lambda entry: None
        return
    from torch.utils.tensorboard import SummaryWriter

    def add(entry: Mapping[str, float]) -> None:
        for name, value in entry.items():
            if name != "step":
                writer.add_scalar(name.replace(": ", "/"), value, int(entry["step"]))

    with SummaryWriter(str(folder / BOARD_NAME), purge_step=step + 1 if step else 0) as writer:
        yield add
