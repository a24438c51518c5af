"""The grid of an image's tokens: where its cells are, what they show, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from weighted_clip.web.pictures import draw_token_grid
from weighted_clip.web.pictures.style import LIGHT, MIN_CONTRAST, contrast, readable
from weighted_clip.web.pictures.token_grid import LEFT, TOP, cell_at, cell_side, token_color

IMAGE = Image.fromarray(np.repeat(np.repeat(np.array([[[200, 0, 0], [0, 0, 200]]], np.uint8), 40, 0), 40, 1))
"""Red on the left, blue on the right."""


def test_a_cell_shows_its_part_of_the_image_above_the_colour_of_its_token() -> None:
    ids = [[3, 8], [8, 1]]
    picture = np.asarray(draw_token_grid(IMAGE, ids)).astype(int)
    side = cell_side(2, 2)
    for row in range(2):
        for column in range(2):
            x, y = LEFT + column * side, TOP + row * side
            assert (
                np.abs(picture[y + 4, x + side // 3 + column * side // 3] - ([200, 0, 0], [0, 0, 200])[column]).max()
                < 8
            )
            assert tuple(picture[y + side - 4, x + 3]) == token_color(ids[row][column])
            assert cell_at(x + side / 2, y + side / 2, 2, 2) == (row + 1, column + 1)


@pytest.mark.parametrize(("x", "y"), [(0, 60), (60, 0), (LEFT + 2 * 72, 60), (60, TOP + 2 * 72), (-5, -5)])
def test_beside_the_grid_there_is_no_cell(x: float, y: float) -> None:
    assert cell_side(2, 2) == 72
    assert cell_at(x, y, 2, 2) is None


def test_marked_tokens_are_framed_and_nothing_else_changes() -> None:
    ids = [[0] * 6 for _ in range(6)]
    plain = np.asarray(draw_token_grid(IMAGE, ids)).astype(int)
    marked = np.asarray(draw_token_grid(IMAGE, ids, marked=[(2, 5)])).astype(int)
    rows, columns = np.nonzero((plain != marked).any(-1))
    side = cell_side(6, 6)
    width = side // 12
    assert (rows.min() - TOP + width, columns.min() - LEFT + width) == (side, 4 * side)
    assert (rows.max() - TOP - width, columns.max() - LEFT - width) == (2 * side - 2, 5 * side - 2)
    assert {tuple(marked[place]) for place in zip(rows, columns, strict=True)} == {LIGHT.wave}


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (64, 3), (3, 65), (200, 300)])
def test_grids_of_any_size_stay_bounded(rows: int, columns: int) -> None:
    picture = draw_token_grid(IMAGE, [[8191] * columns] * rows)
    assert picture.mode == "RGB"
    assert max(picture.size) < 2500
    has_number = token_color(8191) in {color for _, color in picture.getcolors(10**6)}
    assert has_number == (max(rows, columns) <= 64)


def test_numbers_can_be_read_on_their_colours_and_neighbours_are_told_apart() -> None:
    colors = [token_color(number) for number in range(8192)]
    assert min(contrast(color, readable(color, LIGHT.text)) for color in colors) >= MIN_CONTRAST
    steps = [max(abs(a - b) for a, b in zip(one, other, strict=True)) for one, other in pairwise(colors)]
    assert min(steps) > 25


@pytest.mark.parametrize("ids", [[], [[]], [[1, 2], [3]]])
def test_what_is_no_grid_is_refused(ids: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="a grid has rows of one length"):
        draw_token_grid(IMAGE, ids)
