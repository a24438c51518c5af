"""The command ``train``: a CLIP trained further on one's own images and captions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import Command
from .loading import DTYPES
from .processes import alone
from .stopping import stopping, voice
from .train_mlm import run_mlm
from .train_report import write_report

if TYPE_CHECKING:
    from ..training.options import TrainOptions

_NO_HOST = "ComfyUI, A1111 and Forge refuse such an encoder, only this program reads it"
_PARTS = "layers, embeddings, projection (of the text tower), image, scale"


def _add_arguments(train: argparse.ArgumentParser) -> None:
    from ..encoder.config import CROPS, POSITIONS

    train.add_argument(
        "data",
        type=Path,
        metavar="DATA",
        help="a folder of images with a .txt beside each, or with metadata.jsonl or .csv; or WebDataset .tar shards",
    )
    train.add_argument(
        "--weights", type=Path, required=True, metavar="FILE", help=".safetensors file of a whole CLIP to begin with"
    )
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for all that is written")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out, given the same options")
    train.add_argument("--towers", choices=["text", "both"], default="text", help="which are trained (%(default)s)")
    train.add_argument("--batch", type=int, default=32, metavar="N", help="pairs in memory at once (%(default)s)")
    train.add_argument(
        "--accumulate",
        type=int,
        default=8,
        metavar="N",
        help="such parts in a batch; the pairs of all of them are told from each other (%(default)s)",
    )
    train.add_argument(
        "--objective",
        choices=["contrastive", "mlm"],
        default="contrastive",
        help="mlm: find hidden words of captions, without images, as a warm-up of the text encoder (%(default)s)",
    )
    length = train.add_mutually_exclusive_group()
    length.add_argument("--epochs", type=int, default=10, metavar="N", help="how often each image comes (%(default)s)")
    length.add_argument("--steps", type=int, metavar="N", help="how many batches, in place of --epochs")
    train.add_argument("--seed", type=int, default=0, metavar="N", help="of order, captions and tags (%(default)s)")
    train.add_argument("--precision", choices=DTYPES, default=DTYPES[0], help="of the arithmetic (%(default)s)")
    train.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto takes a GPU if there is one")
    train.add_argument("--rate", type=float, default=1e-5, metavar="X", help="highest learning rate (%(default)s)")
    train.add_argument(
        "--rate-of",
        action="append",
        default=[],
        metavar="PART=X",
        help=f"another rate for a part, 0 freezes it; parts: {_PARTS}",
    )
    train.add_argument("--freeze-layers", type=int, default=0, metavar="N", help="freeze the first N text layers")
    train.add_argument("--warmup", type=int, default=0, metavar="N", help="steps in which the rate rises (%(default)s)")
    train.add_argument("--weight-decay", type=float, default=0.1, metavar="X", help="of matrices (%(default)s)")
    train.add_argument(
        "--ema", type=float, default=0.0, metavar="X", help="write a moving average of the weights, e.g. 0.999 (none)"
    )
    train.add_argument(
        "--lora", type=int, default=0, metavar="RANK", help="train a LoRA, and write lora.safetensors too"
    )
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
    train.add_argument(
        "--keep",
        type=float,
        default=0.0,
        metavar="W",
        help="hold general prompts near their old token states, with this weight in the loss, against forgetting (0)",
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
    train.add_argument(
        "--merge",
        type=float,
        default=1.0,
        metavar="X",
        help="write the weights from before and so much of their change (%(default)s); others by --resume afterwards",
    )
    train.add_argument("--word", metavar="WORD", help="train one new embedding alone, for this word in the captions")
    train.add_argument("--word-vectors", type=int, default=1, metavar="N", help="vectors that it has (%(default)s)")
    train.add_argument(
        "--word-from", default="*", metavar="TEXT", help="text whose tokens it begins with (%(default)s)"
    )
    train.add_argument("--crop", choices=CROPS, default=CROPS[0], help="how an image becomes square (%(default)s)")
    train.add_argument(
        "--random-crop",
        type=float,
        default=1.0,
        metavar="X",
        help="train on random parts of images, of at least this share of their area, e.g. 0.9 (the whole)",
    )
    train.add_argument(
        "--mirror", action="store_true", help="mirror half of the images, at random (captions may say left and right)"
    )
    train.add_argument("--shuffle-tags", action="store_true", help="mix what stands between a caption's commas")
    train.add_argument("--keep-tags", type=int, default=0, metavar="N", help="leave the first N tags as they are")
    train.add_argument(
        "--tag-dropout", type=float, default=0.0, metavar="X", help="leave out each other tag with this probability"
    )
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
    train.add_argument(
        "--shard",
        action="store_true",
        help="divide the model, its gradients and the optimizer's state over the processes: less memory for each",
    )
    train.add_argument(
        "--activation",
        choices=["quick_gelu", "gelu"],
        help="of the model (by config.json beside it, or as OpenAI's B and L and OpenCLIP's H and bigG were released)",
    )
    train.add_argument(
        "--compress",
        type=int,
        default=0,
        metavar="RANK",
        help="of several processes: send gradients as narrow matrices, by PowerSGD (docs/reference/training.md)",
    )


@alone
def _run(arguments: argparse.Namespace) -> int:
    from ..encoder.full_clip import load_full_clip
    from ..parity.torchvision_operators import declare_missing_operators
    from ..training.checkpoint import check_new
    from ..training.data import read_data, summary
    from ..training.log import LOG_NAME
    from ..training.new_text import with_text
    from ..training.results import LORA_NAME, TEXT_NAME, WHOLE_NAME
    from ..training.run import Run
    from ..training.step import make_accelerator
    from ..training.word import file_name

    options = _options(arguments)
    if options.objective == "mlm":
        return run_mlm(arguments, options)
    folder: Path = arguments.out
    if not arguments.resume:
        check_new(folder, (LOG_NAME, TEXT_NAME))
    accelerator = make_accelerator(options.precision, is_cpu=arguments.device == "cpu", has_scales=True)
    say = voice(accelerator)
    if options.lora:
        declare_missing_operators()  # in the development environment, where peft would import a torchvision for CUDA
    data = read_data(arguments.data)
    clip = with_text(load_full_clip(arguments.weights, activation=arguments.activation), arguments.weights, options)
    run = Run(clip, arguments.weights, data, folder, options, accelerator, say, is_sharded=arguments.shard)
    notes = [f"{clip.name}: {clip.origin}", *summary(run.data.problems)]
    is_rotary = clip.text.config.positions == "rotary"
    if is_rotary:
        notes.append(f"rotary positions: {_NO_HOST}")
    for line in notes:
        say(line)
    notes.append(
        f"{len(run.examples):,} pairs to train on, {len(run.held):,} held out, {run.num_steps:,} steps, "
        f"on {accelerator.device} in {options.precision}"
    )
    say(notes[-1])
    if arguments.resume:
        run.resume()
    try:
        with stopping(run):
            run.train()
    finally:
        if accelerator.is_main_process and (folder / LOG_NAME).is_file():
            say(f"report: {write_report(folder, folder / LOG_NAME, run.about(), notes)}")
    if options.word:
        say(f"written: {folder / file_name(options.word)}, an embedding, for the host's folder of embeddings")
        return 0
    if is_rotary:
        say(f"written: {folder / TEXT_NAME} and {folder / WHOLE_NAME}, the whole CLIP; {_NO_HOST}")
        return 0
    say(f"written: {folder / TEXT_NAME} for a host, and {folder / WHOLE_NAME}, the whole CLIP")
    if options.lora:
        say(f"written: {folder / LORA_NAME}, which a host adds to the encoder that training began with")
    return 0


def _options(arguments: argparse.Namespace) -> TrainOptions:
    """Options from the arguments.

    Raises:
        ValueError: If a number is out of range.
    """
    from ..training.augmentation import Augmentation
    from ..training.captions import CaptionOptions
    from ..training.optimizer import Rates
    from ..training.options import TrainOptions

    return TrainOptions(
        towers=arguments.towers,
        batch=arguments.batch,
        accumulate=arguments.accumulate,
        steps=arguments.steps,
        epochs=arguments.epochs,
        seed=arguments.seed,
        precision=arguments.precision,
        rates=Rates(
            arguments.rate,
            tuple(_rate_of(given) for given in arguments.rate_of),
            arguments.freeze_layers,
            arguments.weight_decay,
            arguments.warmup,
        ),
        captions=CaptionOptions(arguments.shuffle_tags, arguments.keep_tags, arguments.tag_dropout),
        crop=arguments.crop,
        augmentation=Augmentation(arguments.random_crop, arguments.mirror),
        held_out=arguments.held_out,
        ema=arguments.ema,
        watch=tuple(dict.fromkeys(arguments.watch)),
        lora=arguments.lora,
        lora_for=arguments.lora_for,
        keep=arguments.keep,
        merge=arguments.merge,
        optimizer=arguments.optimizer,
        patience=arguments.patience,
        word=arguments.word,
        word_vectors=arguments.word_vectors,
        word_from=arguments.word_from,
        checkpointing=arguments.checkpointing,
        compress=arguments.compress,
        new_text=arguments.new_text,
        positions=arguments.positions,
        context_length=arguments.context_length,
        objective=arguments.objective,
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
    epilog="Ctrl-C ends a run after the step that it is in, with a checkpoint; --resume goes on from there, to the "
    "same bits. Several processes: torchrun --nproc-per-node 2 __main__.py train ...",
)
