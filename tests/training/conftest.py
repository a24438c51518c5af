"""The command, as tests of whole runs start it."""

from __future__ import annotations

from pathlib import Path

import pytest
from weighted_clip.encoder.files.checkpoint import seeded_text_model, seeded_vision_model

from ..transformers_clip import write_clip
from .models import TEXT, VISION, WIDE
from .objectives import write_data
from .runs import Start, run_anew, write_pairs


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole CLIP with random weights."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    return write_clip(path, seeded_text_model(TEXT), seeded_vision_model(VISION), 1 / 0.07)


@pytest.fixture(scope="session")
def wide_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that learns more, with heads as wide as in released ones, and so without a config."""
    path = tmp_path_factory.mktemp("wide_weights") / "tiny.safetensors"
    return write_clip(path, seeded_text_model(WIDE), seeded_vision_model(VISION), 1 / 0.07)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs", 32)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of all objectives."""
    return write_data(tmp_path_factory.mktemp("objectives"))


@pytest.fixture
def start(weights: Path, pairs: Path, tmp_path: Path) -> Start:
    """Runs the command; the folder is ``out``, and a second value of an option counts."""

    def started(*options: str, out: str = "out", data: Path = pairs) -> int:
        usual = ["--weights", weights, "--out", tmp_path / out, "--device", "cpu", "--batch", "8"]
        return run_anew("train", data, *usual, "--accumulate", "2", "--rate", "1e-3", *options)

    return started
