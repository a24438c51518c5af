"""The images of a run: pixels where the image tower is trained, features that are computed once where it is not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from ..encoder.full_clip import FullClip
from .augmentation import Augmentation
from .data import Data, Example, Problem
from .features import cached_features, pixels_of, unreadable
from .frozen import digest_of, drop
from .log import duration
from .options import TrainOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

FEATURES_NAME = "features"
"""Of the folder of features in a run's folder."""
SECONDS_BETWEEN_LINES = 10


class Images:
    """Gives the image of a pair as a step wants it."""

    def __init__(self, clip: FullClip, options: TrainOptions) -> None:
        """Take images for a run.

        Args:
            clip: What training begins from.
            options: Which towers are trained, and how images are cropped.
        """
        self._clip, self._options = clip, options
        self._features: dict[str, Tensor] = {}
        self.digest = ""
        """`digest_of` the image tower once it is dropped, as it is where it is not trained; else empty."""

    def read(self, data: Data, folder: Path, accelerator: Accelerator, say: Callable[[str], None]) -> Data:
        """Open all images once, and compute features where the image tower is not trained, which is then dropped.

        Args:
            data: The pairs.
            folder: Of the run.
            accelerator: Which runs it.
            say: Called with lines for people.

        Returns:
            The data without unreadable images.

        Raises:
            OSError: If features cannot be written.
        """
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
            # the first process computes each file, which the others then find: none waits longer than for one
            turn = accelerator.main_process_first
            found = cached_features(self._clip, data.examples, crop, place, self.digest, on_progress, turn)
            self._features, problems = found
            drop(vision)
        return data.without(problems)

    def for_epoch(self, pair: Example, epoch: int) -> Tensor | Problem:
        """The same as it is trained on in an epoch, by the augmentation that was asked for."""
        options = self._options
        if options.augmentation == Augmentation():
            return self(pair)
        size = self._clip.vision.config.image_size
        rng = random.Random(f"{options.seed}/{epoch}/{pair.name}/image")
        return pixels_of(pair, size, options.crop, lambda image: options.augmentation(image, size, rng))

    def __call__(self, pair: Example) -> Tensor | Problem:
        """Features ``[p]`` of an image; where its tower is trained pixels ``[3, size, size]``, or why not."""
        if self._options.towers == "both":
            return pixels_of(pair, self._clip.vision.config.image_size, self._options.crop)
        return self._features[pair.name]
