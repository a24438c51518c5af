"""The command ``dalle sample``: images drawn for a caption, sorted by a CLIP if one is given."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....encoder.image_file import image_of
from ....encoder.quoting import quote
from .. import Command
from ..console import Progress, show
from ..image_options import clip_of, text_features_of, write_picture
from ..processes import alone
from ..prompt_options import add_arithmetic_options, add_value, device_of, dtype_named

if TYPE_CHECKING:
    from torch import Tensor

    from ....encoder.models.clip import FullClip
    from ...dalle.full_model import DALLE
    from ...dalle.sampling import SampleOptions

MONTAGE_NAME = "montage.png"


def _add_arguments(sample: argparse.ArgumentParser) -> None:
    add_value(sample, "model", Path, "MODEL", "dalle.safetensors, from dalle train")
    add_value(sample, "caption", str, "CAPTION", "what to draw")
    add_value(sample, "--out", Path, "DIR", "folder for the images", required=True)
    add_value(sample, "--count", 16, "N", "number of images (%(default)s)")
    add_value(sample, "--seed", 0, "N", "seed of the first; the others count up (%(default)s)")
    add_value(sample, "--temperature", 1.0, "X", "lower: likelier tokens (%(default)s)")
    add_value(sample, "--top-k", 0, "K", "draw from the K likeliest tokens (all)")
    add_value(sample, "--top-p", 1.0, "P", "draw from the likeliest P of them (all)")
    add_value(sample, "--prefix", Path, "IMAGE", "image to complete, as large as the model's")
    add_value(sample, "--rows", int, "N", "rows of its tokens to keep (half)")
    add_value(sample, "--clip", Path, "FILE", "whole CLIP that ranks the images, best first")
    add_value(sample, "--keep", int, "N", "write only the N best; needs --clip")
    add_arithmetic_options(sample)


@alone
def _run(arguments: argparse.Namespace) -> int:
    from ....encoder.images import best
    from ....web.pictures.sheets import draw_samples
    from ...dalle.full_model import load_dalle
    from ...dalle.sampling import SampleOptions

    options = SampleOptions(arguments.temperature, arguments.top_k, arguments.top_p)
    if arguments.count < 1:
        raise ValueError(f"--count must be at least 1, got {arguments.count}")
    if arguments.keep is not None and (arguments.clip is None or arguments.keep < 1):
        raise ValueError(f"--keep {arguments.keep}: it is at least 1, and needs --clip, which tells the best")
    folder: Path = arguments.out
    if any(folder.glob("*.png")):
        raise ValueError(f"{folder} has .png files already, which are not overwritten; choose another folder")
    model = load_dalle(arguments.model, dtype=dtype_named(arguments.dtype), device=device_of(arguments))
    clip = None if arguments.clip is None else clip_of(arguments, arguments.clip)
    prefix = None if arguments.prefix is None else _prefix(model, arguments.prefix, arguments.rows)
    pieces = " | ".join(model.pieces.symbol(piece) for piece in model.pieces(arguments.caption)) or "none"
    show(f"{quote(arguments.caption)} as pieces: {pieces}")
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    images, is_whole = draw_all(model, arguments.caption, seeds, options, prefix)
    order, scores = list(range(len(images))), None
    if clip is not None and images:
        scores = clip_scores(clip, arguments.caption, images)
        order = best(scores, len(images))[: arguments.keep]
    pictures = [image_of(image) for image in images]
    for rank, index in enumerate(order, 1):
        name = f"seed{seeds[index]}.png" if scores is None else f"{rank:03}-seed{seeds[index]}.png"
        write_picture(pictures[index], folder / name)
        if scores is not None:
            show(f"{rank:>3}  {scores[index]:7.4f}  {folder / name}")
    if order:
        montage = draw_samples([(arguments.caption, [pictures[index] for index in order])])
        montage_path = folder.resolve().with_name(f"{folder.resolve().name}-{MONTAGE_NAME}")
        write_picture(montage, montage_path)
        show(f"montage: {montage_path}")
    score = "" if scores is None else f"; CLIP score {clip_score([scores[index] for index in order]):.2f}"
    show(f"written: {len(order)} images to {folder}{score}")
    if not is_whole:
        raise KeyboardInterrupt
    return 0


def draw_all(
    model: DALLE,
    caption: str,
    seeds: Sequence[int],
    options: SampleOptions,
    prefix: Tensor | None = None,
) -> tuple[list[Tensor], bool]:
    """Draw images, as many at a time as memory allows; Ctrl-C keeps the finished ones."""
    from ...dalle.sampling import images_at_once

    together, images = images_at_once(model.prior), list[Any]()
    total = model.prior.config.num_image_tokens
    progress = Progress()
    for start in range(0, len(seeds), together):
        batch = seeds[start : start + together]

        def on_token(_: int, tokens: Tensor, start: int = start, last: int = start + len(batch)) -> None:
            progress.tell(f"images {start + 1} to {last} of {len(seeds)}: token {tokens.shape[1]} of {total}")

        try:
            tokens = model.tokens(caption, batch, options, prefix=prefix, on_token=on_token)
            images += model.images(tokens).float().cpu().unbind()
        except KeyboardInterrupt:
            progress.clear()
            show(f"interrupted: {len(images)} of {len(seeds)} images are finished", sys.stderr)
            return images, False
    progress.clear()
    return images, True


def clip_scores(clip: FullClip, caption: str, images: Sequence[Tensor]) -> list[float]:
    """Cosine similarity of a caption and each image."""
    import torch

    from ....encoder.images import image_features
    from ....encoder.similarity import similarity

    described = text_features_of(clip, caption, "none")
    features = image_features(clip, torch.stack(list(images)).movedim(1, -1))
    return similarity(described.vector.unsqueeze(0), features)[0].tolist()


def clip_score(scores: Sequence[float]) -> float:
    """CLIP score of images by their cosines with the caption: 100 times their mean, from 0.

    Source: J. Hessel et al., "CLIPScore", 2021, scaled by 100 as in torchmetrics.

    >>> clip_score([0.25, 0.35]), clip_score([-0.1])
    (30.0, 0.0)
    """
    return max(0.0, 100 * sum(scores) / len(scores))


def _prefix(model: DALLE, path: Path, rows: int | None) -> Tensor:
    import numpy as np
    import torch

    from ....encoder.image_file import open_image

    pixels = torch.from_numpy(np.array(open_image(path).convert("RGB"))).permute(2, 0, 1)
    try:
        dtype = model.prior.image_head.weight.dtype
        return model.prefix(pixels.to(dtype) / 255, model.prior.config.rows // 2 if rows is None else rows)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


DALLE_SAMPLE = Command(
    "dalle sample",
    "draw images of a caption",
    _add_arguments,
    _run,
    ('prior/dalle.safetensors "a small red ring at the top" --out images --count 16',),
    description="Draw images of a caption. Each is written as a .png file with its seed in its name, and all of "
    "them into DIR-montage.png, beside the folder.",
    epilog="Ctrl-C stops it at once; finished images are written.",
)
