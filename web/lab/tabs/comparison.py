"""Schemes compared with the unweighted encoding: the change of each row of a prompt in length and direction.

As markup a comparison has its subject, and for each scheme a bar for every token's row. The page lays the tokens out in
as many lines as its width needs. ``style.css`` draws the bars.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import accumulate, pairwise

from ....encoder.encoding import EncoderError
from ....encoder.quoting import raising
from ....weighting.options import OPTIONS, EncodeOptions
from ....weighting.pipeline import Check, EncodedPrompt
from ....weighting.reading.prompt_reader import ReadPrompt
from ....weighting.reading.view import counted, weight_text
from ....weighting.schemes import SCHEMES
from ....weighting.schemes.repeat import copies_of
from ....weighting.towers import num_chunks
from ...difference import BLENDED, chunk_counts, first_rows, measured
from ...pictures.changes import (
    LENGTH_TOPS,
    Axes,
    RowChange,
    SchemeRow,
    angle_text,
    axes_of,
    in_words,
    ratio_text,
)
from ...pictures.masks import mask_labels
from ..model import LabError, LabModel
from .study import chunk_of

HEADING = "Change of each token's row against the unweighted encoding"


@dataclass(frozen=True)
class Comparison:
    """Result of one scheme for a prompt, compared with its unweighted encoding."""

    scheme: str
    """Its name in `SCHEMES`."""
    changes: tuple[tuple[RowChange | None, ...], ...]
    """Change of the row of each position of each chunk; None if the scheme has no such row. Empty if nothing can be
    compared."""
    message: str
    """Note on the changes, or the reason why there are none; often empty."""
    issues: tuple[str, ...]
    """Problems of the scheme, besides those known from reading the prompt."""
    num_encodings: int
    """Number of different encodings it took."""


def compare(
    model: LabModel, text: str, options: EncodeOptions, schemes: Sequence[str], check: Check | None = None
) -> Iterator[Comparison]:
    """Encode a prompt by several schemes one by one, and compare each with the unweighted encoding.

    Only the scheme differs between them. Rows come from the first text tower, whose tokens the page shows; numbers
    are taken in float64. Dropped padding is compared nevertheless, as dropping changes no remaining row. ``check`` is
    called before each call of an encoder; an exception it raises ends the work.
    """
    unknown = [scheme for scheme in schemes if scheme not in SCHEMES]
    if unknown or not schemes:
        got = ", ".join(map(repr, unknown)) or "none"
        raise LabError(f"choose schemes to compare among {', '.join(SCHEMES)}; got {got}")
    options = replace(options, padding="attend" if options.padding == "drop" else options.padding)
    plain = _encoded(model, text, replace(options, scheme="unweighted"), check)
    plain_issues = {*plain.read.issues}  # the user asked for no weights, so unweighted need not report them
    for scheme in schemes:
        try:
            chosen = replace(options, scheme=scheme)
            encoded = plain if scheme == plain.read.options.scheme else _encoded(model, text, chosen, check)
        except EncoderError as error:
            yield Comparison(scheme, (), str(error), (), 0)
            continue
        changes, message = row_changes(plain, encoded)
        lines = tuple(issue.line for issue in encoded.read.issues if issue not in plain_issues)
        yield Comparison(scheme, changes, message, lines, encoded.num_encodings)


def row_changes(plain: EncodedPrompt, weighted: EncodedPrompt) -> tuple[tuple[tuple[RowChange | None, ...], ...], str]:
    """Changes from a prompt's unweighted encoding, with all rows, to another; and a message, as in `Comparison`."""
    parsed = plain.read
    length = parsed.layout.length
    if SCHEMES[weighted.read.options.scheme].is_repeating:
        return _repeated_changes(plain, weighted)
    num_rows, num_plain = weighted.hidden.shape[1], plain.hidden.shape[1]
    is_unmixed = all(len(section.prompts) == 1 for section in parsed.sections)
    # rows of the plain encoding that the other one has, too
    rows, missing = list(range(num_plain)), ""
    if weighted.read.kept is not None:
        rows = [chunk * length + row for chunk, count in enumerate(weighted.read.kept) for row in range(count)]
        missing = "of padding"
    elif num_rows != num_plain and is_unmixed:
        rows, missing = _rows_without_seams(parsed), "between chunks"
    if num_rows != len(rows) or num_plain != num_chunks(parsed) * length:
        return (
            (),
            f"This has {num_rows} rows and the unweighted encoding {num_plain}, so they cannot be compared row by row.",
        )
    message = ""
    if not is_unmixed:
        message = BLENDED
    elif num_rows < num_plain:
        message = f"It leaves out {num_plain - num_rows} rows {missing}."
    by_row = dict(zip(rows, measured(plain.hidden[0, rows], weighted.hidden[0]), strict=True))
    return tuple(tuple(map(by_row.get, range(start, start + length))) for start in first_rows(parsed)), message


def _repeated_changes(
    plain: EncodedPrompt, weighted: EncodedPrompt
) -> tuple[tuple[tuple[RowChange | None, ...], ...], str]:
    """Same as `row_changes`, for the scheme ``repeat``: the first copy of each row is measured."""
    parsed = weighted.read
    counts = [count for row in copies_of(parsed).rows for count in row]
    rows = [row for row, count in enumerate(counts) if count]
    firsts = [first for first, count in zip(accumulate(counts, initial=0), counts, strict=False) if count]
    by_row = dict(zip(rows, measured(plain.hidden[0, rows], weighted.hidden[0, firsts]), strict=True))
    message = f"It changes no row: {len(counts)} rows become {sum(counts)}, by their weights."
    message = "" if set(counts) == {1} else message
    return tuple(
        tuple(map(by_row.get, range(start, start + parsed.layout.length))) for start in first_rows(parsed)
    ), message


def _rows_without_seams(parsed: ReadPrompt) -> list[int]:
    """Rows kept by the scheme ``lpw``: all of each section except the BOS and EOS between its chunks."""
    length = parsed.layout.length
    ends = accumulate((count * length for count in chunk_counts(parsed.sections)), initial=0)
    return [
        row
        for first, end in pairwise(ends)
        for row in range(first, end)
        if row in (first, end - 1) or 0 < row % length < length - 1
    ]


def _encoded(model: LabModel, text: str, options: EncodeOptions, check: Check | None = None) -> EncodedPrompt:
    """Encode a prompt with the first tower."""
    with raising(LabError):
        return next(iter(model.encode(text, options, check).values()))


MAX_PROMPT = 400
"""Maximum number of characters of the prompt above the chart."""
ALWAYS_TOLD = ("syntax", "normalization", "chunking", "padding")
"""Options that are always named, even with default values. The scheme is left out, as it is compared."""
CUT = "▲"
"""Marks a bar that is longer than its axis."""


def comparison_chart(comparisons: Sequence[Comparison], parsed: ReadPrompt, chunk: int = 0) -> str:
    """Draw one chunk, counted from 0, of a comparison, which may be incomplete."""
    tokens = chunk_of(parsed, chunk)
    if not comparisons:
        raise LabError("there is nothing to draw: no scheme was compared")
    end = tokens.num_content + 2
    labels = mask_labels(tokens, parsed.prompt.source)[:end]
    rows = [_scheme_row(comparison, chunk, end) for comparison in comparisons]
    axes = axes_of(rows)
    title = f"{HEADING}, chunk {chunk + 1} of {len(parsed.chunks)}" if len(parsed.chunks) > 1 else HEADING
    drawn = "".join(_scheme(row, labels, tokens.weights[:end], axes) for row in rows)
    return f"<section class='weighted-clip-chart'><h2>{title}</h2>{drawn}{_legend(axes)}</section>"


def comparison_title(text: str, options: EncodeOptions) -> str:
    """Subject of a comparison: the prompt and the options shared by all schemes, as markup."""
    prompt = text if len(text) <= MAX_PROMPT else f"{text[:MAX_PROMPT]}… ({len(text):,} characters)"
    settings = [
        f"{option.label} {str(getattr(options, name)).replace(chr(10), ' / ')}"
        for name, option in OPTIONS.items()
        if name in ALWAYS_TOLD or (option.label and name != "scheme" and getattr(options, name) != option.default)
    ]
    return f"<p class='weighted-clip-of'><q>{escape(prompt)}</q> <span>{escape(', '.join(settings))}</span></p>"


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
    longest = f"×{axes.length_top:g}"
    cut = f" {CUT}: the bar is cut, as it would be longer than {longest}." if axes.length_top == LENGTH_TOPS[-1] else ""
    return (
        "<p class='weighted-clip-note'>Upper bar: length of the row as a multiple of the unweighted row's, "
        f"logarithmic, ×{1 / axes.length_top:.2g} to {longest}. Lower bar: angle between the two, to "
        f"{axes.angle_top:g}°. ·: changed by less than 0.5 % or 0.05°. none: a row of length 0 has no direction. left "
        f"out: the scheme has no such row.{cut}</p>"
    )


def _unseen(text: str) -> str:
    return f"<span class='weighted-clip-unseen'>{text}</span>"
