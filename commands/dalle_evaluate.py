"""The command ``dalle evaluate``: distance of generated pictures from real ones, at several radii of a blur.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 3.1 and figure 9, where a Gaussian filter
is applied to both.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..encoder.foreign_text import comma_separated
from ..encoder.image_file import open_image
from ..encoder.quoting import quote
from ..output.files import written_whole
from .console import Progress, show
from .dalle_demo import CURVE_NAME, MONTAGE_NAME
from .images import WHOLE_CLIP, add_activation_option, clip_of, image_files, tell_left_out, write_picture
from .options import add_arithmetic_options, add_value, device_of
from .processes import alone

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ..dalle.evaluation import InceptionScore, Moments, Network

RADII = "0,1,2,4,8"
MAX_SIZE = 1024
BATCH = 32
"""Number of pictures in memory at once."""
RESULTS_NAME, FID_NAME, SCORE_NAME = "evaluation.json", "fid.png", "inception_score.png"
OWN_NAMES = (FID_NAME, SCORE_NAME, MONTAGE_NAME, CURVE_NAME, "reconstructions.png")
"""Pictures that commands write beside drawings, and are none."""


def add_arguments(evaluate: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    evaluate.add_argument("real", type=Path, metavar="REAL", help="folder of real pictures, held out of training")
    evaluate.add_argument("generated", type=Path, metavar="GENERATED", help="folder of pictures that a model has drawn")
    evaluate.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the figures")
    by = evaluate.add_mutually_exclusive_group(required=True)
    by.add_argument("--inception", type=Path, metavar="FILE", help="Inception v3 of torch-fidelity, or of torchvision")
    by.add_argument("--weights", type=Path, metavar="FILE", help=f"in its place a {WHOLE_CLIP}")
    evaluate.add_argument("--labels", metavar="A,B", help="with --weights: prompts of the inception score's classes")
    evaluate.add_argument("--radii", default=RADII, metavar="R,R", help="of the blur, in pixels (%(default)s)")
    evaluate.add_argument(
        "--size",
        type=int,
        metavar="N",
        help="pixels along each side, to which squares of all pictures are scaled (first generated one's shorter side)",
    )
    add_value(evaluate, "--splits", 10, "N", "of the generated pictures, for the inception score (%(default)s)")
    add_arithmetic_options(evaluate)
    add_activation_option(evaluate)


@alone
def run(arguments: argparse.Namespace) -> int:
    """Measure, print and write the figures; return the exit status."""
    from ..dalle.evaluation import frechet_distance

    radii, labels, splits = _radii(arguments.radii), _labels(arguments), arguments.splits
    if arguments.size is not None and not 1 <= arguments.size <= MAX_SIZE:
        raise ValueError(f"--size must be from 1 to {MAX_SIZE:,}, got {arguments.size}")
    if arguments.out.resolve() in (arguments.real.resolve(), arguments.generated.resolve()):
        raise ValueError(f"--out {arguments.out}: its curves would be measured next time; choose another folder")
    real, generated = _Pictures(arguments.real), _Pictures(arguments.generated)
    has_score = arguments.weights is None or bool(labels)
    if has_score and not 1 <= splits <= (most := len(generated.paths) // 2):
        raise ValueError(f"--splits {splits}: {len(generated.paths):,} generated pictures have 1 to {most:,}")
    network = _network(arguments, labels)
    drawn, scores, size = _measured(generated, arguments.size, network, radii, splits)
    moments, _, _ = _measured(real, size, network, radii, 1)
    rows: list[dict[str, float]] = []
    for number, radius in enumerate(radii):
        rows.append({"radius": radius, "FID": frechet_distance(moments[number], drawn[number])})
        if scores:
            rows[-1] |= dict(zip(("inception score", "deviation"), scores[number](), strict=True))
    what = "FID" if network.is_of_literature else f"FID over features of {network.name}"
    dim, least = len(moments[0].mean), min(real.count, generated.count)
    show(
        f"{what}: {real.count:,} real and {generated.count:,} generated pictures of {size} pixels, {dim:,} features"
        + ("" if network.is_of_literature else "; comparable neither with papers nor with other features")
    )
    if least <= dim:
        show(f"{least:,} pictures are no more than features, so it comes out too large: compare equal numbers alone")
    for row in rows:
        score = f"  inception score {row['inception score']:.3f} ± {row['deviation']:.3f}" if scores else ""
        show(f"radius {row['radius']:>5g}  FID {row['FID']:>10.4f}{score}")
    about = {
        "features": network.name,
        "comparable with papers": network.is_of_literature,
        "size": size,
        **({"splits": splits} if has_score else {}),
        "real": {"folder": str(real.folder), "pictures": real.count},
        "generated": {"folder": str(generated.folder), "pictures": generated.count},
        "radii": rows,
    }
    for path in _written(about, what, arguments.out):
        show(f"written: {path}")
    return max(tell_left_out(one.others, str(one.folder), one.num_failed) for one in (real, generated))


def _radii(given: str) -> list[float]:
    try:
        radii = [float(part) for part in given.split(",")]
    except ValueError:
        radii = [-1.0]
    if not all(0 <= radius <= MAX_SIZE for radius in radii) or sorted(set(radii)) != radii:
        raise ValueError(f"--radii {given}: write rising numbers from 0 to {MAX_SIZE:,}, such as {RADII}")
    return radii


def _labels(arguments: argparse.Namespace) -> list[str]:
    if arguments.labels is None:
        return []
    labels = comma_separated(arguments.labels)
    if arguments.weights is None or len(set(labels)) < max(2, len(labels)) or not all(labels):
        raise ValueError(
            f"--labels {quote(arguments.labels)}: with --weights, two or more that differ, none of them empty"
        )
    return labels


class _Pictures:
    """Pictures of a folder, in a random order that is always the same; unreadable ones are named and left out."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ValueError(f"{folder}: there is no such folder")
        self.folder = folder
        paths, self.others = image_files([folder])
        self.paths = [path for path in paths if path.name not in OWN_NAMES]
        if others := [path.name for path in paths if path.name in OWN_NAMES]:
            show(f"left out of {folder}, as they are no drawings: {', '.join(others)}", sys.stderr)
        random.Random(0).shuffle(self.paths)
        self.count = self.num_failed = 0

    def __iter__(self) -> Iterator[Image.Image]:
        self.count = self.num_failed = 0
        for path in self.paths:
            try:
                image = open_image(path).convert("RGB")
            except ValueError as error:
                show(f"weighted-clip: {error}", sys.stderr)
                self.num_failed += 1
                continue
            self.count += 1
            yield image
        if self.count < 2:
            raise ValueError(f"{self.folder}: {self.count} of its pictures can be read, and 2 or more are needed")


def _network(arguments: argparse.Namespace, labels: Sequence[str]) -> Network:
    from ..dalle.evaluation import Network, load_inception
    from ..encoder.images import preprocess
    from ..encoder.tokenizer import default_tokenizer
    from ..training.distributed import declare_missing_operators
    from ..weighting.features import label_probabilities, label_vectors
    from ..weighting.towers import layout_of

    if arguments.inception is not None:
        declare_missing_operators()
        return load_inception(arguments.inception, device_of(arguments))
    clip = clip_of(arguments, arguments.weights, arguments.activation)
    vectors = None
    if labels:
        layout = layout_of(clip.text.config)
        vectors, _ = label_vectors(labels, ["{}"], default_tokenizer(), layout, clip.text_features)

    def by_clip(pictures: Tensor) -> tuple[Tensor, Tensor | None]:
        pixels = preprocess(pictures.movedim(1, -1) / 255, clip.vision.config.image_size)
        features = clip.image_features(pixels)
        found = None if vectors is None else label_probabilities(vectors, features, clip.logit_scale)
        return features, found

    return Network(clip.name, False, by_clip)


def _measured(
    pictures: _Pictures, size: int | None, network: Network, radii: Sequence[float], splits: int
) -> tuple[list[Moments], list[InceptionScore], int]:
    """Moments of a folder's pictures at each radius; their scores, if there are classes; and their size."""
    import numpy as np
    import torch
    from PIL import Image, ImageFilter, ImageOps

    from ..dalle.evaluation import InceptionScore, Moments

    moments: list[Moments] = []
    scores: list[InceptionScore] = []
    progress = Progress()
    found = iter(pictures)
    while batch := list(islice(found, BATCH)):
        size = size or min(MAX_SIZE, *batch[0].size)
        batch = [ImageOps.fit(one, (size, size), Image.Resampling.BICUBIC) for one in batch]
        for number, radius in enumerate(radii):
            blurred = [np.array(one.filter(ImageFilter.GaussianBlur(radius))) for one in batch]
            pixels = torch.from_numpy(np.stack(blurred)).movedim(-1, 1)
            try:
                features, classes = network.run(pixels)
                if number == len(moments):
                    moments.append(Moments(features.shape[1]))
                moments[number].add(features)
                if classes is not None:
                    if number == len(scores):
                        scores.append(InceptionScore(classes.shape[1], splits))
                    scores[number].add(classes)
            except ValueError as error:
                raise ValueError(f"{network.name}: {error}; use --dtype fp32, or other weights") from error
        progress.tell(f"{pictures.count:,} of {len(pictures.paths):,} pictures of {pictures.folder}")
    progress.clear()
    return moments, scores, size or 0


def _written(about: dict[str, Any], what: str, folder: Path) -> Iterator[Path]:
    """Write the figures and a curve of each."""
    from ..web.pictures.curves import draw_curves

    with written_whole(folder / RESULTS_NAME) as place:
        place.write_text(json.dumps(about, indent=1), encoding="utf-8")
    yield folder / RESULTS_NAME
    for name, key, title in (
        (FID_NAME, "FID", what),
        (SCORE_NAME, "inception score", f"Inception score by {about['features']}"),
    ):
        if key in about["radii"][0]:
            points = [(row["radius"], row[key]) for row in about["radii"]]
            write_picture(draw_curves(title, {key: points}, across="radius of the blur", theme="light"), folder / name)
            yield folder / name
