"""Weights in the joint world, and their measurement."""

from __future__ import annotations

import pytest
import torch
from weighted_clip.studio.world import painter as painting
from weighted_clip.studio.world.evaluation import held_out_scenes, rightness
from weighted_clip.studio.world.measure import Sitting, interval, of_point
from weighted_clip.studio.world.model import (
    TRAINED_JOINT,
    JointWorld,
    load_world,
    sampled,
)
from weighted_clip.studio.world.painter import Painter, painter_of
from weighted_clip.studio.world.questions import Question, Way
from weighted_clip.studio.world.scenes import TEXTURES
from weighted_clip.studio.world.watched_maps import Selection

from .worlds import random_world

trained = pytest.mark.skipif(not TRAINED_JOINT.exists(), reason="no joint world is trained yet")
TEXTURED = tuple(TEXTURES)
BIAS = Way("attention bias", how="bias")
WATCHED = Way("bias", how="bias", maps=Selection("color"))
PRESENT = Question("fault", "Fault", (BIAS,), num_prompts=4, kinds=TEXTURED)
READ = Question("read", "Read", (WATCHED,), part="color", num_prompts=4, kinds=TEXTURED)


@pytest.fixture(autouse=True)
def in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Discs are there after eight of the twenty steps."""
    monkeypatch.setattr(painting, "sampled", lambda *given, **more: sampled(*given, 8, **more))


def present(painter: Painter) -> tuple[float, float]:
    """Shares of pictures that have the phrase at 1 and at -0.5."""
    sitting = Sitting(painter, PRESENT._replace(num_seeds=2))
    at_1, below = (of_point(sitting.judge(sitting.draw(BIAS, weight)), "present").mean for weight in (1.0, -0.5))
    return at_1, below


def read(painter: Painter) -> float:
    """Share of the attention that a colour word of weight 0 gets."""
    return of_point(Sitting(painter, READ._replace(num_prompts=2, num_seeds=1)).compare(WATCHED, 0.0), "read").mean


def sign_counts(painter: Painter) -> bool:
    """Whether a phrase of weight -0.5 gives other pictures than one of 0.5."""
    sitting = Sitting(painter, PRESENT._replace(num_prompts=1, num_seeds=1))
    return not torch.equal(sitting.draw(BIAS, -0.5), sitting.draw(BIAS, 0.5))


@pytest.fixture(scope="module")
def random_painter() -> Painter:
    return painter_of(random_world(JointWorld))


@pytest.fixture(scope="module")
def painter() -> Painter:
    return painter_of(load_world(TRAINED_JOINT)[0])


def test_a_word_of_weight_0_is_not_read_and_a_sign_counts(random_painter: Painter) -> None:
    assert read(random_painter) == 0
    assert sign_counts(random_painter)


@trained
def test_a_weight_below_0_takes_a_phrase_away(painter: Painter) -> None:
    at_1, below = present(painter)
    assert at_1 >= 0.8 and below <= 0.25
    assert read(painter) == 0


@trained
def test_captions_held_out_are_drawn() -> None:
    """As in docs/world.md, of 500 captions; here of 24."""
    right = rightness(load_world(TRAINED_JOINT)[0], held_out_scenes(24, TEXTURED))
    assert interval([right.colors]).high >= 0.95
    assert interval([right.kinds]).high >= 0.9
