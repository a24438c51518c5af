"""Weights by place and time, against loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.placing.fields import (
    HIDDEN,
    acts_at,
    check_times,
    check_weight,
    logarithms,
    means,
    shares_of,
    weights_by_place,
)


def drawn(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("size", "side"), [((13, 21), 2), ((13, 21), 4), ((14, 22), 8), ((9, 5), 4), ((6, 6), 1)])
def test_a_cell_is_the_mean_of_its_own_pixels(size, side) -> None:
    maps = drawn(2, 3, *size)
    rows, columns = range(0, size[0], side), range(0, size[1], side)
    expected = torch.stack(
        [maps[..., y : y + side, x : x + side].double().mean((-1, -2)) for y in rows for x in columns]
    )
    found = means(maps, (len(rows), len(columns)), of_layer=True)
    torch.testing.assert_close(found.flatten(-2), expected.movedim(0, -1))


@pytest.mark.parametrize("of_layer", [False, True])
def test_other_sizes_are_divided_evenly(of_layer) -> None:
    maps = drawn(1, 10, 7)
    fine = maps.repeat_interleave(2, 1).repeat_interleave(3, 2).double()  # 20 × 21
    torch.testing.assert_close(means(maps, (4, 3), of_layer=of_layer), fine.view(1, 4, 5, 3, 7).mean((2, 4)))
    larger = means(maps, (20, 14), of_layer=of_layer)
    torch.testing.assert_close(larger, maps.double().repeat_interleave(2, 1).repeat_interleave(2, 2))


@given(st.integers(1, 70), st.integers(1, 70), st.floats(0, 5, width=32), st.booleans())
def test_what_is_the_same_everywhere_stays_it(size, cells, weight, of_layer) -> None:
    found = means(torch.full((size, size), weight), (cells, cells), of_layer=of_layer)
    torch.testing.assert_close(found, torch.full((cells, cells), weight, dtype=torch.float64))


def test_weights_are_exact_at_the_ends_and_the_logarithm_comes_last() -> None:
    mask = torch.tensor([[0.0, 1.0, 0.5, 0.25]])
    assert weights_by_place(mask, 0.3, 1.7)[0, :2].tolist() == torch.tensor([1.7, 0.3]).tolist()
    weights = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
    torch.testing.assert_close(logarithms(weights, (1, 1)), torch.tensor([[math.log(2.0)]]))
    assert logarithms(torch.zeros(1, 2, 2), (2, 2)).tolist() == [[HIDDEN] * 4]


def test_shares_of_a_base_and_regions_add_up_to_1() -> None:
    masks = torch.tensor([[[[0.0, 0.25, 1.0, 0.5]], [[0.0, 0.25, 1.0, 2.5]]]])
    expected = torch.tensor([[[[1.0, 0.5, 0.0, 0.0]], [[0.0, 0.25, 0.5, 1 / 6]], [[0.0, 0.25, 0.5, 5 / 6]]]])
    torch.testing.assert_close(shares_of(masks), expected)


def test_a_range_has_its_start_and_not_its_end() -> None:
    assert acts_at(5.0, 5.0, 2.0) and acts_at(2.1, 5.0, 2.0)
    assert not acts_at(2.0, 5.0, 2.0) and not acts_at(5.1, 5.0, 2.0)
    assert acts_at(0.0, 5.0, 0.0) and acts_at(1e9, math.inf, 0.0)
    # what is equal in float32 is equal
    third = torch.tensor(1 / 3)
    assert acts_at(third, 1 / 3, 0.1) and not acts_at(third, 1.0, 1 / 3)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ((0.5, 0.5, False), "start must be before end, got 0.5 and 0.5"),
        ((0, 3, False), "set unit to steps"),
        ((0.5, 3, True), "whole steps"),
        ((-1, 1, True), "from 0"),
        ((math.nan, 1, False), "from 0"),
    ],
)
def test_times_without_meaning_are_refused(times, message) -> None:
    *numbers, in_steps = times
    with pytest.raises(ValueError, match=message):
        check_times(*numbers, in_steps=in_steps)
    check_times(0, 1, in_steps=in_steps)


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_weights_without_meaning_are_refused(weight) -> None:
    with pytest.raises(ValueError, match="inside must be"):
        check_weight("inside", weight)
    check_weight("inside", 0.0)
