"""The command ``similarity``: every image compared with every text."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import Command
from .console import json_text, show, standard_input
from .processes import Place
from .prompt_lines import PromptLines
from .rerank import (
    MEANING,
    Files,
    add_clip_options,
    add_paths,
    add_result_options,
    check_clip,
    clip_of,
    features_of,
    image_files,
    tell_left_out,
    text_features_of,
)

SOFTMAX = {"none": "none", "over texts": "texts", "over images": "images"}
"""Choices of the option, as in the node CLIP Similarity Matrix, and the dimension over which probabilities sum to 1."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument("--text", action="append", default=[], metavar="TEXT", help="a text; give it once for each")
    parser.add_argument(
        "--texts", type=Path, metavar="FILE", help="a file with a text on each line; - is the standard input"
    )
    add_clip_options(parser)
    parser.add_argument(
        "--softmax",
        choices=list(SOFTMAX),
        default="none",
        help="probabilities over the texts for each image, or over the images for each text (%(default)s: cosines)",
    )
    parser.add_argument(
        "--temperature", type=float, metavar="T", help="with --softmax: the smaller, the sharper (as it was trained)"
    )
    add_result_options(parser, "matrix")


def _run(arguments: argparse.Namespace) -> int:
    import torch

    from ..encoder.similarity import probabilities, similarity

    check_clip(arguments, "similarity", "compare at random")
    temperature: float | None = arguments.temperature
    if temperature is not None and not 0 < temperature < math.inf:
        raise ValueError(f"--temperature must be above 0, got {temperature:g}")
    if temperature is not None and arguments.softmax == "none":
        raise ValueError(f"--temperature {temperature:g} counts with --softmax only: cosines have none")
    texts = _texts(arguments)
    paths, others = image_files(arguments.paths)
    clip = clip_of(arguments)
    described = [text_features_of(clip, text, arguments.syntax) for text in texts]
    features, read = features_of(clip, paths, arguments.crop)
    over: Any = SOFTMAX[arguments.softmax]
    scale = 1.0 if over == "none" else temperature or 1 / clip.logit_scale
    vectors = torch.stack([one.vector for one in described])
    values: list[list[float]] = probabilities(similarity(vectors, features, scale), over).tolist()
    if arguments.json:
        rows = [[value if math.isfinite(value) else None for value in row] for row in values]
        data = {"texts": texts, "images": [str(path) for path in read], "softmax": arguments.softmax, "values": rows}
        show(json_text(data))
    else:
        _print(values, texts, read)
    for text, one in zip(texts, described, strict=True):
        for issue in one.read.issues:
            show(f"  {text[:60]!r}: {issue.line}", sys.stderr)
    if arguments.chart is not None:
        _chart(arguments.chart, values, texts, read, over)
    return tell_left_out(others, len(paths) - len(read), len(paths))


def _texts(arguments: argparse.Namespace) -> list[str]:
    """Texts among the arguments, in order, those of the file last."""
    lines: list[str] = list(arguments.text)
    if arguments.texts is not None:
        file = str(arguments.texts)
        given = [standard_input()] if file == "-" else PromptLines(file, Place(), "--texts")
        lines += [line for text in given for line in text.splitlines()]
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ValueError("there is no text to compare with: give --text TEXT, or --texts FILE with one on each line")
    return texts


def _print(values: Sequence[Sequence[float]], texts: Sequence[str], paths: Sequence[Path]) -> None:
    """Print the texts with their numbers, then a line for each image."""
    width = len(str(len(texts)))
    for number, text in enumerate(texts, 1):
        show(f"text {number:>{width}}: {text}")
    show("".join(f"{number:>9}" for number in range(1, len(texts) + 1)))
    for index, path in enumerate(paths):
        show("".join(f"{row[index]:9.4f}" for row in values) + f"  {path}")


def _chart(
    file: Path, values: Sequence[Sequence[float]], texts: Sequence[str], paths: Sequence[Path], over: Any
) -> None:
    from ..output.files import written_whole
    from ..web.pictures import draw_similarity

    file.parent.mkdir(parents=True, exist_ok=True)
    picture = draw_similarity(values, texts, Files(paths), over=over)
    with written_whole(file) as place:
        picture.save(place)


SIMILARITY = Command(
    "similarity",
    "compare images with texts, all with all",
    _add_arguments,
    _run,
    (
        'images --text "a red cat" --text "a blue dog" --weights clip.safetensors --chart matrix.png',
        'photo.jpg --texts captions.txt --weights clip.safetensors --softmax "over texts" --json',
    ),
    description=f"Compare every image with every text by CLIP. {MEANING} With --softmax they are probabilities.",
    epilog="The exit status is 1 if an image could not be read; the others are compared all the same.",
)
