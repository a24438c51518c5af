"""Typed areas, against shares of cells counted from many small points."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.weighting.placing.areas import AreaError, Extent, area_mask, read_area, read_where

CELLS, PIXELS = (7, 12), (448, 768)
POINTS = 100
"""Points along each side of a cell."""


def counted(across: tuple[float, float], down: tuple[float, float], feather: float) -> torch.Tensor:
    """Shares of cells between borders, in parts of the picture, by the points that lie between them."""

    def inside(number: int, start: float, end: float) -> torch.Tensor:
        points = (torch.arange(number * POINTS, dtype=torch.float64) + 0.5) / (number * POINTS)

        def ramp(place: torch.Tensor) -> torch.Tensor:
            return (place / feather + 0.5).clamp(0, 1) if feather else (place > 0).double()

        start, end = (-9.0 if start == 0 else start), (9.0 if end == 1 else end)
        return (ramp(points - start) - ramp(points - end)).view(number, POINTS).mean(1)

    return inside(CELLS[0], *down)[:, None] * inside(CELLS[1], *across)


@pytest.mark.parametrize(
    ("text", "across", "down"),
    [
        ("left half", (0, 1 / 2), (0, 1)),
        ("  Right THIRD ", (2 / 3, 1), (0, 1)),
        ("top", (0, 1), (0, 1 / 2)),
        ("bottom left", (0, 1 / 2), (1 / 2, 1)),
        ("left bottom quarter", (0, 1 / 4), (3 / 4, 1)),
        ("center", (1 / 4, 3 / 4), (1 / 4, 3 / 4)),
        ("middle third", (1 / 3, 2 / 3), (1 / 3, 2 / 3)),
        ("top center", (1 / 4, 3 / 4), (0, 1 / 2)),
        ("0.1 0.5, 0 1", (0.1, 0.5), (0, 1)),
        (".25 1 , 0.2 .9", (0.25, 1), (0.2, 0.9)),
        ("96 480, 0 1", (96 / 768, 480 / 768), (0, 1)),
        ("0 0.5, 64 448", (0, 0.5), (64 / 448, 1)),
    ],
)
@pytest.mark.parametrize("feather", [0.0, 0.1, 0.6])
def test_shares_of_cells_are_those_of_their_points(text, across, down, feather) -> None:
    area = read_area(f"{text} ~{feather}" if feather else text)
    assert area is not None
    found = area_mask(area, CELLS, PIXELS)
    torch.testing.assert_close(found.double(), counted(across, down, feather), rtol=0, atol=0.02)
    if not feather:
        whole = (across[1] - across[0]) * (down[1] - down[0])
        assert float(found.mean()) == pytest.approx(whole, abs=1e-6)


@given(st.floats(0, 0.99), st.floats(0.001, 1), st.floats(0, 1), st.integers(1, 40))
def test_shares_are_between_0_and_1_and_a_border_divides_all(start, size, feather, number) -> None:
    end = min(1.0, start + size)
    texts = (f"{start:.6f} {end:.6f}, 0 1 ~{feather:.4f}", f"0 {start:.6f}, 0 1 ~{feather:.4f}", "0 1, 0 1 ~0.5")
    masks = [area_mask(read_area(one), (3, number), (24, 8 * number)) for one in (texts[0], texts[2])]
    assert all(float(one.min()) >= 0 and float(one.max()) <= 1 for one in masks)
    assert bool((masks[1] == 1).all())
    if start > 1e-5:
        left, right = (read_area(one) for one in (texts[1], f"{start:.6f} 1, 0 1 ~{feather:.4f}"))
        both = area_mask(left, (3, number), (24, 8 * number)) + area_mask(right, (3, number), (24, 8 * number))
        torch.testing.assert_close(both, torch.ones_like(both))


def test_nothing_is_the_whole_picture() -> None:
    assert read_area("") is read_area("  ") is None
    assert read_area("0 1, 0 2").across == Extent()


@pytest.mark.parametrize(
    "text",
    [
        *("upstairs", "left right", "left left", "half", "left half half", "center center", "top left center"),
        *("0.5 0.5, 0 1", "0.6 0.2, 0 1", "300 100, 0 1", "0.5 300, 0 1", "0 1", "0 1, 0 1, 0 1", "-1 1, 0 1"),
        *("left ~", "left ~2", "left ~x", "left half, right half"),
    ],
)
def test_what_is_not_understood_or_empty_is_quoted(text) -> None:
    with pytest.raises(AreaError) as raised:
        read_area(text)
    assert f"“{text}”" in str(raised.value)


def test_pixels_outside_the_picture_are_refused() -> None:
    area = read_area("0 800, 0 1")
    assert area is not None
    with pytest.raises(AreaError, match=r"“0 800, 0 1” reaches to pixel 800, but the picture is 768 wide"):
        area_mask(area, CELLS, PIXELS)


def test_a_place_where_a_word_is_read() -> None:
    assert read_where(" WHERE  red   cat ") == "red cat"
    assert not any(map(read_where, ("", "left half", "nowhere cat", "where~0.1")))
    with pytest.raises(AreaError, match="The area “where” lacks a word"):
        read_where("where ")
