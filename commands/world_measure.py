"""The command ``world measure``: what every weight does to the small world's pictures, in tables and pictures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from . import Command
from .console import Progress, show
from .images import write_picture
from .processes import alone
from .world import add_world, one_thread, world_of

if TYPE_CHECKING:
    from PIL import Image

    from ..world.measure import Painter, Question
    from ..world.tables import Measured, Table

OUT = Path("measured-world")
POINTS, TABLES, MEANS = "points", "tables.md", "means.csv"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_world(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="FOLDER",
        help=f"folder for tables and pictures; what is there is not drawn again ({OUT})",
    )
    parser.add_argument("--quick", action="store_true", help="one table, in two to four minutes")
    parser.add_argument("--powers", action="store_true", help="weights as dials: see docs/powers.md")


def _measure(arguments: argparse.Namespace) -> int:
    with one_thread():
        return _measure_world(arguments)


@alone
def _measure_world(arguments: argparse.Namespace) -> int:
    from ..training.log import duration
    from ..world.measure import measure, missing, painter_of, questions_of
    from ..world.powers import powers_of
    from ..world.tables import measured, tables_of

    world, recipe = world_of(arguments.world)
    questions = powers_of(world) if arguments.powers else questions_of(world, is_quick=arguments.quick)
    painter, folder = painter_of(world), arguments.out / POINTS
    left = total = missing(folder, questions)
    if total:
        seconds = _seconds_of_a_picture(painter)
        show(f"{total:,} pictures to draw, about {duration(total * seconds)}; Ctrl-C keeps what is drawn")
    started, progress = time.monotonic(), Progress()

    def say(drawn: int) -> None:
        nonlocal left
        left -= drawn
        passed = time.monotonic() - started
        progress.tell(f"{total - left:,} of {total:,} pictures, {duration(passed / (total - left) * left)} left")

    found = measured(measure(painter, folder, questions, recipe, say), questions)
    progress.clear()
    tables = [(question, tables_of(found, question)) for question in questions]
    for _, some in tables:
        for name in ("placed", "present", "others", "summary", "beside", "read"):
            if name in some:
                show("\n".join(["", *some[name].lines()]))
    for path in write_report(painter, found, tables, arguments.out):
        show(f"written: {path}")
    return 0


def _seconds_of_a_picture(painter: Painter) -> float:
    from ..world.measure import Way

    text = painter.text("a red", Way("comfy"))
    painter.pictures([text], [[0]])
    started = time.monotonic()
    painter.pictures([text], [list(range(16))])
    return (time.monotonic() - started) / 16


def write_report(
    painter: Painter, found: Measured, tables: Sequence[tuple[Question, Mapping[str, Table]]], folder: Path
) -> list[Path]:
    """Write means, tables, charts and grids of questions into a folder; return their paths."""
    from ..output.files import written_whole
    from ..web.pictures.measured import draw_chart, draw_grid
    from ..world.tables import write_measured

    pages: list[str] = []
    pictures: dict[str, Image.Image] = {}
    for question, some in tables:
        pages += [f"## {question.title}", *(table.markdown() for table in some.values())]
        charted = [name for name in ("placed", "present", "others") if name in some]
        if len(question.weights) == 1 or not charted:
            continue
        for answer in charted:
            pictures[f"{question.name}-{answer}.png"] = draw_chart(found, question, answer)
        pictures[f"{question.name}-grid.png"] = draw_grid(painter, question)
    with written_whole(folder / TABLES) as path:
        path.write_text("\n".join(pages), encoding="utf-8")
    write_measured(found, folder / MEANS)
    for name, picture in pictures.items():
        write_picture(picture, folder / name)
    return [folder / name for name in (TABLES, MEANS, *pictures)]


WORLD_MEASURE = Command(
    "world measure",
    "judge what each weight does to the pictures",
    _add_arguments,
    _measure,
    ("--quick",),
    description="Draw prompts at several weights with every scheme, judge each picture by its pixels, and write tables "
    "with 95 % intervals, charts and grids of pictures.",
)
