"""The command ``sort``: image files by label, zero-shot or by labelled examples."""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..encoder.image_file import SUFFIXES
from . import Command
from .console import Progress, show
from .loading import DTYPES
from .rerank import clip_of, image_files
from .sort_results import Guess, guesses_of, put_files, write_confusion, write_table, write_unsure

if TYPE_CHECKING:
    from torch import Tensor

    from ..encoder.clip import FullClip
    from ..training.data import Example
    from ..training.probe import Probe

TEMPLATE = "a photo of a {}"
FEATURES_NAME = "features"
"""Name of the folder of features in the folder of results."""
PER_FILE = 256
"""Images per file of features: an interrupted run recomputes at most these."""
MAX_LABEL_BYTES = 120
"""Maximum length of a label used as a folder name."""


def _add_arguments(sort: argparse.ArgumentParser) -> None:
    from ..encoder.config import CROPS

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
        help=".safetensors file of a whole CLIP, such as openai/clip-vit-large-patch14's model.safetensors",
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
    sort.add_argument(
        "--sure",
        type=float,
        default=0.0,
        metavar="P",
        help="copy or move only images whose label has this probability or more, e.g. 0.9 (all)",
    )
    sort.add_argument("--crop", choices=CROPS, default=CROPS[0], help="how an image becomes square (%(default)s)")
    sort.add_argument("--dtype", choices=DTYPES, default="fp32")
    sort.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    sort.add_argument(
        "--activation",
        choices=["quick_gelu", "gelu"],
        help="of the model (by config.json beside it, or as OpenAI's B and L and OpenCLIP's H and bigG were released)",
    )


def _run(arguments: argparse.Namespace) -> int:
    from ..output.files import alone_in

    folder = arguments.folder
    labels, known = _labels(arguments)
    _check(arguments, labels)
    paths, others = image_files([folder])
    with alone_in(arguments.out):
        guesses, num_failed = _guessed(arguments, paths, labels, known)
    _put(arguments, folder, guesses)
    if others:
        kinds = ", ".join(sorted({file.suffix.lower() or file.name for file in others}))
        show(f"files of other kinds in {folder}, not looked at: {len(others)} ({kinds})", sys.stderr)
    if num_failed:
        show(f"{num_failed} files left out", sys.stderr)
    return 1 if num_failed else 0


def _guessed(
    arguments: argparse.Namespace, paths: Sequence[Path], labels: Sequence[str], known: Sequence[Sequence[Path]]
) -> tuple[list[Guess], int]:
    """Guess labels, write and print the results; return the guesses and the number of unreadable images."""
    folder, out = arguments.folder, arguments.out
    if known:
        from ..training.probe import check_installed

        check_installed()
    clip = clip_of(arguments)
    reading = _Reading(clip, arguments)
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
        labels = [label.strip() for label in next(csv.reader([arguments.labels], skipinitialspace=True), [])]
        given = f"--labels {arguments.labels!r}"
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
        raise ValueError(f"{given}: the label {twice!r} comes twice")
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
                f"the label {label!r} cannot be the name of a folder on every system, which --copy and --move need: "
                rf"at most {MAX_LABEL_BYTES} bytes, none of / \ : * ? \" < > |, no dot at the end"
            )


class _Reading:
    """Computes features of images or reads them from disk, and reports unreadable images."""

    def __init__(self, clip: FullClip, arguments: argparse.Namespace) -> None:
        from ..training.frozen import digest_of

        self.clip, self.crop, self.place = clip, arguments.crop, arguments.out / FEATURES_NAME
        self.digest = f"{digest_of(clip.vision.parameters())} {clip.vision.config}"
        self.num_failed = 0

    def features(self, folder: Path, paths: Sequence[Path], what: str) -> tuple[Tensor, list[str]]:
        """Features ``[images, p]`` of the readable images, and their names in the folder."""
        import torch

        from ..training.data import Example
        from ..training.features import cached_features

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
    reading: _Reading, folder: Path, labels: Sequence[str], known: Sequence[Sequence[Path]]
) -> tuple[Probe, list[int]]:
    """A probe, and the label index of each readable example."""
    from ..training.probe import fit_probe

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
