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
    add_value(classify, "--run", Path, "DIR", "folder of train --objective classify", dest="folder", required=True)
    add_value(classify, "--top", 3, "N", "number of classes for each, the most probable first (%(default)s)")


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
    for text_or_image in arguments.given:
        ranked = probabilities(trained, text_or_image)[: arguments.top]
        show(f"{text_or_image}: " + ", ".join(f"{name} {value:.1%}" for name, value in ranked))
    return 0


CLASSIFY = Command(
    "classify",
    "classify images or texts with a model from train --objective classify",
    _add_arguments,
    _run,
    ("cat.png dog.png --run pets", '"a text of mine" --run mail'),
    description="Print the most probable classes of images or texts, with the encoder and head written by "
    "train --objective classify.",
)
