"""The fake host round every test of a node, with a tiny text encoder among its files."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.hosts.comfy.attention.wrappers import MARKERS

from .fake_comfy import CONFIG, install


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text encoder's file."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.safetensors"
    save_file({f"text_model.{key}": value for key, value in seeded_text_model(CONFIG).state_dict().items()}, path)
    return str(path)


@pytest.fixture(autouse=True)
def host(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    files = {"text_encoders": {"tiny.safetensors": tiny}, "checkpoints": {"sub/sd.safetensors": tiny}}
    install(monkeypatch, files, tmp_path / "temp")
    vars(MARKERS).pop("hooks", None)
    yield
    vars(MARKERS).pop("hooks", None)
