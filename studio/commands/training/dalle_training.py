"""The command ``dalle`` and its parts that train a discrete VAE and a prior, and draw pictures for that."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import Command
from ..console import show
from ..image_options import write_picture
from ..processes import alone, process_of
from ..prompt_options import add_flag, add_value
from . import driver
from .dalle_sample import clip_score, clip_scores

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ....encoder.models.clip import FullClip
    from ...training.objectives.dalle_options import DVAEOptions, PriorOptions

NUM_PICTURES = 48
"""Number of held-out pictures in the montage."""


def _add_shapes_arguments(shapes: argparse.ArgumentParser) -> None:
    add_value(shapes, "out", Path, "DIR", "output folder, new or empty")


class Flag(NamedTuple):
    """An option of both recipes."""

    name: str
    path: str
    """Field that it sets, of the options or of a part of them: ``kl_weight.last``."""
    help: str
    metavar: str = "N"


def _add_recipe(
    train: argparse.ArgumentParser, recipes: Mapping[str, Any], gpus: str, flags: Sequence[Flag], what: str
) -> None:
    """Add the choice of a recipe and its options; their lines of help end with the recipes' values."""
    from ...training.options import MAX_HELD_OUT

    names = list(recipes)
    train.add_argument(
        "--recipe",
        choices=names,
        default=names[0],
        help=f"sizes, lengths and rates: the paper's, for {gpus} GPUs, or small ones for coloured shapes, "
        "as below in brackets (%(default)s)",
    )
    for flag in flags:
        values = [_shown(recipe, flag.path) for recipe in recipes.values()]
        kind = float if flag.metavar == "X" else int
        defaults = "; ".join(dict.fromkeys(values))
        add_value(train, f"--{flag.name}", kind, flag.metavar, f"{flag.help} ({defaults})")
    add_value(train, "--held-out", int, "N", f"{what} to measure by (a tenth, at most {MAX_HELD_OUT})")


def _shown(recipe: Callable[[int | None], Any], path: str) -> str:
    """A recipe's value of a field; as a share if it grows with the run."""
    value_of, usual = attrgetter(path), recipe(None)
    value = value_of(usual)
    if path != "steps" and value and value_of(recipe(10 * usual.steps)) == 10 * value:
        return f"{value / usual.steps:.0%}% of the run"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _recipe_options(
    arguments: argparse.Namespace,
    recipes: Mapping[str, Callable[[int | None], driver.Options]],
    flags: Sequence[Flag],
    **more: Any,
) -> driver.Options:
    """The recipe, with changes from the arguments; ValueError if one is out of range."""
    if arguments.steps is not None and arguments.steps < 1:
        raise ValueError(f"steps must be at least 1, got {arguments.steps}")
    options: Any = recipes[arguments.recipe](arguments.steps)
    changed: dict[str, Any] = dict(more)
    for flag in flags:
        name, _, inner = flag.path.partition(".")
        value = getattr(arguments, flag.name.replace("-", "_"))
        if value is not None:
            part = changed.get(name, getattr(options, name))
            changed[name] = replace(part, **{inner: value}) if inner else value
    return driver.with_arguments(options, arguments, **changed)


_FLAGS = (
    Flag("steps", "steps", "number of updates"),
    Flag("size", "size", "side of a picture in pixels"),
    Flag("batch", "batch", "examples processed at once"),
    Flag("accumulate", "accumulate", "micro-batches in a batch"),
    Flag("ema", "ema", "decay of the moving average that is written", "X"),
    Flag("clip", "clip", "maximum norm of the gradients", "X"),
)
VAE_FLAGS = (
    *_FLAGS,
    Flag("tokens", "config.vocab_size", "number of values of a token", "K"),
    Flag("width", "config.hidden_dim", "width of the model (hidden_dim)"),
    Flag("rate", "step_size.first", "first learning rate", "X"),
    Flag("kl-weight", "kl_weight.last", "final weight of the KL divergence", "X"),
    Flag("kl-steps", "kl_weight.steps", "updates until it is reached"),
    Flag("temperature", "temperature.last", "final temperature", "X"),
    Flag("temperature-steps", "temperature.steps", "updates over which it falls"),
)


def _add_vae_arguments(train: argparse.ArgumentParser) -> None:
    from ...training.objectives.dalle_options import DVAE_RECIPES

    add_value(train, "data", Path, "DATA", "a folder of images, or of WebDataset .tar shards")
    driver.add_out(train)
    _add_recipe(train, DVAE_RECIPES, "64", VAE_FLAGS, "pictures")
    add_value(train, "--seed", 0, "N", "of weights, order and noise (%(default)s)")
    driver.add_device(train)


def _shapes(arguments: argparse.Namespace) -> int:
    from ...world.scenes import write_shapes

    for name, count in write_shapes(arguments.out).items():
        show(f"written: {arguments.out / name}, {count:,} pictures with captions")
    return 0


_VAE_PAGE = driver.ReportPage(
    "Training of a discrete VAE",
    {
        "elb.png": driver.Chart("Negative ELB of held-out pictures", ("relaxed", "hard")),
        "loss.png": driver.Chart("Loss of each step", ("loss",)),
        "kl.png": driver.Chart("KL divergence of a position from uniform, in nats", ("kl",)),
        "perplexity.png": driver.Chart("Tokens in use", ("tokens", "perplexity")),
    },
    "relaxed",
)


def vae_options(arguments: argparse.Namespace) -> DVAEOptions:
    """Options of ``dalle train-vae`` among its arguments."""
    from ...training.objectives.dalle_options import DVAE_RECIPES

    return _recipe_options(arguments, DVAE_RECIPES, VAE_FLAGS)


@alone
def _train_vae(arguments: argparse.Namespace) -> int:
    from ...training.objectives.dvae import NAME

    job = driver.Job(NAME, _make_vae, _VAE_PAGE, draw=_draw_vae, has_scales=False)
    return driver.train(arguments, vae_options(arguments), job)


def _make_vae(
    arguments: argparse.Namespace, options: DVAEOptions, accelerator: Accelerator, say: driver.Say
) -> tuple[Any, list[str]]:
    from ...training.data.datasets import read_data, summary
    from ...training.objectives.dvae import DVAERun

    run = DVAERun(read_data(arguments.data, is_captioned=False), arguments.out, options, accelerator, say)
    return run, [
        *summary(run.data.problems),
        f"recipe {arguments.recipe}: {options.config}",
        f"pictures of {options.size} pixels; step size {options.step_size}; KL weight {options.kl_weight}; temperature "
        f"{options.temperature}" + (f"; without noise for {options.noiseless:,} updates" if options.noiseless else ""),
        *_unfinished(options),
        driver.totals(run, f" of {options.batch} x {options.accumulate}"),
    ]


def _draw_vae(run: Any, path: Path, _: bool) -> list[str]:
    write_picture(driver.in_rows(driver.in_turn(*run.shown(NUM_PICTURES))), path)
    return []


def _unfinished(options: DVAEOptions) -> list[str]:
    """Lines about schedules that the run is too short for."""
    named = {"KL weight": options.kl_weight, "temperature": options.temperature, "step size": options.step_size}
    return [
        f"the {name} will be at {schedule(options.steps):.3g} in the end: its schedule is longer than the run"
        for name, schedule in named.items()
        if schedule(options.steps) != schedule.last
    ]


DALLE = Command(
    "dalle",
    "train DALL·E's two parts, and draw with them",
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
    epilog=driver.epilog("dalle train-vae"),
)


NUM_CAPTIONS = 8
"""Number of held-out captions in the montage."""
NUM_SAMPLES = 8
"""Number of images of each caption."""


PRIOR_FLAGS = (
    *_FLAGS,
    Flag("width", "hidden_dim", "width of the model (hidden_dim)"),
    Flag("heads", "num_heads", "number of attention heads"),
    Flag("layers", "num_layers", "number of layers"),
    Flag("text-length", "text_length", "positions for the text"),
    Flag("pieces", "pieces", "maximum number of pieces learned from the captions; 0 for CLIP's"),
    Flag("bpe-dropout", "bpe_dropout", "share of merges dropped at random", "X"),
    Flag("rate", "highest_rate", "peak learning rate", "X"),
    Flag("warmup", "warmup", "updates over which it rises"),
    Flag("halvings", "halvings", "times that it is halved; 0 for a cosine"),
    Flag("text-weight", "text_weight", "weight of the text's loss", "X"),
)


def _add_prior_arguments(train: argparse.ArgumentParser) -> None:
    from ...training.objectives.dalle_options import PRIOR_RECIPES

    add_value(train, "data", Path, "DATA", driver.CAPTIONED)
    add_value(train, "--dvae", Path, "FILE", "discrete VAE, from dalle train-vae", required=True)
    driver.add_out(train)
    _add_recipe(train, PRIOR_RECIPES, "1,024", PRIOR_FLAGS, "pairs")
    add_flag(train, "--ignore-padding", "leave padding out of the loss of the text")
    add_flag(train, "--checkpointing", "less memory for a third more time")
    add_value(train, "--score", Path, "FILE", "whole CLIP that scores the page's images")
    add_value(train, "--seed", 0, "N", "of weights and order (%(default)s)")
    driver.add_device(train)
    driver.add_several(train)


_PRIOR_PAGE = driver.ReportPage(
    "Training of DALL·E's prior",
    {
        "held_out.png": driver.Chart("Held-out pairs, nats for one token", ("held-out image", "held-out text")),
        "right.png": driver.Chart("Share of held-out image tokens that are the likeliest", ("right",)),
        "loss.png": driver.Chart("Loss of each step, nats for one token", ("image", "text", "loss")),
        "scales.png": driver.SCALES,
    },
    "held-out image",
)


def prior_options(arguments: argparse.Namespace) -> PriorOptions:
    """Options of ``dalle train`` among its arguments."""
    from ...training.objectives.dalle_options import PRIOR_RECIPES

    return _recipe_options(arguments, PRIOR_RECIPES, PRIOR_FLAGS, counts_padding=not arguments.ignore_padding)


@alone
def _train_prior(arguments: argparse.Namespace) -> int:
    from ....encoder.models.clip import load_full_clip
    from ...training.objectives.prior import NAME

    options, score = prior_options(arguments), arguments.score
    # in the process that draws, before anything is trained
    clip = load_full_clip(score) if score and process_of(os.environ).is_first else None
    job = driver.Job(
        NAME, _make_prior, _PRIOR_PAGE, draw=lambda run, path, is_broken: _draw_prior(run, path, is_broken, clip)
    )
    return driver.train(arguments, options, job)


def _make_prior(
    arguments: argparse.Namespace, options: PriorOptions, accelerator: Accelerator, say: driver.Say
) -> tuple[Any, list[str]]:
    from ...dalle.weight_files import load_dvae
    from ...training.data.datasets import read_data, summary
    from ...training.objectives.prior import PriorRun

    dvae, data = load_dvae(arguments.dvae), read_data(arguments.data)
    run = PriorRun(dvae, data, arguments.out, options, accelerator, say, is_sharded=arguments.shard)
    prior = run.dalle().prior
    return run, [
        *summary(run.data.problems),
        f"recipe {arguments.recipe}: {prior.config}",
        f"{sum(parameter.numel() for parameter in prior.parameters()) / 1e6:,.2f} million parameters; masks of the "
        f"layers: {', '.join(prior.kinds[:8])}{', ...' if len(prior.kinds) > 8 else ''}",
        driver.totals(run, f" of {options.batch} x {options.accumulate}"),
    ]


def _draw_prior(run: Any, path: Path, is_broken: bool, clip: FullClip | None) -> list[str]:
    """Draw images of some held-out captions, one row each; return notes with the captions and their CLIP score."""
    if is_broken:
        return []
    model = run.dalle()
    captions = [example.captions[0] for example in run.held[:NUM_CAPTIONS]]
    drawn = [model.images(model.tokens(caption, range(NUM_SAMPLES))).float().cpu() for caption in captions]
    write_picture(driver.in_rows(drawn), path)
    notes = [f"Images of held-out captions, one after the other: {'; '.join(captions)}"]
    if clip is not None:
        pairs = zip(captions, drawn, strict=True)
        scores = [score for caption, images in pairs for score in clip_scores(clip, caption, images.unbind())]
        notes.append(f"CLIP score of these images, by {clip.name}: {clip_score(scores):.2f}")
    return notes


DALLE_TRAIN = Command(
    "dalle train",
    "train the prior, which writes images as tokens",
    _add_prior_arguments,
    _train_prior,
    ("shapes/train --dvae vae/dvae.safetensors --recipe small --out prior",),
    description="Train DALL·E's prior on images with captions, given a discrete VAE. Writes dalle.safetensors, the "
    "whole model, and a page with curves and pictures.",
    epilog=driver.epilog("dalle train"),
)
