"""The command ``world measure``: what every weight does to the small world's pictures, in tables and pictures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ....encoder.quoting import quote
from ...training.log import duration
from .. import Command
from ..console import Progress, show
from ..image_options import write_picture
from ..processes import alone
from ..prompt_options import add_value
from .world_training import add_guidance, add_world, one_thread, set_guidance, world_of

if TYPE_CHECKING:
    from PIL import Image

    from ...world.painter import Painter
    from ...world.questions import Question
    from ...world.tables import Measured, Table

OUT = Path("measured-world")
POINTS, TABLES, MEANS = "points", "tables.md", "means.csv"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_world(parser)
    parser.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="FOLDER",
        help=f"output folder; pictures that are there are not drawn again ({OUT})",
    )
    parser.add_argument("--quick", action="store_true", help="one table, in two to four minutes")
    add_value(parser, "--prompts", 38, "N", "at most so many prompts of each question: faster, wider intervals (all)")
    add_value(parser, "--seeds", 8, "N", "pictures of each prompt, at most %(default)s (%(default)s)")
    add_guidance(parser)
    parser.add_argument("--powers", action="store_true", help="weights as dials: see docs/powers.md")
    parser.add_argument(
        "--only",
        action="append",
        metavar="QUESTION",
        help="only this question, such as apart; may be given several times",
    )


@one_thread()
@alone
def _measure(arguments: argparse.Namespace) -> int:
    from ...world.measure import measure, missing
    from ...world.painter import painter_of
    from ...world.powers import powers_of
    from ...world.questions import SEEDS, questions_of
    from ...world.tables import measured, tables_of

    if arguments.prompts < 1:
        raise ValueError(f"--prompts must be at least 1, got {arguments.prompts}")
    if not 1 <= arguments.seeds <= SEEDS:
        raise ValueError(f"--seeds must be from 1 to {SEEDS}, got {arguments.seeds}")
    world, recipe = world_of(arguments.world)
    limits = {"max_prompts": arguments.prompts, "num_seeds": arguments.seeds}
    questions = (
        powers_of(world, **limits) if arguments.powers else questions_of(world, is_quick=arguments.quick, **limits)
    )
    questions = _chosen(questions, arguments.only)
    painter, folder = painter_of(world), arguments.out / POINTS
    set_guidance(painter, arguments)
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

    results = measured(measure(painter, folder, questions, recipe, say), questions)
    progress.clear()
    tables = [(question, tables_of(results, question)) for question in questions]
    for _, by_name in tables:
        for name in ("placed", "present", "others", "summary", "beside", "read"):
            if name in by_name:
                show("\n".join(["", *by_name[name].lines()]))
    for path in write_report(painter, results, tables, arguments.out):
        show(f"written: {path}")
    return 0


def _chosen(questions: Sequence[Question], names: Sequence[str] | None) -> Sequence[Question]:
    """Questions of some names; all, if there are none."""
    known = [question.name for question in questions]
    if unknown := [name for name in names or () if name not in known]:
        raise ValueError(f"--only {quote(unknown[0])}: there are the questions {', '.join(known)}")
    return [question for question in questions if not names or question.name in names]


def _seconds_of_a_picture(painter: Painter) -> float:
    from ...world.questions import Way

    text = painter.text("a red", Way("comfy"))
    painter.pictures([text], [[0]])
    started = time.monotonic()
    painter.pictures([text], [list(range(16))])
    return (time.monotonic() - started) / 16


def write_report(
    painter: Painter, results: Measured, tables: Sequence[tuple[Question, Mapping[str, Table]]], folder: Path
) -> list[Path]:
    """Write means, tables, charts and grids of questions into a folder; return their paths."""
    from ....web.pictures.measured import draw_chart, draw_grid
    from ...output.files import write_text
    from ...world.tables import write_measured

    pages: list[str] = []
    pictures: dict[str, Image.Image] = {}
    for question, by_name in tables:
        pages += [f"## {question.title}", *(table.markdown() for table in by_name.values())]
        charted = [name for name in ("placed", "present", "others") if name in by_name]
        if len(question.weights) == 1 or not charted:
            continue
        for answer in charted:
            pictures[f"{question.name}-{answer}.png"] = draw_chart(results, question, answer)
        pictures[f"{question.name}-grid.png"] = draw_grid(painter, question)
    write_text(folder / TABLES, "\n".join(pages))
    write_measured(results, folder / MEANS)
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
