"""Effects of weights on the small world's pictures: prompts drawn at several weights, and judged by their pixels.

All points of a question draw the same prompts from the same noise, so pictures are compared one by one. A point is
written as soon as it is judged; what a folder holds is not drawn again.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...encoder.foreign_text import parse_json
from ...encoder.regular_file import read_regular
from ..output.files import write_text
from .judge import Found, assigned
from .painter import BATCH, Painter, alike
from .questions import SEEDS, Prompt, Question, Way
from .scenes import SIDE, Thing
from .unet import Text
from .watched_maps import (
    PARTS,
    STEPS,
    Mapped,
    Selection,
    mapped,
    mean_maps,
    watched,
)

FIRST_SEED = 20_000
FORMAT = "weighted-clip-measured-world-4"
FIRST_GUIDANCE = 3.0
"""Guidance of points that do not tell it."""
MAX_POINT_BYTES = 16 * 2**20
"""Maximum size of a point's file; the largest has some 0.2 MiB."""


class Judged(NamedTuple):
    """The judge's answers for one picture."""

    present: bool
    """There is a thing of the target's colour."""
    right: bool
    """It is of the target's kind, too."""
    others: bool
    """All other things are there, with colour and kind."""
    leaked: bool
    """A thing that nobody asked for has the colour of one of the prompt's things and the kind of another."""
    moved: float
    """Mean change of a channel, 0..1, outside the target here and at weight 1."""
    sureness: float
    """Mean overlap of what is there with shapes; 0 for an empty picture."""
    area: int
    """Pixels of the target."""
    placed: bool
    """All things are there, the middle of the first one in the left half and those of the others in the right."""
    kinds: float
    """Share of the things that are there with their kind."""


Point = Sequence[Sequence[Any]]
"""Answers by prompt and seed, in a named tuple such as `Judged`."""
Watched = tuple[list[list[list[Found | None]]], dict[tuple[str, str], Tensor]]
"""The things of each prompt and seed, None for one that is not right; the maps of each thing's `PARTS` by layers and
steps, ``[prompts, seeds, words, 16, 16]``."""


class Sitting:
    """One question's prompts and their pictures without weights, with which all other pictures are compared."""

    @staticmethod
    def answers(way: Way) -> type[Any]:
        """Class of the answers for a way."""
        return Judged if way.maps is None else Mapped

    def point(self, way: Way, weight: float) -> Point:
        """Answers for all prompts."""
        return self.judge(self.draw(way, weight)) if way.maps is None else self.compare(way, weight)

    def __init__(self, painter: Painter, question: Question) -> None:
        self.painter, self.question, self.prompts = painter, question, question.prompts
        numbers = range(len(self.prompts))
        seeds = range(question.num_seeds)
        self.seeds = [[FIRST_SEED + number * SEEDS + seed for seed in seeds] for number in numbers]
        self._last: tuple[tuple[Way, float], Watched] | None = None

    @cached_property
    def plain_texts(self) -> list[Text]:
        """Texts of the prompts at weight 1."""
        return [self.painter.text(prompt.text(), Way("comfy")) for prompt in self.prompts]

    @cached_property
    def plain(self) -> tuple[Tensor, list[list[list[Found]]]]:
        """Pictures at weight 1, and the things in them."""
        pictures = self.painter.pictures(self.plain_texts, self.seeds)
        return pictures, [self.painter.things_in(of_prompt) for of_prompt in pictures]

    def draw(self, way: Way, weight: float) -> Tensor:
        """Pictures of all prompts; those whose text is that of weight 1 are not drawn again."""
        texts = [self.painter.drawable(prompt, way, weight, self.question.part) for prompt in self.prompts]
        same = [
            isinstance(text, Text) and not (text.fields or text.bias is not None) and torch.equal(text.rows, plain.rows)
            for text, plain in zip(texts, self.plain_texts, strict=True)
        ]
        pictures = self.plain[0].clone()
        changed = [index for index, is_same in enumerate(same) if not is_same]
        if changed:
            pictures[changed] = self.painter.pictures(
                [texts[index] for index in changed], [self.seeds[index] for index in changed]
            )
        return pictures

    def compare(self, way: Way, weight: float) -> Point:
        """Answers for the maps of all prompts, of the weighted things if a part is weighted."""
        assert way.maps is not None
        things, maps = self._watched(way._replace(name="", maps=Selection("")), weight)
        word_maps = maps[way.maps.layers, way.maps.steps][:, :, PARTS.index(way.maps.part) :: len(PARTS)]
        numbers = range(self.question.num_things)
        return [
            [
                mapped(*of_picture, [prompt.target] if self.question.part else numbers)
                for of_picture in zip(prompt_maps, prompt_things, strict=True)
            ]
            for prompt, prompt_maps, prompt_things in zip(self.prompts, word_maps, things, strict=True)
        ]

    def _watched(self, way: Way, weight: float) -> Watched:
        """Things and maps of all prompts; those of the last way are kept."""
        if self._last is not None and self._last[0] == (way, weight):
            return self._last[1]
        things: list[list[list[Found | None]]] = []
        maps: dict[tuple[str, str], list[Tensor]] = {chosen: [] for chosen in product(self.painter.layers, STEPS)}
        texts = [self.painter.drawable(prompt, way, weight, self.question.part) for prompt in self.prompts]
        for group in alike(texts, BATCH // self.question.num_seeds):
            part = slice(len(things), len(things) + len(group))
            with watched(self.painter.network) as recorded:
                pictures = self.painter.pictures(group, self.seeds[part])
            for prompt, of_prompt in zip(self.prompts[part], pictures, strict=True):
                things.append(
                    [_right(of_picture, prompt.scene.things) for of_picture in self.painter.things_in(of_prompt)]
                )
            for chosen, parts in maps.items():
                parts.append(mean_maps(recorded, *chosen).unflatten(0, (len(group), -1)))
        result = things, {chosen: torch.cat(parts) for chosen, parts in maps.items()}
        self._last = (way, weight), result
        return result

    def judge(self, pictures: Tensor) -> list[list[Judged]]:
        """Answers for pictures of all prompts, ``[prompts, seeds, 3, 32, 32]``."""
        plain, plain_things = self.plain
        return [
            [
                judged(prompt, *four)
                for four in zip(drawn, self.painter.things_in(drawn), plain[index], before, strict=True)
            ]
            for index, (drawn, prompt, before) in enumerate(zip(pictures, self.prompts, plain_things, strict=True))
        ]


def judged(
    prompt: Prompt, picture: Tensor, things: Sequence[Found], plain: Tensor, plain_things: Sequence[Found]
) -> Judged:
    """Answers for a picture ``[3, 32, 32]`` and the things in it, beside the same at weight 1."""
    asked = prompt.scene.things
    assigned_things = assigned(things, asked)
    target, before = assigned_things[prompt.target], assigned(plain_things, asked)[prompt.target]
    is_right = [thing is not None for thing in _right(things, asked)]
    outside = torch.ones(picture.shape[1:], dtype=torch.bool)
    for thing in (target, before):
        if thing is not None:
            outside &= ~thing.area
    return Judged(
        target is not None,
        is_right[prompt.target],
        all(right for index, right in enumerate(is_right) if index != prompt.target),
        _has_leaked(things, asked),
        float((picture - plain).abs().mean(0)[outside].mean()),
        sum(thing.sureness for thing in things) / max(1, len(things)),
        0 if target is None else int(target.area.sum()),
        all(thing is not None and _is_left(thing) == (index == 0) for index, thing in enumerate(assigned_things)),
        sum(is_right) / len(asked),
    )


def _right(things: Sequence[Found], asked: Sequence[Thing]) -> list[Found | None]:
    """Findings for each wanted thing, if they have its kind."""
    pairs = zip(assigned(things, asked), asked, strict=True)
    return [match if match is not None and match.thing.kind == thing.kind else None for match, thing in pairs]


def _is_left(thing: Found) -> bool:
    return float((thing.area.nonzero()[:, 1] + 0.5).mean()) < SIDE / 2


def _has_leaked(things: Sequence[Found], asked: Sequence[Thing]) -> bool:
    pairs = {thing[:2] for thing in asked}
    colors, kinds = {thing.color for thing in asked}, {thing.kind for thing in asked}
    looks = [match.thing for match in things]
    return any(look[:2] not in pairs and look.color in colors and look.kind in kinds for look in looks)


class Interval(NamedTuple):
    """A mean with its 95 % interval."""

    mean: float
    low: float
    high: float


def interval(values: Sequence[Sequence[float]], *, resamples: int = 2000) -> Interval:
    """Mean of values by prompt and seed, with its 95 % interval by bootstrap over prompts, and seeds within them.

    Values that are NaN do not count.
    """
    array = np.asarray(values, float)
    resampled = array[_resampled(*array.shape, resamples)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN, the mean is NaN
        low, high = np.nanquantile(np.nanmean(resampled, (1, 2)), (0.025, 0.975)).tolist()
        return Interval(float(np.nanmean(array)), low, high)


@cache
def _resampled(prompts: int, seeds: int, resamples: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices of resampled values, the same for all points."""
    rng = np.random.default_rng(0)
    return (
        rng.integers(prompts, size=(resamples, prompts, 1)),
        rng.integers(seeds, size=(resamples, prompts, seeds)),
    )


def of_point(point: Point, name: str) -> Interval:
    """Mean of one of the answers, with its interval."""
    return interval([[getattr(answers, name) for answers in seeds] for seeds in point])


Points = dict[tuple[str, str, float], Point]
"""Points by the names of question and way, and the weight."""


def missing(folder: Path, questions: Sequence[Question]) -> int:
    """Number of pictures that a folder does not hold yet."""
    return sum(
        question.num_prompts * question.num_seeds
        for question in questions
        for way in question.ways
        for weight in question.weights
        if not _path(folder, question, way, weight).exists()
    )


def measure(
    painter: Painter,
    folder: Path,
    questions: Sequence[Question],
    recipe: Mapping[str, Any],
    say: Callable[[int], None] = lambda drawn: None,
) -> Points:
    """Draw and judge what the folder does not hold yet; ``say`` is told the number of pictures of each new point.

    Raises:
        ValueError: If the folder holds points of another world or measurement, or damaged ones.
        OSError: If it cannot be written.
    """
    points = Points()
    for question in questions:
        sitting = (question.sitting or Sitting)(painter, question)
        for way in question.ways:
            for weight in question.weights:
                path = _path(folder, question, way, weight)
                header = {
                    **{"format": FORMAT, "recipe": dict(recipe), "question": question.name, "part": question.part},
                    **{"prompts": [prompt.text() for prompt in sitting.prompts], "seeds": question.num_seeds},
                    **{"way": {**way._asdict(), "options": dict(way.options)}, "guidance": painter.guidance},
                }
                header = json.loads(json.dumps(header))  # as it is read again
                point = _stored(path, header, sitting.answers(way))
                if point is None:
                    point = sitting.point(way, weight)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_text(path, json.dumps({**header, "judged": point}))
                    say(len(point) * question.num_seeds)
                points[question.name, way.name, weight] = point
    return points


def _path(folder: Path, question: Question, way: Way, weight: float) -> Path:
    return folder / f"{question.name} {way.name} {weight:g}.json"


def _stored(path: Path, header: Mapping[str, Any], answers: type[Any]) -> Point | None:
    try:
        stored = {"guidance": FIRST_GUIDANCE, **parse_json(read_regular(path, MAX_POINT_BYTES))}
        point = [[answers(*values) for values in seeds] for seeds in stored.pop("judged")]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it, or choose another folder") from error
    if stored != header or {len(seeds) for seeds in point} != {header["seeds"]} or len(point) != len(header["prompts"]):
        raise ValueError(f"{path} is of another world or another measurement: choose another folder")
    return point
