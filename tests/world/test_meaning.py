"""Weights and places seen in pictures of the committed world."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from weighted_clip.studio.world import painter as painting
from weighted_clip.studio.world.measure import Interval, Point, Sitting, interval, of_point
from weighted_clip.studio.world.model import STEPS, load_world
from weighted_clip.studio.world.painter import Painter
from weighted_clip.studio.world.questions import Places, Question, Way

COMFY = Way("comfy", {"scheme": "comfy"})
BIAS = Way("attention bias", how="bias")
REMOVE = Way("remove", {"scheme": "masked_blend", "mask_method": "remove"})
QUESTION = Question(
    "meaning", "A whole phrase of two", (COMFY, BIAS, REMOVE), (0.0, 0.5, 1.0), num_prompts=25, num_seeds=2
)


@pytest.fixture(scope="module")
def painter() -> Iterator[Painter]:
    """In half the usual steps, which show the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(painting, "sampled", partial(painting.sampled, steps=STEPS // 2))
        yield Painter(load_world()[0])


@pytest.fixture(scope="module")
def sitting(painter: Painter) -> Sitting:
    return Sitting(painter, QUESTION)


@pytest.fixture(scope="module")
def plain(sitting: Sitting) -> Point:
    return sitting.judge(sitting.plain[0])


@pytest.fixture(scope="module")
def removed(sitting: Sitting) -> Point:
    return sitting.judge(sitting.draw(REMOVE, 0.0))


def fall(before: Point, after: Point, answer: str = "present") -> Interval:
    """Share of pictures that lose something, each compared with the same prompt and seed before."""
    return interval(
        [
            [float(getattr(one, answer)) - float(getattr(other, answer)) for one, other in zip(*pair, strict=True)]
            for pair in zip(before, after, strict=True)
        ]
    )


def finds_nothing_wrong(before: Point, after: Point) -> bool:
    """The thing is there at weight 1 and not at 0, and the other one at both."""
    return (
        of_point(before, "present").low > 0.8
        and of_point(after, "present").high < 0.2
        and fall(before, after).low > 0.6
        and fall(before, after, "others").high < 0.2
    )


# ---- what holds


def test_a_removed_phrase_fades_and_the_other_thing_stays(sitting: Sitting, plain: Point, removed: Point) -> None:
    half = sitting.judge(sitting.draw(REMOVE, 0.5))
    assert fall(plain, half).low > 0
    assert fall(half, removed).low > 0
    assert finds_nothing_wrong(plain, removed)


@pytest.mark.parametrize("way", [COMFY, pytest.param(BIAS, marks=pytest.mark.long)], ids=lambda way: way.name)
def test_a_phrase_whose_rows_alone_are_weighted_stays_in_most_pictures(
    sitting: Sitting, plain: Point, removed: Point, way: Way
) -> None:
    """Later rows, padding among them, have read it."""
    half, weighted = (sitting.judge(sitting.draw(way, weight)) for weight in (0.5, 0.0))
    assert of_point(plain, "present").mean >= of_point(half, "present").mean >= of_point(weighted, "present").mean
    assert fall(plain, weighted).low > 0
    assert of_point(weighted, "present").low > 0.6
    assert fall(weighted, removed).low > 0.5


def test_at_0_remove_reads_the_prompt_without_the_phrase(painter: Painter, sitting: Sitting) -> None:
    for prompt in sitting.prompts:
        things = list(prompt.scene.things)
        del things[prompt.target]
        text = prompt.text(0.0)
        start = text.index("(")
        without = text[:start] + text[text.index(")") + 1 :]  # "and" stays
        rows = painter.text(text, REMOVE).rows
        torch.testing.assert_close(rows, painter.text(without, COMFY).rows, rtol=0, atol=1e-6)


# ---- places

HALVES = Way("placed", {"padding": "drop"}, places=Places("phrases"))
PLACES = Question("places", "Placed", (HALVES,), (4.0,), "", num_prompts=12)


def test_placed_phrases_are_drawn_in_their_halves(painter: Painter) -> None:
    sitting = Sitting(painter, PLACES._replace(num_seeds=1))

    def share(way: Way, weight: float = 4.0) -> float:
        return of_point(sitting.judge(sitting.draw(way, weight)), "placed").mean

    assert share(HALVES) > 0.85
    assert share(HALVES._replace(places=None)) < 0.6
    transposed = Places("phrases", ("top half", "bottom half"))
    assert share(HALVES._replace(places=transposed)) < 0.6
    assert share(HALVES._replace(places=Places("phrases", ("right half", "left half")))) < 0.1
