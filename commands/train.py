"""The command ``train``: a CLIP trained further on one's own images and captions."""

from __future__ import annotations

import argparse
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .images import add_activation_option, add_crop_option
from .options import add_value
from .processes import alone
from .training import (
    CAPTIONED,
    SCALES,
    Chart,
    Entries,
    Job,
    Page,
    Say,
    add_compress,
    add_device,
    add_out,
    add_shard,
    counts,
    epilog,
    with_arguments,
)
from .training import train as train_with

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ..encoder.clip import FullClip
    from ..training.options import TrainOptions

_NO_HOST = "ComfyUI, A1111 and Forge refuse such an encoder, only this program reads it"
_PARTS = "layers, embeddings, projection (of the text tower), image, scale"


def _add_arguments(train: argparse.ArgumentParser) -> None:
    from ..encoder.config import POSITIONS

    train.add_argument("data", type=Path, metavar="DATA", help=CAPTIONED)
    train.add_argument(
        "--weights", type=Path, required=True, metavar="FILE", help=".safetensors file of a whole CLIP to begin with"
    )
    add_out(train)
    train.add_argument("--towers", choices=["text", "both"], default="text", help="which are trained (%(default)s)")
    add_value(train, "--batch", 32, "N", "pairs in memory at once (%(default)s)")
    add_value(
        train,
        "--accumulate",
        8,
        "N",
        "such parts in a batch; the pairs of all of them are told from each other (%(default)s)",
    )
    train.add_argument(
        "--objective",
        choices=["contrastive", "mlm"],
        default="contrastive",
        help="mlm: find hidden words of captions, without images, as a warm-up of the text encoder (%(default)s)",
    )
    length = train.add_mutually_exclusive_group()
    add_value(length, "--epochs", 10, "N", "how often each image comes (%(default)s)")
    length.add_argument("--steps", type=int, metavar="N", help="how many batches, in place of --epochs")
    add_value(train, "--seed", 0, "N", "of order, captions and tags (%(default)s)")
    add_device(train)
    add_value(train, "--rate", 1e-5, "X", "highest learning rate (%(default)s)")
    train.add_argument(
        "--rate-of",
        action="append",
        default=[],
        metavar="PART=X",
        help=f"another rate for a part, 0 freezes it; parts: {_PARTS}",
    )
    add_value(train, "--freeze-layers", 0, "N", "freeze the first N text layers")
    add_value(train, "--warmup", 0, "N", "steps in which the rate rises (%(default)s)")
    add_value(train, "--weight-decay", 0.1, "X", "of matrices (%(default)s)")
    add_value(train, "--ema", 0.0, "X", "write a moving average of the weights, e.g. 0.999 (none)")
    add_value(train, "--lora", 0, "RANK", "train a LoRA, and write lora.safetensors too")
    train.add_argument(
        "--lora-for",
        choices=["sd1", "sd2", "sdxl_l", "sdxl_g", "refiner"],
        help="which model's text encoder it is for, as its keys say (by width: sd1, sd2 or sdxl_g)",
    )
    train.add_argument("--held-out", type=int, metavar="N", help="pairs to measure recall by (a tenth, at most 256)")
    train.add_argument(
        "--watch",
        action="append",
        default=[],
        metavar="PROMPT",
        help="measure how far the rows of this prompt move; may be given several times",
    )
    add_value(
        train,
        "--keep",
        0.0,
        "W",
        "hold general prompts near their old token states, with this weight in the loss, against forgetting (0)",
    )
    train.add_argument(
        "--optimizer", choices=["adamw", "adafactor", "adamw8bit"], default="adamw", help="(%(default)s)"
    )
    train.add_argument(
        "--patience",
        type=int,
        metavar="N",
        help="end after N measurements of recall without a better one, and write the best weights",
    )
    add_value(
        train,
        "--merge",
        1.0,
        "X",
        "write the weights from before and so much of their change (%(default)s); others by --resume afterwards",
    )
    train.add_argument("--word", metavar="WORD", help="train one new embedding alone, for this word in the captions")
    add_value(train, "--word-vectors", 1, "N", "vectors that it has (%(default)s)")
    train.add_argument(
        "--word-from", default="*", metavar="TEXT", help="text whose tokens it begins with (%(default)s)"
    )
    add_crop_option(train)
    add_value(
        train,
        "--random-crop",
        1.0,
        "X",
        "train on random parts of images, of at least this share of their area, e.g. 0.9 (the whole)",
    )
    train.add_argument(
        "--mirror", action="store_true", help="mirror half of the images, at random (captions may say left and right)"
    )
    train.add_argument("--shuffle-tags", action="store_true", help="mix what stands between a caption's commas")
    add_value(train, "--keep-tags", 0, "N", "leave the first N tags as they are")
    add_value(train, "--tag-dropout", 0.0, "X", "leave out each other tag with this probability")
    train.add_argument(
        "--checkpointing", action="store_true", help="less memory for a third more time, and the same numbers"
    )
    train.add_argument(
        "--new-text",
        action="store_true",
        help="begin with a text encoder of random weights, of the size of the old one",
    )
    train.add_argument(
        "--positions",
        choices=POSITIONS,
        help="of a new text encoder (learned); rotary ones read captions longer than those in training, and hosts "
        "cannot load them",
    )
    train.add_argument(
        "--context-length", type=int, metavar="N", help="positions of a new text encoder, with start and end (77)"
    )
    add_shard(train)
    add_activation_option(train)
    add_compress(train)


def _recall_table(measured: Entries) -> str:
    """Table of recall before, at its best, and after."""
    first, last = measured[0], measured[-1]
    rows = "".join(
        f"<tr><td>{escape(name)}<td>{first[name]:.1%}<td>{max(entry[name] for entry in measured):.1%}"
        f"<td>{last[name]:.1%}"
        for name in first
        if "@" in name
    )
    return (
        "<h2>Recall of held-out pairs</h2><p>How often a text finds its own image among all held-out ones, and an "
        "image its own text, as the first or among the first 5 or 10.</p><table><tr><th><th>before<th>best<th>"
        f"after{rows}</table>"
    )


_CONTRASTIVE_PAGE = Page(
    "Training run",
    {
        "loss.png": Chart("Loss of each step", ("loss",)),
        "recall.png": Chart("Recall of held-out pairs", ("*@*",), top=1.0),
        "moved.png": Chart("How far the rows of prompts have moved", ("moved: *",)),
    },
    "*@*",
    _recall_table,
)
_MLM_PAGE = Page(
    "Masked language modelling of captions",
    {
        "right.png": Chart("Share of hidden tokens that are found", ("held-out right", "right")),
        "loss.png": Chart("Loss, nats for one hidden token", ("loss", "held-out loss")),
        "scales.png": SCALES,
    },
    "held-out right",
)


@alone
def _run(arguments: argparse.Namespace) -> int:
    from ..training.results import TEXT_NAME

    options = _options(arguments)
    if options.objective == "mlm":
        return train_with(arguments, options, Job(TEXT_NAME, _make_mlm, _MLM_PAGE, _mlm_written))
    return train_with(arguments, options, Job(TEXT_NAME, _make_contrastive, _CONTRASTIVE_PAGE, _written))


def _clip(arguments: argparse.Namespace, options: TrainOptions) -> FullClip:
    from ..encoder.clip import load_full_clip
    from ..training.new_text import with_text

    return with_text(load_full_clip(arguments.weights, activation=arguments.activation), arguments.weights, options)


def _make_contrastive(
    arguments: argparse.Namespace, options: TrainOptions, accelerator: Accelerator, say: Say
) -> tuple[Any, list[str]]:
    from ..training.contrastive import Run
    from ..training.data import read_data, summary
    from ..training.distributed import declare_missing_operators

    if options.lora:
        declare_missing_operators()  # in the development environment, where peft would import a torchvision for CUDA
    data, clip = read_data(arguments.data), _clip(arguments, options)
    folder, weights = arguments.out, arguments.weights
    run = Run(clip, weights, data, folder, options, accelerator, say, is_sharded=arguments.shard)
    notes = [f"{clip.name}: {clip.origin}", *summary(run.data.problems)]
    if _is_rotary(run):
        notes.append(f"rotary positions: {_NO_HOST}")
    return run, [*notes, f"{counts(run)}, on {accelerator.device} in {options.precision}"]


def _is_rotary(run: Any) -> bool:
    return run.clip.text.config.positions == "rotary"


def _written(run: Any) -> list[str]:
    from ..training.results import LORA_NAME, TEXT_NAME, WHOLE_NAME
    from ..training.textual_inversion import file_name

    folder, options = run.folder, run.options
    if options.word:
        return [f"{folder / file_name(options.word)}, an embedding, for the host's folder of embeddings"]
    if _is_rotary(run):
        return [f"{folder / TEXT_NAME} and {folder / WHOLE_NAME}, the whole CLIP; {_NO_HOST}"]
    files = [f"{folder / TEXT_NAME} for a host, and {folder / WHOLE_NAME}, the whole CLIP"]
    if options.lora:
        files.append(f"{folder / LORA_NAME}, which a host adds to the encoder that training began with")
    return files


def _make_mlm(
    arguments: argparse.Namespace, options: TrainOptions, accelerator: Accelerator, say: Say
) -> tuple[Any, list[str]]:
    from ..training.data import read_captions, summary
    from ..training.mlm import MLMRun

    if arguments.shard:
        raise ValueError("--shard does not go with --objective mlm: leave it out")
    data, clip = read_captions(arguments.data), _clip(arguments, options)
    run = MLMRun(clip, arguments.weights, data, arguments.out, options, accelerator, say)
    notes = [f"{clip.name}: {clip.origin}", *summary(data.problems)]
    done = f"{counts(run)}, on {accelerator.device} in {options.precision}; images are not looked at"
    return run, [*notes, done]


def _mlm_written(run: Any) -> list[str]:
    from ..training.results import TEXT_NAME, WHOLE_NAME

    whole = run.folder / WHOLE_NAME
    return [
        f"{run.folder / TEXT_NAME} and {whole}, to be trained on by train --weights {whole}: as it is, its text "
        "encoder has learned words, and not yet what they look like"
    ]


def _options(arguments: argparse.Namespace) -> TrainOptions:
    """Options from the arguments."""
    from ..training.augmentation import Augmentation
    from ..training.captions import CaptionOptions
    from ..training.optimizer import Rates
    from ..training.options import TrainOptions

    rates_of = tuple(_rate_of(given) for given in arguments.rate_of)
    return with_arguments(
        TrainOptions(),
        arguments,
        rates=with_arguments(Rates(), arguments, by_part=rates_of, frozen_layers=arguments.freeze_layers),
        captions=with_arguments(CaptionOptions(), arguments),
        augmentation=Augmentation(arguments.random_crop, arguments.mirror),
        watch=tuple(dict.fromkeys(arguments.watch)),
    )


def _rate_of(given: str) -> tuple[str, float]:
    """A part and its rate."""
    part, _, rate = given.partition("=")
    try:
        return part, float(rate)
    except ValueError:
        raise ValueError(f"--rate-of {given}: write PART=X, such as embeddings=1e-4") from None


TRAIN = Command(
    "train",
    "train a CLIP further on your images and captions",
    _add_arguments,
    _run,
    ("data --weights clip.safetensors --out run",),
    description="Train a CLIP further on images with captions, by CLIP's own contrastive loss, so that its text "
    "encoder understands your words. Writes text_encoder.safetensors, which ComfyUI and Forge load, and "
    "clip.safetensors, the whole CLIP. See docs/training.md.",
    epilog=epilog("train"),
)
