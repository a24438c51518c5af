"""The images of a run: pixels if the image tower is trained, otherwise features computed once."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ..encoder.clip import FullClip
from .augmentation import Augmentation
from .data import Data, Example, Problem
from .features import cached_features, pixels_of, unreadable
from .frozen import digest_of, drop
from .log import duration
from .options import TrainOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

FEATURES_NAME = "features"
"""Name of the folder of features in a run's folder."""
SECONDS_BETWEEN_LINES = 10


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
        began = said = time.monotonic()

        def on_progress(count: int) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said > SECONDS_BETWEEN_LINES:
                said = now
                say(f"images read: {count:,} of {len(data.examples):,}, {duration(now - began)}")

        vision, crop = self._clip.vision, self._options.crop
        if self._options.towers == "both":
            problems: Sequence[Problem] = unreadable(data.examples, vision.config.image_size, crop, on_progress)
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
        if self._options.towers == "both":
            return pixels_of(pair, self._clip.vision.config.image_size, self._options.crop)
        return self._features[pair.name]
