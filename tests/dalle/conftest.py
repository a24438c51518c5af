"""Pictures to train on, with captions, and a small CLIP."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model
from weighted_clip.encoder.models.config import TextConfig, VisionConfig
from weighted_clip.studio.world.shapes import Style, draw, split

from ..transformers_clip import write_clip


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 24 shapes with captions."""
    folder, rng = tmp_path_factory.mktemp("shapes") / "data", random.Random(0)
    folder.mkdir()
    for number, shape in enumerate(split()[0][:24]):
        draw(shape, rng, Style()).resize((48, 48), Image.Resampling.BOX).save(folder / f"{number:02}.png")
        (folder / f"{number:02}.txt").write_text(shape.caption, encoding="utf-8")
    return folder


@pytest.fixture(scope="package")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """File of both towers, with seeded random weights."""
    sizes: dict[str, Any] = {"num_heads": 1, "num_layers": 1, "hidden_dim": 64, "projection_dim": 64}
    text, vision = TextConfig(**sizes), VisionConfig(image_size=48, patch_size=16, **sizes)
    path = tmp_path_factory.mktemp("clip") / "clip.safetensors"
    return write_clip(path, seeded_text_model(text), seeded_vision_model(vision))
