"""The images of a run: pixels if the image tower is trained, otherwise features computed once."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from ..encoder.clip import FullClip
from ..encoder.config import Crop
from ..encoder.files.safetensors_file import opened
from ..encoder.files.tensor_file import CheckpointError, open_tensor_file
from ..encoder.foreign_text import parse_json
from ..encoder.images import preprocess
from ..encoder.text_model import TextModel
from ..encoder.vision_model import VisionModel
from ..output.export import save_tensors
from ..output.files import written_whole
from .augmentation import Augmentation
from .data import Data, Example, Problem
from .log import duration
from .options import TrainOptions

if TYPE_CHECKING:
    from accelerate import Accelerator
    from PIL import Image

FEATURES_NAME = "features"
"""Name of the folder of features in a run's folder."""
SECONDS_BETWEEN_LINES = 10


def progress_of_reading(num_images: int, say: Callable[[str], None]) -> Callable[[int], None]:
    """Function that is called with the number of images read so far, and says it now and then."""
    began = said = time.monotonic()

    def on_progress(count: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said > SECONDS_BETWEEN_LINES:
            said = now
            say(f"images read: {count:,} of {num_images:,}, {duration(now - began)}")

    return on_progress


class Images:
    """Provider of images in the form a step needs."""

    def __init__(self, clip: FullClip, options: TrainOptions) -> None:
        """Set up the images of a run."""
        self._clip, self._options = clip, options
        self._features: dict[str, Tensor] = {}
        self.digest = ""
        """`digest_of` the image tower once it is dropped, which it is if it is not trained; else empty."""

    def read(self, data: Data, folder: Path, accelerator: Accelerator, say: Callable[[str], None]) -> Data:
        """Open all images once. If the image tower is not trained, compute features and drop it."""
        on_progress = progress_of_reading(len(data.examples), say)
        vision, crop = self._clip.vision, self._options.crop
        if self._options.towers != "text":
            problems: Sequence[Problem] = unreadable(data.examples, self, on_progress)
        else:
            place, self.digest = folder / FEATURES_NAME, digest_of(vision.parameters())
            # the first process computes each file, and the others find it: none waits for more than one file
            turn = accelerator.main_process_first
            found = cached_features(
                self._clip, data.examples, crop, place, f"{self.digest} {vision.config}", on_progress, turn
            )
            self._features, problems = found
            drop(vision)
        return data.without(problems)

    def for_epoch(self, pair: Example, epoch: int) -> Tensor | Problem:
        """The image of a pair as trained on in an epoch, augmented as requested."""
        options = self._options
        if options.augmentation == Augmentation():
            return self(pair)
        size = self._clip.vision.config.image_size
        rng = random.Random(f"{options.seed}/{epoch}/{pair.name}/image")
        return pixels_of(pair, size, options.crop, lambda image: options.augmentation(image, size, rng))

    def __call__(self, pair: Example) -> Tensor | Problem:
        """Features ``[p]`` of an image, or pixels ``[3, size, size]`` if its tower is trained; else the problem."""
        if self._options.towers != "text":
            return pixels_of(pair, self._clip.vision.config.image_size, self._options.crop)
        return self._features[pair.name]


PER_FILE = 1024
"""Default number of images per file of features."""
BATCH = 32
"""Images encoded at once."""
MAX_HEADER_BYTES = 100_000_000
"""Maximum size of a header, which names the images; safetensors itself reads no larger one."""
NUM_THREADS = min(8, os.cpu_count() or 1)


def pixels_of(
    example: Example, size: int, crop: Crop, change: Callable[[Image.Image], Image.Image] | None = None
) -> Tensor | Problem:
    """An image for the image tower, ``[3, size, size]``, or why it cannot be read. ``change`` is applied first."""
    try:
        image = example.image()
        return preprocess([image if change is None else change(image)], size, crop)[0]
    except (ValueError, OSError) as error:
        return _problem(example, error)


def _problem(example: Example, error: Exception) -> Problem:
    """Reason for which an image cannot be read, without its name."""
    reason = str(error)
    for name in (str(example.path), example.name):
        reason = reason.removeprefix(f"{name}: ")
    return Problem(example.name, reason)


def still_readable(image: Tensor | Problem) -> Tensor:
    """An image that could be read when the run began."""
    if isinstance(image, Problem):
        raise ValueError(f"{image.name} could be read before, and cannot now: {image.reason}")
    return image


def unreadable(
    examples: Sequence[Example], read: Callable[[Example], Tensor | Problem], on_progress: Callable[[int], None]
) -> list[Problem]:
    """Open every image once and report those that cannot be used."""
    problems: list[Problem] = []
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = pool.map(read, examples)
        for number, one in enumerate(found, 1):
            if isinstance(one, Problem):
                problems.append(one)
            on_progress(number)
    return problems


def cached_features(
    clip: FullClip,
    examples: Sequence[Example],
    crop: Crop,
    folder: Path,
    digest: str,
    on_progress: Callable[[int], None],
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> tuple[dict[str, Tensor], list[Problem]]:
    """Features by a frozen image tower, ``[p]``, of unit length, by name; read from disk where available."""
    folder.mkdir(parents=True, exist_ok=True)
    features: dict[str, Tensor] = {}
    problems: list[Problem] = []
    for start in range(0, len(examples), PER_FILE):
        some = examples[start : start + PER_FILE]
        path = folder / f"features-{start:08}.safetensors"
        stamps = [_stamp(example) for example in some]
        key = blake2b(json.dumps([digest, crop, stamps]).encode(), digest_size=16).hexdigest()
        with turn():
            found = _read(path, key)
            if found is None:
                found = _computed(clip, some, crop, lambda count, start=start: on_progress(start + count))
                names, tensor, bad = found
                metadata = {"key": key, "names": json.dumps(names), "problems": json.dumps(bad)}
                with written_whole(path) as place:
                    save_tensors({"features": tensor}, place, metadata)
        names, tensor, bad = found
        features |= dict(zip(names, tensor, strict=True))
        problems += [Problem(*one) for one in bad]
        on_progress(start + len(some))
    return features, problems


_Found = tuple[list[str], Tensor, list[tuple[str, str]]]


def _computed(clip: FullClip, examples: Sequence[Example], crop: Crop, on_progress: Callable[[int], None]) -> _Found:
    """Names and features ``[images, p]`` of the readable images, and the others by name with the reason."""
    names: list[str] = []
    bad: list[tuple[str, str]] = []
    pieces: list[Tensor] = []
    size = clip.vision.config.image_size

    def batches() -> Iterator[list[Tensor]]:
        batch: list[Tensor] = []
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            for start in range(0, len(examples), 4 * BATCH):  # at most this many are held at once
                some = examples[start : start + 4 * BATCH]
                for example, one in zip(some, pool.map(lambda one: pixels_of(one, size, crop), some), strict=True):
                    if isinstance(one, Problem):
                        bad.append((one.name, one.reason))
                        continue
                    names.append(example.name)
                    batch.append(one)
                    if len(batch) == BATCH:
                        yield batch
                        batch = []
        if batch:
            yield batch

    for batch in batches():
        pieces.append(clip.image_features(torch.stack(batch)))
        on_progress(len(names) + len(bad))
    return names, torch.cat(pieces) if pieces else torch.zeros(0, clip.vision.config.projection_dim or 0), bad


def _read(path: Path, key: str) -> _Found | None:
    """Content of a file, if it is complete and has this key."""
    try:
        with opened(path, MAX_HEADER_BYTES) as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            tensor = file.get_tensor("features").clone()
            problems = [tuple(one) for one in parse_json(metadata["problems"])]
            return parse_json(metadata["names"]), tensor, problems
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):  # damaged, so they are computed again
        return None


def _stamp(example: Example) -> list[object]:
    """Values that change when an image does."""
    about = example.path.stat()
    return [example.name, about.st_size, about.st_mtime_ns, example.place]


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


Listing = Literal["dvae", "prior"]
"""Listing in the paper that pictures are cropped by, 1 or 2."""


def picture_of(example: Example, size: int, rng: random.Random | None, what: Listing = "dvae") -> Tensor | Problem:
    """Crop a picture to a square.

    With a random generator, as in the paper. For the discrete VAE: a square of the short side's length at a random
    place, reduced by area to between 9/8 and 12/8 of the size (or less, if it is smaller), then a square of the size at
    a random place in it, mirrored or not. For the prior, whose captions say left and right: the first square at 3/8 to
    5/8 of the way, reduced to between 1 and 9/8 of the size, not mirrored. Without a generator: the central square,
    reduced by area.
    """
    from PIL import Image

    try:
        image = example.image().convert("RGB")
    except (ValueError, OSError) as error:
        return _problem(example, error)
    short = min(image.size)
    if short < size:
        return Problem(example.name, f"its short side has fewer than {size} pixels")
    if rng is None:
        left, top = ((length - short) // 2 for length in image.size)
        target = size
    elif what == "dvae":
        left, top = (rng.randint(0, length - short) for length in image.size)
        target = rng.randint(min(short, round(9 / 8 * size)), min(short, round(12 / 8 * size)))
    else:
        # an exclusive end, unless it equals the beginning
        ends = ((3 * (length - short) // 8, 5 * (length - short) // 8) for length in image.size)
        left, top = (rng.randint(start, max(start, end - 1)) for start, end in ends)
        target = rng.randint(size, min(short, round(9 / 8 * size)))
    image = image.crop((left, top, left + short, top + short))
    image = image.resize((target, target), Image.Resampling.BOX)
    if rng is not None:
        left, top = (rng.randint(0, target - size) for _ in range(2))
        image = image.crop((left, top, left + size, top + size))
        if what == "dvae" and rng.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
