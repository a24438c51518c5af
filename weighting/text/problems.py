"""Problems of a node's inputs that can be found without a model: a page says them while they are typed, a run refuses.

Page and run call the same functions, so that they agree in what is refused and in the words for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple


class Problem(NamedTuple):
    """Something that the author of a node's inputs should know."""

    message: str
    """One sentence: what was given, what is allowed, what to do."""
    input: str = ""
    """Name of the input that it is about; empty for several, or for the whole node."""
    is_refused: bool = True
    """Whether a run would raise it; else it is only said."""


def refused(name: str, function: Callable[..., Any], *values: Any, **options: Any) -> Iterator[Problem]:
    """The ValueError that a function raises for some values, as a problem of an input.

    >>> list(refused("steps", int, "many"))[0].input
    'steps'
    """
    try:
        function(*values, **options)
    except ValueError as error:
        yield Problem(str(error), name)


def refuse(problems: Iterable[Problem]) -> None:
    """Raise the first problem that is refused, as a ValueError."""
    for problem in problems:
        if problem.is_refused:
            raise ValueError(problem.message)
