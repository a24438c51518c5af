"""Curves for TensorBoard, where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

BOARD_NAME = "tensorboard"
"""Of the folder of its files in a run's folder."""


@contextmanager
def board(folder: Path, step: int) -> Iterator[Callable[[Mapping[str, float]], None]]:
    """Begin TensorBoard's files of a run, or go on with them, as long as the context lasts.

    Args:
        folder: Of the run.
        step: After which it goes on; what a killed run has written of later ones is not shown.

    Yields:
        What takes a line of the log: ``step``, and numbers by name. It does nothing where TensorBoard is not installed.
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
