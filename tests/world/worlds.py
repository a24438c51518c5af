"""Small worlds for tests."""

from __future__ import annotations

from typing import TypeVar

import torch
from weighted_clip.world.model import UNetWorld, World

Kind = TypeVar("Kind", bound=World)


def random_world(kind: type[Kind] = UNetWorld) -> Kind:
    """Random weights, none of them 0."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        world = kind()
        for parameter in world.parameters():
            torch.nn.init.normal_(parameter, std=0.08)
    return world.eval().requires_grad_(False)
