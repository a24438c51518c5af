"""Images as input of CLIP's image tower, resized and normalised; their features; and the best of many for a text.

8-bit images go through Pillow, bit-identical to transformers' CLIPImageProcessor. Float images, as used by hosts,
remain tensors and come within one 8-bit step of that.

Source: preprocessing of A. Radford et al., 2021, as in transformers 5.23 ``CLIPImageProcessor`` (Pillow); A. Ramesh et
al., "Zero-Shot Text-to-Image Generation", 2021, section 2.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from .models.clip import FullClip
from .models.config import CROPS, Crop, VisionConfig
from .models.vision_model import VisionModel
from .quoting import checked

if TYPE_CHECKING:
    from PIL import Image

MEAN = (0.48145466, 0.4578275, 0.40821073)
"""Mean of the training images, by channel."""
STD = (0.26862954, 0.26130258, 0.27577711)
"""Standard deviation by channel. OpenCLIP's models use the same values."""
MAX_RATIO = 100
"""Maximum ratio of an image's sides. A thinner one would grow to gigabytes before it is cropped."""


def preprocess(images: Any, size: int, crop: Crop = "center") -> Tensor:
    """Prepare images for the image tower.

    Args:
        images: A PIL image, a list of them, or a host's IMAGE: float ``[images, height, width, channels]`` in 0..1, of
            1 (grey), 3 or 4 channels. Alpha is dropped, as in the reference.
        size: Side of the result, in pixels.
        crop: One of `CROPS`. Bars have the mean colour, which is 0 after normalisation.

    Returns:
        Float32 ``[images, 3, size, size]``, normalised.

    Raises:
        ValueError: If the images have another shape or type or are too thin, or the crop is unknown.

    >>> from PIL import Image
    >>> tuple(preprocess(Image.new("L", (30, 20)), 14).shape)
    (1, 3, 14, 14)
    """
    checked("crop", crop, CROPS)
    if isinstance(images, Tensor):
        return _preprocess_tensor(images, size, crop)
    from PIL import Image

    images = [images] if isinstance(images, Image.Image) else list(images)
    if not images or not all(isinstance(image, Image.Image) for image in images):
        kinds = ", ".join(sorted({type(image).__name__ for image in images})) or "none"
        raise ValueError(f"images must be PIL images or a float tensor, got {kinds}")
    return torch.stack([_preprocess_pil(image, size, crop) for image in images])


def _preprocess_pil(image: Image.Image, size: int, crop: Crop) -> Tensor:
    """Process one image to ``[3, size, size]``."""
    from PIL import Image

    resized = image.convert("RGB")
    width, height = _target(resized.width, resized.height, size, crop)
    resized = resized.resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(resized)  # [height, width, 3], 8-bit
    left, top = (width - size) // 2, (height - size) // 2
    if crop == "center":
        pixels = pixels[top : top + size, left : left + size]
    # these types in this order, so that the last bits equal the reference's
    scaled = (pixels.astype(np.float64) * (1 / 255)).astype(np.float32)
    normed = (scaled - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
    result = torch.from_numpy(normed).permute(2, 0, 1).contiguous()
    return _with_bars(result, size) if crop == "letterbox" else result


def _preprocess_tensor(images: Tensor, size: int, crop: Crop) -> Tensor:
    """``[images, height, width, channels]`` to ``[images, 3, size, size]``."""
    if images.ndim != 4 or images.shape[-1] not in (1, 3, 4) or 0 in images.shape or not images.is_floating_point():
        raise ValueError(
            "images must be float [images, height, width, 1, 3 or 4 channels] in 0..1, got "
            f"{str(images.dtype).removeprefix('torch.')} {list(images.shape)}"
        )
    pixels = images[..., :3].float().clamp(0, 1).permute(0, 3, 1, 2).expand(-1, 3, -1, -1)
    width, height = _target(pixels.shape[3], pixels.shape[2], size, crop)
    for shape in ((pixels.shape[2], width), (height, width)):  # horizontally first, then vertically, as in Pillow
        if pixels.shape[2:] != shape:
            pixels = functional.interpolate(pixels, shape, mode="bicubic", antialias=True, align_corners=False)
            pixels = (pixels * 255).round().clamp(0, 255) / 255  # rounded to 8 bits after each, as in Pillow
    if crop == "center":
        left, top = (width - size) // 2, (height - size) // 2
        pixels = pixels[:, :, top : top + size, left : left + size]
    mean, std = (torch.tensor(values, device=pixels.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    normed = (pixels - mean) / std
    return _with_bars(normed, size) if crop == "letterbox" else normed


def _target(width: int, height: int, size: int, crop: Crop) -> tuple[int, int]:
    """Width and height to resize to."""
    if crop == "stretch":
        return size, size
    short, long = min(width, height), max(width, height)
    if long > MAX_RATIO * short:
        raise ValueError(
            f"an image of {width} x {height} pixels is too thin: one side may be at most {MAX_RATIO} times the other"
        )
    # int(), not round(), as in the reference
    other_side = int(size * long / short) if crop == "center" else max(1, int(size * short / long))
    first, second = (size, other_side) if crop == "center" else (other_side, size)
    return (first, second) if width <= height else (second, first)


def _with_bars(pixels: Tensor, size: int) -> Tensor:
    """Centre ``[..., height, width]`` in ``[..., size, size]``, padded with 0, the mean colour."""
    height, width = pixels.shape[-2:]
    left, top = (size - width) // 2, (size - height) // 2
    return functional.pad(pixels, (left, size - width - left, top, size - height - top))


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
    """Approximate memory for encoding regardless of the number of images."""
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
