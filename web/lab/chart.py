"""A comparison of schemes as markup: its subject, and for each scheme a bar for every token's row.

The page lays the tokens out in as many lines as its width needs. ``style.css`` draws the bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from html import escape

from ...weighting.options import EncodeOptions
from ...weighting.reading import ReadPrompt
from ...weighting.view import counted, weight_text
from ..pictures.changes import (
    HEADING,
    LENGTH_TOPS,
    Axes,
    RowChange,
    SchemeRow,
    angle_text,
    axes_of,
    in_words,
    ratio_text,
)
from ..pictures.masks import mask_labels
from .comparing import Comparison
from .model import LabError
from .study import chunk_of

MAX_PROMPT = 400
"""Maximum number of characters of the prompt above the chart."""
ALWAYS_TOLD = ("syntax", "normalization", "chunking", "padding")
"""Options that are always named, even with default values. The scheme is what is compared."""
CUT = "▲"
"""Marks a bar that is longer than its axis."""


def comparison_chart(comparisons: Sequence[Comparison], read: ReadPrompt, chunk: int = 0) -> str:
    """Draw one chunk of a comparison, which may be incomplete.

    Args:
        comparisons: Comparisons of at least one scheme.
        read: The prompt.
        chunk: Number of the chunk, counted from 0.

    Returns:
        Markup: for each scheme the numbers of encodings and problems, and each row's change as bars and numbers.

    Raises:
        LabError: If there is no such chunk, or nothing to compare.
    """
    shown = chunk_of(read, chunk)
    if not comparisons:
        raise LabError("there is nothing to draw: no scheme was compared")
    end = shown.num_content + 2
    labels = mask_labels(shown, read.prompt.source)[:end]
    rows = [_scheme_row(comparison, chunk, end) for comparison in comparisons]
    axes = axes_of(rows)
    title = f"{HEADING}, chunk {chunk + 1} of {len(read.chunks)}" if len(read.chunks) > 1 else HEADING
    drawn = "".join(_scheme(row, labels, shown.weights[:end], axes) for row in rows)
    return f"<section class='weighted-clip-chart'><h2>{title}</h2>{drawn}{_legend(axes)}</section>"


def told_of(text: str, options: EncodeOptions) -> str:
    """Subject of a comparison: the prompt and the options shared by all schemes, as markup."""
    some = text if len(text) <= MAX_PROMPT else f"{text[:MAX_PROMPT]}… ({len(text):,} characters)"
    defaults = {field.name: field.default for field in fields(EncodeOptions)}
    chosen: Mapping[str, object] = vars(options)
    told = [
        f"{name.replace('_', ' ')} {str(value).replace(chr(10), ' / ')}"
        for name, value in chosen.items()
        if name in ALWAYS_TOLD or (name != "scheme" and value != defaults[name])
    ]
    return f"<p class='weighted-clip-of'><q>{escape(some)}</q> <span>{escape(', '.join(told))}</span></p>"


def _scheme_row(comparison: Comparison, chunk: int, end: int) -> SchemeRow:
    if not comparison.changes:
        return SchemeRow(comparison.scheme, (), (), comparison.message)
    notes = [counted(comparison.num_encodings, "encoding")]
    notes += [counted(len(comparison.issues), "problem")] if comparison.issues else []
    return in_words(SchemeRow(comparison.scheme, comparison.changes[chunk][:end], tuple(notes), comparison.message))


def _scheme(row: SchemeRow, labels: Sequence[str], weights: Sequence[float], axes: Axes) -> str:
    head = f"<h3>{escape(row.name)} <span>{escape(', '.join(row.notes))}</span></h3>"
    cells = (
        "".join(
            _cell(label, weight, change, axes)
            for label, weight, change in zip(labels, weights, row.changes, strict=True)
        )
        if row.changes
        else ""
    )
    bars = f"<ol class='weighted-clip-bars'>{cells}</ol>" if cells else ""
    message = f"<p class='weighted-clip-note'>{escape(row.message)}</p>" if row.message else ""
    return f"<div class='weighted-clip-scheme'>{head}{bars}{message}</div>"


def _cell(label: str, weight: float, change: RowChange | None, axes: Axes) -> str:
    """A token with its two bars, and a text for screen readers."""
    name = f"<b title='{escape(label)}'>{escape(label)}</b><i>{weight_text(weight) if weight != 1.0 else ''}</i>"
    if change is None:
        return f"<li>{name}<span class='weighted-clip-left-out'>left out</span></li>"
    share = axes.length_share(change.ratio) if ratio_text(change.ratio) else 0.0
    kind = "up" if share > 0 else "down"
    length = f"<u class='weighted-clip-{kind}' style='height: {50 * abs(share):.0f}%'></u>" if share else ""
    turned = axes.angle_share(change.angle or 0.0) if angle_text(change.angle) else 0.0
    angle = f"<u style='height: {100 * turned:.0f}%'></u>" if turned else ""
    mark = CUT if axes.cuts(change.ratio) else ""
    return (
        f"<li>{name}<span class='weighted-clip-length'>{length}</span>"
        f"<em>{_unseen('length ')}{ratio_text(change.ratio) or '·'}{mark}</em>"
        f"<span class='weighted-clip-angle'>{angle}</span>"
        f"<em>{_unseen('angle ')}{angle_text(change.angle) or '·'}</em></li>"
    )


def _legend(axes: Axes) -> str:
    most = f"×{axes.length_top:g}"
    cut = f" {CUT}: the bar is cut, as it would be longer than {most}." if axes.length_top == LENGTH_TOPS[-1] else ""
    return (
        "<p class='weighted-clip-note'>Upper bar: length of the row as a multiple of that of the unweighted row, "
        f"logarithmic, ×{1 / axes.length_top:.2g} to {most}. Lower bar: angle between the two, to "
        f"{axes.angle_top:g}°. ·: changed by less than 0.5 % or 0.05°. none: a row of length 0 has no direction. left "
        f"out: the scheme has no such row.{cut}</p>"
    )


def _unseen(text: str) -> str:
    return f"<span class='weighted-clip-unseen'>{text}</span>"
