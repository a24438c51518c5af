"""Times of images to features, compared with transformers on the same weights, and memory for many images.

Memory is measured in a separate process, on Linux: peak resident memory, minus that with model and images loaded.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..peers.transformers import sizes_of
from .machine import measured
from .memory import MIB, MemoryPeak
from .page import NOT_FOUND, small, table, times
from .scale import Scale
from .timing import compare, times_in_turn

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ...encoder.config import VisionConfig
    from ...encoder.vision_model import VisionModel

MAIN = Path(__file__).resolve().parents[2] / "__main__.py"
PEER = "transformers CLIPModel"

WORKS = ("images to features", "images to pixels", "pixels to features")
"""Timed work: all of it, and its two parts."""
SPEED_HEAD = ("Work", "Peer", "Ours, images/s", "Peer, images/s", "Ours / peer", "Middle half", "Difference")
MEMORY_HEAD = ("Images", "Their size", "Batches of", "Model, MiB", "Images, MiB", "Beside them, MiB", "Budget, MiB")

PROGRAM = """
import runpy, sys
runpy.run_path(sys.argv[1])["load_package"]()
from weighted_clip.workshop.bench.reranking import print_memory
print_memory(sys.argv[2])
"""


def image_block(scale: Scale) -> str:
    """Section in Markdown: speed, memory, and when and with what they were measured."""
    from ...encoder.files.checkpoint import seeded_vision_model

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


def _speed_rows(model: VisionModel, images: list[Image.Image], repetitions: int) -> list[list[str]]:
    import torch

    from ...encoder.full_clip import FullClip
    from ...encoder.images import preprocess
    from ...encoder.reranking import image_features

    size = model.config.image_size
    clip = FullClip(None, model)  # pyright: ignore[reportArgumentType] - no text is read
    pixels = preprocess(images, size)
    ours: dict[str, Callable[[], Tensor]] = {
        WORKS[0]: lambda: image_features(clip, images, memory_budget=2**62),  # in one batch, like the peer
        WORKS[1]: lambda: preprocess(images, size),
        WORKS[2]: lambda: clip.image_features(pixels),
    }
    theirs = _peer(model, images, pixels)
    if theirs is None:
        return [[work, PEER, *["-"] * 4, NOT_FOUND] for work in WORKS]
    rows: list[list[str]] = []
    with torch.no_grad():
        for work, run in ours.items():
            difference = float((run() - theirs[work]()).abs().max())
            taken = times_in_turn({"ours": run, "peer": theirs[work]}, repetitions=repetitions)
            cells = times(compare(taken["ours"], taken["peer"]), lambda seconds: f"{len(images) / seconds:.3g}")
            rows.append([work, PEER, *cells, small(difference)])
    return rows


def tower_times(scale: Scale, count: int, repetitions: int) -> dict[str, list[float]] | None:
    """Time the image tower alone, ours and the peer's in turn; None without the peer.

    Args:
        scale: Sizes.
        count: Number of images at once.
        repetitions: Number of rounds.
    """
    import torch

    from ...encoder.files.checkpoint import seeded_vision_model
    from ...encoder.full_clip import FullClip
    from ...encoder.images import preprocess

    model = seeded_vision_model(scale.vision())
    images = _pictures(count, scale.image_side)
    pixels = preprocess(images, model.config.image_size)
    theirs = _peer(model, images, pixels)
    if theirs is None:
        return None
    clip = FullClip(None, model)  # pyright: ignore[reportArgumentType]  # no text is read
    with torch.no_grad():
        runs = {"ours": lambda: clip.image_features(pixels), "peer": theirs[WORKS[2]]}
        return times_in_turn(runs, repetitions=repetitions, warm_up=2)


def _peer(model: VisionModel, images: list[Image.Image], pixels: Tensor) -> dict[str, Callable[[], Any]] | None:
    """CLIPModel of transformers on the same weights, with a small unused text half; None if it is not installed."""
    if find_spec("transformers") is None:
        return None
    import torch
    from torch.nn import functional
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel

    config = model.config
    vision = {
        **sizes_of(config),
        "image_size": config.image_size,
        "patch_size": config.patch_size,
        "hidden_act": config.activation,
    }
    text = {
        **{"vocab_size": 100, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1},
        **{"num_attention_heads": 1, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1},
    }
    make_config: Any = CLIPConfig  # its keywords differ between versions
    given = make_config(text_config=text, vision_config=vision, projection_dim=config.projection_dim)
    given._attn_implementation = "sdpa"
    theirs: Any = CLIPModel(given).eval().requires_grad_(False)
    named: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = name.replace("pre_layer_norm", "pre_layrnorm").replace("post_layer_norm", "post_layernorm")
        named[key if key.startswith("visual_projection") else f"vision_model.{key}"] = tensor
    unfilled, unknown = theirs.load_state_dict(named, strict=False)
    assert not unknown, unknown
    assert not [key for key in unfilled if key.startswith("vis") and "position_ids" not in key], unfilled
    size = config.image_size
    prepare: Any = CLIPImageProcessorPil(size={"shortest_edge": size}, crop_size={"height": size, "width": size})

    def to_pixels() -> Tensor:
        return prepare(images, return_tensors="pt")["pixel_values"]

    def encode(prepared: Tensor) -> Tensor:
        found = theirs.get_image_features(pixel_values=prepared)
        return functional.normalize(found if isinstance(found, torch.Tensor) else found.pooler_output, dim=-1)

    runs: tuple[Callable[[], Any], ...] = (lambda: encode(to_pixels()), to_pixels, lambda: encode(pixels))
    return dict(zip(WORKS, runs, strict=True))


# ---- memory


def memory_rows(config: VisionConfig, num_images: int, side: int) -> list[list[str]]:
    """Cells of `MEMORY_HEAD`, a row of them, measured in a separate process.

    Args:
        config: Sizes of the image tower.
        num_images: Number of images.
        side: Side of each image, in pixels.

    Raises:
        ValueError: If that process fails.
    """
    job = json.dumps({"config": dataclasses.asdict(config), "num_images": num_images, "side": side})
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(MAIN), job],
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    if done.returncode:
        raise ValueError(f"the memory of {num_images} images could not be measured:\n{done.stderr[-3000:]}")
    found: dict[str, int | None] = json.loads(done.stdout.splitlines()[-1])
    mib = {name: "not measured" if value is None else f"{value / MIB:.0f}" for name, value in found.items()}
    numbers = [f"{num_images}", f"{side} x {side}", str(found["batch"])]
    return [[*numbers, mib["model"], mib["images"], mib["peak"], mib["budget"]]]


def print_memory(job: str) -> None:
    """Print the memory taken by images of a host's IMAGE, as JSON. Runs in an otherwise unused process.

    Args:
        job: JSON: ``config`` (sizes of the image tower), ``num_images``, ``side``.
    """
    import torch

    from ...encoder.config import VisionConfig
    from ...encoder.files.checkpoint import seeded_vision_model
    from ...encoder.full_clip import FullClip
    from ...encoder.reranking import MEMORY_BUDGET, image_features

    asked = json.loads(job)
    model = seeded_vision_model(VisionConfig(**asked["config"]))
    clip = FullClip(None, model)  # pyright: ignore[reportArgumentType] - no text is read
    images = torch.rand(asked["num_images"], asked["side"], asked["side"], 3)
    image_features(clip, images[:1])  # one-time setup of the libraries
    peak = MemoryPeak()
    done: list[int] = []
    image_features(clip, images, on_progress=done.append)
    found = {
        "batch": done[0],
        "model": sum(parameter.nbytes for parameter in model.parameters()),
        "images": images.nbytes,
        "peak": peak.taken(),
        "budget": MEMORY_BUDGET,
    }
    sys.stdout.write(json.dumps(found))
