"""Several processes that divide work among themselves, as torchrun starts them: each knows its own number only.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

INTERRUPTED = 130
"""The exit status after Ctrl-C, as shells have it."""


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
