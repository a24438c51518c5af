"""``train --objective mlm``: a text encoder warmed up on captions alone, by masked language modelling."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .dalle_report import Curves, write_report
from .stopping import stopping, voice

if TYPE_CHECKING:
    from ..training.options import TrainOptions

TITLE = "Masked language modelling of captions"
CURVES: Curves = {
    "right.png": ("Share of hidden tokens that are found", ("held-out right", "right")),
    "loss.png": ("Loss, nats for one hidden token", ("loss", "held-out loss")),
    "scales.png": ("Gradient scales of the resblocks, base-2 logarithm", ("lowest scale", "highest scale")),
}


def run_mlm(arguments: argparse.Namespace, options: TrainOptions) -> int:
    """Train as requested by the arguments of ``train``.

    Args:
        arguments: Arguments of the command.
        options: The same arguments, validated.

    Returns:
        The exit status, 0.

    Raises:
        ValueError: If the data or the weights cannot be used.
        OSError: If a file cannot be written.
    """
    from ..encoder.full_clip import load_full_clip
    from ..training.checkpoint import check_new
    from ..training.data import read_captions, summary
    from ..training.log import LOG_NAME
    from ..training.mlm import MLMRun
    from ..training.new_text import with_text
    from ..training.results import TEXT_NAME, WHOLE_NAME
    from ..training.step import make_accelerator

    if arguments.shard:
        raise ValueError("--shard does not go with --objective mlm: leave it out")
    folder: Path = arguments.out
    if not arguments.resume:
        check_new(folder, (LOG_NAME, TEXT_NAME))
    accelerator = make_accelerator(options.precision, is_cpu=arguments.device == "cpu", has_scales=True)
    say = voice(accelerator)
    data = read_captions(arguments.data)
    clip = with_text(load_full_clip(arguments.weights, activation=arguments.activation), arguments.weights, options)
    run = MLMRun(clip, arguments.weights, data, folder, options, accelerator, say)
    notes = [
        f"{clip.name}: {clip.origin}",
        *summary(data.problems),
        f"{len(run.examples):,} captions to train on, {len(run.held):,} held out, {run.num_steps:,} steps, on "
        f"{accelerator.device} in {options.precision}; images are not looked at",
    ]
    for line in notes:
        say(line)
    if arguments.resume:
        run.resume()
    try:
        with stopping(run):
            run.train()
    finally:
        if accelerator.is_main_process and (folder / LOG_NAME).is_file():
            say(f"report: {write_report(folder, folder / LOG_NAME, TITLE, CURVES, run.about(), notes)}")
    say(
        f"written: {folder / TEXT_NAME} and {folder / WHOLE_NAME}, to be trained on by train --weights "
        f"{folder / WHOLE_NAME}: as it is, its text encoder has learned words, and not yet what they look like"
    )
    return 0
