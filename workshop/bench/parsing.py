"""Times of reading short and long texts in each syntax, normal and hostile, and their growth with the length."""

from __future__ import annotations

from .page import milliseconds, table
from .scale import Scale
from .texts import TEXTS, text_of
from .timing import best_time, growth, without_collector

SYNTAXES = ("a1111", "comfy", "compel")
NUM_SLOWEST = 2
"""Hostile texts that are shown of each syntax: the slowest of the first length."""


def parse_block(scale: Scale) -> str:
    """Section in Markdown: of each syntax the normal text and the slowest others, and the largest growth of all."""
    rows: list[list[str]] = []
    growths: dict[str, tuple[float, float]] = {}
    lengths = scale.parse_lengths
    factor = lengths[2] / lengths[1]
    for syntax in SYNTAXES:
        of_syntax: list[tuple[float, list[str]]] = []
        for name in TEXTS:
            texts = [text_of(name, syntax, length) for length in lengths]
            times = [_parse_time(syntax, text, scale) for text in texts]
            with without_collector():
                middle, long = (_parse_time(syntax, text, scale) for text in texts[1:])
            found = growths[f"{syntax}, {name}"] = (growth(middle, long, factor), growth(times[1], times[2], factor))
            cells = [syntax, name, *map(milliseconds, times), *(f"{exponent:.2f}" for exponent in found)]
            of_syntax.append((times[0], cells))
        normal, *hostile = of_syntax
        slowest = sorted(hostile, key=lambda timed: -timed[0])[:NUM_SLOWEST]
        rows += [cells for _, cells in (normal, *slowest)]
    head = ["Syntax", "Text", *(f"{length:,} characters, ms" for length in lengths), "Growth", "With collector"]
    (alone, at), (together, there) = (max((pair[i], name) for name, pair in growths.items()) for i in (0, 1))
    return (
        f"{table(head, rows, num_left=2)}\n\n"
        f"The largest growth is {alone:.2f} ({at}); with the collector, {together:.2f} ({there})."
    )


def _parse_time(syntax: str, text: str, scale: Scale) -> float:
    from ...weighting.syntax import parse

    return best_time(lambda: parse(text, syntax), seconds=scale.parse_seconds, repetitions=scale.parse_repetitions)
