"""The command ``classify``: classes of images or texts by a classifier that ``train`` has written."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import Command
from ..console import show
from ..prompt_options import add_value


def _add_arguments(classify: argparse.ArgumentParser) -> None:
    classify.add_argument(
        "given", nargs="+", metavar="FILE_OR_TEXT", help="image files, or for a classifier of texts, texts"
    )
    classify.add_argument(
        "--run", dest="folder", type=Path, required=True, metavar="DIR", help="folder of train --objective classify"
    )
    add_value(classify, "--top", 3, "N", "how many classes for each, the most probable first (%(default)s)")


def _run(arguments: argparse.Namespace) -> int:
    from ....encoder.models.text_model import TextModel
    from ...training.data.captions import notes_on_length
    from ...training.data.examples import Example
    from ...training.objectives.classifier import load_classifier, probabilities

    if arguments.top < 1:
        raise ValueError(f"--top must be at least 1, got {arguments.top}")
    trained = load_classifier(arguments.folder)
    if isinstance(trained.model.tower, TextModel):
        texts = [Example(f"{text:.40}", Path(), (text,)) for text in arguments.given]
        for line in notes_on_length(texts, trained.model.tower.config):
            show(line, sys.stderr)
    for one in arguments.given:
        found = probabilities(trained, one)[: arguments.top]
        show(f"{one}: " + ", ".join(f"{name} {value:.1%}" for name, value in found))
    return 0


CLASSIFY = Command(
    "classify",
    "name the classes of images or texts, by a classifier of train",
    _add_arguments,
    _run,
    ("cat.png dog.png --run pets", '"a text of mine" --run mail'),
    description="Print the most probable classes of images or texts, by the encoder and the head that train "
    "--objective classify has written.",
)
