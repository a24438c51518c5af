"""The command ``dalle`` and its parts that train a discrete VAE and a prior, and draw pictures for that."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .console import show
from .dalle_sample import clip_score, clip_scores
from .options import add_value
from .processes import alone, place_of
from .training import (
    CAPTIONED,
    SCALES,
    Chart,
    Job,
    Page,
    Say,
    add_compress,
    add_device,
    add_out,
    add_shard,
    counts,
    epilog,
    in_turn,
    montage,
    with_arguments,
)
from .training import train as train_with

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..encoder.clip import FullClip
    from ..training.dalle_options import DVAEOptions, PriorOptions

NUM_PICTURES = 48
"""Number of held-out pictures in the montage."""


def _add_shapes_arguments(shapes: argparse.ArgumentParser) -> None:
    shapes.add_argument("out", type=Path, metavar="DIR", help="folder for them, empty or not there")


def _add_vae_arguments(train: argparse.ArgumentParser) -> None:
    train.add_argument("data", type=Path, metavar="DATA", help="a folder of images, or of WebDataset .tar shards")
    add_out(train)
    train.add_argument(
        "--recipe",
        choices=["paper", "small"],
        default="paper",
        help="sizes, lengths and rates: the paper's, for 64 GPUs, or small ones for coloured shapes (%(default)s)",
    )
    train.add_argument("--steps", type=int, metavar="N", help="how many updates (paper 3,000,000; small 1,800)")
    train.add_argument("--size", type=int, metavar="N", help="pixels along each side of a picture (256; 48)")
    train.add_argument("--batch", type=int, metavar="N", help="pictures in memory at once (8; 32)")
    train.add_argument("--accumulate", type=int, metavar="N", help="such parts in a batch (64; 1)")
    train.add_argument("--tokens", type=int, metavar="K", help="how many values a token can have (8192; 128)")
    train.add_argument("--width", type=int, metavar="N", help="hidden_dim of the model (256; 64)")
    train.add_argument("--rate", type=float, metavar="X", help="first step size (1e-4; 2e-3)")
    train.add_argument("--kl-weight", type=float, metavar="X", help="last weight of the KL divergence (6.6; 0.2)")
    train.add_argument("--kl-steps", type=int, metavar="N", help="updates until then (5,000; a fifth of the run)")
    train.add_argument("--temperature", type=float, metavar="X", help="last temperature (1/16; 1/8)")
    train.add_argument(
        "--temperature-steps", type=int, metavar="N", help="updates until then (150,000; until 70 %% of the run)"
    )
    train.add_argument("--ema", type=float, metavar="X", help="decay of the average that is written (0.999; none)")
    train.add_argument("--clip", type=float, metavar="X", help="largest norm of the gradients (none; 1)")
    train.add_argument("--held-out", type=int, metavar="N", help="pictures to measure by (a tenth, at most 256)")
    add_value(train, "--seed", 0, "N", "of weights, order and noise (%(default)s)")
    add_device(train)


def _shapes(arguments: argparse.Namespace) -> int:
    from ..world.shapes import write_shapes

    for name, count in write_shapes(arguments.out).items():
        show(f"written: {arguments.out / name}, {count:,} pictures with captions")
    return 0


_VAE_PAGE = Page(
    "Training of a discrete VAE",
    {
        "elb.png": Chart("Negative ELB of held-out pictures", ("relaxed", "hard")),
        "loss.png": Chart("Loss of each step", ("loss",)),
        "kl.png": Chart("KL divergence of a position from uniform, in nats", ("kl",)),
        "perplexity.png": Chart("Tokens in use", ("tokens", "perplexity")),
    },
    "relaxed",
)


@alone
def _train_vae(arguments: argparse.Namespace) -> int:
    from ..training.dvae import NAME

    job = Job(NAME, _make_vae, _VAE_PAGE, draw=_draw_vae, has_scales=False)
    return train_with(arguments, _vae_options(arguments), job)


def _make_vae(
    arguments: argparse.Namespace, options: DVAEOptions, accelerator: Accelerator, say: Say
) -> tuple[Any, list[str]]:
    from ..training.data import read_data, summary
    from ..training.dvae import DVAERun

    run = DVAERun(read_data(arguments.data, is_captioned=False), arguments.out, options, accelerator, say)
    return run, [
        *summary(run.data.problems),
        f"recipe {arguments.recipe}: {options.config}",
        f"pictures of {options.size} pixels; step size {options.step_size}; KL weight {options.kl_weight}; temperature "
        f"{options.temperature}" + (f"; without noise for {options.noiseless:,} updates" if options.noiseless else ""),
        *_unfinished(options),
        f"{counts(run)} of {options.batch} x {options.accumulate}, on {accelerator.device} in {options.precision}",
    ]


def _draw_vae(run: Any, path: Path, _: bool) -> list[str]:
    montage(in_turn(*run.shown(NUM_PICTURES)), path)
    return []


def _unfinished(options: DVAEOptions) -> list[str]:
    """Lines about schedules that the run is too short for."""
    named = {"KL weight": options.kl_weight, "temperature": options.temperature, "step size": options.step_size}
    return [
        f"the {name} will be at {schedule(options.steps):.3g} in the end: its schedule is longer than the run"
        for name, schedule in named.items()
        if schedule(options.steps) != schedule.last
    ]


def _vae_options(arguments: argparse.Namespace) -> DVAEOptions:
    """The recipe, with changes from the arguments."""
    from ..training.dalle_options import DVAE_RECIPES

    if arguments.steps is not None and arguments.steps < 1:
        raise ValueError(f"steps must be at least 1, got {arguments.steps}")
    options = DVAE_RECIPES[arguments.recipe](arguments.steps)

    def changed(part: Any, **values: Any) -> Any:
        return replace(part, **{name: value for name, value in values.items() if value is not None})

    last, steps = arguments.temperature, arguments.temperature_steps
    return with_arguments(
        options,
        arguments,
        config=changed(options.config, vocab_size=arguments.tokens, hidden_dim=arguments.width),
        step_size=changed(options.step_size, first=arguments.rate),
        kl_weight=changed(options.kl_weight, last=arguments.kl_weight, steps=arguments.kl_steps),
        temperature=changed(options.temperature, last=last, steps=steps),
    )


DALLE = Command(
    "dalle",
    "train DALL·E's two halves, and draw with them",
    None,
    None,
    ("demo out", 'sample dalle.safetensors "a small red ring" --out images'),
    description="Train DALL·E's discrete VAE and prior, and draw images of captions. See docs/dalle.md.",
)
DALLE_SHAPES = Command(
    "dalle shapes",
    "draw captioned pictures of coloured shapes, for the small recipe",
    _add_shapes_arguments,
    _shapes,
    ("shapes",),
    description="Draw captioned pictures of coloured shapes, 48 pixels wide: DIR/train, 9,520 of 476 combinations, "
    "and DIR/held_out, 256 of 64 others.",
)
DALLE_TRAIN_VAE = Command(
    "dalle train-vae",
    "train a discrete VAE, by which images become tokens",
    _add_vae_arguments,
    _train_vae,
    ("shapes/train --recipe small --out vae",),
    description="Train a discrete VAE on images; captions are not needed. Writes dvae.safetensors and a page with "
    "curves and pictures.",
    epilog=epilog("dalle train-vae"),
)


NUM_CAPTIONS = 8
"""Number of held-out captions in the montage."""
NUM_SAMPLES = 8
"""Number of images of each caption."""


def _add_prior_arguments(train: argparse.ArgumentParser) -> None:
    train.add_argument("data", type=Path, metavar="DATA", help=CAPTIONED)
    train.add_argument("--dvae", type=Path, required=True, metavar="FILE", help="discrete VAE, from dalle train-vae")
    add_out(train)
    train.add_argument(
        "--recipe",
        choices=["paper", "small"],
        default="paper",
        help="sizes, lengths and rates: the paper's, for 1,024 GPUs, or small ones for coloured shapes (%(default)s)",
    )
    train.add_argument("--steps", type=int, metavar="N", help="how many updates (paper 430,000; small 3,000)")
    train.add_argument("--size", type=int, metavar="N", help="pixels along each side of a picture (256; 48)")
    train.add_argument("--batch", type=int, metavar="N", help="pairs in memory at once (8; 16)")
    train.add_argument("--accumulate", type=int, metavar="N", help="such parts in a batch (128; 1)")
    train.add_argument("--width", type=int, metavar="N", help="hidden_dim of the model (3968; 192)")
    train.add_argument("--heads", type=int, metavar="N", help="attention heads (62; 3)")
    train.add_argument("--layers", type=int, metavar="N", help="layers (64; 4)")
    train.add_argument("--text-length", type=int, metavar="N", help="positions of text (256; 16)")
    train.add_argument(
        "--pieces", type=int, metavar="N", help="most pieces to learn from the captions; 0 for CLIP's (16384; 1024)"
    )
    train.add_argument("--bpe-dropout", type=float, metavar="X", help="merges left out at random (0.1; 0)")
    train.add_argument("--rate", type=float, metavar="X", help="highest step size (4.5e-4; 1.5e-3)")
    train.add_argument("--warmup", type=int, metavar="N", help="updates in which it rises (5,000; 100)")
    train.add_argument("--halvings", type=int, metavar="N", help="how often it is halved; 0 for a cosine (5; 0)")
    train.add_argument("--text-weight", type=float, metavar="X", help="of the loss of the text (1/8)")
    train.add_argument("--ignore-padding", action="store_true", help="leave padding out of the loss of the text")
    train.add_argument("--ema", type=float, metavar="X", help="decay of the average that is written (0.99; none)")
    train.add_argument("--clip", type=float, metavar="X", help="largest norm of the gradients (4; 1)")
    train.add_argument("--checkpointing", action="store_true", help="less memory for a third more time")
    add_shard(train)
    train.add_argument("--held-out", type=int, metavar="N", help="pairs to measure by (a tenth, at most 256)")
    train.add_argument("--score", type=Path, metavar="FILE", help="whole CLIP that scores the images of the page")
    add_value(train, "--seed", 0, "N", "of weights and order (%(default)s)")
    add_device(train)
    add_compress(train)


_PRIOR_PAGE = Page(
    "Training of DALL·E's prior",
    {
        "held_out.png": Chart("Held-out pairs, nats for one token", ("held-out image", "held-out text")),
        "right.png": Chart("Share of held-out image tokens that are the likeliest", ("right",)),
        "loss.png": Chart("Loss of each step, nats for one token", ("image", "text", "loss")),
        "scales.png": SCALES,
    },
    "held-out image",
)


@alone
def _train_prior(arguments: argparse.Namespace) -> int:
    from ..training.prior import NAME

    clip = _scoring_clip(arguments.score)
    job = Job(NAME, _make_prior, _PRIOR_PAGE, draw=lambda run, path, is_broken: _draw_prior(run, path, is_broken, clip))
    return train_with(arguments, _prior_options(arguments), job)


def _scoring_clip(path: Path | None) -> FullClip | None:
    """Load the CLIP for the scores in the process that draws, before anything is trained."""
    from ..encoder.clip import load_full_clip

    return load_full_clip(path) if path and place_of(os.environ).is_first else None


def _make_prior(
    arguments: argparse.Namespace, options: PriorOptions, accelerator: Accelerator, say: Say
) -> tuple[Any, list[str]]:
    from ..dalle.files import load_dvae
    from ..training.data import read_data, summary
    from ..training.prior import PriorRun

    dvae, data = load_dvae(arguments.dvae), read_data(arguments.data)
    run = PriorRun(dvae, data, arguments.out, options, accelerator, say, is_sharded=arguments.shard)
    prior = run.dalle().prior
    return run, [
        *summary(run.data.problems),
        f"recipe {arguments.recipe}: {prior.config}",
        f"{sum(parameter.numel() for parameter in prior.parameters()) / 1e6:,.2f} million parameters; masks of the "
        f"layers: {', '.join(prior.kinds[:8])}{', ...' if len(prior.kinds) > 8 else ''}",
        f"{counts(run)} of {options.batch} x {options.accumulate}, on {accelerator.device} in {options.precision}",
    ]


def _draw_prior(run: Any, path: Path, is_broken: bool, clip: FullClip | None) -> list[str]:
    """Draw images of some held-out captions, one row each; return notes with the captions and their CLIP score."""
    if is_broken:
        return []
    model = run.dalle()
    captions = [example.captions[0] for example in run.held[:NUM_CAPTIONS]]
    drawn = [model.images(model.tokens(caption, range(NUM_SAMPLES))).float().cpu() for caption in captions]
    montage(drawn, path)
    notes = [f"Images of held-out captions, one after the other: {'; '.join(captions)}"]
    if clip is not None:
        pairs = zip(captions, drawn, strict=True)
        scores = [score for caption, images in pairs for score in clip_scores(clip, caption, images.unbind())]
        notes.append(f"CLIP score of these images, by {clip.name}: {clip_score(scores):.2f}")
    return notes


def _prior_options(arguments: argparse.Namespace) -> PriorOptions:
    """The recipe, with changes from the arguments."""
    from ..training.dalle_options import PRIOR_RECIPES

    if arguments.steps is not None and arguments.steps < 1:
        raise ValueError(f"steps must be at least 1, got {arguments.steps}")
    return with_arguments(
        PRIOR_RECIPES[arguments.recipe](arguments.steps),
        arguments,
        hidden_dim=arguments.width,
        num_heads=arguments.heads,
        num_layers=arguments.layers,
        highest_rate=arguments.rate,
        counts_padding=not arguments.ignore_padding,
    )


DALLE_TRAIN = Command(
    "dalle train",
    "train the prior, which writes images as tokens",
    _add_prior_arguments,
    _train_prior,
    ("shapes/train --dvae vae/dvae.safetensors --recipe small --out prior",),
    description="Train DALL·E's prior on images with captions, given a discrete VAE. Writes dalle.safetensors, the "
    "whole model, and a page with curves and pictures.",
    epilog=epilog("dalle train"),
)
