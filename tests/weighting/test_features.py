"""Labels as vectors: the mean of their prompts, at length 1, and what is said of prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from weighted_clip.encoder.tokenizer import default_tokenizer
from weighted_clip.weighting.chunks import CLIP_L_LAYOUT
from weighted_clip.weighting.features import label_probabilities, label_prompts, label_vectors

TOKENIZE = default_tokenizer()


def encode(ids: Sequence[Sequence[int]]) -> torch.Tensor:
    """East for "cat", north for "dog", north-east for both, south for neither."""
    rows = []
    for row in ids:
        has = [token in row for ((token, _, _),) in (TOKENIZE("cat"), TOKENIZE("dog"))]
        rows.append([float(has[0]), float(has[1]) if any(has) else -1.0])
    return torch.nn.functional.normalize(torch.tensor(rows), dim=-1)


def test_a_label_is_the_mean_of_its_prompts_at_length_1() -> None:
    vectors, issues = label_vectors(["cat", "bird"], ["a {}", "a {} and a dog"], TOKENIZE, CLIP_L_LAYOUT, encode)
    angle = math.pi / 8  # between east and north-east
    expected = [[math.cos(angle), math.sin(angle)], [0.0, 0.0]]
    torch.testing.assert_close(vectors, torch.tensor(expected), rtol=0, atol=1e-6)
    assert issues == []


def test_probabilities_are_a_softmax_of_scaled_cosines() -> None:
    vectors, features = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
    found = label_probabilities(vectors, features, 5.0)
    odds = [math.exp(5 * (0.6 - 0.8)), math.exp(5), math.exp(-5)]
    expected = [[one / (1 + one), 1 / (1 + one)] for one in odds]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_long_prompt_is_told() -> None:
    _, issues = label_vectors(["cat", "word " * 90], ["{}"], TOKENIZE, CLIP_L_LAYOUT, encode)
    assert [issue.code for issue in issues] == ["averaged-chunks"]


def test_signs_in_a_label_are_text() -> None:
    assert label_prompts("(cat:1.2) {}", ["a {}, {x}"]) == ["a (cat:1.2) {}, {x}"]
    with pytest.raises(ValueError, match=r"template 'a photo' has no \{\}"):
        label_prompts("cat", ["a photo"])
