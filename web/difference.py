"""Differences between two encodings of a prompt row by row, and a chart and a report comparing two text encoders.

``web/lab/tabs/comparison.py`` uses it for schemes, the node CLIP Difference for two CLIPs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from PIL import Image
from torch import Tensor

from ..weighting.chunking import ChunkedSection
from ..weighting.pipeline import EncodedPrompt
from ..weighting.reading.prompt_reader import ReadPrompt
from ..weighting.reading.view import counted
from .pictures.changes import RowChange, SchemeRow, angle_text, draw_changes, ratio_text
from .pictures.masks import mask_labels

SHOWN_CHUNKS = 4
"""Maximum number of chunks in the chart; the report has all."""
HEADING = "What the changed CLIP makes of each token"
LEGEND = (
    "length: of the changed CLIP's row, as a multiple of the original's, on a logarithmic axis. angle: "
    "between the two, in degrees. No bar: changed by less than 0.5 % or 0.05°. mean, pooled: |changed - original| / "
    "|original|, averaged over the rows shown, and of the pooled vector. Weights are not applied."
)
BLENDED = "Prompts are blended here: each row is a mixture of the tokens at its place in all of them."


def chunk_counts(sections: Sequence[ChunkedSection]) -> list[int]:
    """Number of chunks of each section in the result."""
    return [max(map(len, section.prompts)) for section in sections]


def first_rows(parsed: ReadPrompt) -> list[int]:
    """First row of each chunk in an encoding with all rows; prompts of a blend share rows."""
    ends = accumulate(chunk_counts(parsed.sections), initial=0)
    return [
        (first + index) * parsed.layout.length
        for section, first in zip(parsed.sections, ends, strict=False)
        for prompt in section.prompts
        for index in range(len(prompt))
    ]


def measured(plain: Tensor, changed: Tensor) -> list[RowChange]:
    """Change of each row in length and direction, in float64.

    Shapes: ``plain`` [rows, dim], ``changed`` [rows, dim].
    """
    before, after = plain.detach().cpu().double(), changed.detach().cpu().double()
    old, new = before.norm(dim=-1, keepdim=True), after.norm(dim=-1, keepdim=True)
    # unlike the arc cosine of a product, this keeps its precision for small angles
    apart, together = before / old - after / new, before / old + after / new
    degrees = torch.rad2deg(2 * torch.atan2(apart.norm(dim=-1), together.norm(dim=-1)))
    ratios = (new / old).squeeze(-1)
    return [
        RowChange(ratio, angle if math.isfinite(angle) else None)
        for ratio, angle in zip(ratios.tolist(), degrees.tolist(), strict=True)
    ]


def relative_changes(plain: Tensor, changed: Tensor) -> list[float]:
    """Relative change of each row, ``|changed - plain| / |plain|``, in float64; both are ``[rows, dim]``."""
    before, after = plain.detach().cpu().double(), changed.detach().cpu().double()
    return ((after - before).norm(dim=-1) / before.norm(dim=-1)).tolist()


@dataclass(frozen=True)
class TowerDifference:
    """Differences between two encodings of a prompt by one text encoder."""

    tower: str
    """Its name: ``clip_l``, ..."""
    read: ReadPrompt
    """The prompt as read by both."""
    changes: tuple[tuple[RowChange, ...], ...]
    """Change of length and direction for each chunk and each of its positions."""
    relative: tuple[tuple[float, ...], ...]
    """The same as relative changes: 0.1 = the difference is a tenth as long as the original row."""
    pooled: float
    """Relative change of the pooled vector."""

    def labels(self, chunk: int) -> list[str]:
        """Labels of the rows of a chunk without padding: BOS, the tokens' texts, EOS."""
        tokens = self.read.chunks[chunk]
        return mask_labels(tokens, self.read.prompt.source)[: tokens.num_content + 2]


def difference(tower: str, original: EncodedPrompt, changed: EncodedPrompt) -> TowerDifference:
    """Compare two encodings of a prompt by a text encoder.

    Args:
        tower: Its name.
        original: The original encoding: hidden ``[1, rows, dim]``, with all rows of all chunks.
        changed: The changed encoding, with rows of the same shape.

    Returns:
        The changes of all rows, including padding.
    """
    changes = measured(original.hidden[0], changed.hidden[0])
    relative = relative_changes(original.hidden[0], changed.hidden[0])
    length = original.read.layout.length
    starts = first_rows(original.read)
    return TowerDifference(
        tower,
        original.read,
        tuple(tuple(changes[start : start + length]) for start in starts),
        tuple(tuple(relative[start : start + length]) for start in starts),
        relative_changes(original.pooled, changed.pooled)[0],
    )


def draw_differences(differences: Sequence[TowerDifference], *, width: int = 1100) -> Image.Image:
    """Draw the changes of tokens' rows as a chart, with one line per text encoder and at most `SHOWN_CHUNKS` chunks.

    Encoders with other tokens get separate charts below.
    """
    groups: dict[tuple[str, ...], list[TowerDifference]] = {}
    for difference in differences:
        labels = [label for chunk in _first_chunks(difference) for label in difference.labels(chunk)]
        groups.setdefault(tuple(labels), []).append(difference)
    charts: list[Image.Image] = []
    for labels, group in groups.items():
        count = len(group[0].read.chunks)
        title = f"chunks 1 to {SHOWN_CHUNKS} of {count}; the report has all" if count > SHOWN_CHUNKS else ""
        rows = [_line(difference) for difference in group]
        charts.append(draw_changes(rows, labels, heading=HEADING, legend=LEGEND, title=title, width=width))
    if len(charts) == 1:
        return charts[0]
    sheet = Image.new("RGB", (width, sum(chart.height for chart in charts)))
    top = 0
    for chart in charts:
        sheet.paste(chart, (0, top))
        top += chart.height
    return sheet


def difference_report(differences: Sequence[TowerDifference]) -> str:
    """Relative changes as text: for each text encoder its tokens, most changed first, padding, and pooled."""
    lines: list[str] = []
    for difference in differences:
        rows = [
            (difference.relative[chunk][place], chunk, place, label)
            for chunk in range(len(difference.read.chunks))
            for place, label in enumerate(difference.labels(chunk))
        ]
        rows.sort(key=lambda row: -row[0] if math.isfinite(row[0]) else -math.inf)  # NaN and infinity first
        lines.append(f"{difference.tower}: |changed - original| / |original| of each row, the largest first")
        for value, chunk, place, label in rows:
            change = difference.changes[chunk][place]
            measures = [f"length {ratio_text(change.ratio)}"] if ratio_text(change.ratio) else []
            measures += [f"angle {angle_text(change.angle)}"] if angle_text(change.angle) else []
            where = f"chunk {chunk + 1}, position {place}"
            lines.append(f"{percent(value):>11}  {label!r:<24}{where:<24}{', '.join(measures)}".rstrip())
        lines.append(f"{percent(_mean([row[0] for row in rows])):>11}  mean of these {counted(len(rows), 'row')}")
        padding = [
            value
            for chunk, values in enumerate(difference.relative)
            for value in values[len(difference.labels(chunk)) :]
        ]
        if padding:
            what = f"mean of {counted(len(padding), 'row')} of padding, at most {percent(max(padding))}"
            lines.append(f"{percent(_mean(padding)):>11}  {what}")
        lines.append(f"{percent(difference.pooled):>11}  pooled vector")
        lines += [BLENDED] if _is_blended(difference.read) else []
    return "\n".join(lines)


def percent(share: float, digits: int = 4) -> str:
    """Format a share in percent with a number of digits.

    >>> percent(0.123456), percent(0.123456, 2), percent(float("nan"))
    ('12.35 %', '12 %', 'no number')
    """
    return f"{100 * share:.{digits}g} %" if math.isfinite(share) else "no number"


def _first_chunks(difference: TowerDifference) -> range:
    return range(min(SHOWN_CHUNKS, len(difference.read.chunks)))


def _line(difference: TowerDifference) -> SchemeRow:
    """Line of the chart for an encoder."""
    ends = [len(difference.labels(chunk)) for chunk in _first_chunks(difference)]
    changes = [change for chunk, end in enumerate(ends) for change in difference.changes[chunk][:end]]
    relative = [value for chunk, end in enumerate(ends) for value in difference.relative[chunk][:end]]
    notes = (f"mean {percent(_mean(relative), 3)}", f"pooled {percent(difference.pooled, 3)}")
    message = BLENDED if _is_blended(difference.read) else ""
    if max(relative) > 0 and not any(ratio_text(change.ratio) or angle_text(change.angle) for change in changes):
        return SchemeRow(difference.tower, (), notes, f"All rows change by too little to be drawn. {message}".strip())
    return SchemeRow(difference.tower, changes, notes, message)


def _is_blended(parsed: ReadPrompt) -> bool:
    return any(len(section.prompts) > 1 for section in parsed.sections)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
