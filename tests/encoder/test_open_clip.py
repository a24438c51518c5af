"""Files that open_clip writes against open_clip itself, at the widths of the released encoders."""

from pathlib import Path

import pytest
import torch
from weighted_clip.encoder.config import TOWERS
from weighted_clip.encoder.files.checkpoint import load_text_models

from .conftest import random_ids
from .files import write
from .open_clip_reference import encode, text_model

TOLERANCE = 1e-5
"""For numbers of order 1, in float32; 6e-6 was measured."""


@pytest.mark.parametrize(
    ("name", "tower", "num_layers", "is_apart"),
    [
        ("ViT-L-14-quickgelu", "clip_l", 4, False),
        ("ViT-H-14", "clip_h", 3, False),
        ("ViT-H-14", "clip_h", 2, True),
        ("ViT-bigG-14", "clip_g", 2, False),
    ],
)
def test_equals_open_clip_after_loading_its_file(
    tmp_path: Path, name: str, tower: str, num_layers: int, is_apart: bool
) -> None:
    theirs = text_model(name, num_layers, is_apart=is_apart)
    models, report = load_text_models(write(tmp_path / "open_clip.safetensors", theirs.state_dict()))
    assert list(models) == [tower]
    ours, config = models[tower], TOWERS[tower]
    assert (ours.config.hidden_dim, ours.config.num_heads) == (config.hidden_dim, config.num_heads)
    assert (ours.config.mlp_dim, ours.config.activation) == (config.mlp_dim, config.activation)
    assert ours.config.projection_dim == config.hidden_dim
    assert all(key == "logit_scale" or key.startswith("visual.") for key in report.ignored)
    for batch in (1, 3):
        ids = random_ids(batch, seed=batch, pad_id=0)  # open_clip pads every tower's texts with 0
        with torch.no_grad():
            expected, found = encode(theirs, ids), ours(ids)
        assert len(expected.hidden_states) == len(found.hidden_states) == num_layers + 1
        for one, other in zip(found.hidden_states, expected.hidden_states, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(found.projected, expected.projected, rtol=0, atol=TOLERANCE)
        assert 0.3 < expected.hidden_states[-1].std() < 3
        assert 0.3 < expected.projected.std() < 3


def test_the_activation_of_open_clips_own_vit_l_has_to_be_said(tmp_path: Path) -> None:
    theirs = text_model("ViT-L-14", 2)
    path = write(tmp_path / "open_clip.safetensors", theirs.state_dict())
    ids = random_ids(1, pad_id=0)
    expected = encode(theirs, ids).projected
    chosen, assumed = load_text_models(path, activation="gelu")[0], load_text_models(path)[0]
    torch.testing.assert_close(chosen["clip_l"](ids).projected, expected, rtol=0, atol=TOLERANCE)
    assert not torch.allclose(assumed["clip_l"](ids).projected, expected, rtol=0, atol=100 * TOLERANCE)
