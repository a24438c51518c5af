"""Times of images to features, compared with transformers on the same weights, and memory for many images.

Memory is measured in a separate process, on Linux: peak resident memory, minus that with model and images loaded.
"""

from __future__ import annotations

import dataclasses
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..peers.transformers import open_image_tower
from .page import NOT_FOUND, Request, Section, in_process, small, table, times
from .scale import Scale
from .timing import MIB, MemoryPeak, Run, compare, measured, times_in_turn

if TYPE_CHECKING:
    from PIL import Image

    from ...encoder.models.config import VisionConfig
    from ...encoder.models.vision_model import VisionModel

PEER = "transformers CLIPModel"

WORKS = ("images to features", "images to pixels", "pixels to features")
"""Timed work: all of it, and its two parts."""
SPEED_HEAD = ("Work", "Peer", "Ours, images/s", "Peer, images/s", "Ours / peer", "Middle half", "Difference")
MEMORY_HEAD = ("Images", "Their size", "Batches of", "Model, MiB", "Images, MiB", "Beside them, MiB", "Budget, MiB")


def image_block(request: Request) -> str:
    """Section in Markdown: speed, memory, and when and with what they were measured."""
    from ...encoder.files.checkpoint import seeded_vision_model

    scale = request.scale
    about = measured("transformers")
    config = scale.vision()
    rows = memory_rows(config, scale.num_images, scale.image_side)
    model = seeded_vision_model(config)
    pictures = _pictures(scale.image_batch, scale.image_side)
    speed = table(SPEED_HEAD, _speed_rows(model, pictures, scale.image_repetitions), num_left=2)
    return "\n\n".join([speed, table(MEMORY_HEAD, rows, num_left=0), about])


def _pictures(count: int, side: int) -> list[Image.Image]:
    """Noise, which takes as much work as a photograph."""
    import numpy as np
    from PIL import Image

    generator = np.random.default_rng(0)
    return [Image.fromarray(generator.integers(0, 256, (side, side, 3), np.uint8)) for _ in range(count)]


# ---- speed


def _runs(model: VisionModel, images: list[Image.Image]) -> dict[str, tuple[Run, Run]] | None:
    """For each of `WORKS`, ours and the peer's way to do it; None without the peer."""
    from ...encoder.images import image_features, preprocess
    from ...encoder.models.clip import FullClip

    if find_spec("transformers") is None:
        return None
    size = model.config.image_size
    clip, tower = FullClip(None, model), open_image_tower(model)  # pyright: ignore[reportArgumentType] - no text is read
    pixels = preprocess(images, size)
    # ours in one batch, like the peer
    whole = (lambda: image_features(clip, images, memory_budget=2**62), lambda: tower.encode(tower.pixels(images)))
    to_pixels = (lambda: preprocess(images, size), lambda: tower.pixels(images))
    to_features = (lambda: clip.image_features(pixels), lambda: tower.encode(pixels))
    return dict(zip(WORKS, (whole, to_pixels, to_features), strict=True))


def _speed_rows(model: VisionModel, images: list[Image.Image], repetitions: int) -> list[list[str]]:
    import torch

    runs = _runs(model, images)
    if runs is None:
        return [[work, PEER, *["-"] * 4, NOT_FOUND] for work in WORKS]
    rows: list[list[str]] = []
    with torch.no_grad():
        for work, (ours, theirs) in runs.items():
            difference = float((ours() - theirs()).abs().max())
            taken = times_in_turn({"ours": ours, "peer": theirs}, repetitions=repetitions)
            cells = times(compare(taken["ours"], taken["peer"]), lambda seconds: f"{len(images) / seconds:.3g}")
            rows.append([work, PEER, *cells, small(difference)])
    return rows


def tower_times(scale: Scale, count: int, repetitions: int) -> dict[str, list[float]] | None:
    """Times of the image tower alone on so many images at once, ours and the peer's in turn; None without the peer."""
    import torch

    from ...encoder.files.checkpoint import seeded_vision_model

    runs = _runs(seeded_vision_model(scale.vision()), _pictures(count, scale.image_side))
    if runs is None:
        return None
    ours, theirs = runs["pixels to features"]
    with torch.no_grad():
        return times_in_turn({"ours": ours, "peer": theirs}, repetitions=repetitions)


# ---- memory


def memory_rows(config: VisionConfig, num_images: int, side: int) -> list[list[str]]:
    """Cells of `MEMORY_HEAD`, a row of them, for square images of so many pixels a side, measured in another process.

    It raises ValueError if that process fails.
    """
    job = {"config": dataclasses.asdict(config), "num_images": num_images, "side": side}
    failed = f"the memory of {num_images} images could not be measured"
    found: dict[str, int | None] = in_process(failed, memory_of, job)
    mib = {name: "not measured" if value is None else f"{value / MIB:.0f}" for name, value in found.items()}
    numbers = [f"{num_images}", f"{side} x {side}", str(found["batch"])]
    return [[*numbers, mib["model"], mib["images"], mib["peak"], mib["budget"]]]


def memory_of(job: dict[str, Any]) -> dict[str, int | None]:
    """Memory taken by images of a host's IMAGE, in an otherwise unused process.

    A job is ``config`` (sizes of the image tower), ``num_images`` and ``side``.
    """
    import torch

    from ...encoder.files.checkpoint import seeded_vision_model
    from ...encoder.images import MEMORY_BUDGET, image_features
    from ...encoder.models.clip import FullClip
    from ...encoder.models.config import VisionConfig

    model = seeded_vision_model(VisionConfig(**job["config"]))
    clip = FullClip(None, model)  # pyright: ignore[reportArgumentType] - no text is read
    images = torch.rand(job["num_images"], job["side"], job["side"], 3)
    image_features(clip, images[:1])  # one-time setup of the libraries
    peak = MemoryPeak()
    done: list[int] = []
    image_features(clip, images, on_progress=done.append)
    return {
        "batch": done[0],
        "model": sum(parameter.nbytes for parameter in model.parameters()),
        "images": images.nbytes,
        "peak": peak.taken(),
        "budget": MEMORY_BUDGET,
    }


IMAGES = Section("images", image_block)
