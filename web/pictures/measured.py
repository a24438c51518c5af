"""Charts and grids of what weights do to the small world's pictures."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image

from ...encoder.image_file import image_of
from ...studio.world.measure import Sitting
from ...studio.world.painter import Painter
from ...studio.world.questions import EVERY_WAY, SOME_WAYS, Question, Way
from ...studio.world.tables import ANSWERS, Measured
from .curves import draw_curves
from .weight_grid import draw_weight_grid

GRID_SEEDS = 3


def _charted(question: Question) -> Sequence[Way]:
    """Ways in charts and grids; the tables have all."""
    return SOME_WAYS if question.ways == EVERY_WAY else question.ways


def draw_chart(measured: Measured, question: Question, answer: str) -> Image.Image:
    """Means of an answer by weight, a curve for each way."""
    curves = {
        way.name: [(weight, measured[question.name, way.name, weight, answer].mean) for weight in question.weights]
        for way in _charted(question)
    }
    title = f"{question.title}: {ANSWERS[answer].lower()}"
    return draw_curves(title, curves, across="weight", top=1.0, theme="light")


def draw_grid(painter: Painter, question: Question, seeds: int = GRID_SEEDS, number: int = 0) -> Image.Image:
    """Pictures of one of a question's prompts: a block for each way, a row for each seed, a column for each weight."""
    sitting = Sitting(painter, question._replace(num_prompts=number + 1, num_seeds=seeds))
    blocks: dict[str, list[list[Image.Image]]] = {}
    for way in _charted(question):
        columns = [sitting.draw(way, weight)[number] for weight in question.weights]
        blocks[way.name] = [[image_of(column[seed]) for column in columns] for seed in range(seeds)]
    title = sitting.prompts[number].text(part=question.part).replace(":1)", ":weight)")
    return draw_weight_grid(title, [f"{weight:g}" for weight in question.weights], blocks)
