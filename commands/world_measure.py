"""The command ``world measure``: what every weight does to the small world's pictures, in tables and pictures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import Command
from .console import Progress, show
from .processes import alone

if TYPE_CHECKING:
    from PIL import Image

    from ..world.measure import Painter, Points, Question, Way

POINTS, TABLES = "points", "tables.md"
GRID_SEEDS = 3


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("world", type=Path, metavar="WORLD", help="folder or file of world train")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("measured-world"),
        metavar="FOLDER",
        help="folder for tables and pictures; what is there is not drawn again (%(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="one table, in about two minutes")


@alone
def _measure(arguments: argparse.Namespace) -> int:
    from ..training.log import duration
    from ..training.world import NAME
    from ..world.measure import QUESTIONS, QUICK, Painter, measure, missing
    from ..world.model import load_world

    place: Path = arguments.world
    world, recipe = load_world(place / NAME if place.is_dir() else place)
    questions = QUICK if arguments.quick else QUESTIONS
    painter, folder = Painter(world), arguments.out / POINTS
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

    points = measure(painter, folder, questions, recipe, say)
    progress.clear()
    for question in questions:
        _show_tables(points, question)
    for path in write_report(painter, points, questions, arguments.out):
        show(f"written: {path}")
    return 0


def _seconds_of_a_picture(painter: Painter) -> float:
    from ..world.measure import Way

    text = painter.text("a red circle", Way("comfy"))
    painter.pictures([text], [[0]])
    started = time.monotonic()
    painter.pictures([text], [list(range(16))])
    return (time.monotonic() - started) / 16


def _show_tables(points: Points, question: Question) -> None:
    from ..world.tables import of_answer, summary

    tables = [of_answer(points, question, answer) for answer in ("present", "others")]
    if 0.0 in question.weights:
        tables.append(summary(points, question))
    for table in tables:
        show("\n".join(["", *table.lines()]))


def write_report(painter: Painter, points: Points, questions: Sequence[Question], folder: Path) -> list[Path]:
    """Write tables, charts and grids of questions into a folder; return their paths."""
    from ..output.files import written_whole
    from ..web.pictures.curves import draw_curves
    from ..world.tables import ANSWERS, SHARES, of_answer, summary

    pages: list[str] = []
    pictures: dict[str, Image.Image] = {}
    for question in questions:
        tables = [of_answer(points, question, answer) for answer in ANSWERS]
        if 0.0 in question.weights:
            tables.insert(0, summary(points, question))
        pages += [f"## {question.title}", *(table.markdown() for table in tables)]
        if len(question.weights) == 1:
            continue
        for answer in ("present", "others"):
            curves = {
                way.name: [
                    (weight, _mean(points[question.name, way.name, weight], answer)) for weight in question.weights
                ]
                for way in _charted(question)
            }
            title = f"{question.title}: {ANSWERS[answer].lower()}"
            top = 1.0 if answer in SHARES else None
            pictures[f"{question.name}-{answer}.png"] = draw_curves(
                title, curves, across="weight", top=top, theme="light"
            )
        pictures[f"{question.name}-grid.png"] = draw_grid(painter, question)
    with written_whole(folder / TABLES) as path:
        path.write_text("\n".join(pages), encoding="utf-8")
    for name, picture in pictures.items():
        with written_whole(folder / name) as path:
            picture.save(path)
    return [folder / name for name in (TABLES, *pictures)]


def _charted(question: Question) -> Sequence[Way]:
    """Ways in charts and grids; the tables have all."""
    from ..world.measure import EVERY_WAY, SOME_WAYS

    return SOME_WAYS if question.ways == EVERY_WAY else question.ways


def _mean(point: Any, answer: str) -> float:
    from ..world.measure import of_point

    return of_point(point, answer).mean


def draw_grid(painter: Painter, question: Question, seeds: int = GRID_SEEDS) -> Image.Image:
    """Pictures of a question's first prompt: a block for each way, a row for each seed, a column for each weight."""
    from PIL import Image

    from ..web.pictures.weight_grid import draw_weight_grid
    from ..world.measure import Sitting

    sitting = Sitting(painter, question._replace(num_prompts=1))
    blocks: Mapping[str, list[list[Image.Image]]] = {}
    for way in _charted(question):
        columns = [sitting.draw(way, weight)[0, :seeds] for weight in question.weights]
        blocks[way.name] = [
            [Image.fromarray((one[seed] * 255).byte().permute(1, 2, 0).contiguous().numpy()) for one in columns]
            for seed in range(seeds)
        ]
    title = sitting.prompts[0].text(part=question.part).replace(":1)", ":weight)")
    return draw_weight_grid(title, [f"{weight:g}" for weight in question.weights], blocks)


WORLD_MEASURE = Command(
    "world measure",
    "judge what each weight does to the pictures",
    _add_arguments,
    _measure,
    ("world --quick",),
    description="Draw prompts at several weights with every scheme, judge each picture by its pixels, and write tables "
    "with 95 % intervals, charts and grids of pictures.",
)
