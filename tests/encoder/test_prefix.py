"""Shared prefixes against full passes: the numbers, and which positions are run."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from weighted_clip.encoder import prefix
from weighted_clip.encoder.checkpoint import seeded_text_model
from weighted_clip.encoder.masks import MaskError
from weighted_clip.encoder.prefix import PrefixTextEncoder, plan
from weighted_clip.encoder.text_model import TextEncoder, TextModel
from weighted_clip.weighting.embeddings import EmbeddingVector

from .conftest import TINY, random_ids


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share whatever can be shared, in as many segments as there are."""
    monkeypatch.setattr(prefix, "SEGMENT_COST", 0)
    monkeypatch.setattr(prefix, "WORTH", 1e9)


def variants(count: int, seed: int = 0) -> tuple[list[list[int]], Tensor]:
    """One prompt of 60 tokens, each time with other tokens of it hidden; the first with none."""
    generator = torch.Generator().manual_seed(seed)
    chunk = [49406, *torch.randint(0, 40000, (60,), generator=generator).tolist(), *[49407] * 16]
    mask = torch.ones(count, 1, 77, dtype=torch.bool)
    for row in range(1, count):
        start = int(torch.randint(1, 60, (1,), generator=generator))
        mask[row, 0, start : start + 3] = False
    return [chunk] * count, mask


def assert_same(encoders: tuple[TextEncoder, TextEncoder], *given: Any, tolerance: float = 1e-5, **more: Any) -> None:
    one, other = (encoder(*given, **more) for encoder in encoders)
    torch.testing.assert_close(one.hidden, other.hidden, atol=tolerance, rtol=0)
    torch.testing.assert_close(one.pooled, other.pooled, atol=tolerance, rtol=0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("options", [{}, {"clip_skip": 2}, {"clip_skip": 2, "final_norm": False}, {"projected": True}])
def test_equals_full_passes_for_every_choice_of_layer(tiny: TextModel, options: dict[str, Any]) -> None:
    encoders = TextEncoder(tiny, **options), PrefixTextEncoder(tiny, **options)
    ids, mask = variants(6)
    assert_same(encoders, ids, mask)
    assert_same(encoders, random_ids(4).tolist())
    per_query = mask.expand(-1, 77, -1).clone()
    per_query[2, 30:40, 5:9] = False
    assert_same(encoders, ids, per_query)
    assert_same(encoders, ids, mask, is_causal=False)
    assert_same(encoders, ids[:1], mask[:1])


def test_full_size_encoder_stays_within_1e_5(clip_l: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[int] = []
    run = PrefixTextEncoder._run
    monkeypatch.setattr(PrefixTextEncoder, "_run", lambda self, *given: runs.append(1) or run(self, *given))
    assert_same((TextEncoder(clip_l), PrefixTextEncoder(clip_l)), *variants(5))
    shared = torch.randint(0, 40000, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    texts = [[49406, *shared, *row[1:36], 49407] for row in random_ids(8, seed=3).tolist()]
    assert_same((TextEncoder(clip_l), PrefixTextEncoder(clip_l)), texts)
    assert len(runs) == 2


@pytest.mark.usefixtures("always")
def test_vectors_of_embeddings_part_prefixes_where_they_differ(tiny: TextModel) -> None:
    generator = torch.Generator().manual_seed(0)
    chunk: list[Any] = [49406, *range(300, 340), *[49407] * 36]
    vectors = [torch.randn(TINY.hidden_dim, generator=generator) for _ in range(2)]
    other, third = list(chunk), list(chunk)
    other[20] = EmbeddingVector("one", 0, vectors[0])
    third[20] = EmbeddingVector("one", 1, vectors[1])
    ids = [chunk, other, third, other]
    assert_same((TextEncoder(tiny), PrefixTextEncoder(tiny)), ids)
    assert [segment.num_groups for segment in plan(ids)] == [1, 3]


@given(st.lists(st.text("ab", min_size=12, max_size=12), min_size=1, max_size=6))
def test_plan_covers_every_position_once_and_mixes_nothing(rows: list[str]) -> None:
    segments = plan(rows)
    assert [segment.start for segment in segments] == [0, *(segment.end for segment in segments[:-1])]
    assert segments[-1].end == 12
    for segment in segments:
        for row, group in zip(rows, segment.groups, strict=True):
            for other, its_group in zip(rows, segment.groups, strict=True):
                assert group != its_group or row[: segment.end] == other[: segment.end]
    for before, after in pairwise(segments):
        assert len(set(zip(before.groups, after.groups, strict=True))) == after.num_groups > before.num_groups


def test_plan_runs_a_shared_beginning_once() -> None:
    rows = ["x" * 40 + letter * 37 for letter in "abcdefgh"]
    assert [(segment.start, segment.end, segment.num_groups) for segment in plan(rows)] == [(0, 40, 1), (40, 77, 8)]
    assert [segment.num_groups for segment in plan(["abc", "abd"])] == [2]  # too short to be worth a segment
    assert [segment.num_groups for segment in plan(["same" * 10] * 5)] == [1]


def test_masks_are_checked_as_ever(tiny: TextModel) -> None:
    ids, mask = variants(3)
    mask[1, 0, 0] = False
    with pytest.raises(MaskError):
        PrefixTextEncoder(tiny)(ids, mask)


def test_float64_stays_float64() -> None:
    model = seeded_text_model(TINY, dtype=torch.float64)
    ids, mask = variants(4)
    assert_same((TextEncoder(model), PrefixTextEncoder(model)), ids, mask, tolerance=1e-12)
    assert PrefixTextEncoder(model)(ids, mask).hidden.dtype == torch.float64
