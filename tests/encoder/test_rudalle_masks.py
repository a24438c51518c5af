"""ru-DALL-E's masks compared with its own package, with its earlier results, and by the coordinates of the image."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from weighted_clip.encoder.sparse_masks import (
    MaskVariant,
    column_mask,
    convolutional_mask,
    layer_schedule,
    row_mask,
)

from ..dalle.rudalle import RUDALLE, their_mask, their_schedule

RECORDED = Path(__file__).resolve().parents[1] / "data" / "rudalle_masks.json"
SIZES = [(0, 1, 11), (3, 2, 3), (4, 4, 3), (6, 8, 11), (5, 9, 7), (6, 12, 11), (2, 13, 5), (128, 32, 11)]
"""Positions of text, side of the image, side of the kernel. The last are those of ru-DALL-E's weights."""
KINDS = ("row", "column", *RUDALLE)
LAYERS = (1, 2, 3, 4, 5, 6, 7, 10, 12, 24, 64)
Cell = tuple[int, int]


def our_mask(kind: str, text_length: int, side: int, kernel_size: int) -> torch.Tensor:
    grid = (side, side)
    if kind == "row":
        return row_mask(text_length, grid)[0]
    if kind == "column":
        return column_mask(text_length, grid)[0]
    return convolutional_mask(text_length, grid, kernel_size=kernel_size, variant=kind)[0]


def digest(mask: torch.Tensor) -> str:
    """Number of cells that may be attended, and SHA-256 of all, a byte each."""
    return f"{int(mask.sum())} {hashlib.sha256(mask.to(torch.uint8).numpy().tobytes()).hexdigest()[:16]}"


def name_of(kind: str, sizes: tuple[int, int, int]) -> str:
    return f"{kind} {' '.join(map(str, sizes))}"


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_equal_those_of_rudalle(kind: str, sizes: tuple[int, int, int]) -> None:
    text_length, side, kernel_size = sizes
    expected = their_mask(kind, text_length, side, kernel_size)
    assert torch.equal(our_mask(kind, *sizes), expected)
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert recorded["masks"][name_of(kind, sizes)] == digest(expected)


def test_layers_have_the_masks_that_rudalle_gives_them() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    for num_layers in LAYERS:
        expected = their_schedule(num_layers)
        assert recorded["layers"][str(num_layers)] == expected
        for variant in RUDALLE:
            assert layer_schedule(num_layers, variant) == expected


def test_what_rudalle_gave_once_comes_out_again() -> None:
    """Runs even if the package itself is not installed."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    names = {name_of(kind, sizes): our_mask(kind, *sizes) for kind in KINDS for sizes in SIZES}
    assert {name: digest(mask) for name, mask in names.items()} == recorded["masks"]
    for variant in RUDALLE:
        assert {str(number): layer_schedule(number, variant) for number in LAYERS} == recorded["layers"]


def reads(variant: MaskVariant, query: Cell, key: Cell, grid: Cell, half: int) -> bool:
    """Whether one of the square's cells, moved as the variant says, is the key."""
    for down in range(-half, half + 1):
        for right in range(-half, half + 1):
            cell = (query[0] + down, query[1] + right)
            if variant == "rudalle-v2":
                cell = (cell[0] % grid[0], cell[1] % grid[1])
            if cell == key:
                return key <= query  # tuples compare as raster order does
    return False


@pytest.mark.parametrize("variant", RUDALLE)
@given(grid=st.tuples(st.integers(1, 6), st.integers(1, 6)), text_length=st.integers(0, 3), half=st.integers(0, 4))
def test_every_cell_is_as_the_coordinates_say(variant: MaskVariant, grid: Cell, text_length: int, half: int) -> None:
    # images that are no squares too, which rudalle does not have
    mask = convolutional_mask(text_length, grid, kernel_size=2 * half + 1, variant=variant)
    cells = [(row, column) for row in range(grid[0]) for column in range(grid[1])]
    expected = [[reads(variant, query, key, grid, half) for key in cells] for query in cells]
    assert mask[0, text_length:, text_length:].tolist() == expected
    plain = row_mask(text_length, grid)
    assert torch.equal(mask[:, :text_length], plain[:, :text_length])
    assert mask[:, text_length:, :text_length].all()


@pytest.mark.parametrize(("variant", "differing"), [("rudalle-v2", 2175), ("rudalle-v3", 1515)])
def test_they_are_other_masks_than_those_of_the_paper(variant: MaskVariant, differing: int) -> None:
    paper = convolutional_mask(6, (12, 12))
    assert paper.sum() == 7674
    assert (convolutional_mask(6, (12, 12), variant=variant) != paper).sum() == differing


def test_a_variant_that_is_none_is_refused() -> None:
    message = "variant must be one of dalle, rudalle-v2, rudalle-v3, got 'v3'"
    with pytest.raises(ValueError, match=message):
        convolutional_mask(6, (4, 4), variant="v3")
    with pytest.raises(ValueError, match=message):
        layer_schedule(4, "v3")
