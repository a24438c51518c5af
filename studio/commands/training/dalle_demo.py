"""The command ``dalle demo``: all of DALL·E on coloured shapes, from nothing to a page, on a laptop.

Pictures, discrete VAE, a small CLIP, prior, and images of captions held out of all training, judged by their pixels.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....encoder.image_file import image_of
from ...output.files import write_text
from ...training.log import duration
from .. import Command
from ..console import show
from ..image_options import write_picture
from ..processes import alone
from ..prompt_options import add_value
from .dalle_training import DALLE_SHAPES, DALLE_TRAIN, DALLE_TRAIN_VAE
from .driver import write_page
from .train import TRAIN

if TYPE_CHECKING:
    import numpy as np

    from ....encoder.models.clip import FullClip
    from ...dalle.full_model import DALLE

NUM_IMAGES = 64
"""Number of images per caption."""
ON_CPU = ("--device", "cpu")
SMALL = ("--recipe", "small", *ON_CPU)
CLIP: dict[str, Any] = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 48, "patch_size": 16, "width": 64, "layers": 2},
    "text_cfg": {"width": 64, "heads": 1, "layers": 2},
}
"""Sizes of the CLIP, as open_clip writes them."""
CLIP_OPTIONS = ("--towers", "both", "--batch", "128", "--accumulate", "1", "--rate", "1e-3", "--warmup", "50", *ON_CPU)
BEST_OF = (1, 2, 4, 8, 16, 32, 64)
GAIN_OF = 16
TOP_K = 16
NUM_SHOWN, NUM_CAPTIONS_SHOWN = 8, 12
NUM_RESAMPLED = 10_000
"""Number of bootstrap samples."""
RESULTS_NAME, MONTAGE_NAME, CURVE_NAME, PAGE_NAME = "results.json", "montage.png", "best_of.png", "index.html"


PARTS = (DALLE_SHAPES, DALLE_TRAIN_VAE, TRAIN, DALLE_TRAIN)
"""Commands that the demo runs."""


def _add_arguments(demo: argparse.ArgumentParser) -> None:
    add_value(demo, "out", Path, "DIR", "output folder")
    add_value(demo, "--vae-steps", int, "N", "updates of the discrete VAE (1,800)")
    add_value(demo, "--clip-steps", 1_000, "N", "steps of the CLIP (%(default)s)")
    add_value(demo, "--prior-steps", int, "N", "updates of the prior (3,000)")
    add_value(demo, "--captions", 64, "N", "captions that are judged, up to 64 (%(default)s)")


@alone
def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.captions <= 64:
        raise ValueError(f"--captions must be from 1 to 64, got {arguments.captions}")
    folder: Path = arguments.out
    pictures, vae, clip, prior = (folder / name for name in ("shapes", "vae", "clip", "prior"))
    data, model, sizes = str(pictures / "train"), str(vae / "dvae.safetensors"), folder / "clip.json"
    _write(sizes, CLIP)
    num_steps = {"vae": arguments.vae_steps, "clip": arguments.clip_steps, "prior": arguments.prior_steps}
    steps = {name: [] if count is None else ["--steps", str(count)] for name, count in num_steps.items()}
    parts = (
        ("pictures", pictures / "held_out", ["dalle", "shapes", str(pictures)]),
        (
            "discrete VAE",
            vae / "report.html",
            ["dalle", "train-vae", data, "--out", str(vae), *SMALL, *steps["vae"]],
        ),
        (
            "CLIP",
            clip / "report.html",
            ["train", data, "--new", str(sizes), "--out", str(clip), *CLIP_OPTIONS, *steps["clip"]],
        ),
        (
            "prior",
            prior / "report.html",
            ["dalle", "train", data, "--dvae", model, "--out", str(prior), *SMALL, *steps["prior"]],
        ),
    )
    times = folder / "times.json"
    durations: dict[str, float] = json.loads(times.read_text(encoding="utf-8")) if times.is_file() else {}
    for number, (name, end, command) in enumerate(parts, 1):
        heading = f"[{number}/{len(parts) + 1}] {name}"
        if name in durations and end.exists():
            show(f"{heading}: there already, {duration(durations[name])}", flush=True)
            continue
        show(f"{heading}: python run.py {' '.join(command)}", flush=True)
        began, so_far = time.monotonic(), f"{name}, so far"
        try:
            _command(command)
        finally:
            durations[so_far] = durations.get(so_far, 0.0) + time.monotonic() - began
            _write(times, durations)
        durations[name] = durations.pop(so_far)
        _write(times, durations)
        show(f"{heading}: {duration(durations[name])}", flush=True)
    show(f"[{len(parts) + 1}/{len(parts) + 1}] images of captions that were in no training", flush=True)
    began = time.monotonic()
    _draw(folder, prior / "dalle.safetensors", clip / "clip.safetensors", arguments.captions, durations, began)
    return 0


def _command(command: list[str]) -> None:
    """Run another command, resuming an interrupted run."""
    part = next(part for part in PARTS if command[: len(part.name.split())] == part.name.split())
    assert part.add_arguments is not None
    parser = argparse.ArgumentParser(part.name)
    part.add_arguments(parser)
    parser.set_defaults(run=part.run)
    options = parser.parse_args(command[len(part.name.split()) :])
    if hasattr(options, "resume"):
        options.resume = "latest"
    options.run(options)


def _draw(folder: Path, model: Path, clip: Path, num_captions: int, durations: dict[str, float], began: float) -> None:
    """Draw and judge images of held-out captions, and write results and page."""
    from ....encoder.models.clip import load_full_clip
    from ....web.pictures.curves import draw_curves
    from ....web.pictures.sheets import draw_samples
    from ...dalle.full_model import load_dalle
    from ...world.scenes import split

    shapes = split()[1][:num_captions]
    results, rows, chosen = _judged(load_dalle(model), load_full_clip(clip), shapes)
    durations["images"] = time.monotonic() - began
    _write(folder / "times.json", durations)
    results["seconds"] = {name: round(seconds, 1) for name, seconds in durations.items()}
    _write(folder / RESULTS_NAME, results)
    write_picture(draw_samples(rows, chosen), folder / MONTAGE_NAME)
    best = results["best of"]
    wrong = {name: [(math.log2(n), 1 - best[str(n)][name]) for n in BEST_OF] for name in ("all", "kind", "place")}
    curves = draw_curves("Share that is not right of the best of N by CLIP", wrong, across="log2 N", theme="light")
    write_picture(curves, folder / CURVE_NAME)
    lines = summary_of(results)
    for line in lines:
        show(line)
    parts = [
        f"<p>Images of {len(rows)} captions that were in no training, in the order of their seeds; at the end the best "
        f'of 16 by CLIP.</p><p><img src="{MONTAGE_NAME}" alt="images"></p>',
        f'<p><img src="{CURVE_NAME}" alt="share that is not right of the best of N"></p>',
        '<p><a href="vae/report.html">Training of the discrete VAE</a>, <a href="clip/report.html">of the CLIP</a>, '
        '<a href="prior/report.html">of the prior</a></p>',
    ]
    write_page(folder / PAGE_NAME, "DALL·E on coloured shapes", lines, parts)
    show(f"page: {folder / PAGE_NAME}")


def _judged(
    model: DALLE, clip: FullClip, shapes: Sequence[Any]
) -> tuple[dict[str, Any], list[tuple[str, list[Any]]], list[Any]]:
    """Draw and judge images of captions: results by number of images, rows of the montage, and CLIP's choices."""
    import numpy as np
    import torch

    from ...dalle.sampling import SampleOptions
    from ...world.judge import ShapeJudge
    from .dalle_sample import clip_scores, draw_all

    judge, options = ShapeJudge(), SampleOptions(top_k=TOP_K)
    parts = ("size", "color", "kind", "place")
    right = np.zeros((len(shapes), NUM_IMAGES, len(parts)), bool)
    scores = np.zeros((len(shapes), NUM_IMAGES))
    rows: list[tuple[str, list[Any]]] = []
    chosen: list[Any] = []
    said = time.monotonic()
    for number, shape in enumerate(shapes):
        images, is_whole = draw_all(model, shape.caption, range(NUM_IMAGES), options)
        if not is_whole:
            raise KeyboardInterrupt
        judgements = judge(torch.stack(images))
        right[number] = [
            [getattr(judgement, part) == getattr(shape, part) for part in parts] for judgement in judgements
        ]
        scores[number] = clip_scores(clip, shape.caption, images)
        if number < NUM_CAPTIONS_SHOWN:
            rows.append((shape.caption, [image_of(image) for image in images[:NUM_SHOWN]]))
            chosen.append(image_of(images[int(scores[number, :16].argmax())]))
        if time.monotonic() - said > 10 or number + 1 == len(shapes):
            said = time.monotonic()
            show(f"captions drawn: {number + 1} of {len(shapes)}", flush=True)
    return {**_curve(right, scores, parts), "top_k": TOP_K, "captions": len(shapes)}, rows, chosen


def _curve(right: np.ndarray, scores: np.ndarray, parts: Sequence[str]) -> dict[str, Any]:
    """Shares of correct answers for the best of N, and the gain of the best of 16 over the first of them.

    Each number is a mean over all sets of N images: 64 images are four sets of 16.
    """
    import numpy as np

    from .dalle_sample import clip_score

    def shares(of: np.ndarray) -> dict[str, float]:  # [captions, parts]
        return {
            **{part: float(of[:, index].mean()) for index, part in enumerate(parts)},
            "all": float(of.all(1).mean()),
        }

    captions = np.arange(len(right))[:, None]
    best: dict[int, np.ndarray] = {}
    clip_scores: dict[str, float] = {}
    gains = np.zeros(len(right))
    for n in BEST_OF:  # for each set of n images
        sets = scores.reshape(len(right), -1, n)
        chosen = sets.argmax(2) + np.arange(sets.shape[1]) * n
        best[n] = right[captions, chosen].reshape(-1, len(parts))
        clip_scores[str(n)] = clip_score(sets.max(2).flatten().tolist())
        if n == GAIN_OF:
            of_first = right[:, ::n].all(2)
            gains = (right[captions, chosen].all(2).astype(float) - of_first).mean(1)
    rng = np.random.default_rng(0)
    means = gains[rng.integers(len(gains), size=(NUM_RESAMPLED, len(gains)))].mean(1)
    low, high = (float(value) for value in np.quantile(means, [0.025, 0.975]))
    return {
        "best of": {str(n): shares(of) for n, of in best.items()},
        "CLIP score": clip_scores,
        "gain": {"mean": float(gains.mean()), "low": low, "high": high},
    }


def summary_of(results: dict[str, Any]) -> list[str]:
    """Lines about the results and the time taken."""
    first, best, gain = results["best of"]["1"], results["best of"]["16"], results["gain"]
    scores = results["CLIP score"]

    def said(shares: dict[str, float]) -> str:
        return ", ".join(f"{part} {share:.1%}" for part, share in shares.items())

    seconds = results["seconds"]
    return [
        f"{results['captions']} held-out captions, {NUM_IMAGES} images of each, top-k {results['top_k']}",
        f"one image: {said(first)}; CLIP score {scores['1']:.1f}",
        f"the best of 16 by CLIP: {said(best)}; CLIP score {scores['16']:.1f}",
        f"gain of the best of 16 over the first of them, all four right: {100 * gain['mean']:.1f} points (95 % "
        f"bootstrap interval {100 * gain['low']:.1f} to {100 * gain['high']:.1f})",
        f"time: {', '.join(f'{name} {duration(value)}' for name, value in seconds.items())}; together "
        f"{duration(sum(seconds.values()))}",
    ]


def _write(path: Path, data: dict[str, Any]) -> None:
    write_text(path, json.dumps(data, indent=1))


DALLE_DEMO = Command(
    "dalle demo",
    "all of it on coloured shapes, from nothing to a page with images",
    _add_arguments,
    _run,
    ("demo",),
    description="Draw pictures of coloured shapes, train a discrete VAE, a small CLIP and a prior on them, draw "
    "images of 64 captions that none of them has seen, and judge them. Everything is written into DIR; the page is "
    "DIR/index.html.",
    epilog="Ctrl-C stops it; the same command continues.",
)
