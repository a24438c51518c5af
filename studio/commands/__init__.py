"""The command line: each module has some commands, records of which ``program.py`` makes the parser."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """A command; without ``run`` it is a group of others, as ``dalle`` is of ``dalle train``."""

    name: str
    """As typed, a part of a group after the group's name."""
    help: str
    """Its line in the list of commands, also read by ``run.py`` from the source."""
    add_arguments: Callable[[ArgumentParser], None] | None
    """Imports no torch."""
    run: Callable[[Namespace], int] | None
    """Returns the exit status."""
    examples: tuple[str, ...]
    """Arguments to type behind the name, shown below the help."""
    description: str | None = None
    epilog: str | None = None
