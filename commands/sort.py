"""The command ``sort``: image files by label, zero-shot or by labelled examples.

It writes a table, a confusion matrix and the unsure images, and copies or moves images by label.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..encoder.foreign_text import comma_separated
from ..encoder.image_file import SUFFIXES
from ..encoder.quoting import quote
from ..output.files import written_whole
from . import Command
from .console import Progress, show
from .images import (
    WHOLE_CLIP,
    Files,
    add_activation_option,
    add_crop_option,
    clip_of,
    image_files,
    put_images,
    tell_left_out,
    write_picture,
)
from .options import add_arithmetic_options, add_value

if TYPE_CHECKING:
    from torch import Tensor

    from ..encoder.clip import FullClip
    from ..training.data import Example
    from ..training.linear_probe import Probe

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
    write_picture(draw_unsure(Files([images / one.name for one in least]), cards, title), folder / UNSURE_NAME)
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
    write_picture(draw_confusion(counts, labels, title=words), folder / MATRIX_NAME)
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


TEMPLATE = "a photo of a {}"
FEATURES_NAME = "features"
"""Name of the folder of features in the folder of results."""
PER_FILE = 256
"""Images per file of features: an interrupted run recomputes at most these."""
MAX_LABEL_BYTES = 120
"""Maximum length of a label used as a folder name."""


def _add_arguments(sort: argparse.ArgumentParser) -> None:
    sort.allow_abbrev = False  # run.py looks for --examples, to install its requirements
    sort.add_argument(
        "folder",
        type=Path,
        metavar="FOLDER",
        help=f"the images: its files {', '.join(SUFFIXES)}, not those of folders in it",
    )
    labels = sort.add_mutually_exclusive_group(required=True)
    labels.add_argument("--labels", metavar="A,B,C", help="at least two, between commas")
    labels.add_argument(
        "--examples",
        type=Path,
        metavar="DIR",
        help="a folder with a folder for each label, named after it, in which are two or more images of it",
    )
    sort.add_argument(
        "--weights",
        type=Path,
        required=True,
        metavar="FILE",
        help=WHOLE_CLIP,
    )
    sort.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for all that is written")
    sort.add_argument(
        "--template",
        action="append",
        metavar="TEXT",
        help=f"prompt of a label, which takes the place of {{}} ({TEMPLATE!r}); given several times, their mean counts",
    )
    put = sort.add_mutually_exclusive_group()
    put.add_argument("--copy", type=Path, metavar="INTO", help="copy each image into INTO/LABEL; never overwrites")
    put.add_argument("--move", type=Path, metavar="INTO", help="move each image into INTO/LABEL; never overwrites")
    add_value(
        sort, "--sure", 0.0, "P", "copy or move only images whose label has this probability or more, e.g. 0.9 (all)"
    )
    add_crop_option(sort)
    add_arithmetic_options(sort)
    add_activation_option(sort)


def _run(arguments: argparse.Namespace) -> int:
    from ..output.files import alone_in

    folder = arguments.folder
    labels, known = _labels(arguments)
    _check(arguments, labels)
    paths, others = image_files([folder])
    with alone_in(arguments.out):
        guesses, num_failed = _guessed(arguments, paths, labels, known)
    _put(arguments, folder, guesses)
    return tell_left_out(others, str(folder), num_failed)


def _guessed(
    arguments: argparse.Namespace, paths: Sequence[Path], labels: Sequence[str], known: Sequence[Sequence[Path]]
) -> tuple[list[Guess], int]:
    """Guess labels, write and print the results; return the guesses and the number of unreadable images."""
    folder, out = arguments.folder, arguments.out
    if known:
        from ..training.linear_probe import check_installed

        check_installed()
    clip = clip_of(arguments, arguments.weights, arguments.activation)
    reading = _Features(clip, arguments)
    written: list[Path] = []
    if known:
        probe, targets = _learned(reading, arguments.examples, labels, known)
        written += write_confusion(out, probe, targets)
        features, names = reading.features(folder, paths, "images")
        found = probe(features)
    else:
        vectors = _label_vectors(clip, labels, arguments.template or [TEMPLATE])
        from ..weighting.features import label_probabilities

        features, names = reading.features(folder, paths, "images")
        found = label_probabilities(vectors, features, clip.logit_scale)
    if not names:
        raise ValueError(f"none of the {len(paths)} images could be read")
    guesses = guesses_of(names, found, labels)
    written += [write_table(out, guesses), write_unsure(out, folder, guesses)]
    _print(guesses, labels)
    for path in written:
        show(f"written: {path}")
    return guesses, reading.num_failed


def _labels(arguments: argparse.Namespace) -> tuple[list[str], list[list[Path]]]:
    """The labels, and the examples of each, if given."""
    known: list[list[Path]] = []
    if arguments.examples is None:
        labels = comma_separated(arguments.labels)
        given = f"--labels {quote(arguments.labels)}"
    else:
        given = f"--examples {arguments.examples}"
        if not arguments.examples.is_dir():
            raise ValueError(f"{given}: there is no such folder")
        labels = []
        folders = (path for path in arguments.examples.iterdir() if path.is_dir())
        for folder in sorted(folders, key=lambda path: path.parts):  # in the same order on every system
            if folder.name.startswith("."):
                show(f"{folder}: hidden, so it is no label", sys.stderr)
                continue
            files = (file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and file.is_file())
            images = sorted(files, key=lambda file: file.parts)
            if not images:
                show(f"{folder}: no image directly in it, so it is no label", sys.stderr)
                continue
            labels.append(folder.name)
            known.append(images)
    if not all(labels) or len(labels) < 2:
        advice = "give at least two labels, none of them empty"
        if arguments.examples is not None:
            advice = "it must have at least two folders with images in them, each named after its label"
        raise ValueError(f"{given}: {advice}")
    folded = [label.casefold() for label in labels]
    twice = next((label for number, label in enumerate(labels) if label.casefold() in folded[:number]), None)
    if twice is not None:
        raise ValueError(f"{given}: the label {quote(twice)} comes twice")
    return labels, known


def _check(arguments: argparse.Namespace, labels: Sequence[str]) -> None:
    """Refuse impossible requests before anything is read."""
    folder, out = arguments.folder, arguments.out.resolve()
    if not folder.is_dir():
        raise ValueError(f"{folder}: {'it is no folder' if folder.exists() else 'there is no such folder'}")
    if out == folder.resolve():
        raise ValueError(f"--out {arguments.out}: its pictures would be sorted next time; choose another folder")
    if arguments.examples is not None:
        if out.is_relative_to(arguments.examples.resolve()):
            raise ValueError(f"--out {arguments.out}: it would become a label; choose a folder outside of the examples")
        if arguments.template:
            raise ValueError("--template is for --labels: examples need no prompts")
    from ..weighting.features import label_prompts

    label_prompts("", arguments.template or [TEMPLATE])
    if not 0 <= arguments.sure <= 1:
        raise ValueError(f"--sure must be from 0 to 1, got {arguments.sure:g}")
    if arguments.copy is None and arguments.move is None:
        if arguments.sure:
            raise ValueError("--sure says which images are copied or moved; give --copy INTO or --move INTO")
        return
    for label in labels:
        if (
            label in (".", "..")
            or label != label.strip(" ")
            or any(character in label for character in '/\\:*?"<>|')
            or not label.isprintable()
            or label.endswith(".")
            or len(label.encode("utf-8", "surrogateescape")) > MAX_LABEL_BYTES
        ):
            raise ValueError(
                f"the label {quote(label)} cannot be the name of a folder on every system, which --copy and --move "
                rf"need: at most {MAX_LABEL_BYTES} bytes, none of / \ : * ? \" < > |, no dot at the end"
            )


class _Features:
    """Computes features of images or reads them from disk, and reports unreadable images."""

    def __init__(self, clip: FullClip, arguments: argparse.Namespace) -> None:
        from ..training.images import digest_of

        self.clip, self.crop, self.place = clip, arguments.crop, arguments.out / FEATURES_NAME
        self.digest = f"{digest_of(clip.vision.parameters())} {clip.vision.config}"
        self.num_failed = 0

    def features(self, folder: Path, paths: Sequence[Path], what: str) -> tuple[Tensor, list[str]]:
        """Features ``[images, p]`` of the readable images, and their names in the folder."""
        import torch

        from ..training.data import Example
        from ..training.images import cached_features

        examples: list[Example] = [Example(path.relative_to(folder).as_posix(), path, ()) for path in paths]
        progress = Progress()

        def count(done: int) -> None:
            progress.tell(f"{done} of {len(paths)} {what}")

        found, problems = cached_features(
            self.clip, examples, self.crop, self.place / what, self.digest, count, per_file=PER_FILE
        )
        progress.clear()
        for problem in problems:
            show(f"weighted-clip: {folder / problem.name}: {problem.reason}", sys.stderr)
        self.num_failed += len(problems)
        tensor = (
            torch.stack([*found.values()]) if found else torch.zeros(0, self.clip.vision.config.projection_dim or 0)
        )
        if not tensor.isfinite().all():
            raise ValueError("the model's features are not all finite numbers; use --dtype fp32")
        return tensor, [*found]


def _learned(
    reading: _Features, folder: Path, labels: Sequence[str], known: Sequence[Sequence[Path]]
) -> tuple[Probe, list[int]]:
    """A probe, and the label index of each readable example."""
    from ..training.linear_probe import fit_probe

    paths = [path for some in known for path in some]
    features, names = reading.features(folder, paths, "examples")
    numbers = {label: number for number, label in enumerate(labels)}
    targets = [numbers[name.partition("/")[0]] for name in names]
    show(f"learning from {len(names):,} examples of {len(labels)} labels", sys.stderr)
    return fit_probe(features, targets, labels), targets


def _label_vectors(clip: FullClip, labels: Sequence[str], templates: Sequence[str]) -> Tensor:
    """``[labels, p]``; problems of the prompts are printed."""
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.features import label_vectors
    from ..weighting.towers import layout_of

    layout = layout_of(clip.text.config)
    vectors, issues = label_vectors(labels, templates, default_tokenizer(), layout, clip.text_features)
    for line in dict.fromkeys(issue.line for issue in issues):
        show(f"  {line}", sys.stderr)
    return vectors


def _print(guesses: Sequence[Guess], labels: Sequence[str]) -> None:
    """Print the number of images for each label."""
    width = len(f"{len(guesses):,}")
    for label in labels:
        show(f"{sum(guess.label == label for guess in guesses):>{width},}  {label}")


def _put(arguments: argparse.Namespace, folder: Path, guesses: Sequence[Guess]) -> None:
    """Copy or move images, if requested."""
    into = arguments.move or arguments.copy
    if into is None:
        show("nothing was moved or copied: --move INTO and --copy INTO do that")
        return
    sure = [guess for guess in guesses if guess.probability >= arguments.sure]
    if len(sure) < len(guesses):
        show(f"{len(guesses) - len(sure):,} of {len(guesses):,} stay where they are: below --sure {arguments.sure:g}")
    put_files(folder, into, sure, is_move=arguments.move is not None)


SORT = Command(
    "sort",
    "sort images by labels that you name, or as labelled examples show",
    _add_arguments,
    _run,
    (
        'photos --labels "cat,dog,no animal" --weights clip.safetensors --out sorted',
        "photos --examples known --weights clip.safetensors --out sorted --move animals",
    ),
    description="Say which of several labels each image of a folder has, by CLIP. With --labels, zero-shot: the "
    "label whose prompt an image fits best. With --examples, by a linear probe, learned from images of which you "
    "know the label. Nothing is moved or copied unless asked. See docs/images.md.",
    epilog="Writes into DIR: table.csv with a row for each image, unsure.png with those that were almost given "
    "another label, and with --examples confusion.csv and confusion.png. A run that was stopped by Ctrl-C goes on "
    "where it was. The exit status is 1 if an image could not be read; the others are sorted all the same.",
)
