"""The command ``rerank``: image files sorted by how well they match a text."""

from __future__ import annotations

import argparse
import math
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..encoder.image_file import SUFFIXES, open_image
from . import Command
from .console import Progress, json_text, show
from .loading import DTYPES, device_of, dtype_named
from .reading import text_of
from .stopping import holding_interrupt

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ..encoder.clip import FullClip
    from ..encoder.config import Crop
    from ..output.placing import Placed, Placement
    from ..weighting.features import TextFeatures

MEANING = (
    "A score is the cosine of text and image, from -1 to 1: only the order of scores for one text means something, not "
    "their size."
)


def _add_arguments(rerank: argparse.ArgumentParser) -> None:
    rerank.add_argument("text", help="the text; - reads it from standard input")
    add_paths(rerank)
    add_clip_options(rerank)
    rerank.add_argument("--keep", type=int, metavar="N", help="only the N best (all)")
    rerank.add_argument(
        "--copy", type=Path, metavar="DIR", help="copy the best there, their rank first in the name; never overwrites"
    )
    add_result_options(rerank, "ranking")


def add_paths(parser: argparse.ArgumentParser) -> None:
    """Add the images."""
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help=f"an image; or a folder, for its files {', '.join(SUFFIXES)}, not those of folders in it",
    )


def add_clip_options(parser: argparse.ArgumentParser) -> None:
    """Add what says which CLIP is loaded, and how it reads images and texts."""
    from ..encoder.config import CROPS
    from ..weighting.syntax import SYNTAXES

    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help=".safetensors file of a whole CLIP, such as openai/clip-vit-large-patch14's model.safetensors; required",
    )
    parser.add_argument("--crop", choices=CROPS, default=CROPS[0], help="how an image becomes square (%(default)s)")
    parser.add_argument(
        "--syntax", choices=list(SYNTAXES), default="none", help="how weights are written, to be left out (%(default)s)"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (cpu)")
    parser.add_argument(
        "--activation",
        choices=["quick_gelu", "gelu"],
        help="of the model (by config.json beside it, or as OpenAI's B and L and OpenCLIP's H and bigG were released)",
    )


def add_result_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the forms in which a result is shown, other than text."""
    parser.add_argument("--chart", type=Path, metavar="FILE", help=f"draw the {what} into a .png file")
    parser.add_argument("--json", action="store_true", help=f"print the {what} as JSON")


def check_clip(arguments: argparse.Namespace, command: str, why: str) -> None:
    """Raise ValueError if no weights are given, or the chart is not to be a .png file."""
    if arguments.weights is None:
        raise ValueError(
            f"{command} needs --weights FILE with a whole CLIP, such as the model.safetensors of "
            f"openai/clip-vit-large-patch14: random weights would {why}, and checkpoints of Stable Diffusion "
            "have no image half"
        )
    if arguments.chart is not None and arguments.chart.suffix.lower() != ".png":
        raise ValueError(f"--chart {arguments.chart}: the chart is a .png file")


def clip_of(arguments: argparse.Namespace) -> FullClip:
    """Load the CLIP among the arguments, and say on the error stream by what its heads and activation are known."""
    from ..encoder.clip import load_full_clip

    clip = load_full_clip(
        arguments.weights,
        dtype=dtype_named(arguments.dtype),
        device=device_of(arguments),
        activation=arguments.activation,
    )
    show(f"{clip.name}: {clip.origin}", sys.stderr)
    return clip


def features_of(clip: FullClip, paths: Sequence[Path], crop: Crop) -> tuple[Tensor, list[Path]]:
    """Encode image files; those that cannot be read are named and left out.

    Returns:
        ``[images, p]``, each of length 1, and their files.

    Raises:
        ValueError: If none of them could be read.
    """
    from ..encoder.images import image_features

    progress = Progress()
    reading = _Reading(paths, progress)

    def count(done: int) -> None:
        progress.tell(f"{done} of {len(paths)} images")

    features = image_features(clip, reading, crop, on_progress=count)
    progress.clear()
    if not reading.read:
        raise ValueError(f"none of the {len(paths)} images could be read")
    return features, reading.read


def tell_left_out(others: Sequence[Path], num_failed: int, num_paths: int) -> int:
    """Report the skipped files of folders and the number of unreadable ones; return the exit status."""
    if others:
        kinds = ", ".join(sorted({file.suffix.lower() or file.name for file in others}))
        show(f"files of other kinds in folders, not looked at: {len(others)} ({kinds})", sys.stderr)
    if num_failed:
        show(f"{num_failed} of {num_paths} files left out", sys.stderr)
    return 1 if num_failed else 0


def _run(arguments: argparse.Namespace) -> int:
    from ..encoder.images import best
    from ..encoder.similarity import similarity

    check_clip(arguments, "rerank", "sort at random")
    if arguments.keep is not None and arguments.keep < 1:
        raise ValueError(f"--keep must be at least 1, got {arguments.keep}")
    paths, others = image_files(arguments.paths)
    text = text_of(arguments).strip("\n")
    clip = clip_of(arguments)
    described = text_features_of(clip, text, arguments.syntax)
    features, read = features_of(clip, paths, arguments.crop)
    scores: list[float] = similarity(described.vector.unsqueeze(0), features)[0].tolist()
    order = best(scores, len(scores))
    kept = order[: arguments.keep]
    ranked = [(rank, scores[index], read[index]) for rank, index in enumerate(kept, 1)]
    _print(ranked, text, as_json=arguments.json)
    for issue in described.read.issues:
        show(f"  {issue.line}", sys.stderr)
    if arguments.copy is not None:
        _copy(ranked, arguments.copy)
    if arguments.chart is not None:
        _chart(arguments.chart, read, scores, order, len(kept), text)
    return tell_left_out(others, len(paths) - len(read), len(paths))


def image_files(paths: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Images given by paths."""
    found: dict[Path, None] = {}
    others: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            inside = sorted((file for file in path.iterdir() if file.is_file()), key=lambda file: file.parts)
            images = [file for file in inside if file.suffix.lower() in SUFFIXES]
            if not images:
                raise ValueError(f"{path}: no image in this folder; looked for: {', '.join(SUFFIXES)}")
            found |= dict.fromkeys(images)
            others |= dict.fromkeys(file for file in inside if file.suffix.lower() not in SUFFIXES)
        elif path.exists():
            found[path] = None
        else:
            raise ValueError(f"{path}: there is no such file or folder")
    return list(found), [file for file in others if file not in found]


class _Reading:
    """Iterates over images, keeps track of the readable ones and reports the others."""

    def __init__(self, paths: Sequence[Path], progress: Progress) -> None:
        self.paths = paths
        self.progress = progress
        self.read: list[Path] = []

    def __iter__(self) -> Iterator[Image.Image]:
        for path in self.paths:
            try:
                image = open_image(path)
            except ValueError as error:
                self.progress.clear()
                show(f"weighted-clip: {error}", sys.stderr)
                continue
            self.read.append(path)
            yield image


def text_features_of(clip: FullClip, text: str, syntax: str) -> TextFeatures:
    """The vector of a text."""
    from ..encoder.tokenizer import default_tokenizer
    from ..weighting.features import text_features
    from ..weighting.towers import layout_of

    return text_features(text, syntax, default_tokenizer(), layout_of(clip.text.config), clip.text_features)


def _print(ranked: Sequence[tuple[int, float, Path]], text: str, *, as_json: bool) -> None:
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
    from ..output.placing import Placement

    width = len(str(len(ranked)))
    placed = put_images(
        [Placement(path, folder / f"{rank:0{width}}-{path.name}") for rank, _, path in ranked], is_move=False
    )
    if placed.there:
        show(f"{len(placed.there):,} were in {folder} already, with the same bytes", sys.stderr)


def put_images(placements: Sequence[Placement], *, is_move: bool) -> Placed:
    """Copy or move images, all or, on an error or Ctrl-C, none of them, counting them on a terminal."""
    from ..output.placing import place_files

    progress, stopped = Progress(), threading.Event()

    def stop() -> None:
        progress.clear()
        show("stopping: either all files are put there or none", sys.stderr)
        stopped.set()

    def count(done: int) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        progress.tell(f"{done} of {len(placements)} images {'moved' if is_move else 'copied'}")

    with holding_interrupt(stop):
        placed = place_files(placements, is_move=is_move, on_progress=count)
    progress.clear()
    return placed


class Files(Sequence["Image.Image"]):
    """Images that are opened only when drawn."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return open_image(self.paths[index])


def _chart(
    file: Path, paths: Sequence[Path], scores: Sequence[float], order: Sequence[int], keep: int, text: str
) -> None:
    from ..output.files import written_whole
    from ..web.pictures import draw_ranking

    names = [path.stem for path in paths]
    file.parent.mkdir(parents=True, exist_ok=True)
    picture = draw_ranking(Files(paths), scores, order, keep, text, names=names)
    with written_whole(file) as place:
        picture.save(place)


RERANK = Command(
    "rerank",
    "sort images by how well they fit a text",
    _add_arguments,
    _run,
    ('"a red cat" images --weights clip.safetensors --keep 4 --chart best.png',),
    description=f"Sort images by how well CLIP says they fit a text. {MEANING}",
    epilog="The exit status is 1 if an image could not be read; the others are ranked all the same.",
)
