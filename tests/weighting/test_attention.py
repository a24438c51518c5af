"""Effect of weights in attention, compared with a softmax written out in float64."""

import math

import pytest
import torch
from weighted_clip.weighting.attention import PLAIN, WAYS, RowEffect, effect_of

QUERIES, ROWS, DIM = 5, 7, 4


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


def read(effects: list[RowEffect]) -> torch.Tensor:
    """Attention output of queries for rows with these effects, through PyTorch's own softmax."""
    bias = torch.tensor([effect.bias for effect in effects], dtype=torch.float64)
    factor = torch.tensor([effect.factor for effect in effects], dtype=torch.float64)
    shares = torch.softmax(random(QUERIES, ROWS) + bias, dim=-1)
    return shares @ (random(ROWS, DIM) * factor[:, None])


def written_out(shares_of: list[float], values_of: list[float]) -> torch.Tensor:
    """The same from sums over rows: each counts ``shares_of`` times as much, and is read ``values_of`` times."""
    logits, values = random(QUERIES, ROWS), random(ROWS, DIM)
    result = torch.zeros(QUERIES, DIM, dtype=torch.float64)
    for query in range(QUERIES):
        parts = [weight * math.exp(logit) for weight, logit in zip(shares_of, logits[query].tolist(), strict=True)]
        for part, times, value in zip(parts, values_of, values, strict=True):
            result[query] += part / sum(parts) * times * value
    return result


WEIGHTS = [1.0, 1.4, 0.3, 0.0, -0.7, 3.0, -1.0]


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 2.0])
def test_a_bias_multiplies_shares_and_turns_values_below_zero(strength: float) -> None:
    taken = [1 + strength * (weight - 1) for weight in WEIGHTS]
    expected = written_out([abs(weight) for weight in taken], [math.copysign(1, weight) for weight in taken])
    torch.testing.assert_close(read([effect_of(weight, "bias", strength) for weight in WEIGHTS]), expected)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 2.0])
def test_value_leaves_shares_alone(strength: float) -> None:
    taken = [1 + strength * (weight - 1) for weight in WEIGHTS]
    expected = written_out([1.0] * ROWS, taken)
    torch.testing.assert_close(read([effect_of(weight, "value", strength) for weight in WEIGHTS]), expected)


@pytest.mark.parametrize("strength", [0.0, 0.5, 1.0, 2.0])
def test_krea2_multiplies_values_up_to_weight_one_and_shares_above(strength: float) -> None:
    shares = [math.exp(2 * strength * max(weight - 1, 0)) for weight in WEIGHTS]
    values = [1 + strength * min(weight - 1, 0) for weight in WEIGHTS]
    torch.testing.assert_close(
        read([effect_of(weight, "krea2", strength) for weight in WEIGHTS]), written_out(shares, values)
    )


def test_a_bias_is_the_same_as_a_row_that_stands_several_times() -> None:
    logits, values = random(QUERIES, ROWS), random(ROWS, DIM)
    times = torch.tensor([1, 3, 1, 2, 1, 1, 4])
    expected = torch.softmax(logits.repeat_interleave(times, 1), -1) @ values.repeat_interleave(times, 0)
    torch.testing.assert_close(read([effect_of(float(weight)) for weight in times.tolist()]), expected)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("strength", [0.0, 0.3, 1.0, 2.0])
def test_weight_one_is_exactly_plain(how: str, strength: float) -> None:
    assert effect_of(1.0, how, strength) == PLAIN  # type: ignore[arg-type]


def test_a_row_of_weight_zero_is_read_by_nothing() -> None:
    assert effect_of(0.0) == RowEffect(-math.inf, 1.0)
    assert effect_of(0.5, "bias", 2.0) == RowEffect(-math.inf, 1.0)


@pytest.mark.parametrize(("weight", "strength"), [(math.nan, 1.0), (math.inf, 1.0), (1.2, math.inf)])
def test_what_is_no_number_is_refused(weight: float, strength: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        effect_of(weight, "bias", strength)


def test_an_unknown_way_is_quoted_beside_those_allowed() -> None:
    with pytest.raises(ValueError, match=r"bias, value, negpip, krea2; got 'louder'"):
        effect_of(1.2, "louder")  # type: ignore[arg-type]
