"""The command ``train``: a CLIP trained further on one's own images and captions."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...training.log import number_of
from .. import Command
from ..console import show
from ..image_options import WHOLE_CLIP, add_activation_option, add_crop_option
from ..processes import alone
from ..prompt_options import add_arguments, add_flag, add_value
from . import driver

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ....encoder.models.clip import FullClip
    from ...training.data.datasets import Data
    from ...training.options import TrainOptions

TEMPLATES = "file of prompt templates, one per line, with {} for the class name (a photo of a {}.)"
_NO_HOST = "ComfyUI, A1111 and Forge refuse such an encoder, only this program reads it"
_PARTS = "layers, embeddings, projection (of the text tower), image, scale, head (of --objective classify)"


def _add_arguments(train: argparse.ArgumentParser) -> None:
    from ...training.options import DECLARED

    add_value(train, "data", str, "DATA", f"{driver.CAPTIONED}; or a table; or several sources joined by ::")
    add_value(train, "--data-factors", str, "X::Y", "how many times an epoch repeats each source (1)")
    driver.add_columns(train)
    first = train.add_mutually_exclusive_group(required=True)
    add_value(first, "--weights", Path, "FILE", f"{WHOLE_CLIP}, to start from")
    add_arguments(first, DECLARED, "new")
    driver.add_out(train)
    add_arguments(train, DECLARED, "towers", "batch", "accumulate", "objective", accumulate=8)
    add_arguments(train.add_mutually_exclusive_group(), DECLARED, "epochs", "steps")
    add_arguments(train, DECLARED, "seed")
    driver.add_device(train)
    add_arguments(train, DECLARED, "rate")
    train.add_argument(
        "--rate-of",
        action="append",
        default=[],
        metavar="PART=X",
        help=f"another learning rate for one part; 0 freezes it; parts: {_PARTS}",
    )
    add_value(train, "--freeze-layers", 0, "N", "freeze the first N text layers")
    add_arguments(train, DECLARED, "warmup", "schedule", "weight_decay", "clip", "ema", "lora", "lora_for", "held_out")
    add_value(
        train, "--val", str, "DATA", "separate pairs to measure by, instead of held-out ones; with --held-out N, both"
    )
    add_value(train, "--zero-shot", Path, "DATA", "also measure zero-shot accuracy on these images, as evaluate does")
    add_value(train, "--templates", Path, "FILE", TEMPLATES)
    add_arguments(train, DECLARED, "val_every", "loss", "unlock_image_layers")
    add_arguments(train, DECLARED, "cooldown", "cooldown_power", "cooldown_end", "beta1", "beta2", "eps")
    add_value(train, "--workers", int, "N", "threads that load images (one per core, at most 8)")
    add_arguments(train, DECLARED, "watch", "keep", "optimizer", "patience", "merge")
    add_crop_option(train)
    add_value(
        train,
        "--random-crop",
        1.0,
        "X",
        "train on random crops with at least this share of an image's area, e.g. 0.9 (the whole)",
    )
    add_flag(train, "--mirror", "mirror a random half of the images (but captions may say left and right)")
    train.add_argument(
        "--color-jitter",
        default="0,0,0,0",
        metavar="B,C,S,H",
        help="maximum random change of brightness, contrast, saturation and hue, e.g. 0.32,0.32,0.32,0.08",
    )
    add_value(train, "--color-jitter-prob", 0.8, "X", "probability of a change of colour (%(default)s)")
    add_value(train, "--gray-prob", 0.0, "X", "probability of turning an image grey (%(default)s)")
    add_arguments(train, DECLARED, "shuffle_tags", "keep_tags", "tag_dropout", "word", "word_vectors", "word_from")
    add_arguments(train, DECLARED, "checkpointing", "new_text", "positions", "context_length", "write_for")
    add_activation_option(train)
    driver.add_several(train)


def _recall_table(measured: driver.Entries) -> str:
    """Table of recall, ranks, losses and shares before, at their best, and after."""
    first, last = measured[0], measured[-1]
    rows = ""
    for name in first:
        if name == "step" or name.startswith("moved: "):
            continue
        is_share = "@" in name or "top-" in name
        values = [entry[name] for entry in measured if name in entry]
        columns = (first[name], (max if is_share else min)(values), last.get(name, values[-1]))
        cells = "".join(f"<td>{value:.1%}" if is_share else f"<td>{value:.4g}" for value in columns)
        rows += f"<tr><td>{escape(name)}{cells}"
    return (
        "<h2>Measured</h2><p>Recall: how often a text finds its own image among all of them, and an image its own "
        "text, as the first or among the first 5 or 10. Rank: the place at which it is found, 1 at best.</p><table>"
        f"<tr><th><th>before<th>best<th>after{rows}</table>"
    )


_CONTRASTIVE_PAGE = driver.ReportPage(
    "Training run",
    {
        "loss.png": driver.Chart("Loss", ("loss", "held-out loss", "val: loss")),
        "recall.png": driver.Chart("Recall of held-out pairs", ("text to image @*", "image to text @*")),
        "rank.png": driver.Chart("Rank in held-out pairs", ("text to image * rank", "image to text * rank")),
        "val-recall.png": driver.Chart("Recall of the pairs of --val", ("val: *@*",)),
        "val-rank.png": driver.Chart("Rank in the pairs of --val", ("val: * rank",)),
        "zero-shot.png": driver.Chart("Zero-shot accuracy", ("zero-shot *",)),
        "moved.png": driver.Chart("How far the rows of prompts have moved", ("moved: *",)),
        "pace.png": driver.Chart("Pairs a second", ("pairs/s",)),
        "waited.png": driver.Chart("Seconds for which a step waited for its data", ("seconds waited",)),
    },
    "*[@-]*",
    _recall_table,
)
_MLM_PAGE = driver.ReportPage(
    "Masked language modelling of captions",
    {
        "right.png": driver.Chart("Share of hidden tokens that are found", ("held-out right", "right")),
        "loss.png": driver.Chart("Loss, nats for one hidden token", ("loss", "held-out loss")),
        "scales.png": driver.SCALES,
    },
    "held-out right",
)
_CLASSIFIER_PAGE = driver.ReportPage(
    "Training of a classifier",
    {
        "accuracy.png": driver.Chart("Share of right classes", ("held-out accuracy", "accuracy")),
        "loss.png": driver.Chart("Loss, nats", ("loss", "held-out loss")),
        "scales.png": driver.SCALES,
    },
    "held-out accuracy",
)


@alone
def _run(arguments: argparse.Namespace) -> int:
    from ...training.options import flags_given
    from ...training.results import TEXT_NAME

    options = _options(arguments)
    excluded = {"--val": arguments.val, "--zero-shot": arguments.zero_shot, "--shard": arguments.shard}
    if options.objective != "contrastive" and (conflicts := flags_given(excluded)):
        raise ValueError(f"--objective {options.objective} does not go with {conflicts}: leave that out")
    if arguments.workers is not None and arguments.workers < 1:
        raise ValueError(f"--workers must be at least 1, got {arguments.workers}")
    if options.objective == "mlm":
        return driver.train(arguments, options, driver.Job(TEXT_NAME, _make_mlm, _MLM_PAGE, _mlm_written))
    if options.objective == "classify":
        from ...training.objectives.classifier import CLASSIFIER_NAME

        return driver.train(arguments, options, driver.Job(CLASSIFIER_NAME, _make_classifier, _CLASSIFIER_PAGE))
    return driver.train(arguments, options, driver.Job(TEXT_NAME, _make_contrastive, _CONTRASTIVE_PAGE, _written))


def _clip(arguments: argparse.Namespace, options: TrainOptions) -> FullClip:
    from ....encoder.files.folders import check_expressible
    from ....encoder.models.clip import load_full_clip
    from ...training.finetuning.new_towers import new_clip, with_text

    if options.new:
        clip = new_clip(options.new, options, arguments.activation)
    else:
        clip = with_text(load_full_clip(arguments.weights, activation=arguments.activation), arguments.weights, options)
    for library in options.write_for:
        check_expressible(library, clip.text.config, clip.vision.config, options.crop)
    return clip


def _make_contrastive(
    arguments: argparse.Namespace, options: TrainOptions, accelerator: Accelerator, say: driver.Say
) -> tuple[Any, list[str]]:
    from ...training.data.datasets import read_data, summary
    from ...training.data.remote import is_remote
    from ...training.objectives.contrastive import ContrastiveRun
    from ...training.objectives.zero_shot import ZeroShot, templates_of
    from ...training.scaling.distributed import declare_missing_operators

    if options.lora:
        declare_missing_operators()  # in the development environment, where peft would import a torchvision for CUDA
    folder, weights = arguments.out, arguments.weights or Path(arguments.new)
    reading = driver.reading_of(arguments, folder / "shards")
    with accelerator.main_process_first() if is_remote(arguments.data) else nullcontext():
        data = read_data(arguments.data, reading)
    val = read_data(arguments.val, replace(reading, factors="")) if arguments.val else None
    zero_shot = ZeroShot(arguments.zero_shot, templates_of(arguments.templates)) if arguments.zero_shot else None
    clip = _clip(arguments, options)
    notes = _notes_on_val(val, data) + (zero_shot.notes if zero_shot else [])
    run = ContrastiveRun(
        clip, weights, data, folder, options, accelerator, say, is_sharded=arguments.shard, val=val, zero_shot=zero_shot
    )
    notes = [_sizes(clip), *summary(run.data.problems), *notes]
    if _is_rotary(run):
        notes.append(f"rotary positions: {_NO_HOST}")
    return run, [*notes, driver.totals(run)]


def _notes_on_val(val: Data | None, data: Data) -> list[str]:
    """Lines about a separate validation set: images left out, and images it shares with the training set."""
    from ...training.data.datasets import summary

    if val is None:
        return []
    if not val.examples:
        raise ValueError(f"--val: no usable pair: {'; '.join(summary(val.problems))}")
    shared = val.examples.common(data.examples)
    overlap = f"{number_of(len(shared), 'images')} of --val, of {len(val.examples):,}, in the training, too: "
    notes = [f"{overlap}{', '.join(shared[:3])}{', ...' if len(shared) > 3 else ''}"] if shared else []
    return [*(f"--val: {line}" for line in summary(val.problems)), *notes]


def _sizes(clip: FullClip) -> str:
    """A model's sizes, and which of them are guessed."""
    text, image = clip.text.config, clip.vision.config
    return (
        f"{clip.name}: text encoder of {text.num_layers} layers, {text.hidden_dim} wide, {text.context_length} "
        f"positions; image encoder of {image.num_layers} layers, {image.hidden_dim} wide, {image.image_size} pixels in "
        f"patches of {image.patch_size}; {clip.origin}"
    )


def _is_rotary(run: Any) -> bool:
    return run.clip.text.config.positions == "rotary"


def _written(run: Any) -> list[str]:
    from ...training.options import file_name
    from ...training.results import LORA_NAME, TEXT_NAME, WHOLE_NAME

    folder, options = run.folder, run.options
    if options.word:
        return [f"{folder / file_name(options.word)}, an embedding, for the host's folder of embeddings"]
    if _is_rotary(run):
        return [f"{folder / TEXT_NAME} and {folder / WHOLE_NAME}, the whole CLIP; {_NO_HOST}"]
    files = [f"{folder / TEXT_NAME} for a host, and {folder / WHOLE_NAME}, the whole CLIP", *_folders(run)]
    if options.lora:
        files.append(f"{folder / LORA_NAME}, which a host adds to the encoder that training began with")
    return files


def _folders(run: Any) -> list[str]:
    return [f"{run.folder / library}/, for {library}" for library in run.options.write_for]


def _make_classifier(
    arguments: argparse.Namespace, options: TrainOptions, accelerator: Accelerator, say: driver.Say
) -> tuple[Any, list[str]]:
    from ...training.data.datasets import read_captions, read_data, summary
    from ...training.objectives.classifier import ClassifierRun, without_examples

    path = arguments.data
    reading = driver.reading_of(arguments, arguments.out / "shards")
    is_image = options.towers == "image"
    data = read_data(path, reading, is_captioned=False) if is_image else read_captions(path, reading)
    clip = _clip(arguments, options)
    run = ClassifierRun(clip, data, arguments.out, options, accelerator, say)
    classes = ", ".join(f"{name} ({count:,})" for name, count in [*run.counts.items()][:20])
    notes = [_sizes(clip), *summary(run.data.problems), *without_examples(Path(path), run.counts)]
    more = ", ..." if len(run.counts) > 20 else ""
    return run, [*notes, f"{len(run.counts):,} classes: {classes}{more}", driver.totals(run)]


def _make_mlm(
    arguments: argparse.Namespace, options: TrainOptions, accelerator: Accelerator, say: driver.Say
) -> tuple[Any, list[str]]:
    from ...training.data.datasets import read_captions, summary
    from ...training.objectives.mlm import MLMRun

    reading = driver.reading_of(arguments, arguments.out / "shards")
    data, clip = read_captions(arguments.data, reading), _clip(arguments, options)
    run = MLMRun(clip, arguments.weights or Path(arguments.new), data, arguments.out, options, accelerator, say)
    return run, [_sizes(clip), *summary(data.problems), f"{driver.totals(run)}; images are not looked at"]


def _mlm_written(run: Any) -> list[str]:
    from ...training.objectives.mlm import HEAD_NAME
    from ...training.results import TEXT_NAME, WHOLE_NAME

    whole = run.folder / WHOLE_NAME
    return [
        f"{run.folder / HEAD_NAME}, by which python run.py fill finds hidden words",
        f"{run.folder / TEXT_NAME} and {whole}, to be trained on by train --weights {whole}: as it is, its text "
        "encoder has learned words, and not yet what they look like",
        *_folders(run),
    ]


def _options(arguments: argparse.Namespace) -> TrainOptions:
    """Options from the arguments."""
    from ...training.data.augmentation import Augmentation
    from ...training.options import CaptionOptions, Rates, TrainOptions

    rates_of = tuple(_rate_of(text) for text in arguments.rate_of)
    return driver.with_arguments(
        TrainOptions(),
        arguments,
        rates=driver.with_arguments(Rates(), arguments, by_part=rates_of, frozen_layers=arguments.freeze_layers),
        captions=driver.with_arguments(CaptionOptions(), arguments),
        augmentation=Augmentation(
            arguments.random_crop,
            arguments.mirror,
            _jitter(arguments.color_jitter),
            arguments.color_jitter_prob,
            arguments.gray_prob,
        ),
        **({"held_out": 0} if arguments.val and arguments.held_out is None else {}),
        watch=tuple(dict.fromkeys(arguments.watch)),
        write_for=tuple(dict.fromkeys(arguments.write_for)),
    )


def _jitter(text: str) -> tuple[float, float, float, float]:
    """The four largest changes of colours."""
    try:
        brightness, contrast, saturation, hue = map(float, text.split(","))
    except ValueError:
        raise ValueError(f"--color-jitter {text}: write four numbers, such as 0.32,0.32,0.32,0.08") from None
    return brightness, contrast, saturation, hue


def _rate_of(text: str) -> tuple[str, float]:
    """A part and its rate."""
    part, _, rate = text.partition("=")
    try:
        return part, float(rate)
    except ValueError:
        raise ValueError(f"--rate-of {text}: write PART=X, such as embeddings=1e-4") from None


def _add_fill_arguments(fill: argparse.ArgumentParser) -> None:
    add_value(fill, "text", str, "TEXT", 'words with [MASK] among them: "a photo of a [MASK] cat"')
    add_value(fill, "--run", Path, "DIR", "folder of train --objective mlm", dest="folder", required=True)
    add_value(fill, "--top", 5, "N", "number of tokens for each (%(default)s)")


def _fill(arguments: argparse.Namespace) -> int:
    from ...training.objectives.mlm import MASK, fill, load_mlm

    if arguments.top < 1:
        raise ValueError(f"--top must be at least 1, got {arguments.top}")
    for number, candidates in enumerate(fill(load_mlm(arguments.folder), arguments.text, arguments.top), 1):
        show(f"{MASK} {number}: " + ", ".join(f"{token} {chance:.1%}" for token, chance in candidates))
    return 0


FILL = Command(
    "fill",
    "fill in masked words with a model from train --objective mlm",
    _add_fill_arguments,
    _fill,
    ('"a photo of a [MASK] cat" --run warm',),
    description="Find the likeliest tokens for each [MASK] of a text, with the text encoder and head written by "
    "train --objective mlm. A token that does not end a word is followed by a hyphen.",
)
TRAIN = Command(
    "train",
    "train a CLIP further on your images and captions",
    _add_arguments,
    _run,
    ("data --weights clip.safetensors --out run",),
    description="Train a CLIP further on images with captions, by CLIP's own contrastive loss, so that its text "
    "encoder understands your words. Writes text_encoder.safetensors, which ComfyUI and Forge load, and "
    "clip.safetensors, the whole CLIP. See docs/training.md.",
    epilog=driver.epilog("train"),
)
