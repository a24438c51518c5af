"""Several processes that divide work among themselves, as torchrun starts them: each knows its own number only.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""
SECONDS_BETWEEN_BEATS = 5.0
MOST_MISSED = 8
"""Beats in a row that a process may miss before the others take it for ended."""


@dataclass(frozen=True)
class Place:
    """Which of several processes this is."""

    rank: int = 0
    """Its number among all."""
    local_rank: int = 0
    """Its number on its machine."""
    num_processes: int = 1
    """How many there are."""

    @property
    def is_first(self) -> bool:
        """Whether this is the one that says what holds for all."""
        return self.rank == 0

    @property
    def name(self) -> str:
        """What stands before its lines; nothing where it is alone."""
        return f"[{self.rank + 1}/{self.num_processes}] " if self.num_processes > 1 else ""

    def owns(self, shard: int) -> bool:
        """Whether the shard of this number is this process's."""
        return shard % self.num_processes == self.rank


def place_of(environ: Mapping[str, str]) -> Place:
    """The place that torchrun gives a process.

    Args:
        environ: The environment; ``RANK``, ``LOCAL_RANK`` and ``WORLD_SIZE`` count.

    Returns:
        The place; that of a process alone where nothing is set.

    Raises:
        ValueError: If they are no numbers, or do not go together.

    >>> place_of({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4"})
    Place(rank=3, local_rank=1, num_processes=4)
    """
    given = [environ.get(name, default) for name, default in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"))]
    try:
        rank, local_rank, num_processes = map(int, given)
    except ValueError:
        rank, local_rank, num_processes = -1, -1, 0
    if not (0 <= rank < num_processes and local_rank >= 0):
        raise ValueError(
            "RANK {}, LOCAL_RANK {} and WORLD_SIZE {} in the environment are no place among processes; start them with "
            "torchrun, or unset these".format(*given)
        )
    return Place(rank, local_rank, num_processes)


def device_for(device: str, place: Place) -> str:
    """The device of one of several processes.

    Args:
        device: As the user named it.
        place: Of the process.

    Returns:
        ``cuda:`` with its number on the machine for ``cuda``; any other as it is.

    Raises:
        ValueError: If the machine has fewer.
    """
    import torch

    if device != "cuda" or place.num_processes == 1:
        return device
    num_devices = torch.cuda.device_count()
    if 0 < num_devices <= place.local_rank:
        raise ValueError(
            f"process {place.local_rank + 1} of this machine has no CUDA device: there are {num_devices}. Start no "
            "more processes than that, or put several on one device with --device cuda:0"
        )
    return f"cuda:{place.local_rank}"


def is_of_another(error: RuntimeError) -> bool:
    """Whether an error is how PyTorch says that another process, which this one waited for, has ended."""
    from torch import distributed

    is_known = distributed.is_available() and isinstance(error, getattr(distributed, "DistError", ()))
    return is_known or "gloo" in str(error)


def leave(place: Place, why: str, step: int | None = None) -> NoReturn:
    """End this process at once with one line: there is nothing that it could still do without the others.

    Args:
        place: Of the process.
        why: What the line says as the reason.
        step: The last whole step, where there was one.
    """
    when = "" if step is None else f" after step {step:,}"
    line = (
        f"weighted-clip: process {place.rank + 1} of {place.num_processes} ends{when}: {why}. The same command with "
        "--resume goes on from the last checkpoint\n"
    )
    os.write(2, line.encode())  # in one piece, and also from within a signal or another thread
    os._exit(1)  # the normal end may wait for the others


@contextmanager
def heartbeat(place: Place, on_lost: Callable[[str], object]) -> Generator[None, None, None]:
    """Let the other processes see that this one lives, and watch them, as long as the context lasts.

    When a process is killed, its connections are mostly closed, and those that wait for it are told. If its machine is
    gone, or it is stuck, or the processes talk by NCCL, they might wait for half an hour. So every few seconds each
    writes a number into the store through which they have found each other.

    Args:
        place: Of the process, as one of several.
        on_lost: Called in a thread of its own, with what is wrong.
    """
    from torch import distributed

    found: Any = distributed  # some of its names are not declared as its own
    store = found.PrefixStore("weighted-clip/heartbeat", next(iter(found.rendezvous("env://")))[0])
    is_over = threading.Event()

    def watch() -> None:
        others = [rank for rank in range(place.num_processes) if rank != place.rank]
        seen, missed, own = dict.fromkeys(others, b""), dict.fromkeys(others, 0), 0
        while not is_over.wait(SECONDS_BETWEEN_BEATS):
            own += 1
            for rank in others:
                try:
                    store.set(str(place.rank), str(own))
                    beat = store.get(str(rank)) if store.check([str(rank)]) else b""
                except RuntimeError:  # whoever keeps the store is gone
                    beat = seen[rank]
                missed[rank] = missed[rank] + 1 if beat == seen[rank] else 0
                seen[rank] = beat
                if missed[rank] > MOST_MISSED:
                    seconds = missed[rank] * SECONDS_BETWEEN_BEATS
                    on_lost(f"nothing was heard of process {rank + 1} for {seconds:.0f} seconds")

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
