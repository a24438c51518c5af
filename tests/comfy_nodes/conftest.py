"""The fake host round every test of a node, with a tiny text encoder among its files."""

import pytest
from safetensors.torch import save_file
from weighted_clip.encoder.files.checkpoint import seeded_text_model

from .fake_comfy import CONFIG, install


@pytest.fixture(autouse=True)
def host(monkeypatch, tmp_path):
    tensors = {"text_model." + key: value for key, value in seeded_text_model(CONFIG).state_dict().items()}
    path = tmp_path / "tiny.safetensors"
    save_file(tensors, path)
    install(
        monkeypatch,
        {"text_encoders": {"tiny.safetensors": str(path)}, "checkpoints": {"sub/sd.safetensors": str(path)}},
    )
