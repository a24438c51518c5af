"""Merging after training: the initial weights plus a part of their change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ....encoder.models.clip import FullClip
from ....encoder.models.text_model import TextModel
from ....encoder.models.vision_model import VisionModel
from ..data.image_inputs import digest_of, read_again
from ..options import TrainOptions


class FirstWeights:
    """Initial weights, read again from their file when needed."""

    def __init__(self, clip: FullClip, weights: Path, options: TrainOptions, loss: nn.Module) -> None:
        """Prepare to read them, before training."""
        self._weights = weights
        self._first = {f"loss.{name}": parameter.detach().clone() for name, parameter in loss.named_parameters()}
        self._models: dict[str, TextModel | VisionModel] = {}
        if options.merge != 1 and not options.lora:
            self._models["text"] = clip.text
            if options.towers == "both":
                self._models["vision"] = clip.vision
        self._digests = {name: digest_of(model.parameters()) for name, model in self._models.items()}

    def __call__(self) -> dict[str, Tensor]:
        """Read the weights of the trained towers and the loss, under the names of `Towers`."""
        first = {**self._first}
        for name, model in self._models.items():
            parameters = read_again(model, self._weights, self._digests[name])
            first.update({f"{name}.{part}": tensor for part, tensor in parameters.items()})
        return first


@torch.no_grad()
def merge(trained: Mapping[str, Tensor], first: Mapping[str, Tensor], strength: float) -> None:
    """Interpolate from the initial weights, at 0, to the trained ones, at 1: ``w0 + strength (w - w0)``, in place."""
    for name, parameter in trained.items():
        if name in first:
            before = first[name].to(parameter)
            parameter.copy_(before + strength * (parameter - before))
        elif ".lora_B." in name:  # the change is the product of lora_B and lora_A
            parameter.mul_(strength)
