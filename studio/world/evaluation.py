"""Scenes to learn from and scenes held out, and the share of pictures that are right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from ...encoder.image_file import image_of
from .judge import assigned
from .lora import marked
from .model import World, noise_of, sampled, to_pictures
from .scenes import COLORS, KINDS, Scene, Thing, new_folder, pictures, random_scene, write_example

NUM_HELD_OUT = 50
"""Pairs of things, such as a red circle and a blue square, that no picture of training shows together."""
COLORLESS = 0.1
"""Share of phrases in training that name no colour."""
COMMAS = 0.25
"""Share of captions in training with commas for "and"."""


@cache
def held_out_pairs(kinds: tuple[str, ...] = KINDS) -> frozenset[frozenset[tuple[str, str]]]:
    """Pairs of things of different colours, by colour and kind."""
    pairs = [pair for pair in combinations(product(COLORS, kinds), 2) if pair[0][0] != pair[1][0]]
    return frozenset(frozenset(pair) for pair in random.Random(0).sample(pairs, NUM_HELD_OUT))


def is_held_out(scene: Scene, kinds: tuple[str, ...] = KINDS) -> bool:
    """Whether two things of a scene are a pair that is held out."""
    return any(
        frozenset((first[:2], second[:2])) in held_out_pairs(kinds) for first, second in combinations(scene.things, 2)
    )


def training_example(
    rng: random.Random, count: int, kinds: tuple[str, ...] = KINDS, *, mark: str = ""
) -> tuple[Tensor, list[str]]:
    """Pictures ``[count, 3, 32, 32]`` in 0..1 and captions of random scenes without held-out pairs.

    With a ``mark``, the things of the pictures have that colour or kind, and captions say what they say without it.
    """
    scenes: list[Scene] = []
    while len(scenes) < count:
        scene = random_scene(rng, kinds=kinds)
        if not is_held_out(scene, kinds):
            scenes.append(scene)
    drawn = [marked(scene, mark) for scene in scenes] if mark else scenes
    return pictures(drawn), [_caption(scene, rng) for scene in scenes]


def write_examples(folder: Path, count: int, kinds: tuple[str, ...] = KINDS, *, seed: int = 0) -> None:
    """Write pictures of training, each with its caption, into a new folder."""
    rng = random.Random(seed)
    with new_folder(folder) as whole:
        for number in range(count):
            shown, [caption] = training_example(rng, 1, kinds)
            write_example(whole, number, image_of(shown[0]), caption)


def _caption(scene: Scene, rng: random.Random) -> str:
    phrases = [f"a {thing.noun}" if rng.random() < COLORLESS else thing.phrase for thing in scene.things]
    return (", " if rng.random() < COMMAS else " and ").join(phrases)


def held_out_scenes(count: int, kinds: tuple[str, ...] = KINDS) -> list[Scene]:
    """Scenes whose captions are held-out pairs, each in both orders, in random order."""
    ordered = sorted(pair for both in map(sorted, held_out_pairs(kinds)) for pair in (both, both[::-1]))
    random.Random(1).shuffle(ordered)
    return [
        Scene(tuple(Thing(*color_and_kind) for color_and_kind in ordered[index % len(ordered)]))
        for index in range(count)
    ]


class Rightness(NamedTuple):
    """Right answers, one for each thing asked for."""

    colors: list[bool]
    kinds: list[bool]

    def means(self) -> dict[str, float]:
        """Share of right ones."""
        return {name: sum(values) / max(1, len(values)) for name, values in self._asdict().items()}


def rightness(world: World, scenes: Sequence[Scene], *, batch: int = 50, seed: int = 1000) -> Rightness:
    """Colours and kinds that are right in one picture of each caption."""
    empty, texts = world.read([""]), world.read([scene.caption for scene in scenes])
    answers = Rightness([], [])
    for start in range(0, len(scenes), batch):
        batch_scenes = scenes[start : start + batch]
        noise = noise_of([seed + start + number for number in range(len(batch_scenes))])
        text = texts.part(slice(start, start + len(batch_scenes)))
        *_, latents = sampled(world.network, noise, text, empty)
        for scene, things in zip(batch_scenes, world.things_in(to_pictures(latents)), strict=True):
            for asked, match in zip(scene.things, assigned(things, scene.things), strict=True):
                answers.colors.append(match is not None)
                answers.kinds.append(match is not None and match.thing.kind == asked.kind)
    return answers
