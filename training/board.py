"""Curves for TensorBoard, if it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
