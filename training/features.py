"""Images for training, opened by several threads, and features of a frozen image tower, cached on disk.

Features are written atomically in files of up to `PER_FILE` images, so a stopped run recomputes at most one file. A
file is reused if its images, the tower and the crop are the same.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..encoder.clip import FullClip
from ..encoder.config import Crop
from ..encoder.images import preprocess
from ..output.export import save_tensors
from ..output.files import written_whole
from .data import Example, Problem

if TYPE_CHECKING:
    from PIL import Image

PER_FILE = 1024
"""Default number of images per file of features."""
BATCH = 32
"""Images encoded at once."""
NUM_THREADS = min(8, os.cpu_count() or 1)


def pixels_of(
    example: Example, size: int, crop: Crop, change: Callable[[Image.Image], Image.Image] | None = None
) -> Tensor | Problem:
    """An image for the image tower, ``[3, size, size]``, or why it cannot be read. ``change`` is applied first."""
    try:
        image = example.image()
        return preprocess([image if change is None else change(image)], size, crop)[0]
    except (ValueError, OSError) as error:
        reason = str(error)
        for name in (str(example.path), example.name):
            reason = reason.removeprefix(f"{name}: ")
        return Problem(example.name, reason)


def unreadable(examples: Sequence[Example], size: int, crop: Crop, on_progress: Callable[[int], None]) -> list[Problem]:
    """Open every image once and report those that cannot be used."""
    problems: list[Problem] = []
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        found = pool.map(lambda example: pixels_of(example, size, crop), examples)
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
    *,
    per_file: int = PER_FILE,
) -> tuple[dict[str, Tensor], list[Problem]]:
    """Features by a frozen image tower, ``[p]``, of unit length, by name; read from disk where available."""
    folder.mkdir(parents=True, exist_ok=True)
    features: dict[str, Tensor] = {}
    problems: list[Problem] = []
    for start in range(0, len(examples), per_file):
        some = examples[start : start + per_file]
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
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") != key:
                return None
            tensor = file.get_tensor("features").clone()
            return json.loads(metadata["names"]), tensor, [tuple(one) for one in json.loads(metadata["problems"])]
    except (OSError, SafetensorError, KeyError, ValueError, TypeError):  # damaged, so they are computed again
        return None


def _stamp(example: Example) -> list[object]:
    """Values that change when an image does."""
    about = example.path.stat()
    return [example.name, about.st_size, about.st_mtime_ns, example.place]
