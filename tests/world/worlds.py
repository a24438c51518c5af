"""Small worlds for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor
from weighted_clip.studio.world.judge import Found, assigned, things_in
from weighted_clip.studio.world.model import UNetWorld, World
from weighted_clip.studio.world.scenes import Scene

Kind = TypeVar("Kind", bound=World)
Judge = Callable[[Tensor], list[list[Found]]]


def random_world(kind: type[Kind] = UNetWorld) -> Kind:
    """Random weights, none of them 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        world = kind()
        for parameter in world.parameters():
            torch.nn.init.normal_(parameter, std=0.08)
    return world.eval().requires_grad_(False)


def wrong(scenes: Sequence[Scene], shown: Tensor, judge: Judge = things_in) -> tuple[float, float, float]:
    """Shares of things that are missed, of kinds that are wrong, and of pictures with more things than drawn."""
    missed = kinds = more = 0
    for scene, found in zip(scenes, judge(shown), strict=True):
        there = assigned(found, scene.things)
        missed += there.count(None)
        kinds += sum(
            one is not None and one.thing.kind != thing.kind for one, thing in zip(there, scene.things, strict=True)
        )
        more += len(found) > len(scene.things)
    number = sum(len(scene.things) for scene in scenes)
    return missed / number, kinds / number, more / len(scenes)
