"""Pictures of the documents that are of the small world, or of what was measured in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from PIL import Image

from ...encoder.image_file import image_of
from ...studio.world.model import load_world
from ...studio.world.painter import Painter
from ...studio.world.questions import JOINT_QUESTIONS, JOINT_WAYS, QUESTIONS, SEEDS, WEIGHTS, Places, Prompt, Way
from ...studio.world.scenes import Scene, Thing
from ...studio.world.tables import read_measured
from ...studio.world.watched_maps import mean_maps, watched
from ...web import pictures
from ...web.pictures.measured import draw_chart, draw_grid
from ...web.pictures.weight_grid import draw_weight_grid
from ...weighting.guidance import GUIDANCE
from ...weighting.placing.word_maps import key_rows

ROOT = Path(__file__).resolve().parents[2]
MEASURED, JOINT_MEASURED = "docs/evidence/meaning.csv", "docs/evidence/meaning-joint.csv"
"""The numbers that ``world measure`` wrote, of each world."""
JOINT = JOINT_QUESTIONS[0]._replace(ways=JOINT_WAYS)
"""A phrase in the joint world, by every way."""
TWO = Prompt(Scene((Thing("red", "circle"), Thing("blue", "square"))), 0)


@cache
def painter() -> Painter:
    """The committed world."""
    return Painter(load_world()[0])


def weights(chosen: Mapping[str, str], columns: Sequence[float]) -> Image.Image:
    """Pictures of the measurement's second prompt, in ways that it names."""
    ways = {way.name: way for question in QUESTIONS for way in question.ways}
    row_ways = tuple(ways[name]._replace(name=title) for title, name in chosen.items())
    return draw_grid(painter(), QUESTIONS[0]._replace(ways=row_ways, weights=tuple(columns)), seeds=2, number=1)


def places() -> Image.Image:
    """One prompt from eight seeds: with nothing placed, its phrases placed, regions, and predictions mixed."""
    drop, title = {"padding": "drop"}, "a red circle | a blue square"
    placings = {"nothing": None, "Place Phrase": "phrases", "Regional Prompt": "regions", "Set Mask": "predictions"}
    seeds = list(range(SEEDS))
    blocks: dict[str, list[list[Image.Image]]] = {}
    for name, of in placings.items():
        way = Way(name, drop, places=None if of is None else Places(of))
        text = painter().drawable(TWO, way, 4.0 if of == "phrases" else 1.0, "")
        blocks[name] = [[image_of(picture) for picture in painter().pictures([text], [seeds])[0]]]
    return draw_weight_grid(title, [f"seed {seed}" for seed in seeds], blocks)


def maps() -> Image.Image:
    """One prompt from three seeds, and the map of each of its words, all on one scale."""
    world, prompt, seeds = painter(), "a red circle and a blue square", [0, 2, 3]
    words = prompt.split()
    text = world.text(prompt, Way("watched"))
    row_keys = key_rows([(1 + number,) for number in range(len(words))], text.rows.shape[1])[None]
    with watched(world.network) as recorded:
        [drawn] = world.pictures([text._replace(words=row_keys)], [seeds])
    means = mean_maps(recorded)
    heats = [[pictures.draw_heat(heat_map.numpy()) for heat_map in row_maps] for row_maps in means / means.max()]
    rows = [[image_of(picture), *row_maps] for picture, row_maps in zip(drawn, heats, strict=True)]
    return draw_weight_grid(prompt, ["picture", *words], {"maps": rows})


PICTURES: dict[str, Callable[[], Image.Image]] = {
    "weights": lambda: weights(
        {
            **{"comfy": "comfy", "a1111": "a1111", "compel": "compel", "masked_blend, remove": "nested remove"},
            "Attention Weights": "attention bias",
        },
        WEIGHTS[2:-1],
    ),
    "webui-grid": lambda: weights(
        {"off": "a1111", "masked_blend": "masked_blend", "compel": "compel"}, (0, 0.25, 0.5, 0.75, 1)
    ),
    "dial": lambda: draw_grid(
        painter(),
        QUESTIONS[0]._replace(
            ways=(
                Way("CLIP Text Encode", {"scheme": "comfy"}),
                Way("Fade Words", {"scheme": "masked_blend"}),
                Way("guidance", how=GUIDANCE),
            ),
            weights=(0.0, 0.25, 0.5, 0.75, 1.0),
        ),
        seeds=2,
        number=1,
    ),
    "places": places,
    "meaning-maps": maps,
    "meaning-grid": lambda: draw_grid(painter(), QUESTIONS[0]),
    "meaning-present": lambda: draw_chart(read_measured(ROOT / MEASURED), QUESTIONS[0], "present"),
    "meaning-others": lambda: draw_chart(read_measured(ROOT / MEASURED), QUESTIONS[0], "others"),
    "meaning-joint-present": lambda: draw_chart(read_measured(ROOT / JOINT_MEASURED), JOINT, "present"),
    "meaning-joint-others": lambda: draw_chart(read_measured(ROOT / JOINT_MEASURED), JOINT, "others"),
}
"""Pictures of docs/images by name. The others were drawn once, or are screenshots."""
