"""Full-size and tiny seeded models, and random ids."""

import pytest
import torch
from weighted_clip.encoder.checkpoint import seeded_text_model
from weighted_clip.encoder.config import CLIP_L, TextConfig
from weighted_clip.encoder.text_model import TextModel

TINY = TextConfig(hidden_dim=16, num_heads=2, num_layers=3, mlp_dim=32, projection_dim=12)


@pytest.fixture(scope="session")
def clip_l() -> TextModel:
    return seeded_text_model(CLIP_L)


@pytest.fixture(scope="session")
def tiny() -> TextModel:
    return seeded_text_model(TINY)


def random_ids(batch: int, seed: int = 0) -> torch.Tensor:
    """``[batch, 77]``: BOS, 1 to 75 random tokens, EOS, padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((batch, 77), CLIP_L.eos_id)
    ids[:, 0] = CLIP_L.bos_id
    for row in ids:
        length = int(torch.randint(1, 76, (1,), generator=generator))
        row[1 : 1 + length] = torch.randint(0, CLIP_L.bos_id, (length,), generator=generator)
    return ids
