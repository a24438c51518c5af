"""Choosing the best of many images for a text: features within a memory budget, and ranking by score.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.6; A. Radford et al., 2021.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .config import Crop, VisionConfig
from .full_clip import FullClip
from .images import preprocess
from .vision_model import VisionModel

if TYPE_CHECKING:
    from PIL import Image

MEMORY_BUDGET = 512 * 1024**2
"""Bytes for a batch of images, besides the model and the images themselves."""
MAX_BATCH = 64
"""Maximum batch size; larger ones gain nothing."""


def image_features(
    clip: FullClip,
    images: Tensor | Iterable[Image.Image],
    crop: Crop = "center",
    *,
    memory_budget: int = MEMORY_BUDGET,
    on_progress: Callable[[int], None] | None = None,
) -> Tensor:
    """Encode images, as many at a time as the memory budget allows.

    Args:
        clip: The model.
        images: A host's IMAGE, float ``[images, height, width, channels]`` in 0..1; or PIL images of any sizes, fetched
            one by one, in another thread, while earlier ones are encoded.
        crop: Cropping of images to a square, one of `CROPS`.
        memory_budget: Bytes for one batch, which has at least one image.
        on_progress: Called with the number of images done after each batch. An exception it raises ends the work.

    Returns:
        ``[images, p]``, float32, of unit length, on the CPU; ``[0, p]`` for no images.

    Raises:
        ValueError: If the images have another shape or type.
    """
    features: list[Tensor] = []
    count = 0
    with closing(_batches(images, clip.vision, crop, memory_budget)) as batches:
        for pixels in batches:
            features.append(clip.image_features(pixels))
            count += len(features[-1])
            if on_progress is not None:
                on_progress(count)
    return torch.cat(features) if features else torch.zeros(0, clip.vision.config.projection_dim or 0)


def best(scores: Sequence[float] | Tensor, keep: int) -> list[int]:
    """Indices of the highest scores.

    Args:
        scores: One score per image; NaN counts as lowest.
        keep: Number to choose, at least 1; all if there are no more.

    Returns:
        Indices, highest score first; among equal scores the earlier first.

    Raises:
        ValueError: If ``keep`` is less than 1.

    >>> best([0.2, 0.5, 0.5, 0.1], 3)
    [1, 2, 0]
    """
    if keep < 1:
        raise ValueError(f"keep must be at least 1, got {keep}")
    values = torch.as_tensor(scores, dtype=torch.float64).nan_to_num(-torch.inf, torch.inf, -torch.inf)
    order: list[int] = values.argsort(descending=True, stable=True).tolist()
    return order[:keep]


def bytes_per_image(config: VisionConfig, itemsize: int, height: int, width: int) -> int:
    """Approximate peak memory for encoding one image.

    Args:
        config: Configuration of the image tower.
        itemsize: Bytes per number in the computation.
        height: Height of the original image.
        width: Width of the original image.

    Returns:
        Bytes for a layer's states, three times its inner values, and the image during resizing.
    """
    positions = config.grid**2 + 1
    states = positions * (3 * config.mlp_dim + 5 * config.hidden_dim)
    # float32, before, between and after the two passes of resizing
    pixels = 3 * 4 * (2 * height * width + 3 * config.image_size * max(height, config.image_size))
    return states * itemsize + pixels


def fixed_bytes(config: VisionConfig, itemsize: int) -> int:
    """Approximate memory for encoding regardless of the number of images: twice a layer's largest matrix, for its copy.

    Args:
        config: Configuration of the image tower.
        itemsize: Bytes per number in the computation.
    """
    return 2 * config.hidden_dim * config.mlp_dim * itemsize


def _batches(
    images: Tensor | Iterable[Image.Image], vision: VisionModel, crop: Crop, memory_budget: int
) -> Generator[Tensor]:
    """Preprocessed images, ``[batch, 3, image_size, image_size]``, as many at a time as the budget allows."""
    config = vision.config
    itemsize = next(vision.parameters()).element_size()

    def size(height: int, width: int) -> int:
        room = memory_budget - fixed_bytes(config, itemsize)
        return max(1, min(MAX_BATCH, room // bytes_per_image(config, itemsize, height, width)))

    if isinstance(images, Tensor):
        # anything else than a batch of images is refused in preprocessing, with its name
        parts = images.split(size(images.shape[1], images.shape[2])) if images.ndim == 4 else [images]
        yield from (preprocess(part, config.image_size, crop) for part in parts if len(part) or part.ndim != 4)
        return
    # resized one by one, so that only one at a time is in memory at full size
    prepared = (preprocess([image], config.image_size, crop) for image in images)
    count = size(config.image_size, config.image_size)
    with closing(_ahead(prepared, count)) as rest:
        while batch := list(islice(rest, count)):
            yield torch.cat(batch)


def _ahead(tensors: Iterator[Tensor], count: int) -> Generator[Tensor]:
    """Yield tensors, the next ``count`` of which another thread prepares meanwhile."""
    with ThreadPoolExecutor(1, "weighted-clip-images") as pool:
        try:
            coming = deque(pool.submit(next, tensors, None) for _ in range(count))
            while (tensor := coming.popleft().result()) is not None:
                coming.append(pool.submit(next, tensors, None))
                yield tensor
        finally:  # also if the work is cancelled
            pool.shutdown(wait=False, cancel_futures=True)
