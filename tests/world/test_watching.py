"""Word maps of the small world: probabilities written out, and compared with where the judge finds things."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from weighted_clip.studio.world import measure
from weighted_clip.studio.world import painter as painting
from weighted_clip.studio.world.judge import things_in
from weighted_clip.studio.world.measure import Sitting, of_point
from weighted_clip.studio.world.model import load_world, noise_of, sampled
from weighted_clip.studio.world.painter import Painter
from weighted_clip.studio.world.questions import PHRASES, REGIONS, Prompt, Question, Way
from weighted_clip.studio.world.scenes import Scene, Thing, pictures
from weighted_clip.studio.world.unet import Attention, Text, TransformerBlock
from weighted_clip.studio.world.watched_maps import COARSE, EARLY, FINE, LATE, Selection, mapped, mean_maps, watched

from .worlds import random_world

SCENE = Scene((Thing("red", "circle", 8, 8, 6), Thing("blue", "square", 23, 23, 6)))
WATCHED = Way("watched", maps=Selection("color"))
TWO = Question("maps", "Maps", (WATCHED,), (1.0,), "", num_prompts=4)


@pytest.fixture(scope="module")
def small() -> Painter:
    return Painter(random_world())


@pytest.fixture(scope="module")
def painter() -> Painter:
    return Painter(load_world()[0])


@pytest.fixture(scope="module")
def sitting(painter: Painter) -> Sitting:
    return Sitting(painter, TWO._replace(num_seeds=1))


@pytest.fixture(autouse=True)
def in_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Things are there after six of the twenty steps."""
    monkeypatch.setattr(painting, "sampled", lambda *given, **more: sampled(*given, 6, **more))


# ---- the recorder


def record(painter: Painter, text: Any, seeds: list[int], steps: int = 2) -> list[Tensor]:
    with watched(painter.network) as recorded:
        list(sampled(painter.network, noise_of(seeds), text, painter.empty, steps))
    return recorded


@pytest.mark.parametrize(
    "way",
    [
        WATCHED,
        WATCHED._replace(how="bias"),
        WATCHED._replace(places=PHRASES),
        WATCHED._replace(places=REGIONS._replace(areas=("left half ~0.3", "right half ~0.3"))),
    ],
    ids=["plain", "bias", "phrases", "regions"],
)
def test_maps_are_probabilities_written_out(small: Painter, way: Way) -> None:
    """The blue word is the fifth; in its region it is read with the region's share."""
    text = small.drawable(Prompt(SCENE, 1), way, 0.5, "" if way.places else "color")
    alone, expected = way.places is REGIONS or (way.places is not None and way.places.of == "regions"), []

    def write_out(layer: Attention, given: tuple[Tensor, Text, tuple[int, int]], _: Tensor) -> None:
        x, read, cells = given
        if read.words is None or (alone and not read.words[0, 4].any()):
            return
        q, k = (part.double().unflatten(-1, (layer.num_heads, -1)) for part in (layer.to_q(x), layer.to_k(read.rows)))
        logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        mask = read.mask(cells)
        probabilities = (logits if mask is None else logits + mask).softmax(-1).mean(1)
        row = 2 if alone else 6
        found = probabilities[..., row]
        if alone:
            found = found * [share for share, _ in text.in_layer(cells)][1].T
        expected.append(found.unflatten(-1, cells))

    blocks = [module for module in small.network.modules() if isinstance(module, TransformerBlock)]
    hooks = [block.attn2.register_forward_hook(write_out) for block in blocks]
    found = record(small, text, [1, 2])
    for hook in hooks:
        hook.remove()
    assert len(found) == len(expected) == 2 * len(blocks)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[:, 4].double(), other, rtol=0, atol=1e-6)


def test_texts_of_a_batch_have_their_own_words(small: Painter) -> None:
    prompts = [Prompt(SCENE, 0), Prompt(Scene((Thing("green", "cross"), *SCENE.things)), 0)]
    texts = [small.drawable(prompt, WATCHED, part="") for prompt in prompts]
    texts = [
        text._replace(words=text.words[:, :6]) for text in texts if isinstance(text, Text) and text.words is not None
    ]
    [*_] = small.pictures(texts, [[1], [2]])
    with watched(small.network) as together:
        small.pictures(texts, [[1], [2]])
    for number in range(2):
        with watched(small.network) as alone:
            small.pictures(texts[number : number + 1], [[number + 1]])
        torch.testing.assert_close(mean_maps(together)[number], mean_maps(alone)[0], rtol=0, atol=1e-5)
    with watched(small.network) as nothing:
        small.pictures([small.text("a red circle", Way(""))], [[1]])
    assert nothing == []


def test_layers_and_steps_are_chosen() -> None:
    recorded = [torch.full((1, 1, side, side), float(value)) for value, side in enumerate((8, 4, 8, 4))]
    means = {
        (): 1.5,
        (FINE,): 1.0,
        (COARSE,): 2.0,
        ("all", EARLY): 0.5,
        ("all", LATE): 2.5,
        (FINE, LATE): 2.0,
    }
    for chosen, mean in means.items():
        assert torch.equal(mean_maps(recorded, *chosen), torch.full((1, 1, 16, 16), mean))


# ---- the comparison


def test_maps_are_compared_with_what_the_judge_found() -> None:
    [things] = things_in(pictures([SCENE]))
    ordered = sorted(things, key=lambda one: one.thing.x)
    areas = torch.stack([torch.nn.functional.avg_pool2d(one.area[None].float(), 2)[0] for one in ordered])
    same = mapped(areas, ordered, range(2))
    inside = float((areas**2).sum((1, 2)).div(areas.sum((1, 2))).mean())
    covered = sum(int(one.area.sum()) for one in ordered) / 2 / 32**2
    assert same[:4] == pytest.approx((1.0, inside, covered, 0.0), abs=1e-6)
    assert same.blank == pytest.approx(
        sum(math.dist((one.thing.x, one.thing.y), (16, 16)) for one in ordered) / 64, abs=0.02
    )
    assert same.read == pytest.approx(covered) and same.own_half == 1.0
    swapped = mapped(areas.flip(0), ordered, range(2))
    assert swapped[:2] == (0.0, 0.0) and swapped.own_half == 0.0
    both = torch.stack([areas[0], areas[0]])
    assert mapped(both, ordered, range(2)).favoured == 0.5
    assert mapped(both, ordered, [1]).favoured == 0.0
    even = mapped(torch.ones(2, 16, 16), ordered, range(2))
    assert even.favoured == 0.0
    assert even[1:4] == pytest.approx((covered, covered, even.blank)) and even.own_half == 0.5
    lost = mapped(areas, [ordered[0], None], range(2))
    assert math.isnan(lost.favoured) and math.isnan(lost.distance) and lost.own_half == 1.0


def test_what_nobody_can_answer_does_not_count() -> None:
    assert measure.interval([[1.0, math.nan], [1.0, 1.0]]) == (1.0, 1.0, 1.0)
    assert math.isnan(measure.interval([[math.nan] * 2] * 2).mean)


# ---- the committed world


def share(
    sitting: Sitting, part: str = "color", answer: str = "favoured", way: Way = WATCHED, weight: float = 1.0
) -> float:
    return of_point(sitting.compare(way._replace(maps=Selection(part)), weight), answer).mean


def test_colours_and_kinds_are_read_at_their_things(sitting: Sitting, monkeypatch: pytest.MonkeyPatch) -> None:
    assert share(sitting) > 0.9 and share(sitting, "kind") > 0.9
    assert share(sitting, answer="inside") > 1.3 * share(sitting, answer="covered")
    assert share(sitting, answer="distance") < share(sitting, answer="blank")
    assert share(sitting, "article") < 0.8
    faults = {
        "another word's map": lambda maps: maps.flip(0),
        "rows taken for columns": lambda maps: maps.transpose(1, 2),
    }
    for fault, spoil in faults.items():
        monkeypatch.setattr(measure, "mapped", lambda maps, *rest, spoil=spoil: mapped(spoil(maps), *rest))
        assert share(sitting) < 0.8, fault


def test_placed_words_are_read_in_their_half(sitting: Sitting) -> None:
    drop = WATCHED._replace(options={"padding": "drop"})
    for places in (PHRASES, REGIONS):
        assert share(sitting, answer="own_half", way=drop._replace(places=places), weight=4.0) > 0.85
    assert share(sitting, answer="own_half") < 0.65


def test_a_word_of_weight_0_has_no_map_where_its_weight_acts_in_the_attention(painter: Painter) -> None:
    weighted = Sitting(painter, TWO._replace(part="color", num_prompts=2, num_seeds=1))
    biased = WATCHED._replace(how="bias")
    assert share(weighted, answer="read", way=biased, weight=0.0) == 0.0
    plain = share(weighted, answer="read")
    assert 0.0 < share(weighted, answer="read", weight=0.0) < 0.7 * plain
    assert share(weighted, answer="read", way=biased, weight=2.0) > 1.3 * plain
