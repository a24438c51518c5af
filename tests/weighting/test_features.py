"""A text of any length as one vector."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.reading.features import text_features
from weighted_clip.weighting.text.chunks import CLIP_L_LAYOUT

CAT = 2368


def encode(ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """East for a chunk with "cat", north for others."""
    return torch.tensor([[1.0, 0.0] if CAT in row else [0.0, 1.0] for row in ids])


def test_chunks_count_by_their_tokens_and_this_is_told() -> None:
    vector, read = text_features("cat " + "word " * 99, "none", default_tokenizer(), CLIP_L_LAYOUT, encode)
    mean = torch.tensor([75.0, 25.0]) / 100
    torch.testing.assert_close(vector, mean / mean.norm(), rtol=0, atol=1e-6)
    assert [issue.code for issue in read.issues] == ["averaged-chunks"]
    vector, read = text_features("cat", "none", default_tokenizer(), CLIP_L_LAYOUT, encode)
    assert vector.tolist() == [1.0, 0.0] and not read.issues
