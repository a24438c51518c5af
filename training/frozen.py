"""The image tower of a run that trains the text tower alone: dropped once its features are known, read again to write.

A quarter of such a run's memory would otherwise hold weights that no step uses.
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
    """Changes with the weights of a tower, given in its order."""
    digest = blake2b(digest_size=16)
    for parameter in parameters:
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def drop(vision: VisionModel) -> None:
    """Free the memory of an image tower's weights; its sizes stay known."""
    vision.to("meta")


def read_again(model: TextModel | VisionModel, weights: Path, digest: str) -> dict[str, Tensor]:
    """The weights of a tower as they are in its file.

    Args:
        model: The tower, or one like it; it may be dropped.
        weights: The file that it was read from.
        digest: `digest_of` it then.

    Returns:
        Parameters by name, float32. Those that the file has in this type are the file itself and take no memory twice.

    Raises:
        CheckpointError: If the file cannot be read, or holds another tower by now.
    """
    with open_tensor_file(weights) as file:
        is_text = isinstance(model, TextModel)
        sources = file.sources(file.towers()[0] if is_text else file.vision_tower(), model)
        tensors = {name: file.tensor(sources[name]).float() for name, _ in model.named_parameters()}
        if digest_of(tensors.values()) != digest:
            kind = "text" if is_text else "image"
            raise CheckpointError(f"its {kind} tower is another one than when the run began")
    return tensors
