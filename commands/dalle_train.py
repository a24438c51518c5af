"""The command ``dalle train``: DALL·E's prior, trained on one's own captioned pictures."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .loading import DTYPES
from .processes import alone
from .stopping import stopping, voice

if TYPE_CHECKING:
    from ..training.prior_options import PriorOptions

NUM_SHOWN = 8
"""Number of held-out captions in the montage."""
NUM_SAMPLES = 8
"""Number of images of each caption."""
TITLE = "Training of DALL·E's prior"


def _add_arguments(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder of images with a .txt beside each, or with metadata.jsonl or .csv; or WebDataset .tar shards",
    )
    train.add_argument("--dvae", type=Path, required=True, metavar="FILE", help="discrete VAE, from dalle train-vae")
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for all that is written")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out, given the same options")
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
    train.add_argument(
        "--shard",
        action="store_true",
        help="divide the model, its gradients and the optimizer's state over the processes: less memory for each",
    )
    train.add_argument("--held-out", type=int, metavar="N", help="pairs to measure by (a tenth, at most 256)")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="of weights and order (%(default)s)")
    train.add_argument("--precision", choices=DTYPES, default=DTYPES[0], help="of the arithmetic (%(default)s)")
    train.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto takes a GPU if there is one")
    train.add_argument(
        "--compress",
        type=int,
        metavar="RANK",
        help="of several processes: send gradients as narrow matrices, by PowerSGD (docs/reference/training.md)",
    )


@alone
def _train(arguments: argparse.Namespace) -> int:
    from ..dalle.files import load_dvae
    from ..training.checkpoint import check_new
    from ..training.data import read_data, summary
    from ..training.log import LOG_NAME
    from ..training.prior import NAME, PriorRun
    from ..training.step import make_accelerator
    from .dalle_report import MONTAGE_NAME, PRIOR_CURVES, write_report

    options = options_of(arguments)
    folder: Path = arguments.out
    if not arguments.resume:
        check_new(folder, (LOG_NAME, NAME))
    accelerator = make_accelerator(options.precision, is_cpu=arguments.device == "cpu", has_scales=True)
    say = voice(accelerator)
    dvae = load_dvae(arguments.dvae)
    data = read_data(arguments.data)
    run = PriorRun(dvae, data, folder, options, accelerator, say, is_sharded=arguments.shard)
    prior = run.dalle().prior
    notes = [
        *summary(run.data.problems),
        f"recipe {arguments.recipe}: {prior.config}",
        f"{sum(parameter.numel() for parameter in prior.parameters()) / 1e6:,.2f} million parameters; masks of the "
        f"layers: {', '.join(prior.kinds[:8])}{', ...' if len(prior.kinds) > 8 else ''}",
        f"{len(run.examples):,} pairs to train on, {len(run.held):,} held out, {options.steps:,} steps of "
        f"{options.batch} x {options.accumulate}, on {accelerator.device} in {options.precision}",
    ]
    for line in notes:
        say(line)
    if arguments.resume:
        run.resume()
    is_broken = False
    try:
        with stopping(run):
            run.train()
    except (ValueError, OSError):
        is_broken = True
        raise
    finally:
        if accelerator.is_main_process and (folder / LOG_NAME).is_file():
            if run.step and not is_broken:
                captions = _draw(run, folder / MONTAGE_NAME)
                notes.append(f"Images of held-out captions, one after the other: {'; '.join(captions)}")
            say(f"report: {write_report(folder, folder / LOG_NAME, TITLE, PRIOR_CURVES, run.about(), notes)}")
    say(f"written: {folder / NAME}")
    return 0


def _draw(run: Any, path: Path) -> list[str]:
    """Draw images of some held-out captions, one row each; return the captions."""
    from .dalle_report import montage

    model = run.dalle()
    captions = [example.captions[0] for example in run.held[:NUM_SHOWN]]
    rows = [model.images(model.tokens(caption, range(NUM_SAMPLES))).float().cpu() for caption in captions]
    montage(rows, path)
    return captions


def options_of(arguments: argparse.Namespace) -> PriorOptions:
    """The recipe, with changes from the arguments.

    Raises:
        ValueError: If a number is out of range.
    """
    from ..training.prior_options import RECIPES

    if arguments.steps is not None and arguments.steps < 1:
        raise ValueError(f"steps must be at least 1, got {arguments.steps}")
    changes = {
        "size": arguments.size,
        "batch": arguments.batch,
        "accumulate": arguments.accumulate,
        "hidden_dim": arguments.width,
        "num_heads": arguments.heads,
        "num_layers": arguments.layers,
        "text_length": arguments.text_length,
        "pieces": arguments.pieces,
        "bpe_dropout": arguments.bpe_dropout,
        "highest_rate": arguments.rate,
        "warmup": arguments.warmup,
        "halvings": arguments.halvings,
        "text_weight": arguments.text_weight,
        "compress": arguments.compress,
        "ema": arguments.ema,
        "clip": arguments.clip,
        "held_out": arguments.held_out,
    }
    return replace(
        RECIPES[arguments.recipe](arguments.steps),
        counts_padding=not arguments.ignore_padding,
        checkpointing=arguments.checkpointing,
        seed=arguments.seed,
        precision=arguments.precision,
        **{name: value for name, value in changes.items() if value is not None},
    )


DALLE_TRAIN = Command(
    "dalle train",
    "train the prior, which writes images as tokens",
    _add_arguments,
    _train,
    ("shapes/train --dvae vae/dvae.safetensors --recipe small --out prior",),
    description="Train DALL·E's prior on images with captions, given a discrete VAE. Writes dalle.safetensors, the "
    "whole model, and a page with curves and pictures.",
    epilog="Ctrl-C ends a run after the step that it is in, with a checkpoint; --resume goes on from there, to the "
    "same bits. Several processes: torchrun --nproc-per-node 2 __main__.py dalle train ...",
)
