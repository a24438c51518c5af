"""Schemes compared with the unweighted encoding: the change of each row of a prompt in length and direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ...encoder.encoding import EncoderError
from ...weighting.options import EncodeOptions
from ...weighting.pipeline import Check, EncodedPrompt
from ...weighting.reading import ReadPrompt
from ...weighting.schemes import SCHEMES
from ...weighting.schemes.repeat import copies_of
from ...weighting.towers import num_chunks
from ..difference import BLENDED, chunk_counts, first_rows, measured
from ..pictures.changes import RowChange
from .model import LabError, LabModel


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

    Only the scheme differs between them. Rows are those of the first text tower, whose tokens the page shows; numbers
    are taken in float64. Dropped padding is compared nevertheless, as dropping changes no remaining row. ``check`` is
    called before each call of an encoder; an exception it raises ends the work.

    Yields:
        A result for each scheme in order, as soon as it is done. A scheme that fails says so in its message.

    Raises:
        LabError: If there is no scheme or an unknown one, or the prompt cannot be encoded at all.
    """
    unknown = [scheme for scheme in schemes if scheme not in SCHEMES]
    if unknown or not schemes:
        got = ", ".join(map(repr, unknown)) or "none"
        raise LabError(f"choose schemes to compare among {', '.join(SCHEMES)}; got {got}")
    options = replace(options, padding="attend" if options.padding == "drop" else options.padding)
    plain = _encoded(model, text, replace(options, scheme="unweighted"), check)
    known = {*plain.read.issues}  # the user asked for no weights, so unweighted need not report them
    for scheme in schemes:
        try:
            chosen = replace(options, scheme=scheme)
            encoded = plain if scheme == plain.read.options.scheme else _encoded(model, text, chosen, check)
        except EncoderError as error:
            yield Comparison(scheme, (), str(error), (), 0)
            continue
        changes, message = row_changes(plain, encoded)
        lines = tuple(issue.line for issue in encoded.read.issues if issue not in known)
        yield Comparison(scheme, changes, message, lines, encoded.num_encodings)


def row_changes(plain: EncodedPrompt, weighted: EncodedPrompt) -> tuple[tuple[tuple[RowChange | None, ...], ...], str]:
    """Changes from a prompt's unweighted encoding, with all rows, to another; and a message, as in `Comparison`."""
    read = plain.read
    length = read.layout.length
    if SCHEMES[weighted.read.options.scheme].is_repeating:
        return _repeated_changes(plain, weighted)
    num_rows, num_plain = weighted.hidden.shape[1], plain.hidden.shape[1]
    is_unmixed = all(len(section.prompts) == 1 for section in read.sections)
    # rows of the plain encoding that the other one has, too
    kept, missing = list(range(num_plain)), ""
    if weighted.read.kept is not None:
        kept, missing = _rows_up_to(weighted.read.kept, length), "of padding"
    elif num_rows != num_plain and is_unmixed:
        kept, missing = _rows_without_seams(read), "between chunks"
    if num_rows != len(kept) or num_plain != num_chunks(read) * length:
        return (), f"This has {num_rows} rows and the unweighted encoding {num_plain}, so they cannot be laid together."
    message = ""
    if not is_unmixed:
        message = BLENDED
    elif num_rows < num_plain:
        message = f"It leaves out {num_plain - num_rows} rows {missing}."
    by_row = dict(zip(kept, measured(plain.hidden[0, kept], weighted.hidden[0]), strict=True))
    return tuple(tuple(map(by_row.get, range(start, start + length))) for start in first_rows(read)), message


def _repeated_changes(
    plain: EncodedPrompt, weighted: EncodedPrompt
) -> tuple[tuple[tuple[RowChange | None, ...], ...], str]:
    """Same as `row_changes`, for the scheme ``repeat``: the first copy of each row is measured."""
    read = weighted.read
    counts = [count for row in copies_of(read).rows for count in row]
    kept = [row for row, count in enumerate(counts) if count]
    firsts = [first for first, count in zip(accumulate(counts, initial=0), counts, strict=False) if count]
    by_row = dict(zip(kept, measured(plain.hidden[0, kept], weighted.hidden[0, firsts]), strict=True))
    message = f"It changes no row: {len(counts)} rows become {sum(counts)}, by their weights."
    message = "" if set(counts) == {1} else message
    return tuple(
        tuple(map(by_row.get, range(start, start + read.layout.length))) for start in first_rows(read)
    ), message


def _rows_up_to(kept: Sequence[int], length: int) -> list[int]:
    """First rows of each chunk, as many as are kept."""
    return [chunk * length + row for chunk, count in enumerate(kept) for row in range(count)]


def _rows_without_seams(read: ReadPrompt) -> list[int]:
    """Rows kept by the scheme ``lpw``: all of each section except the BOS and EOS between its chunks."""
    length = read.layout.length
    ends = accumulate((count * length for count in chunk_counts(read.sections)), initial=0)
    return [
        row
        for first, end in pairwise(ends)
        for row in range(first, end)
        if row in (first, end - 1) or 0 < row % length < length - 1
    ]


def _encoded(model: LabModel, text: str, options: EncodeOptions, check: Check | None = None) -> EncodedPrompt:
    """Encode a prompt with the first tower."""
    try:
        return next(iter(model.encode(text, options, check).values()))
    except ValueError as error:
        raise LabError(str(error)) from error
