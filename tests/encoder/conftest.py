"""Seeded models, full-size, of full width and tiny, and random ids."""

from dataclasses import replace

import pytest
import torch
from weighted_clip.encoder.files.checkpoint import seeded_text_model
from weighted_clip.encoder.models.config import CLIP_L, OPENCLIP_BIGG, OPENCLIP_H, TextConfig
from weighted_clip.encoder.models.text_model import TextModel

TINY = TextConfig(hidden_dim=16, num_heads=2, num_layers=3, mlp_dim=32, projection_dim=12)


@pytest.fixture(scope="session")
def clip_l() -> TextModel:
    return seeded_text_model(CLIP_L)


@pytest.fixture(scope="session")
def shallow() -> TextModel:
    """CLIP-L at its full width, with three of its 12 layers."""
    return seeded_text_model(replace(CLIP_L, num_layers=3))


# full width, but two or three of 24 and 32 layers
OPENCLIP = {"clip_h": replace(OPENCLIP_H, num_layers=3), "clip_g": replace(OPENCLIP_BIGG, num_layers=2)}


@pytest.fixture(scope="module", params=["clip_l", *OPENCLIP])
def wide(request: pytest.FixtureRequest) -> TextModel:
    """Each tower in turn, at its full width, with a few layers."""
    if request.param == "clip_l":
        return request.getfixturevalue("shallow")
    return seeded_text_model(OPENCLIP[request.param])


@pytest.fixture(scope="session")
def tiny() -> TextModel:
    return seeded_text_model(TINY)


def random_ids(batch: int, seed: int = 0, pad_id: int = CLIP_L.pad_id) -> torch.Tensor:
    """``[batch, 77]``: BOS, 1 to 75 random tokens, EOS, padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((batch, 77), pad_id)
    ids[:, 0] = CLIP_L.bos_id
    for row in ids:
        length = int(torch.randint(1, 76, (1,), generator=generator))
        row[1 : 1 + length] = torch.randint(0, CLIP_L.bos_id, (length,), generator=generator)
        row[1 + length] = CLIP_L.eos_id
    return ids
