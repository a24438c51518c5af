"""The command ``dalle`` and its parts: sample pictures, and a discrete VAE trained on one's own."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .console import show
from .processes import alone
from .report import Chart, Page, in_turn, montage
from .training import Job, Say, add_device, add_out, counts, epilog, with_arguments
from .training import train as train_with

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..training.dvae_options import DVAEOptions

NUM_SHOWN = 48
"""Number of held-out pictures in the montage."""


def _add_shapes_arguments(shapes: argparse.ArgumentParser) -> None:
    shapes.add_argument("out", type=Path, metavar="DIR", help="folder for them, empty or not there")


def _add_train_arguments(train: argparse.ArgumentParser) -> None:
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
    train.add_argument("--seed", type=int, default=0, metavar="N", help="of weights, order and noise (%(default)s)")
    add_device(train)


def _shapes(arguments: argparse.Namespace) -> int:
    from ..dalle.shapes import write_shapes

    for name, count in write_shapes(arguments.out).items():
        show(f"written: {arguments.out / name}, {count:,} pictures with captions")
    return 0


_PAGE = Page(
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
def _train(arguments: argparse.Namespace) -> int:
    from ..training.dvae import NAME

    job = Job(NAME, _make, _PAGE, draw=_draw, has_scales=False)
    return train_with(arguments, options_of(arguments), job)


def _make(
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


def _draw(run: Any, path: Path, _: bool) -> list[str]:
    montage(in_turn(*run.shown(NUM_SHOWN)), path)
    return []


def _unfinished(options: DVAEOptions) -> list[str]:
    """Lines about schedules that the run is too short for."""
    named = {"KL weight": options.kl_weight, "temperature": options.temperature, "step size": options.step_size}
    return [
        f"the {name} will be at {schedule(options.steps):.3g} in the end: its schedule is longer than the run"
        for name, schedule in named.items()
        if schedule(options.steps) != schedule.last
    ]


def options_of(arguments: argparse.Namespace) -> DVAEOptions:
    """The recipe, with changes from the arguments."""
    from ..training.dvae_options import RECIPES

    if arguments.steps is not None and arguments.steps < 1:
        raise ValueError(f"steps must be at least 1, got {arguments.steps}")
    options = RECIPES[arguments.recipe](arguments.steps)

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
    _add_train_arguments,
    _train,
    ("shapes/train --recipe small --out vae",),
    description="Train a discrete VAE on images; captions are not needed. Writes dvae.safetensors and a page with "
    "curves and pictures.",
    epilog=epilog("dalle train-vae"),
)
