"""The command ``dalle train``: DALL·E's prior, trained on one's own captioned pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .processes import alone
from .report import SCALES, Chart, Page, montage
from .training import CAPTIONED, Job, Say, add_compress, add_device, add_out, add_shard, counts, epilog, with_arguments
from .training import train as train_with

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..training.prior_options import PriorOptions

NUM_SHOWN = 8
"""Number of held-out captions in the montage."""
NUM_SAMPLES = 8
"""Number of images of each caption."""


def _add_arguments(train: argparse.ArgumentParser) -> None:
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
    train.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and order (%(default)s)")
    add_device(train)
    add_compress(train)


_PAGE = Page(
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
def _run(arguments: argparse.Namespace) -> int:
    from ..training.prior import NAME

    return train_with(arguments, options_of(arguments), Job(NAME, _make, _PAGE, draw=_draw))


def _make(
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


def _draw(run: Any, path: Path, is_broken: bool) -> list[str]:
    """Draw images of some held-out captions, one row each; return a note with the captions."""
    if is_broken:
        return []
    model = run.dalle()
    captions = [example.captions[0] for example in run.held[:NUM_SHOWN]]
    montage([model.images(model.tokens(caption, range(NUM_SAMPLES))).float().cpu() for caption in captions], path)
    return [f"Images of held-out captions, one after the other: {'; '.join(captions)}"]


def options_of(arguments: argparse.Namespace) -> PriorOptions:
    """The recipe, with changes from the arguments."""
    from ..training.prior_options import RECIPES

    if arguments.steps is not None and arguments.steps < 1:
        raise ValueError(f"steps must be at least 1, got {arguments.steps}")
    return with_arguments(
        RECIPES[arguments.recipe](arguments.steps),
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
    _add_arguments,
    _run,
    ("shapes/train --dvae vae/dvae.safetensors --recipe small --out prior",),
    description="Train DALL·E's prior on images with captions, given a discrete VAE. Writes dalle.safetensors, the "
    "whole model, and a page with curves and pictures.",
    epilog=epilog("dalle train"),
)
