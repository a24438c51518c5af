"""A frozen image tower: dropped once its features are known, and read again to be written.

Otherwise a quarter of the memory of a run that trains the text tower alone would hold unused weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from ..encoder.files.tensor_file import CheckpointError, open_tensor_file
from ..encoder.text_model import TextModel
from ..encoder.vision_model import VisionModel


def digest_of(parameters: Iterable[Tensor]) -> str:
    """Digest of a tower's weights, given in its order."""
    digest = blake2b(digest_size=16)
    for parameter in parameters:
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def drop(vision: VisionModel) -> None:
    """Free the memory of an image tower's weights; its sizes remain known."""
    vision.to("meta")


def read_again(model: TextModel | VisionModel, weights: Path, digest: str) -> dict[str, Tensor]:
    """Read the weights of a tower from its file."""
    with open_tensor_file(weights) as file:
        is_text = isinstance(model, TextModel)
        sources = file.sources(file.towers()[0] if is_text else file.vision_tower(), model)
        tensors = {name: file.tensor(sources[name]).float() for name, _ in model.named_parameters()}
        if digest_of(tensors.values()) != digest:
            kind = "text" if is_text else "image"
            raise CheckpointError(f"its {kind} tower is another one than when the run began")
    return tensors
