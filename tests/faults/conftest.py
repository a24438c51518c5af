"""Fixtures shared by tests of several kinds of faults."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save_file
from weighted_clip.encoder.config import TextConfig
from weighted_clip.encoder.files.checkpoint import seeded_text_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text encoder in a file."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    config = TextConfig(hidden_dim=64, num_heads=1, num_layers=2, mlp_dim=64)
    save_file({f"text_model.{name}": tensor for name, tensor in seeded_text_model(config).state_dict().items()}, path)
    return path


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Objects are freed immediately: nothing of a failed encoding waits in a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
