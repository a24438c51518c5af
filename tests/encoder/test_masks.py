"""Masks and length normalisation, cell by cell."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.masks import (
    MaskError,
    causal_mask,
    combine,
    hide_from,
    length_normalization,
    padding_mask,
    span_mask,
)

BOS, EOS = 49406, 49407


def test_figure_3_of_a_red_cat_in_both_conventions() -> None:
    ids = torch.tensor([length_normalization([320, 736, 2368], length=8, bos_id=BOS, eos_id=EOS, pad_id=EOS)])
    assert ids.tolist() == [[BOS, 320, 736, 2368, EOS, EOS, EOS, EOS]]
    for convention, visible in (("tokenizer", 5), ("lecture", 4)):
        product = combine(causal_mask(8), padding_mask(ids, eos_id=EOS, pad_id=EOS, convention=convention))
        for query in range(8):
            for key in range(8):
                assert bool(product[0, query, key]) == (key <= query and key < visible)


def test_padding_with_an_id_of_its_own_leaves_eos_in_both_conventions() -> None:
    ids = torch.tensor([[BOS, 320, 0, EOS, 0, 0]])  # 0 is also the token "!"
    assert padding_mask(ids, eos_id=EOS, pad_id=0).int().tolist() == [[[1, 1, 1, 1, 0, 0]]]
    assert padding_mask(ids, eos_id=EOS, pad_id=0, convention="lecture").int().tolist() == [[[1, 1, 0, 1, 0, 0]]]


def test_unknown_convention_is_refused() -> None:
    with pytest.raises(MaskError, match="'guess'"):
        padding_mask(torch.zeros(1, 3), eos_id=1, pad_id=0, convention="guess")


def test_combine_is_the_product_and_none_is_neutral() -> None:
    a, b = span_mask(5, [(1, 2)]), hide_from(5, keys=[3], queries=[4])
    product = combine(a, None, b)
    assert torch.equal(product, a & b)
    assert combine(None, None) is None


@pytest.mark.parametrize("span", [(-1, 2), (3, 2), (2, 6)])
def test_spans_outside_the_chunk_are_refused(span: tuple[int, int]) -> None:
    with pytest.raises(MaskError, match=f"span {span[0]} to {span[1]}"):
        span_mask(5, [span])


def test_a_span_may_end_where_the_chunk_does() -> None:
    assert span_mask(5, [(3, 5)]).int().tolist() == [[[1, 1, 1, 0, 0]]]
    assert span_mask(5, [(0, 0), (5, 5)]).all()


@given(content=st.lists(st.integers(0, 49405), max_size=90))
def test_length_normalization_is_definition_3_1(content: list[int]) -> None:
    ids = length_normalization(content, length=77, bos_id=BOS, eos_id=EOS, pad_id=EOS)
    assert len(ids) == 77
    marked = [BOS, *content, EOS]
    if len(marked) <= 77:
        assert ids == marked + [EOS] * (77 - len(marked))
    else:
        assert ids == [*marked[:76], EOS]
