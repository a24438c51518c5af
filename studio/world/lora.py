"""LoRA of a small world: low-rank updates of its network's matrices, by which things get a colour or kind of their own.

Source: E. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021; names of keys as in
``model_lora_keys_unet`` of ComfyUI 0.29.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ...encoder.quoting import quote
from ..output.export import save_tensors
from ..output.files import written_whole
from .scenes import COLORS, Scene

BLOCKS = ("transformer_blocks.", "single_blocks.")
"""Parts of the names of layers whose matrices get a LoRA."""


class LowRank(nn.Module):
    """A matrix with an update, the product of two narrow ones, which is 0 at first."""

    def __init__(self, matrix: Tensor, rank: int) -> None:
        super().__init__()
        out_dim, in_dim = matrix.shape
        self.down = nn.Parameter(torch.randn(rank, in_dim) / in_dim**0.5)
        self.up = nn.Parameter(torch.zeros(out_dim, rank))

    def forward(self, matrix: Tensor) -> Tensor:
        """The matrix ``[out, in]`` with its update."""
        return matrix + self.up @ self.down


def add_lora(world: nn.Module, rank: int) -> None:
    """Freeze a world, and give the matrices of its network's blocks a LoRA, drawn by the current random state."""
    world.requires_grad_(False)
    for name, layer in list(cast("Any", world).network.named_modules()):
        if isinstance(layer, nn.Linear) and any(block in name for block in BLOCKS):
            parametrize.register_parametrization(layer, "weight", LowRank(layer.weight, rank))


def lora_tensors(world: nn.Module) -> dict[str, Tensor]:
    """The LoRA as hosts read it: down ``[rank, in]``, up ``[out, rank]``, and alpha, which is the rank."""
    tensors: dict[str, Tensor] = {}
    for name, low_rank in _updates(world):
        key = f"lora_unet_{name.replace('.', '_')}"
        for end in ("down", "up"):
            tensors[f"{key}.lora_{end}.weight"] = getattr(low_rank, end).detach().to("cpu", torch.float16).contiguous()
        tensors[f"{key}.alpha"] = torch.tensor(float(len(low_rank.down)))
    return tensors


def _updates(world: nn.Module) -> Iterator[tuple[str, LowRank]]:
    for name, module in cast("Any", world).network.named_modules():
        if isinstance(module, LowRank):
            yield name.removesuffix(".parametrizations.weight.0"), module


def save_lora(world: nn.Module, path: Path, recipe: Mapping[str, Any]) -> None:
    """Write the LoRA of a world in half precision; ``recipe`` says in the metadata how it was trained."""
    metadata = {"ss_output_name": f"small-world-{recipe['mark']}", "recipe": json.dumps(dict(recipe))}
    with written_whole(path) as place:
        save_tensors(lora_tensors(world), place, metadata)


def check_mark(mark: str, kinds: tuple[str, ...]) -> None:
    """Raise ValueError for a mark that is neither a colour nor one of a world's kinds."""
    if mark not in (*COLORS, *kinds):
        raise ValueError(f"--mark must be one of: {', '.join((*COLORS, *kinds))}; got {quote(mark)}")


def marked(scene: Scene, mark: str) -> Scene:
    """A scene whose things all have a colour or kind."""
    field = "color" if mark in COLORS else "kind"
    return Scene(tuple(thing._replace(**{field: mark}) for thing in scene.things))
