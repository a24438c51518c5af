"""The commands ``world``: small models that draw coloured things, trained, and pictures drawn with them."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....encoder.option import options_in
from .. import Command
from ..console import Progress, show
from ..image_options import write_picture
from ..processes import alone
from ..prompt_options import add_arguments, add_value, options_of
from .driver import Chart, Job, ReportPage, Say, add_device, add_saving, epilog, in_rows, with_arguments
from .driver import train as train_with

if TYPE_CHECKING:
    from accelerate import Accelerator

    from ...training.options import WorldOptions
    from ...world.model import World
    from ...world.painter import Painter

MAX_COUNT = 4096
"""Pictures of one run at most: they are held in memory, 12 kB each."""
MAX_SCENES = 100_000
"""Pictures of ``world scenes`` at most: their names have five digits."""
ACROSS, ENLARGED = 8, 4
"""Pictures in a row, and pixels of the file for one of theirs, along each side."""
CLIP_OPTIONS = ("scheme", "padding", "law", "mask_method")
"""Options of prompts that only CLIP's rows have."""
_PAGE = ReportPage(
    "Training of a small world",
    {
        "right.png": Chart("Share of right colours and kinds in pictures of held-out captions", ("colors", "kinds")),
        "loss.png": Chart("Loss of each step", ("loss",)),
    },
    "colors",
)


def _add_train_arguments(train: argparse.ArgumentParser) -> None:
    from ...training.options import WorldOptions

    train.add_argument("out", type=Path, metavar="DIR", help="output folder")
    train.add_argument("--resume", action="store_true", help="go on with the run in DIR, given the same options")
    add_saving(train)
    add_arguments(train, options_in(WorldOptions), "kind", "steps", "batch", "rate", "seed", "lora", "mark", "text")
    add_device(train)


@alone
def _train(arguments: argparse.Namespace) -> int:
    from ...training.objectives.small_world import LORA_NAME, NAME
    from ...training.options import WorldOptions

    options = with_arguments(WorldOptions(arguments.kind, lora=arguments.lora or 0), arguments)
    return train_with(arguments, options, Job(LORA_NAME if options.lora else NAME, _make, _PAGE))


def _make(
    arguments: argparse.Namespace, options: WorldOptions, accelerator: Accelerator, say: Say
) -> tuple[Any, list[str]]:
    from ...training.objectives.small_world import WorldRun

    run = WorldRun(arguments.out, options, accelerator, say)
    size = sum(parameter.numel() for parameter in run.trained.parameters() if parameter.requires_grad) / 1e6
    return run, [
        f"{size:.2f} million parameters, {options.steps:,} steps of {options.batch} pictures, on {accelerator.device} "
        f"in {options.precision}"
    ]


def _add_scenes_arguments(scenes: argparse.ArgumentParser) -> None:
    from ...training.options import WorldOptions

    scenes.add_argument("out", type=Path, metavar="DIR", help="output folder, new or empty")
    add_value(scenes, "--count", 20_000, "N", "number of pictures (%(default)s)")
    add_arguments(scenes, options_in(WorldOptions), "kind", "seed")


def _scenes(arguments: argparse.Namespace) -> int:
    from ...world.evaluation import write_examples
    from ...world.model import WORLDS

    if not 1 <= arguments.count <= MAX_SCENES:
        raise ValueError(f"--count must be from 1 to {MAX_SCENES:,}, got {arguments.count}")
    write_examples(arguments.out, arguments.count, WORLDS[arguments.kind].kinds, seed=arguments.seed)
    show(f"written: {arguments.out}, {arguments.count:,} pictures with captions")
    return 0


def _add_sample_arguments(sample: argparse.ArgumentParser) -> None:
    from ....weighting.attention import WAYS
    from ....weighting.options import OPTIONS

    add_world(sample)
    sample.add_argument("text", metavar="CAPTION", help='what to draw: "a (red:0.5) circle and a blue square"')
    add_arguments(sample, OPTIONS, "syntax", *CLIP_OPTIONS)
    sample.add_argument(
        "--how",
        choices=[*WAYS],
        help="weights act in the attention, as of Attention Weights (in the joint world: bias)",
    )
    sample.add_argument("--out", type=Path, required=True, metavar="FILE", help="the .png file to write")
    add_value(sample, "--count", 8, "N", "number of pictures (%(default)s)")
    add_value(sample, "--seed", 0, "N", "seed of the first; the others count up (%(default)s)")
    add_value(sample, "--steps", 20, "N", "steps of Euler's method (%(default)s)")
    add_guidance(sample)


def add_world(parser: argparse.ArgumentParser) -> None:
    """Declare the argument ``world``, for `world_of`."""
    parser.add_argument(
        "world",
        nargs="?",
        type=Path,
        metavar="WORLD",
        help="folder or file of world train; unet or joint: the pack's own (unet)",
    )


def world_of(place: Path | None) -> tuple[World, dict[str, Any]]:
    """Load the world of a file, of a folder of ``world train``, or the pack's own, and its recipe."""
    from ...training.objectives.small_world import NAME
    from ...world.model import WORLDS, load_world, trained

    name = "unet" if place is None else place.as_posix()
    if place is None or (name in WORLDS and not place.is_file() and not (place / NAME).exists()):
        return load_world(trained(name))
    return load_world(place / NAME if place.is_dir() else place)


def add_guidance(parser: argparse.ArgumentParser) -> None:
    """Declare the option ``guidance``, for `set_guidance`."""
    parser.add_argument("--guidance", type=float, metavar="X", help="classifier-free guidance (3)")


def set_guidance(painter: Painter, arguments: argparse.Namespace) -> None:
    """Let a painter draw by the guidance that was asked for, if any; ValueError if it is NaN or infinite."""
    if arguments.guidance is not None:
        if not math.isfinite(arguments.guidance):
            raise ValueError(f"--guidance must be a number, got {arguments.guidance}")
        painter.guidance = arguments.guidance


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute in one thread, unless ``OMP_NUM_THREADS`` says how many.

    So small a model gains little from more, and on a busy machine threads that wait for each other take ten times as
    long.
    """
    import torch

    before = torch.get_num_threads()
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@one_thread()
def _sample(arguments: argparse.Namespace) -> int:
    import torch

    from ....weighting.options import OPTIONS
    from ...world.model import noise_of, sampled, to_pictures
    from ...world.painter import check_finite, painter_of
    from ...world.questions import Way

    if not 1 <= arguments.count <= MAX_COUNT:
        raise ValueError(f"--count must be from 1 to {MAX_COUNT:,}, got {arguments.count}")
    if not 1 <= arguments.steps <= 1000:
        raise ValueError(f"--steps must be from 1 to 1,000, got {arguments.steps}")
    if arguments.out.suffix.lower() != ".png":
        raise ValueError(f"--out {arguments.out}: the file to write ends in .png")
    world, _ = world_of(arguments.world)
    painter, options = painter_of(world), options_of(arguments)
    set_guidance(painter, arguments)
    changed = [name for name in CLIP_OPTIONS if getattr(options, name) != OPTIONS[name].default]
    if world.name == "joint" and changed:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in changed)
        raise ValueError(f"{flags}: of CLIP's rows alone; in the joint world weights act by --how")
    painter.check(arguments.text, options)
    how = arguments.how or ("bias" if world.name == "joint" else "")
    text = painter.text(arguments.text, Way("", asdict(options), how))
    noise = noise_of(list(range(arguments.seed, arguments.seed + arguments.count)))
    latents, progress = noise, Progress()
    for number, latents in enumerate(  # noqa: B007 - the last ones are the pictures
        sampled(painter.network, noise, text, painter.empty, arguments.steps, painter.guidance), 1
    ):
        progress.tell(f"step {number} of {arguments.steps}")
    progress.clear()
    check_finite(latents)
    pictures = to_pictures(latents)
    across = min(ACROSS, len(pictures))
    white = pictures.new_ones(-len(pictures) % across, *pictures.shape[1:])
    image = in_rows(torch.cat([pictures, white]).split(across), ENLARGED)
    write_picture(image, arguments.out)
    show(f"written: {arguments.out}, {arguments.count} pictures, seeds {arguments.seed} and on")
    return 0


WORLD = Command(
    "world",
    "small models that draw coloured shapes",
    None,
    None,
    ("train world", 'sample "a red circle and a blue square" --out circle.png'),
    description="Train a small Stable Diffusion on pictures of coloured shapes, or a small model with joint attention "
    "on coloured discs, within an hour on two cores, and draw with it. No checkpoint is needed. See docs/world.md.",
)
WORLD_TRAIN = Command(
    "world train",
    "train a text encoder and what reads it, without any data",
    _add_train_arguments,
    _train,
    ("world",),
    description="Train a CLIP text encoder and a U-Net with the keys of Stable Diffusion 1.5, or a Qwen 3 and single "
    "blocks with the keys of Flux, on pictures that are drawn as they are needed. Writes world.safetensors and a page "
    "with curves.",
    epilog=epilog("world train"),
)
WORLD_SCENES = Command(
    "world scenes",
    "draw the pictures that a world learns from, with captions",
    _add_scenes_arguments,
    _scenes,
    ("scenes",),
    description="Draw captioned pictures as train shows them to a world, 32 pixels wide, such as to train a CLIP on.",
)
WORLD_SAMPLE = Command(
    "world sample",
    "draw pictures of a caption",
    _add_sample_arguments,
    _sample,
    ('"a red circle and a blue square" --out circle.png',),
    description="Draw pictures of a caption into one .png file.",
)
