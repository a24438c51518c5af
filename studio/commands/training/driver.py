"""Driver of the commands that train: a run that is stopped and resumed at will, its output, and a page about it.

The page shows curves of the run's log, measurements before and after, and a montage.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ....encoder.image_file import image_of
from ...output.files import write_text
from ...training.log import LOG_NAME, number_of
from ..config_file import CONFIG_FLAG, CONFIG_NAME, write_config
from ..image_options import write_picture
from ..processes import stopping, voice
from ..prompt_options import DTYPES, add_flag, add_value

if TYPE_CHECKING:
    from accelerate import Accelerator
    from PIL import Image
    from torch import Tensor

    from ...training.data.datasets import ReadingOptions

REPORT_NAME, MONTAGE_NAME = "report.html", "reconstructions.png"
MAX_CURVES = 6
"""Maximum number of curves in a chart."""
STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:16px system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}"
    "@media(prefers-color-scheme:dark){body{color:#e7e9ed;background:#2a2c31}}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}"
    "img{max-width:100%}code{word-break:break-word}"
)
"""Style of pages, light or dark as the browser's theme; their charts are, too."""

_MOVED = "moved: "
_ACROSS = 16  # pictures per row
_WIDTH = 960

Entries = Sequence[Mapping[str, float]]
"""Entries of a log."""


class Chart(NamedTuple):
    """A chart of a log."""

    heading: str
    keys: tuple[str, ...]
    """Names of the values shown, or patterns of names such as ``moved: *``."""


NORM = Chart("Norm of all gradients of each step", ("gradient norm",))
SCALES = Chart("Gradient scales of the resblocks, base-2 logarithm", ("lowest scale", "highest scale"))


def before_and_after(measured: Entries) -> str:
    """Table of the first and the last measurement."""
    rows = "".join(
        f"<tr><td>{escape(key)}<td>{measured[0][key]:.4g}<td>{measured[-1][key]:.4g}"
        for key in measured[0]
        if key != "step"
    )
    return f"<h2>Measured</h2><table><tr><th><th>before<th>after{rows}</table>"


class ReportPage(NamedTuple):
    """A page, apart from the run."""

    title: str
    charts: Mapping[str, Chart]
    """By file name."""
    measured: str
    """Name, or pattern of names, of a value that only measurements have."""
    table: Callable[[Entries], str] = before_and_after
    """Makes a table of the measurements, if there are any."""


def write_report(folder: Path, page: ReportPage, properties: Mapping[str, Any], notes: Sequence[str]) -> Path:
    """Write curves and page of a run from the log in its folder; a montage there is included. Return the page."""
    from ....web.pictures.curves import draw_curves

    entries = [json.loads(line) for line in (folder / LOG_NAME).read_text(encoding="utf-8").splitlines()]
    names = list(dict.fromkeys(name for entry in entries for name in entry))
    pictures = {MONTAGE_NAME: ""} if (folder / MONTAGE_NAME).is_file() else {}
    for file, chart in {**page.charts, "norm.png": NORM}.items():
        matches = [name for key in chart.keys for name in names if fnmatchcase(name, key)][:MAX_CURVES]
        curves = {
            name.removeprefix(_MOVED): [(entry["step"], entry[name]) for entry in entries if name in entry]
            for name in matches
        }
        if any(math.isfinite(value) for points in curves.values() for _, value in points):
            dark = file.replace(".png", "-dark.png")
            write_picture(draw_curves(chart.heading, curves, theme="light"), folder / file)
            write_picture(draw_curves(chart.heading, curves, theme="dark"), folder / dark)
            pictures[file] = f'<source srcset="{dark}" media="(prefers-color-scheme: dark)">'
    if count := sum(bool(entry.get("skipped")) for entry in entries):
        notes = [*notes, f"{count:,} updates were skipped, as a gradient was not finite"]
    measured = [entry for entry in entries if any(fnmatchcase(name, page.measured) for name in entry)]
    options = "".join(
        f"<tr><td>{escape(name)}<td><code>{escape(str(value))}</code>" for name, value in properties.items()
    )
    parts = [
        *([page.table(measured)] if measured else []),
        *(
            f'<p><picture>{source}<img src="{name}" alt="{name.partition(".")[0]}"></picture></p>'
            for name, source in pictures.items()
        ),
        f"<h2>Options</h2><table>{options}</table>",
    ]
    write_page(folder / REPORT_NAME, page.title, notes, parts)
    return folder / REPORT_NAME


def write_page(path: Path, title: str, notes: Sequence[str], parts: Sequence[str]) -> None:
    """Write a page with a title, notes, and parts in HTML."""
    head = f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    heading = f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
    write_text(path, "\n".join([head, heading, *(f"<p>{escape(note)}</p>" for note in notes), *parts]) + "\n")


def in_rows(rows: Sequence[Tensor], factor: int | None = None) -> Image.Image:
    """Pictures of one size in rows, ``[n, 3, h, w]`` each, in 0..1, enlarged; by default as wide as a page."""
    import torch
    from PIL import Image

    image = image_of(torch.cat([torch.cat(list(row), 2) for row in rows], 1))
    factor = max(1, _WIDTH // image.width) if factor is None else factor
    return image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST)


def in_turn(pictures: Tensor, results: Tensor) -> list[Tensor]:
    """Rows of pictures, each followed by one of results, ``[n, 3, h, w]``; an incomplete last row is left out."""
    count = min(_ACROSS, len(pictures))
    starts = range(0, len(pictures) - count + 1, count)
    return [images[start : start + count] for start in starts for images in (pictures, results)]


LATEST_FLAG = "--resume-latest"
"""Value of ``--resume`` for the newest checkpoint."""
CAPTIONED = (
    "a folder of images, each with a .txt of the same name, or with metadata.jsonl or .csv; or WebDataset shards"
)
"""Data of most commands."""

Say = Callable[[str], None]
Options = TypeVar("Options")


class Job(NamedTuple):
    """Parts of a training command, apart from its options."""

    result: str
    """Name of a file that each run writes."""
    make: Callable[[argparse.Namespace, Any, Accelerator, Say], tuple[Any, list[str]]]
    """Creates a run, a `Loop`, with notes for its output and report."""
    page: ReportPage
    """Its report."""
    written: Callable[[Any], list[str]] | None = None
    """Names the files that a run has written; by default the result."""
    draw: Callable[[Any, Path, bool], list[str]] | None = None
    """Draws a montage, unless an error prevents it; returns more notes."""
    has_scales: bool = True
    """Whether float16 is trained with `GradientScales`."""


def train(arguments: argparse.Namespace, options: Any, job: Job) -> int:
    """Train as requested by the arguments and the options made of them; return the exit status."""
    from ...training.checkpoint import NAME, check_new
    from ...training.data.image_inputs import LEFT_OUT_NAME
    from ...training.options import Saving
    from ...training.scaling.distributed import make_accelerator

    folder: Path = arguments.out
    if arguments.resume == "latest":  # which begins a run if none has begun in the folder
        arguments.resume = any((folder / name).is_file() for name in (NAME, LOG_NAME))
    saving = Saving.every(arguments.save_every, arguments.keep_checkpoints)
    tracker = arguments.track
    if not arguments.resume:
        check_new(folder, (LOG_NAME, job.result, *getattr(options, "write_for", ())))
        (folder / LEFT_OUT_NAME).unlink(missing_ok=True)
    accelerator = make_accelerator(
        options.precision, is_cpu=arguments.device == "cpu", has_scales=job.has_scales, tracker=tracker
    )
    say = voice(accelerator)
    run, notes = job.make(arguments, options, accelerator, say)
    run.saving = saving
    run.workers = getattr(arguments, "workers", None) or run.workers
    if tracker:
        tracker_options = {"name": arguments.name or folder.name, "dir": str(folder)}
        accelerator.init_trackers(arguments.wandb_project_name, run.about(), {tracker: tracker_options})
    for line in notes:
        say(line)
    if arguments.resume:
        run.resume()
    if accelerator.is_main_process:
        write_config(folder / CONFIG_NAME, arguments)
    is_broken = False
    try:
        with stopping(run):
            run.train()
    except (ValueError, OSError):
        is_broken = True
        raise
    finally:
        for open_tracker in accelerator.trackers:
            open_tracker.finish()
        if accelerator.is_main_process and (folder / LOG_NAME).is_file():
            for line in run.told():
                say(line)
                notes.append(line)
            if job.draw and run.step:
                notes += job.draw(run, folder / MONTAGE_NAME, is_broken)
            say(f"report: {write_report(folder, job.page, run.about(), notes)}")
    for line in job.written(run) if job.written else [f"{folder / job.result}"]:
        say(f"written: {line}")
    return 0


def totals(run: Any, of_each: str = "") -> str:
    """Note about a run's examples, its steps, ``of_each`` of so many, and where they are computed."""
    examples, steps = number_of(len(run.examples), run.what), number_of(run.num_steps, "steps")
    where = f"on {run.accelerator.device} in {run.options.precision}"
    return f"{examples} to train on, {len(run.held):,} held out, {steps}{of_each}, {where}"


def epilog(name: str) -> str:
    """Text below the help of a command."""
    return (
        "Ctrl-C ends a run after the current step, with a checkpoint; --resume continues from there, bit for bit. "
        f"Several processes: torchrun --nproc-per-node 2 __main__.py {name} ..."
    )


def add_out(train: argparse.ArgumentParser) -> None:
    """Add the arguments about the folder of a run."""
    add_value(train, "--out", Path, "DIR", "output folder", required=True)
    add_flag(
        train,
        "--resume",
        "continue the run in --out, with the same options; --resume latest starts one if there is none",
    )
    train.add_argument(LATEST_FLAG, dest="resume", action="store_const", const="latest", help=argparse.SUPPRESS)
    add_saving(train)


def add_saving(train: argparse.ArgumentParser) -> None:
    """Add the arguments about checkpoints, the log and the options."""
    train.add_argument(
        CONFIG_FLAG,
        action="append",
        metavar="FILE",
        help=f"YAML file of these options, such as a run's own {CONFIG_NAME}; --no-OPTION cancels one that it sets",
    )
    add_value(train, "--save-every", str, "N", "steps between checkpoints, or minutes with an m (10m)")
    add_value(train, "--keep-checkpoints", 1, "K", "keep the last K checkpoints (%(default)s)")
    train.add_argument("--track", choices=["wandb"], help="also send the log there, if it is installed")
    add_value(train, "--wandb-project-name", "weighted-clip", "NAME", "project in wandb (%(default)s)")
    add_value(train, "--name", str, "NAME", "name of the run in wandb (the output folder's)")


def add_columns(parser: argparse.ArgumentParser) -> None:
    """Add the arguments about tables."""
    add_value(parser, "--csv-img-key", str, "NAME", "table column with the image paths (filepath, ...)")
    add_value(parser, "--csv-caption-key", str, "NAME", "table column with the captions (title, text, caption)")
    add_value(parser, "--csv-separator", "", "C", "character between CSV columns (found from the header)")


def reading_of(arguments: argparse.Namespace, cache: Path | None) -> ReadingOptions:
    """Reading options from the arguments."""
    from ...training.data.datasets import ReadingOptions
    from ...training.data.table import COLUMNS, Columns

    separator = arguments.csv_separator.replace("\\t", "\t")
    if len(separator) > 1:
        raise ValueError(f"--csv-separator {arguments.csv_separator}: write one character, or \\t for a tab")
    image, caption = arguments.csv_img_key, arguments.csv_caption_key
    columns = Columns((image,) if image else COLUMNS.image, (caption,) if caption else COLUMNS.caption, separator)
    return ReadingOptions(columns, getattr(arguments, "data_factors", None) or "", cache)


def add_device(train: argparse.ArgumentParser) -> None:
    """Add the arguments about the arithmetic."""
    train.add_argument("--precision", choices=DTYPES, default=DTYPES[0], help="arithmetic precision (%(default)s)")
    train.add_argument("--device", choices=["auto", "cpu"], default="auto", help="auto uses a GPU if there is one")


def add_several(train: argparse.ArgumentParser) -> None:
    """Add the arguments about several processes."""
    add_flag(
        train,
        "--shard",
        "divide the model, its gradients and the optimizer's state among the processes, to save memory",
    )
    train.add_argument(
        "--compress",
        type=int,
        metavar="RANK",
        help="several processes: compress gradients to this rank by PowerSGD (docs/reference/training.md)",
    )


def with_arguments(options: Options, arguments: argparse.Namespace, **more: Any) -> Options:
    """Options with the values of arguments of the same names, and more."""
    record: Any = options
    names = {field.name for field in fields(record)}
    values = {name: value for name, value in vars(arguments).items() if name in names}
    return replace(record, **{name: value for name, value in {**values, **more}.items() if value is not None})
