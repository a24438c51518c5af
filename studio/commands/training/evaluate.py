"""The command ``evaluate``: how well a CLIP classifies images without training, and finds images by texts."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import Command
from ..console import json_text, show
from ..image_options import WHOLE_CLIP, add_activation_option, add_crop_option
from ..prompt_options import add_value
from .driver import CAPTIONED, add_columns, reading_of
from .train import TEMPLATES

if TYPE_CHECKING:
    from ...training.objectives.zero_shot import Counts

MAX_CONFUSIONS = 10
"""Most pairs of classes that are shown."""


def _add_arguments(evaluate: argparse.ArgumentParser) -> None:
    add_value(evaluate, "--weights", Path, "FILE", WHOLE_CLIP, required=True)
    add_value(evaluate, "--zero-shot", Path, "DATA", "images to classify: a folder for each class, or shards")
    add_value(evaluate, "--pairs", str, "DATA", f"images to find by their captions: {CAPTIONED}; or a table")
    add_value(evaluate, "--templates", Path, "FILE", TEMPLATES)
    add_value(evaluate, "--class-names", Path, "FILE", "file of class names, one per line, in the order of the folders")
    add_columns(evaluate)
    add_value(evaluate, "--batch", 64, "N", "images at once (%(default)s)")
    add_crop_option(evaluate)
    add_activation_option(evaluate)
    evaluate.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto takes a GPU if there is one")
    add_value(evaluate, "--cache", Path, "DIR", "folder that remote shards are copied to")
    add_value(evaluate, "--out", Path, "FILE", "write all figures as JSON")


def _run(arguments: argparse.Namespace) -> int:
    import torch

    from ....encoder.models.clip import load_full_clip
    from ....encoder.tokenizer import default_tokenizer
    from ...output.files import write_text
    from ...training.data.captions import token_ids
    from ...training.data.datasets import read_data, summary
    from ...training.data.image_inputs import Images
    from ...training.metrics import Measure
    from ...training.objectives.contrastive import loss_of
    from ...training.objectives.zero_shot import ZeroShot, lines_of, templates_of
    from ...training.options import TrainOptions
    from ...training.scaling.grad_cache import Towers

    if not arguments.zero_shot and not arguments.pairs:
        raise ValueError("give --zero-shot DATA, --pairs DATA, or both")
    if arguments.batch < 1:
        raise ValueError(f"--batch must be at least 1, got {arguments.batch}")
    device = torch.device("cuda" if arguments.device == "auto" and torch.cuda.is_available() else "cpu")
    clip = load_full_clip(arguments.weights, device=device, activation=arguments.activation)
    show(f"{clip.name}: {clip.origin}")
    options = TrainOptions(towers="both", crop=arguments.crop, loss="clip" if clip.logit_bias is None else "siglip")
    towers, images = Towers(clip.text, clip.vision, loss_of(clip, options).to(device)), Images(clip, options, None)
    ids_of = partial(token_ids, tokenizer=default_tokenizer(), config=clip.text.config)
    figures: dict[str, Any] = {}
    if arguments.zero_shot:
        names = lines_of(arguments.class_names) if arguments.class_names else None
        zero_shot = ZeroShot(arguments.zero_shot, templates_of(arguments.templates), names)
        for line in zero_shot.notes:
            show(line)
        counts = zero_shot(towers, images, ids_of, arguments.batch)
        _tell(counts)
        figures |= counts.figures() | {"classes": counts.classes, "confusion": counts.confusion.tolist()}
    if arguments.pairs:
        data = read_data(arguments.pairs, reading_of(arguments, arguments.cache))
        for line in summary(data.problems):
            show(line)
        if not data.examples:
            raise ValueError(f"--pairs {arguments.pairs}: there is no usable pair")
        measured = Measure(data.examples, images, ids_of, arguments.batch, {})
        recall = {name.removeprefix("held-out "): value for name, value in measured(towers).items()}
        for name, value in recall.items():
            show(f"{name}: {value:.2%}" if "@" in name else f"{name}: {value:.6g}")
        figures |= {**recall, "pairs": measured.count}
    for line in summary(images.left_out.problems()):
        show(line)
    if arguments.out:
        write_text(arguments.out, json_text(figures))
        show(f"written: {arguments.out}")
    return 0


def _tell(counts: Counts) -> None:
    """Show accuracy, in total and by class, and the most frequent confusions."""
    total, of_class = int(counts.confusion.sum()), counts.confusion.sum(1).tolist()
    shares = ", ".join(f"{name} {share:.2%}" for name, share in counts.figures().items())
    show(f"{shares} of {total:,} images in {len(counts.classes):,} classes")
    for name, right, count in zip(counts.classes, counts.confusion.diagonal().tolist(), of_class, strict=True):
        show(f"  {name}: {right:,} of {count:,}" if count else f"  {name}: no image")
    wrong = counts.confusion.clone().fill_diagonal_(0)
    for number in wrong.flatten().argsort(descending=True, stable=True)[:MAX_CONFUSIONS].tolist():
        row, column = divmod(number, len(counts.classes))
        if count := int(wrong[row, column]):
            show(f"  {count:,} of {counts.classes[row]} taken for {counts.classes[column]}")


EVALUATE = Command(
    "evaluate",
    "measure a CLIP: zero-shot accuracy, and recall of pairs",
    _add_arguments,
    _run,
    (
        "--weights clip.safetensors --zero-shot classes --templates templates.txt",
        "--weights run/clip.safetensors --pairs val.csv --out figures.json",
    ),
    description="Measure a CLIP: zero-shot accuracy, top-1, top-5, by class, and which classes are taken for which; "
    "and recall, ranks and loss of pairs.",
)
