"""Weights in the joint world, and their measurement, which finds it when they are put in wrongly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from weighted_clip.studio.world import joint
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
from weighted_clip.weighting.attention import PLAIN, RowEffect, effect_of

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


def _turned(effect: RowEffect) -> RowEffect:
    return effect._replace(factor=abs(effect.factor))


def _shifted(reading: Any, *, of_places: bool = False) -> Any:
    """A reading whose effects are those of the keys before, or of as many of the last keys, which are places."""
    length = reading.rows.shape[1]

    def moved(keys: torch.Tensor) -> torch.Tensor:
        if not of_places:
            return keys.roll(1, -1)
        found = torch.zeros_like(keys)
        found[..., -length:] = keys[..., :length]
        return found

    factor = None if reading.factor is None else 1 + moved(reading.factor - 1)
    return reading._replace(masks=tuple(None if mask is None else moved(mask) for mask in reading.masks), factor=factor)


FAULTS = ("ignored", "sign", "shifted", "places")


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    reading_of = joint.reading_of
    if request.param == "ignored":
        monkeypatch.setattr(painting, "effect_of", lambda *_: PLAIN)
    elif request.param == "sign":
        monkeypatch.setattr(painting, "effect_of", lambda *given: _turned(effect_of(*given)))
    else:
        of_places = request.param == "places"
        monkeypatch.setattr(joint, "reading_of", lambda *given: _shifted(reading_of(*given), of_places=of_places))
    yield request.param


def test_weights_that_are_put_in_wrongly_are_found(fault: str, random_painter: Painter) -> None:
    """Weights that are ignored, lose their sign, or are put on the row before, or on places instead of words."""
    if fault == "sign":
        assert not sign_counts(random_painter)
    else:
        assert read(random_painter) > 0


@trained
def test_weights_that_are_put_in_wrongly_are_found_in_pictures(fault: str, painter: Painter) -> None:
    _, below = present(painter)
    assert below > 0.25 or read(painter) > 0, fault


@trained
def test_captions_held_out_are_drawn() -> None:
    """As in docs/world.md, of 500 captions; here of 24."""
    right = rightness(load_world(TRAINED_JOINT)[0], held_out_scenes(24, TEXTURED))
    assert interval([right.colors]).high >= 0.95
    assert interval([right.kinds]).high >= 0.9
