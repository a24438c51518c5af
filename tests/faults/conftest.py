"""Fixtures shared by tests of several kinds of faults."""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.web.lab.native import LoadSettings, NativeLabModel

from ..comfy_nodes import fake_comfy
from .disks import CONFIG


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny text encoder in a file."""
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    save_file({f"text_model.{name}": tensor for name, tensor in seeded_text_model(CONFIG).state_dict().items()}, path)
    return path


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Objects are freed immediately: nothing of a failed encoding waits in a cycle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def lab_model() -> NativeLabModel:
    """The lab's model of that encoder."""
    return NativeLabModel("tiny", {"clip_l": CONFIG}, lambda: {"clip_l": seeded_text_model(CONFIG)}, LoadSettings())


@pytest.fixture
def clip(monkeypatch: pytest.MonkeyPatch) -> fake_comfy.FakeClip:
    """A CLIP of ComfyUI with a memory, on a fake host."""
    fake_comfy.install(monkeypatch)
    return fake_comfy.remembering()
