"""The commands ``rerank`` and ``similarity``: image files compared with texts by a CLIP."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...encoder.image_file import SUFFIXES, open_image
from ...encoder.quoting import quote
from . import Command, image_options
from .console import Progress, json_text, show, standard_input
from .prompt_lines import PromptLines
from .prompt_options import add_arithmetic_options, add_flag, add_value, text_of

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ...encoder.models.clip import FullClip
    from ...encoder.models.config import Crop

MEANING = (
    "A score is the cosine of text and image, from -1 to 1: only the order of scores for one text means something, not "
    "their size."
)


def _add_rerank_arguments(rerank: argparse.ArgumentParser) -> None:
    rerank.add_argument("text", help="the text; - reads it from standard input")
    _add_paths(rerank)
    _add_clip_options(rerank)
    add_value(rerank, "--keep", int, "N", "only the N best (all)")
    add_value(
        rerank, "--copy", Path, "DIR", "copy the best there, with their rank in front of the name; never overwrites"
    )
    _add_result_options(rerank, "ranking")


def _add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the images."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help=f"an image; or a folder, for its files {', '.join(SUFFIXES)}, not those of folders in it",
    )


def _add_clip_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which CLIP is loaded, and how it reads images and texts."""
    from ...weighting.syntax import SYNTAXES

    add_value(parser, "--weights", Path, "FILE", f"{image_options.WHOLE_CLIP}; required")
    image_options.add_crop_option(parser)
    parser.add_argument(
        "--syntax",
        choices=list(SYNTAXES),
        default="none",
        help="syntax of the weights, which are removed (%(default)s)",
    )
    add_arithmetic_options(parser)
    image_options.add_activation_option(parser)


def _add_result_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the forms in which a result is shown, other than text."""
    add_value(parser, "--chart", Path, "FILE", f"draw the {what} into a .png file")
    add_flag(parser, "--json", f"print the {what} as JSON")


def _check_clip(arguments: argparse.Namespace, command: str, why: str) -> None:
    """Raise ValueError if no weights are given, or the chart is not to be a .png file."""
    if arguments.weights is None:
        raise ValueError(
            f"{command} needs --weights FILE with a whole CLIP, such as the model.safetensors of "
            f"openai/clip-vit-large-patch14: random weights would {why}, and checkpoints of Stable Diffusion "
            "have no image half"
        )
    if arguments.chart is not None and arguments.chart.suffix.lower() != ".png":
        raise ValueError(f"--chart {arguments.chart}: the chart is a .png file")


def _features_of(clip: FullClip, paths: Sequence[Path], crop: Crop) -> tuple[Tensor, list[Path]]:
    """Features of image files, ``[images, p]``, each of length 1, and the files.

    Those that cannot be read are named and left out; ValueError if none could be.
    """
    from ...encoder.images import image_features

    progress, readable = Progress(), list[Path]()

    def images() -> Iterator[Image.Image]:
        for path in paths:
            try:
                image = open_image(path)
            except ValueError as error:
                progress.clear()
                show(f"weighted-clip: {error}", sys.stderr)
                continue
            readable.append(path)
            yield image

    def count(num_done: int) -> None:
        progress.tell(f"{num_done} of {len(paths)} images")

    features = image_features(clip, images(), crop, on_progress=count)
    progress.clear()
    if not readable:
        raise ValueError(f"none of the {len(paths)} images could be read")
    return features, readable


def _rerank(arguments: argparse.Namespace) -> int:
    from ...encoder.images import best
    from ...encoder.similarity import similarity

    _check_clip(arguments, "rerank", "sort at random")
    if arguments.keep is not None and arguments.keep < 1:
        raise ValueError(f"--keep must be at least 1, got {arguments.keep}")
    paths, skipped = image_options.image_files(arguments.paths)
    text = text_of(arguments).strip("\n")
    clip = image_options.clip_of(arguments, arguments.weights, arguments.activation)
    described = image_options.text_features_of(clip, text, arguments.syntax)
    features, readable = _features_of(clip, paths, arguments.crop)
    scores: list[float] = similarity(described.vector.unsqueeze(0), features)[0].tolist()
    order = best(scores, len(scores))
    best_indices = order[: arguments.keep]
    ranked = [(rank, scores[index], readable[index]) for rank, index in enumerate(best_indices, 1)]
    _print_ranking(ranked, text, as_json=arguments.json)
    for issue in described.read.issues:
        show(f"  {issue.line}", sys.stderr)
    if arguments.copy is not None:
        _copy(ranked, arguments.copy)
    if arguments.chart is not None:
        from ...web.pictures import draw_ranking

        names = [path.stem for path in readable]
        _write_chart(
            draw_ranking(image_options.Files(readable), scores, order, len(best_indices), text, names=names),
            arguments.chart,
        )
    return image_options.tell_left_out(skipped, len(paths) - len(readable), len(paths))


def _print_ranking(ranked: Sequence[tuple[int, float, Path]], text: str, *, as_json: bool) -> None:
    if as_json:
        images = [
            {"rank": rank, "score": score if math.isfinite(score) else None, "path": str(path)}
            for rank, score, path in ranked
        ]
        show(json_text({"text": text, "images": images}))
        return
    width = len(str(len(ranked)))
    for rank, score, path in ranked:
        show(f"{rank:>{width}}  {score:7.4f}  {path}")


def _copy(ranked: Sequence[tuple[int, float, Path]], folder: Path) -> None:
    """Copy images into a folder, all or none of them."""
    from ..output.file_copies import FileCopy

    width = len(str(len(ranked)))
    existing = image_options.copy_images(
        [FileCopy(path, folder / f"{rank:0{width}}-{path.name}") for rank, _, path in ranked]
    )
    if existing:
        show(f"{len(existing):,} were in {folder} already, with the same bytes", sys.stderr)


def _write_chart(chart: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    image_options.write_picture(chart, file)


RERANK = Command(
    "rerank",
    "sort images by how well they fit a text",
    _add_rerank_arguments,
    _rerank,
    ('"a red cat" images --weights clip.safetensors --keep 4 --chart best.png',),
    description=f"Sort images by how well CLIP says they fit a text. {MEANING}",
    epilog="The exit status is 1 if an image could not be read; the others are ranked all the same.",
)


SOFTMAX = {"none": "none", "over texts": "texts", "over images": "images"}
"""Choices of the option, as in Compare Images with Texts, and the dimension over which probabilities sum to 1."""


def _add_similarity_arguments(parser: argparse.ArgumentParser) -> None:
    _add_paths(parser)
    parser.add_argument(
        "--text", action="append", default=[], metavar="TEXT", help="a text; may be given several times"
    )
    add_value(parser, "--texts", Path, "FILE", "file of texts, one per line; - reads standard input")
    _add_clip_options(parser)
    parser.add_argument(
        "--softmax",
        choices=list(SOFTMAX),
        default="none",
        help="probabilities over the texts for each image, or over the images for each text (%(default)s: cosines)",
    )
    add_value(parser, "--temperature", float, "T", "with --softmax; lower is sharper (as trained)")
    _add_result_options(parser, "matrix")


def _similarity(arguments: argparse.Namespace) -> int:
    import torch

    from ...encoder.similarity import probabilities, similarity

    _check_clip(arguments, "similarity", "compare at random")
    temperature: float | None = arguments.temperature
    if temperature is not None and not 0 < temperature < math.inf:
        raise ValueError(f"--temperature must be above 0, got {temperature:g}")
    if temperature is not None and arguments.softmax == "none":
        raise ValueError(f"--temperature {temperature:g} counts with --softmax only: cosines have none")
    texts = _texts(arguments)
    paths, skipped = image_options.image_files(arguments.paths)
    clip = image_options.clip_of(arguments, arguments.weights, arguments.activation)
    described = [image_options.text_features_of(clip, text, arguments.syntax) for text in texts]
    features, readable = _features_of(clip, paths, arguments.crop)
    over: Any = SOFTMAX[arguments.softmax]
    scale = 1.0 if over == "none" else temperature or 1 / clip.logit_scale
    vectors = torch.stack([text_features.vector for text_features in described])
    values: list[list[float]] = probabilities(similarity(vectors, features, scale), over).tolist()
    if arguments.json:
        rows = [[value if math.isfinite(value) else None for value in row] for row in values]
        data = {
            "texts": texts,
            "images": [str(path) for path in readable],
            "softmax": arguments.softmax,
            "values": rows,
        }
        show(json_text(data))
    else:
        _print_matrix(values, texts, readable)
    for text, text_features in zip(texts, described, strict=True):
        for issue in text_features.read.issues:
            show(f"  {quote(text)}: {issue.line}", sys.stderr)
    if arguments.chart is not None:
        from ...web.pictures import draw_similarity

        _write_chart(draw_similarity(values, texts, image_options.Files(readable), over=over), arguments.chart)
    return image_options.tell_left_out(skipped, len(paths) - len(readable), len(paths))


def _texts(arguments: argparse.Namespace) -> list[str]:
    """Texts given as arguments, then the lines of the file."""
    lines: list[str] = list(arguments.text)
    if arguments.texts is not None:
        file = str(arguments.texts)
        blocks = [standard_input()] if file == "-" else PromptLines(file, "--texts")
        lines += [line for text in blocks for line in text.splitlines()]
    texts = [line.strip() for line in lines if line.strip()]
    if not texts:
        raise ValueError("there is no text to compare with: give --text TEXT, or --texts FILE with one on each line")
    return texts


def _print_matrix(values: Sequence[Sequence[float]], texts: Sequence[str], paths: Sequence[Path]) -> None:
    """Print the texts with their numbers, then a line for each image."""
    width = len(str(len(texts)))
    for number, text in enumerate(texts, 1):
        show(f"text {number:>{width}}: {text}")
    show("".join(f"{number:>9}" for number in range(1, len(texts) + 1)))
    for index, path in enumerate(paths):
        show("".join(f"{row[index]:9.4f}" for row in values) + f"  {path}")


SIMILARITY = Command(
    "similarity",
    "compare every image with every text",
    _add_similarity_arguments,
    _similarity,
    (
        'images --text "a red cat" --text "a blue dog" --weights clip.safetensors --chart matrix.png',
        'photo.jpg --texts captions.txt --weights clip.safetensors --softmax "over texts" --json',
    ),
    description=f"Compare every image with every text by CLIP. {MEANING} With --softmax they are probabilities.",
    epilog="The exit status is 1 if an image could not be read; the others are compared all the same.",
)
