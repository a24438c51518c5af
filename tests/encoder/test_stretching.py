"""The rule that stretches a position table: to the bit as Long-CLIP, by its formula for other sizes, or refused."""

import hashlib
import json
import random
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import Tensor
from weighted_clip.encoder.files.stretching import stretched

RECORDED = Path(__file__).resolve().parents[1] / "data" / "long_clip_tables.json"


def table(rows: int = 77, dim: int = 64) -> Tensor:
    """Exact in float64, and the same everywhere."""
    rng = random.Random(0)
    return torch.tensor([[(rng.random() - 0.5) / 16 for _ in range(dim)] for _ in range(rows)], dtype=torch.float64)


def by_the_paper(rows: list[Fraction], factor: int) -> list[Fraction]:
    """One feature: kept up to position 20; then by distance from the two old positions around it, and on at the end."""
    new = list(rows[:20])
    for number in range((len(rows) - 20) * factor):
        old = 20 + Fraction(number, factor)
        low = min(int(old), len(rows) - 2)  # after the last position the line of the last two continues
        new.append(rows[low] + (rows[low + 1] - rows[low]) * (old - low))
    return new


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.bfloat16], ids=str)
def test_a_table_of_77_is_that_of_long_clips_own_program_to_the_bit(dtype: torch.dtype) -> None:
    found = stretched(table().to(dtype), 248)
    assert (found.dtype, found.shape) == (dtype, (248, 64))
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    name = str(dtype).removeprefix("torch.")
    assert hashlib.sha256(found.view(torch.uint8).numpy().tobytes()).hexdigest() == recorded[name]


@pytest.mark.parametrize(
    ("rows", "num_positions", "factor"),
    [(77, 134, 2), (77, 191, 3), (77, 248, 4), (77, 305, 5), (248, 704, 3), (21, 24, 4)],
)
def test_other_sizes_follow_the_formula(rows: int, num_positions: int, factor: int) -> None:
    given = table(rows, 2)
    expected = [by_the_paper([Fraction(value) for value in column], factor) for column in given.T.tolist()]
    assert len(expected[0]) == num_positions
    found = stretched(given, num_positions)
    exact = [[float(value) for value in column] for column in expected]
    assert torch.allclose(found.T, torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-16)
    assert torch.equal(found[:20], given[:20])
    assert torch.equal(found[20::factor], given[20:])


def test_eight_bits_are_rounded_once() -> None:
    given = (table() * 16).to(torch.float8_e4m3fn)
    found = stretched(given, 248)
    assert found.dtype == given.dtype
    assert torch.equal(found.float(), stretched(given.float(), 248).to(given.dtype).float())


@pytest.mark.parametrize(
    ("rows", "num_positions", "said"),
    [
        (77, 250, r"250 positions cannot be made of 77: .*first 20 .*other 57. Possible are 134, 191, 248, 305 and so"),
        (77, 77, r"77 positions cannot be made of 77"),
        (77, -37, r"-37 positions cannot be made of 77"),
        (77, 20 + 57 * 288, r"16436 positions .* up to 16,384"),
        (248, 249, r"Possible are 476, 704, 932, 1160 and so on"),
        (20, 248, r"20 positions cannot be stretched: Long-CLIP's rule keeps the first 20"),
    ],
)
def test_other_numbers_are_refused(rows: int, num_positions: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        stretched(table(rows, 2), num_positions)
