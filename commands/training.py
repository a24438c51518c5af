"""Driver of the commands that train: a run that is stopped and resumed at will, its output and its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .loading import DTYPES
from .report import MONTAGE_NAME, Page, write_report
from .stopping import stopping, voice

if TYPE_CHECKING:
    from accelerate import Accelerator

CAPTIONED = "a folder of images with a .txt beside each, or with metadata.jsonl or .csv; or WebDataset .tar shards"
"""Data of most commands."""

Say = Callable[[str], None]
Options = TypeVar("Options")


class Job(NamedTuple):
    """Work of a training command, apart from its options."""

    result: str
    """Name of a file that each run writes."""
    make: Callable[[argparse.Namespace, Any, Accelerator, Say], tuple[Any, list[str]]]
    """Creates a run, a `Loop`, with notes for its output and report."""
    page: Page
    """Its report."""
    written: Callable[[Any], list[str]] | None = None
    """Says what a run has written; by default the result."""
    draw: Callable[[Any, Path, bool], list[str]] | None = None
    """Draws a montage, unless it cannot as there was an error; returns more notes."""
    has_scales: bool = True
    """Whether float16 is trained with `GradientScales`."""


def train(arguments: argparse.Namespace, options: Any, job: Job) -> int:
    """Train as requested by the arguments and the options made of them; return the exit status."""
    from ..training.checkpoint import check_new
    from ..training.log import LOG_NAME
    from ..training.step import make_accelerator

    folder: Path = arguments.out
    if not arguments.resume:
        check_new(folder, (LOG_NAME, job.result))
    accelerator = make_accelerator(options.precision, is_cpu=arguments.device == "cpu", has_scales=job.has_scales)
    say = voice(accelerator)
    run, notes = job.make(arguments, options, accelerator, say)
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
            if job.draw and run.step:
                notes += job.draw(run, folder / MONTAGE_NAME, is_broken)
            say(f"report: {write_report(folder, job.page, run.about(), notes)}")
    for line in job.written(run) if job.written else [f"{folder / job.result}"]:
        say(f"written: {line}")
    return 0


def counts(run: Any) -> str:
    """Beginning of a note about a run's examples."""
    return f"{len(run.examples):,} {run.what} to train on, {len(run.held):,} held out, {run.num_steps:,} steps"


def epilog(name: str) -> str:
    """Text below the help of a command."""
    return (
        "Ctrl-C ends a run after the step that it is in, with a checkpoint; --resume goes on from there, to the same "
        f"bits. Several processes: torchrun --nproc-per-node 2 __main__.py {name} ..."
    )


def add_out(train: argparse.ArgumentParser) -> None:
    """Add the arguments about the folder of a run."""
    train.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for all that is written")
    train.add_argument("--resume", action="store_true", help="go on with the run in --out, given the same options")


def add_device(train: argparse.ArgumentParser) -> None:
    """Add the arguments about the arithmetic."""
    train.add_argument("--precision", choices=DTYPES, default=DTYPES[0], help="of the arithmetic (%(default)s)")
    train.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto takes a GPU if there is one")


def add_shard(train: argparse.ArgumentParser) -> None:
    """Add the argument about sharding."""
    train.add_argument(
        "--shard",
        action="store_true",
        help="divide the model, its gradients and the optimizer's state over the processes: less memory for each",
    )


def add_compress(train: argparse.ArgumentParser) -> None:
    """Add the argument about compressed gradients."""
    train.add_argument(
        "--compress",
        type=int,
        metavar="RANK",
        help="of several processes: send gradients as narrow matrices, by PowerSGD (docs/reference/training.md)",
    )


def with_arguments(options: Options, arguments: argparse.Namespace, **more: Any) -> Options:
    """Options with all that was given of them: by arguments of the same names, and more."""
    found: Any = options
    names = {field.name for field in fields(found)}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    return replace(found, **{name: value for name, value in {**given, **more}.items() if value is not None})
