"""Full-size and tiny seeded models, and transformers' model with the same weights."""

from collections.abc import Callable

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


@pytest.fixture(scope="session")
def transformers_model() -> Callable:
    """A function from our model and an attention implementation to transformers' CLIPTextModel of equal weights."""
    from transformers import CLIPTextConfig, CLIPTextModel

    def make(model: TextModel, attention: str) -> CLIPTextModel:
        config = model.config
        theirs = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_dim,
                intermediate_size=config.mlp_dim,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                max_position_embeddings=config.context_length,
                hidden_act=config.activation,
                layer_norm_eps=config.layer_norm_eps,
                bos_token_id=config.bos_id,
                eos_token_id=config.eos_id,
                pad_token_id=config.pad_id,
                attn_implementation=attention,
            )
        ).eval()
        ours = {key: value for key, value in model.state_dict().items() if not key.startswith("text_projection")}
        theirs.load_state_dict({key: ours[key.removeprefix("text_model.")] for key in theirs.state_dict()})
        return theirs

    return make


def random_ids(batch: int, seed: int = 0) -> torch.Tensor:
    """``[batch, 77]``: BOS, 1 to 75 random tokens, EOS, padding."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.full((batch, 77), CLIP_L.eos_id)
    ids[:, 0] = CLIP_L.bos_id
    for row in ids:
        length = int(torch.randint(1, 76, (1,), generator=generator))
        row[1 : 1 + length] = torch.randint(0, CLIP_L.bos_id, (length,), generator=generator)
    return ids
