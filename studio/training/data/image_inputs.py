"""The images of a run: pixels if the image tower is trained, otherwise features computed once."""

from __future__ import annotations

import copy
import json
import os
import random
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ....encoder.files.tensor_file import CheckpointError, open_tensor_file
from ....encoder.foreign_text import parse_json
from ....encoder.images import preprocess
from ....encoder.models.clip import FullClip
from ....encoder.models.config import Crop
from ....encoder.models.text_model import TextModel
from ....encoder.models.vision_model import VisionModel
from ..log import duration
from ..options import TrainOptions
from .augmentation import Augmentation
from .examples import DataProblem, Example

if TYPE_CHECKING:
    from PIL import Image

FEATURES_NAME, LEFT_OUT_NAME = "features", "unreadable.jsonl"
"""Names of the folder of features, and of the file of unreadable images, in a run's folder."""
FEW = 1024
"""Maximum number of images that are all opened before the first step; of more, each is opened when needed."""
SECONDS_BETWEEN_LINES = 10


def in_batches(examples: Sequence[Example], size: int, say: Callable[[str], None]) -> Iterator[Sequence[Example]]:
    """Yield batches whose images are to be read, and say from time to time how many have been."""
    began = said = time.monotonic()
    for start in range(0, len(examples), size):
        batch = examples[start : start + size]
        yield batch
        now = time.monotonic()
        if now - said > SECONDS_BETWEEN_LINES:
            said = now
            say(f"images read: {start + len(batch):,} of {len(examples):,}, {duration(now - began)}")


class LeftOut:
    """Images found unreadable during a run, listed in a file of the run's folder."""

    def __init__(self, folder: Path | None, prefix: str = "") -> None:
        """Read the file, if it exists; without a folder there is none. A prefix separates names of other data."""
        self._path, self._prefix = folder and folder / LEFT_OUT_NAME, prefix
        self._lock = Lock()
        self.reasons: dict[str, str] = {}
        self.reasons = {problem.name: problem.reason for problem in self.problems()}
        """Reasons by name, as far as this process knows."""

    def __contains__(self, example: Example) -> bool:
        return f"{self._prefix}{example.name}" in self.reasons

    def add(self, problem: DataProblem) -> None:
        """Add one, unless it is known."""
        name = f"{self._prefix}{problem.name}"
        with self._lock:
            if name in self.reasons:
                return
            self.reasons[name] = problem.reason
            if self._path is None:
                return
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([name, problem.reason]) + "\n")

    def problems(self) -> list[DataProblem]:
        """Unreadable images that any process has found."""
        reasons = {**self.reasons}
        for line in self._path.read_text(encoding="utf-8").splitlines() if self._path and self._path.is_file() else ():
            with suppress(ValueError):  # the last one, cut off by a kill
                name, reason = map(str, parse_json(line))
                reasons[name] = reason
        return [DataProblem(*item) for item in reasons.items()]


Loaded = Future[tuple[Example, Tensor]]
"""An example and its image, as it comes."""


class Images:
    """Images in the form a step needs: pixels ``[3, size, size]``, or features ``[p]`` by a tower that is not trained.

    Features are computed when they are first needed, and kept in a file. Their last bits depend on the images that are
    encoded together, and so on nothing but the batch in which an image comes first.
    """

    def __init__(
        self,
        clip: FullClip,
        options: TrainOptions,
        folder: Path | None,
        weights: Path | None = None,
        *,
        device: torch.device | str = "cpu",
    ) -> None:
        """Set up the images of a run; one without a folder trains both towers.

        The weights of a tower that is not trained are dropped while they are not needed.
        """
        self._clip, self._options, self._weights, self._device = clip, options, weights, device
        self._folder = folder
        self.left_out = LeftOut(folder)
        self.digest = ""
        """`digest_of` the image tower if it is not trained; else empty."""
        self.num_idle = 0
        """Batches in a row whose features are all known, after which the tower is dropped."""
        self._idle = 0
        self.waited = 0.0
        """Seconds spent waiting for the last batch."""
        self._features: FeatureFile | None = None
        if options.towers == "text":
            self.digest = digest_of(clip.vision.parameters())
            self._features = self._features_in(FEATURES_NAME)

    def _features_in(self, name: str) -> FeatureFile:
        config = self._clip.vision.config
        key = f"{self.digest} {config} {self._options.crop}"
        return FeatureFile(cast("Path", self._folder) / name, key, config.projection_dim or 0)

    def of(self, name: str) -> Images:
        """Provider for other data, whose features are kept in a folder of this name."""
        provider = copy.copy(self)
        provider.left_out = LeftOut(self._folder, f"{name}: ")
        provider._features = self._features and self._features_in(f"{FEATURES_NAME}-{name}")
        return provider

    def check(self, examples: Sequence[Example], say: Callable[[str], None]) -> list[DataProblem]:
        """Read all of some images; return those that cannot be read."""
        loaded = chain.from_iterable(self.now(batch) for batch in in_batches(examples, BATCH, say))
        return [image for image in loaded if isinstance(image, DataProblem)]

    def drop(self) -> None:
        """Free the memory of a tower that is not trained, until it is needed again; its sizes remain known."""
        if self._features is not None:
            self._clip.vision.to("meta")

    def begin(self, pool: ThreadPoolExecutor, epoch: int, share: Sequence[Iterator[Example]]) -> list[Loaded]:
        """Begin to load this process's share of a batch: for each place, the first readable candidate.

        They are augmented as requested, in each epoch in another way.
        """
        begun: list[Loaded] = []
        for start in range(0, len(share), BATCH):
            chosen = [(next(candidates), candidates) for candidates in share[start : start + BATCH]]
            rows = [self._features.read(example) if self._features else None for example, _ in chosen]
            for (example, alternatives), row in zip(chosen, rows, strict=True):
                if row is None or any(features is None for features in rows):
                    begun.append(pool.submit(self._first_readable, chain([example], alternatives), epoch))
                else:
                    begun.append(Future())
                    begun[-1].set_result((example, row))
        return begun

    def _first_readable(self, candidates: Iterator[Example], epoch: int) -> tuple[Example, Tensor]:
        while True:
            example = next(candidates)
            image = self._pixels(example, epoch)
            if isinstance(image, Tensor):
                return example, image
            self.left_out.add(image)

    def _pixels(self, example: Example, epoch: int | None = None) -> Tensor | DataProblem:
        """Pixels of an image, augmented for an epoch."""
        options, size = self._options, self._clip.vision.config.image_size
        if epoch is None or options.augmentation == Augmentation():
            return pixels_of(example, size, options.crop)
        rng = random.Random(f"{options.seed}/{epoch}/{example.name}/image")
        return pixels_of(example, size, options.crop, lambda image: options.augmentation(image, size, rng))

    def end(self, begun: Sequence[Loaded], are_written: Sequence[bool]) -> list[tuple[Example, Tensor]]:
        """Wait for the images that `begin` loads; features of those that ``are_written`` are stored."""
        began = time.monotonic()
        loaded = [future.result() for future in begun]
        self.waited = time.monotonic() - began
        pairs: list[tuple[Example, Tensor]] = []
        self._idle += 1
        for start in range(0, len(loaded), BATCH):
            batch = loaded[start : start + BATCH]
            if self._features is None or batch[0][1].ndim == 1:
                pairs += batch
                continue
            self._idle = 0
            encoded = self._encoded([pixels for _, pixels in batch])
            for (example, _), row, is_written in zip(batch, encoded, are_written[start:], strict=False):
                pairs.append((example, self._features.kept(example, row, is_written=is_written)))
        if self._idle == self.num_idle:
            self.drop()
        return pairs

    def now(self, examples: Sequence[Example]) -> list[Tensor | DataProblem]:
        """Images as used for measuring, loaded at once."""
        rows = [self._features.read(example) if self._features else None for example in examples]
        if not any(row is None for row in rows):
            return cast("list[Tensor | DataProblem]", rows)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            images = list(pool.map(self._pixels, examples))
        pixels = [image for image in images if isinstance(image, Tensor)]
        if self._features is None or not pixels:
            return images
        encoded = iter(self._encoded(pixels))
        return [
            image if isinstance(image, DataProblem) else self._features.kept(example, next(encoded))
            for example, image in zip(examples, images, strict=True)
        ]

    def readable(self, examples: Sequence[Example], size: int) -> Iterator[tuple[Sequence[Example], Tensor]]:
        """Yield examples in batches with their images as used for measuring; those that cannot be read are left out."""
        for start in range(0, len(examples), size):
            batch = examples[start : start + size]
            loaded = dict(zip(batch, self.now(batch), strict=True))
            for image in loaded.values():
                if isinstance(image, DataProblem):
                    self.left_out.add(image)
            images = {example: image for example, image in loaded.items() if isinstance(image, Tensor)}
            if images:
                yield [*images], torch.stack([*images.values()])

    @torch.no_grad()
    def _encoded(self, pixels: Sequence[Tensor]) -> Tensor:
        """Features of some images, ``[images, p]``, of unit length, on the CPU."""
        vision = self._clip.vision
        if self._weights is not None and next(vision.parameters()).is_meta:
            vision.load_state_dict(read_again(vision, self._weights, self.digest), strict=False, assign=True)
        vision.to(self._device)
        projected = cast("Tensor", vision.project(torch.stack(list(pixels)).to(self._device)))
        return functional.normalize(projected.float(), dim=-1).cpu()


class FeatureFile:
    """Features of images in a file, a record for each: a stamp that changes with the image, and the numbers.

    A record that is cut off, or of another image, is as none. Several processes may write into one file.
    """

    def __init__(self, folder: Path, key: str, width: int) -> None:
        """Open or create a file in a folder. ``key`` names all that features depend on, each of ``width`` numbers."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{blake2b(key.encode(), digest_size=8).hexdigest()}.bin"
        path.touch()
        self._file = path.open("r+b", buffering=0)
        weakref.finalize(self, self._file.close)
        self._size = 16 + 4 * width

    def read(self, example: Example) -> Tensor | None:
        """Features of an image, ``[p]``, if they are there."""
        self._file.seek(example.number * self._size)
        record = self._file.read(self._size)
        if len(record) < self._size or record[:16] != _stamp_of(example):
            return None
        row = torch.from_numpy(np.frombuffer(record, "<f4", offset=16).copy())
        return row if abs(row.norm().item() - 1) < 1e-3 else None  # in part of an older one

    def kept(self, example: Example, row: Tensor, *, is_written: bool = True) -> Tensor:
        """Stored features of an image; if there are none, the given ones, which are then stored."""
        stored = self.read(example)
        if stored is None and is_written:
            self._file.seek(example.number * self._size)
            self._file.write(_stamp_of(example) + row.numpy().astype("<f4").tobytes())
        return row if stored is None else stored


def _stamp_of(example: Example) -> bytes:
    """Digest of an image file, in 16 bytes."""
    try:
        stat = example.path.stat()
    except OSError:
        return bytes(16)
    values = example.name, stat.st_size, stat.st_mtime_ns, example.place
    return blake2b(json.dumps(values).encode(), digest_size=16).digest()


BATCH = 32
"""Images encoded at once."""
NUM_THREADS = min(8, os.cpu_count() or 1)


def pixels_of(
    example: Example, size: int, crop: Crop, change: Callable[[Image.Image], Image.Image] | None = None
) -> Tensor | DataProblem:
    """An image for the image tower, ``[3, size, size]``, or why it cannot be read. ``change`` is applied first."""
    try:
        image = example.image()
        return preprocess([image if change is None else change(image)], size, crop)[0]
    except (ValueError, OSError) as error:
        return _problem(example, error)


def _problem(example: Example, error: Exception) -> DataProblem:
    """Reason for which an image cannot be read, without its name."""
    reason = str(error)
    for name in (str(example.path), example.name):
        reason = reason.removeprefix(f"{name}: ")
    return DataProblem(example.name, reason)


def still_readable(image: Tensor | DataProblem) -> Tensor:
    """An image that could be read when the run began."""
    if isinstance(image, DataProblem):
        raise ValueError(f"{image.name} could be read before, and cannot now: {image.reason}")
    return image


def digest_of(parameters: Iterable[Tensor]) -> str:
    """Digest of a tower's weights, given in its order."""
    digest = blake2b(digest_size=16)
    for parameter in parameters:
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


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


def picture_of(example: Example, size: int, rng: random.Random | None, what: Listing = "dvae") -> Tensor | DataProblem:
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
        return DataProblem(example.name, f"its short side has fewer than {size} pixels")
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
