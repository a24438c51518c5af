"""Weights by guidance in the small world: predictions that are mixed, and what the judge says of them."""

from __future__ import annotations

import math

import pytest
import torch
from weighted_clip.studio.world import powers
from weighted_clip.studio.world.joint import Joint
from weighted_clip.studio.world.measure import Judged
from weighted_clip.studio.world.model import JointWorld, UNetWorld, World, noise_of
from weighted_clip.studio.world.painter import Painter, painter_of
from weighted_clip.studio.world.powers import DialSitting, amounts, powers_of
from weighted_clip.studio.world.questions import SEEDS, Way
from weighted_clip.studio.world.scenes import Scene, Thing, pictures
from weighted_clip.studio.world.unet import Text
from weighted_clip.weighting.guidance import BEND

from .worlds import random_world

CAPTIONS = {
    UNetWorld: ("a red circle", "a blue square"),
    JointWorld: ("a red striped disc", "a blue plain disc"),
}


@pytest.fixture(scope="module", params=CAPTIONS, ids=lambda kind: kind.name)
def painter(request: pytest.FixtureRequest) -> Painter:
    return painter_of(random_world(request.param))


def phrases_of(painter: Painter) -> tuple[str, str]:
    return CAPTIONS[JointWorld if isinstance(painter.network, Joint) else UNetWorld]


@torch.no_grad()
def test_guidance_mixes_predictions(painter: Painter) -> None:
    one, two = phrases_of(painter)
    latents, time = noise_of([1, 2]), torch.full((2,), 700.0)
    text = painter.guided(f"{one} and ({two}:0.16)", Way("", how="guidance"))
    found = painter.network(latents, time, text.expanded(2))
    both, alone = (
        painter.network(latents, time, painter.text(caption, Way("")).expanded(2)).double()
        for caption in (f"{one} and {two}", one)
    )
    share = 0.16**BEND
    assert torch.allclose(found.double(), share * both + (1 - share) * alone, atol=1e-5)
    assert isinstance(painter.guided(f"{one} and ({two}:1)", Way("", how="guidance")), Text)
    assert torch.equal(
        painter.guided(f"{one} and ({two}:0)", Way("", how="guidance")).rows, painter.text(one, Way("")).rows
    )


def test_amounts_are_pixels_of_a_colour() -> None:
    scene = Scene((Thing("red", "square", 8, 8, 5), Thing("blue", "circle", 23, 23, 6)))
    [picture] = pictures([scene])
    red = float(amounts(picture[None], "red"))
    [without] = pictures([Scene(scene.things[1:])])
    assert red - float(amounts(without[None], "red")) == pytest.approx(81, abs=45)
    half = (picture + without) / 2
    assert float(amounts(half[None], "red")) == pytest.approx(
        (red + float(amounts(without[None], "red"))) / 2, rel=0.05
    )


def test_a_dial_is_judged_between_without_and_with() -> None:
    right = Judged(True, True, True, False, 0.0, 1.0, 50, False, 1.0)
    dialled = powers._dialled(60.0, 10.0, 110.0, right, 0.4)
    assert dialled.amount == pytest.approx(0.5)
    assert dialled.error == pytest.approx(0.1)
    assert (dialled.near, dialled.others) == (True, True)
    assert not powers._dialled(100.0, 10.0, 110.0, right, 0.4).near
    assert not powers._dialled(80.0, 10.0, 110.0, right, 0.4).near  # 0.3 from the weight
    assert powers._dialled(-20.0, 10.0, 110.0, right, 0.0).amount == pytest.approx(-0.3)
    assert all(map(math.isnan, powers._dialled(12.0, 10.0, 20.0, right, 0.4)))  # too little to tell


@pytest.mark.parametrize("kind", CAPTIONS)
def test_questions_are_of_prompts_that_chose_nothing(kind: type[World]) -> None:
    for question in powers_of(random_world(kind)):
        chosen = question._replace(num_prompts=powers.CHOSEN_BY, num_skipped=0).prompts
        assert len(question.prompts) == question.num_prompts
        assert (
            question.prompts
            == question._replace(num_prompts=powers.CHOSEN_BY + question.num_prompts, num_skipped=0).prompts[
                len(chosen) :
            ]
        )


def test_a_sitting_gives_an_answer_for_each_picture(painter: Painter, monkeypatch: pytest.MonkeyPatch) -> None:
    from weighted_clip.studio.world import painter as painting

    stock = painting.sampled
    monkeypatch.setattr(painting, "sampled", lambda *given, **more: stock(*given, 1, **more))
    world = random_world(JointWorld if isinstance(painter.network, Joint) else UNetWorld)
    for question in powers_of(world):
        assert question.sitting is not None
        sitting = question.sitting(painter, question._replace(num_prompts=1))
        point = sitting.point(question.ways[-1], question.weights[0])
        assert [len(seeds) for seeds in point] == [SEEDS]
        assert all(len(one) == len(question.answers) for one in point[0])
        assert isinstance(sitting, DialSitting) == (question.name == "dial")
