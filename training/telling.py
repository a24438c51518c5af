"""Numbers in the words of a run."""

from __future__ import annotations


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
