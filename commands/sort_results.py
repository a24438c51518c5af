"""Results of ``sort``: a table, a confusion matrix, unsure images; and images copied or moved by label."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..output.files import written_whole
from .console import show
from .rerank import Files, put_images

if TYPE_CHECKING:
    from torch import Tensor

    from ..training.probe import Probe

TABLE_NAME, UNSURE_NAME = "table.csv", "unsure.png"
CONFUSION_NAME, MATRIX_NAME = "confusion.csv", "confusion.png"
COLUMNS = ("file", "label", "probability", "runner_up", "runner_up_probability")
MAX_UNSURE = 24
"""Maximum number of images drawn."""


@dataclass(frozen=True)
class Guess:
    """Predicted label of an image."""

    name: str
    """Name of its file, in its folder."""
    label: str
    probability: float
    runner_up: str
    """Second most probable label."""
    runner_up_probability: float

    @property
    def margin(self) -> float:
        """Difference in probability to the second label."""
        return self.probability - self.runner_up_probability


def guesses_of(names: Sequence[str], found: Tensor, labels: Sequence[str]) -> list[Guess]:
    """Predicted labels of images.

    ``found`` are probabilities, ``[images, labels]``.
    """
    values, order = found.sort(dim=1, descending=True, stable=True)
    firsts: list[int] = order[:, 0].tolist()
    seconds: list[int] = order[:, 1].tolist()
    return [
        Guess(name, labels[first], float(row[0]), labels[second], float(row[1]))
        for name, first, second, row in zip(names, firsts, seconds, values, strict=True)
    ]


def write_table(folder: Path, guesses: Sequence[Guess]) -> Path:
    """Write a table with a row for each image."""
    rows = [
        (one.name, one.label, f"{one.probability:.6f}", one.runner_up, f"{one.runner_up_probability:.6f}")
        for one in guesses
    ]
    return _write_csv(folder / TABLE_NAME, [COLUMNS, *rows])


def write_unsure(folder: Path, images: Path, guesses: Sequence[Guess]) -> Path:
    """Draw the images with the smallest difference between their two most probable labels."""
    from ..web.pictures.sheets import Card, draw_unsure

    least = sorted(guesses, key=lambda guess: guess.margin)[:MAX_UNSURE]
    cards = [
        Card(one.name, ((one.label, one.probability), (one.runner_up, one.runner_up_probability))) for one in least
    ]
    title = f"The least sure of {len(guesses):,} images: given label and runner-up"
    with written_whole(folder / UNSURE_NAME) as place:
        draw_unsure(Files([images / one.name for one in least]), cards, title).save(place)
    return folder / UNSURE_NAME


def write_confusion(folder: Path, probe: Probe, targets: Sequence[int]) -> list[Path]:
    """Write, draw and sum up the labels predicted for examples by probes fitted without them."""
    from ..web.pictures.matrices import draw_confusion

    labels = probe.labels
    counts = [[0] * len(labels) for _ in labels]
    for target, given in zip(targets, probe.held_out.argmax(1).tolist(), strict=True):
        counts[target][given] += 1
    right = sum(counts[index][index] for index in range(len(labels)))
    words = f"{right:,} of {len(targets):,} held-out examples right ({right / len(targets):.1%})"
    show(f"{words}, by {probe.num_folds}-fold cross-validation; strength C = {probe.strength:g}")
    rows = [["true label", *labels], *([label, *map(str, row)] for label, row in zip(labels, counts, strict=True))]
    written = [_write_csv(folder / CONFUSION_NAME, rows), folder / MATRIX_NAME]
    with written_whole(folder / MATRIX_NAME) as place:
        draw_confusion(counts, labels, title=words).save(place)
    return written


def _write_csv(path: Path, rows: Sequence[Sequence[str]]) -> Path:
    # surrogateescape: file names that are not UTF-8 are written as their original bytes
    with written_whole(path) as place, place.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def put_files(folder: Path, into: Path, guesses: Sequence[Guess], *, is_move: bool) -> None:
    """Copy or move images to ``INTO/LABEL``."""
    from ..output.placing import Placement

    placed = put_images([Placement(folder / one.name, into / one.label / one.name) for one in guesses], is_move=is_move)
    show(f"{'moved' if is_move else 'copied'}: {len(placed.done):,} images, into folders of {into}")
    if placed.there:
        stay = f", so they stay in {folder}" if is_move else ""
        show(f"{len(placed.there):,} were there already, with the same bytes{stay}")
