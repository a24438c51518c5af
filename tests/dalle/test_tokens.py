"""Tokens as text, and swapping some of them: what is read, what it does, and how bad input is refused."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.studio.dalle import dvae as module
from weighted_clip.studio.dalle.config import SMALL, DVAEConfig
from weighted_clip.studio.dalle.dvae import DVAE, cropped
from weighted_clip.studio.dalle.tokens import ImageTokens, Swap, read_swaps, read_tokens, swapped, write_tokens

from .models import TINY_SMALL, nearest_colors, palette, palette_dvae, pictures, seeded

GRID = torch.arange(24).view(2, 3, 4)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**31))
def test_what_is_written_is_read_again(count: int, rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(8192, (count, rows, columns), generator=generator)
    assert torch.equal(read_tokens(write_tokens(ids), 8192), ids)


def test_tokens_are_read_however_they_are_spaced() -> None:
    text = "\n\n 1, 2,3 \n4  5\t6\n \n\n7 8 9\r\n10 11 12\n\n"
    assert read_tokens(text, 16).tolist() == [[[1, 2, 3], [4, 5, 6]], [[7, 8, 9], [10, 11, 12]]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 2\n3 16", "numbers, line 2, “3 16”: “16” is no token; they are whole numbers, 0 to 15"),
        ("1 -2", "numbers, line 1, “1 -2”: “-2” is no token"),
        ("1 2.5", "“2.5” is no token"),
        ("1 ٣", "“٣” is no token"),  # a digit of another script
        ("1 " + "9" * 5000, "is no token"),
        ("1 2\n3", "numbers, line 2, “3”: 1 numbers, but the rows above have 2"),
        ("1 2\n\n3 4\n5 6", "numbers: image 2 has 2 x 2 tokens, but the first has 1 x 2"),
        (" \n", "numbers: there are none; write one row of the grid per line"),
    ],
)
def test_text_that_is_no_grid_is_refused_by_its_line(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        read_tokens(text, 16)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("1, 2 = 3", [Swap((1, 1), (2, 2), 3)]),
        (" 1,2=0 \n\n3 , 4 = 15", [Swap((1, 1), (2, 2), 0), Swap((3, 3), (4, 4), 15)]),
        ("1-3, 2 - 4 = 7", [Swap((1, 3), (2, 4), 7)]),
    ],
)
def test_swaps_are_read(text: str, expected: list[Swap]) -> None:
    assert read_swaps(text, 3, 4, 16) == expected


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1, 1 = 2\n4, 1 = 2", "swap, line 2, “4, 1 = 2”: there is no row 4; this grid has rows 1 to 3"),
        ("0, 1 = 2", "there is no row 0; this grid has rows 1 to 3"),
        ("1, 5 = 2", "there is no column 5; this grid has columns 1 to 4"),
        ("1, 1-5 = 2", "there is no column 5"),
        ("3-1, 1 = 2", "rows 3-1 run backwards; write 1-3"),
        ("1, 1 = 16", "swap, line 1, “1, 1 = 16”: there is no token 16; this dVAE has 0 to 15"),
        ("1, 1 = -1", "write “row, column = number”, such as “3, 5 = 12” or “2-4, 7-9 = 12”"),
        ("1 1 = 2", "write “row, column = number”"),
        ("1, 1 = 2, 3", "write “row, column = number”"),
        ("everything", "swap, line 1, “everything”: write"),
        ("x" * 5000, "…”: write “row, column = number”"),
    ],
)
def test_a_swap_that_cannot_be_is_refused_by_its_line(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        read_swaps(text, 3, 4, 16)
    assert len(str(caught.value)) < 500


def test_swaps_act_in_their_order_on_every_image_and_nowhere_else() -> None:
    ids, notes = swapped(GRID, read_swaps("1, 2 = 9\n2-3, 3-4 = 5\n3, 4 = 1\n1, 1 = 0", 3, 4, 16))
    assert ids.tolist() == [
        [[0, 9, 2, 3], [4, 5, 5, 5], [8, 9, 5, 1]],
        [[0, 9, 14, 15], [16, 17, 5, 5], [20, 21, 5, 1]],
    ]
    assert notes == [
        "row 1, column 2: 2 tokens, 2 different -> 9",
        "rows 2 to 3, columns 3 to 4: 8 tokens, 8 different -> 5",
        "row 3, column 4: 5 -> 1",
        "row 1, column 1: 2 tokens, 2 different -> 0, 1 of them as before",
    ]
    assert torch.equal(GRID, torch.arange(24).view(2, 3, 4))
    assert swapped(GRID[:1], [Swap((1, 1), (4, 4), 3)])[1] == ["row 1, column 4: 3 -> 3, as before"]


def test_tokens_fit_a_dvae_of_their_own_kind_only() -> None:
    tokens = ImageTokens(GRID, 4, 128)
    tokens.check_fits(SMALL)
    told = "of a dVAE with 128 tokens of 4 pixels; this one has 8192 tokens of 8 pixels"
    with pytest.raises(ValueError, match=told):
        tokens.check_fits(DVAEConfig())
    with pytest.raises(ValueError, match="this one has 16 tokens of 4 pixels"):
        tokens.check_fits(TINY_SMALL)


@pytest.mark.parametrize(("height", "width"), [(16, 24), (17, 24), (21, 30), (8, 15)])
def test_what_is_cut_off_is_cut_at_both_ends(height: int, width: int) -> None:
    images = torch.rand(2, 3, height, width)
    found = cropped(images, 8)
    top, left = height % 8 // 2, width % 8 // 2
    assert torch.equal(found, images[..., top : top + height // 8 * 8, left : left + width // 8 * 8])


def test_an_image_smaller_than_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="images of 7 x 30 pixels: no side may be shorter than a token, 8 pixels"):
        cropped(torch.rand(1, 3, 30, 7), 8)


@pytest.mark.parametrize(("count", "height", "width"), [(1, 16, 16), (5, 16, 16), (2, 64, 16), (1, 72, 68)])
def test_the_number_of_parts_is_how_often_the_work_can_be_cancelled(
    count: int, height: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PIXELS", 2 * 16 * 16 // 16)  # two of 16 x 16 at once, of this narrow model
    monkeypatch.setattr(module, "_CORE", 32)
    model, calls = seeded(TINY_SMALL), []
    tokens = model.tokens(pictures(count, height, width), lambda: calls.append(1))
    assert len(calls) == model.num_parts(count, height // 4, width // 4)
    model.images(tokens, lambda: calls.append(1))
    assert len(calls) == 2 * model.num_parts(count, height // 4, width // 4)


@pytest.mark.parametrize(("count", "height", "width"), [(40, 256, 256), (3, 512, 512), (2, 520, 1000), (1, 4096, 4096)])
def test_no_more_pixels_are_computed_at_once_than_the_page_says(
    count: int, height: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the published size, whose two halves only note here what they are given."""
    with torch.device("meta"):
        model = DVAE()
    seen: list[tuple[int, ...]] = []

    def encode(pixels: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(pixels.shape))
        return pixels[:, :2, ::8, ::8]

    def decode(shares: torch.Tensor) -> torch.Tensor:
        images, _, rows, columns = shares.shape
        seen.append((images, 3, 8 * rows, 8 * columns))
        return torch.empty(images, 6, 8 * rows, 8 * columns, device="meta")

    monkeypatch.setattr(DVAE, "_weight", torch.zeros(1, device="meta"))
    monkeypatch.setattr(model.encoder, "forward", encode)
    monkeypatch.setattr(model.decoder, "forward", decode)
    images = torch.empty(1, 3, height, width, device="meta").expand(count, -1, -1, -1)
    tokens = model.tokens(images)
    assert tokens.shape == (count, height // 8, width // 8)
    num_parts = model.num_parts(*tokens.shape)
    assert len(seen) == num_parts
    monkeypatch.setattr(model, "_check_tokens", lambda _: None)  # it looks at the numbers
    assert model.images(tokens).shape == (count, 3, height, width)
    assert len(seen) == 2 * num_parts
    for together, _, high, wide in seen:
        assert together * high * wide <= (512 * 512 if height * width <= 512 * 512 else 576 * 576)
        assert max(high, wide) <= 576


def test_the_tests_own_dvae_finds_the_nearest_colors() -> None:
    model, images = palette_dvae(), pictures(2, 32, 48)
    tokens = model.tokens(images)
    assert torch.equal(tokens, nearest_colors(images))
    assert len(tokens.unique()) > 4
    colors = model.images(tokens).movedim(1, -1)
    shown = palette()[tokens].repeat_interleave(4, 1).repeat_interleave(4, 2)
    torch.testing.assert_close(colors, shown, rtol=0, atol=1e-6)
