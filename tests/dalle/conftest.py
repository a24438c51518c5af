"""Pictures to train on, with captions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from PIL import Image
from weighted_clip.world.shapes import Style, draw, split


@pytest.fixture(scope="package")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of 24 shapes with captions."""
    folder, rng = tmp_path_factory.mktemp("shapes") / "data", random.Random(0)
    folder.mkdir()
    for number, shape in enumerate(split()[0][:24]):
        draw(shape, rng, Style()).resize((48, 48), Image.Resampling.BOX).save(folder / f"{number:02}.png")
        (folder / f"{number:02}.txt").write_text(shape.caption, encoding="utf-8")
    return folder
