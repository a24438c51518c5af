"""Matrices, rankings, sheets and token grids: colours, frames, numbers, what is left out, images of every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from weighted_clip.web.pictures import draw_ranking, draw_similarity, draw_token_grid, matrices, style
from weighted_clip.web.pictures.matrices import ColorScale, scale_of
from weighted_clip.web.pictures.sheets import few_lines
from weighted_clip.web.pictures.style import LIGHT, MIN_CONTRAST, contrast, readable
from weighted_clip.web.pictures.token_grid import LEFT, TOP, cell_at, cell_side, token_color

from .conftest import Boxes, count_color

TEXTS = [
    "",
    "   ",
    "猫が窓辺で寝ている",
    "مرحبا",
    "🐱 cat",
    "a very long text " * 40,
    "x" * 900,
    "a\nb\tc",
    "\x00\ud800",
]
ODD_IMAGES = [
    Image.new("RGB", (900, 7), "red"),
    Image.new("L", (1, 1000), 90),
    Image.new("RGBA", (64, 64), (0, 0, 255, 0)),
    Image.new("P", (9, 5)),
    Image.new("1", (3, 3), 1),
    Image.new("LA", (10, 10), (200, 100)),
    Image.new("CMYK", (40, 90)),
    Image.new("RGB", (1, 1)),
]


def plain(count: int) -> list[Image.Image]:
    """Images of different greys."""
    return [Image.new("RGB", (20, 20), (3 * (n % 64),) * 3) for n in range(count)]


def framed(boxes: Boxes) -> list[style.Color]:
    """Fill of every framed cell, in order."""
    return [options["fill"] for _, options in boxes if options.get("line_width") == 2.5 and options.get("outline")]


# --- the scale


@pytest.mark.parametrize(
    ("values", "over", "scale"),
    [
        ([[0.21, 0.33]], "none", ColorScale(0.2, 0.35, False)),
        ([[0.25]], "none", ColorScale(0.2, 0.3, False)),
        ([[0.2], [0.3]], "none", ColorScale(0.2, 0.3, False)),
        ([[-1.0, 1.0]], "none", ColorScale(-1.0, 1.0, False)),
        ([[math.nan, 0.11]], "none", ColorScale(0.05, 0.15, False)),
        ([[math.nan]], "none", ColorScale(-0.05, 0.05, False)),
        ([[0.4, 0.6]], "images", ColorScale(0.0, 1.0, True)),
        ([[0.4, 0.6]], "texts", ColorScale(0.0, 1.0, True)),
    ],
)
def test_the_scale_goes_from_about_the_least_to_about_the_largest(
    values: list[list[float]], over: str, scale: ColorScale
) -> None:
    found = scale_of(values, over)
    assert (found.low, found.high) == pytest.approx((scale.low, scale.high), abs=0.051)
    assert found.high - found.low >= 0.0999
    finite = [value for row in values for value in row if math.isfinite(value)]
    assert all(found.low - 1e-9 <= value <= found.high + 1e-9 for value in finite)
    assert found.is_percent == scale.is_percent


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8))
def test_every_cosine_is_on_its_scale(values: list[float]) -> None:
    scale = scale_of([values], "none")
    assert scale.low - 1e-6 <= min(values)
    assert max(values) <= scale.high + 1e-6
    assert 0.0999 <= scale.high - scale.low <= max(values) - min(values) + 0.1501


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK])
def test_equal_steps_of_a_value_are_equal_steps_of_lightness(theme: style.Theme) -> None:
    """CIE lightness, from luminance."""
    scale = ColorScale(0.1, 0.3, False)
    luminances = [(style.contrast(scale.color(0.1 + 0.02 * n, theme), (0, 0, 0)) * 0.05) - 0.05 for n in range(11)]
    lightness = [116 * value ** (1 / 3) - 16 for value in luminances]
    steps = [after - before for before, after in pairwise(lightness)]
    mean = sum(steps) / len(steps)
    assert abs(mean) > 3
    assert all(0.6 < step / mean < 1.5 for step in steps)
    assert scale.color(-5, theme) == scale.color(0.1, theme) == scale.color(math.nan, theme) == theme.surface
    assert scale.color(5, theme) == theme.visible


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (0.0002, "<0.1 %"), (0.004, "0.4 %"), (0.0994, "9.9 %"), (0.0996, "10 %"), (1, "100 %")],
)
def test_probabilities_are_percent(value: float, text: str) -> None:
    assert ColorScale(0, 1, True).text(value) == text


# --- the matrix


def test_cells_have_the_color_of_their_value_and_the_number(written: list[str]) -> None:
    values = torch.tensor([[0.30, 0.20], [0.25, 0.28], [-0.1, 0.1]])
    picture = draw_similarity(values, ["a", "b", "c"], plain(2))
    assert picture.mode == "RGB"
    scale = scale_of(values.tolist(), "none")
    for value in values.flatten().tolist():
        fill = scale.color(value, style.LIGHT)
        assert count_color(picture, fill) > 2000
        assert f"{value:.3f}".replace("-", "−") in written
    assert {"image", "1", "2", "a", "b", "c", "cosine, from −1 to 1", "framed: largest of its row"} <= set(written)


def test_thumbnails_stand_above_their_columns() -> None:
    colors = [(250, 0, 0), (0, 250, 0), (0, 0, 250)]
    picture = draw_similarity([[0.1, 0.2, 0.3]], ["a text"], [Image.new("RGB", (50, 50), color) for color in colors])
    places = [_box(picture, color) for color in colors]
    lefts = [left for left, _, _, _ in places]
    assert lefts[1] - lefts[0] == lefts[2] - lefts[1] == matrices.CELLS[0][1]
    assert all(right - left == bottom - top == 70 for left, top, right, bottom in places)
    assert len({top for _, top, _, _ in places}) == 1


def _box(picture: Image.Image, color: style.Color) -> tuple[int, int, int, int]:
    """Bounding box of the pixels of a colour."""
    is_color = (np.asarray(picture) == color).all(-1)
    box = Image.fromarray((is_color * 255).astype(np.uint8)).getbbox()
    assert box is not None
    return box


def test_the_largest_of_each_row_is_framed(boxes: Boxes) -> None:
    values = [[0.1, 0.3, 0.2], [0.25, 0.15, 0.25], [math.nan, 0.1, 0.05], [math.nan] * 3]
    draw_similarity(values, list("abcd"), plain(3))
    scale = scale_of(values, "none")
    assert framed(boxes) == [scale.color(value, style.LIGHT) for value in (0.3, 0.25, 0.25, 0.1)]


def test_over_texts_the_largest_of_each_column_is_framed(boxes: Boxes, written: list[str]) -> None:
    values = torch.tensor([[0.6, 0.3], [0.4, 0.7]])
    draw_similarity(values, ["a", "b"], plain(2), over="texts")
    assert framed(boxes) == [ColorScale(0, 1, True).color(value, style.LIGHT) for value in (0.6, 0.7)]
    assert {"60 %", "70 %", "framed: largest of its column"} <= set(written)
    written.clear()
    draw_similarity(values, ["a", "b"], plain(2), over="images")
    assert {"framed: largest of its row", "0 %", "50 %", "100 %"} <= set(written)


@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (12, 16), (12, 1), (32, 32)])
def test_every_size_up_to_the_limit_is_drawn_whole(shape: tuple[int, int], written: list[str]) -> None:
    num_texts, num_images = shape
    values = torch.linspace(0.101, 0.399, num_texts * num_images).view(shape)
    picture = draw_similarity(values, [f"text {n}" for n in range(num_texts)], plain(num_images))
    digits = 2 if num_images > 16 else 3
    numbers = [f"{value:.{digits}f}" for value in values.flatten().tolist()]
    assert [text for text in written if text in set(numbers)][: len(numbers)] == numbers
    assert not any("not drawn" in text or text == "…" for text in written)
    assert max(picture.size) < 2100


def test_what_is_left_out_is_told(written: list[str]) -> None:
    values = torch.full((33, 50), 0.2)
    values[:, 4] = 0.3
    values[7, 44] = 0.41
    draw_similarity(values, ["a"] * 33, plain(50))
    assert "not drawn: 1 more text and 18 more images" in written
    assert "image 45" in written
    assert "0.41" in written
    written.clear()
    draw_similarity(values.T.softmax(0), ["a"] * 50, plain(33), over="texts")
    assert "not drawn: 18 more texts and 1 more image" in written
    assert "text 45" in written


def test_texts_in_any_script_and_odd_images(written: list[str]) -> None:
    values = [[0.1 * (row + column) for column in range(len(ODD_IMAGES))] for row in range(len(TEXTS))]
    draw_similarity(values, TEXTS, ODD_IMAGES)
    assert written.count("(empty text)") == 2
    cut = [text for text in written if text.endswith("…")]
    assert sum(text[0] in "vx" for text in cut) == 2  # how wide other scripts are depends on the fonts there are
    draw_ranking(ODD_IMAGES, [0.1] * len(ODD_IMAGES), range(len(ODD_IMAGES)), 2, "")
    for text in TEXTS:
        draw_ranking(ODD_IMAGES[:1], [0.5], [0], 1, text)


def test_images_are_not_changed() -> None:
    image = Image.linear_gradient("L").convert("RGBA")
    before = image.tobytes()
    draw_similarity([[0.1]], ["a"], [image])
    draw_ranking([image], [0.1], [0], 1, "a")
    assert image.tobytes() == before


def test_a_text_that_fits_is_not_cut() -> None:
    assert few_lines("a cat", 120, 14, 1) == ["a cat"]


@given(text=st.text(max_size=300), max_lines=st.integers(1, 4))
@settings(max_examples=100)
def test_a_text_that_is_cut_says_so(text: str, max_lines: int) -> None:
    lines = few_lines(text, 120, 14, max_lines)
    assert 1 <= len(lines) <= max_lines
    words = " ".join(text.split())
    if words and " ".join(lines) != words:
        assert any("…" in line for line in lines)  # a word that is cut may be followed by others


@pytest.mark.parametrize(
    ("values", "texts", "count", "message"),
    [
        ([], [], 0, "0 texts and 0 images need as many rows"),
        ([[0.1]], ["a"], 2, "1 texts and 2 images need as many rows and columns of values.*got 1 rows of 1 values"),
        ([[0.1], [0.2, 0.3]], ["a", "b"], 1, "got 2 rows of 1 or 2 values"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(values: object, texts: list[str], count: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_similarity(values, texts, plain(count))


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="over must be one of: none, images, texts; got 'rows'"):
        draw_similarity([[0.1]], ["a"], plain(1), over="rows")


# --- the ranking


def test_images_stand_best_first_with_score_and_number(written: list[str]) -> None:
    scores = [0.2, -0.05, 0.31, 0.2718]
    draw_ranking(plain(4), scores, [2, 3, 0, 1], 2, "a red cat")
    cards = written[written.index("1.") :][:12]
    assert cards == [
        *("1.", "0.3100", "image 3"),
        *("2.", "0.2718", "image 4"),
        *("3.", "0.2000", "image 1"),
        *("4.", "−0.0500", "image 2"),
    ]
    assert written[0] == "a red cat"
    assert {"Kept: the best 2 of 4", "Not kept, best first"} <= set(written)
    assert "from the lowest, −0.0500, to the highest, 0.3100" in " ".join(written)


def test_bars_go_from_the_lowest_to_the_highest(boxes: Boxes) -> None:
    widths: dict[style.Color, list[float]] = {}
    draw_ranking(plain(5), [0.4, 0.3, 0.2, 0.1, math.nan], [0, 1, 2, 3, 4], 2, "a")
    for (left, top, right, bottom), options in boxes:
        if bottom - top == 6:
            widths.setdefault(options["fill"], []).append(right - left)
    assert widths[style.LIGHT.line] == [132, 132, 80, 80, 80]
    assert widths[style.LIGHT.accent] == pytest.approx([132, 88])
    assert widths[style.LIGHT.muted] == pytest.approx([80 / 3])  # the lowest and NaN have none


def test_kept_images_are_framed() -> None:
    frames = [
        count_color(draw_ranking(plain(6), [0.5] * 6, range(6), keep, "a"), style.LIGHT.accent) for keep in (0, 1, 6)
    ]
    assert frames[0] == 0
    assert frames[2] > 5 * frames[1] > 2500


@pytest.mark.parametrize(
    ("count", "keep", "told"),
    [
        (1, 1, ["Kept"]),
        (3, 3, ["Kept: all 3"]),
        (60, 60, ["Kept: all 60"]),
        (512, 4, ["Kept: the best 4 of 512", "Not kept, best first; 490 more are not drawn"]),
        (80, 61, ["Kept: the best 61 of 80; 1 more is not drawn", "Not kept, best first; 1 more is not drawn"]),
        (512, 512, ["Kept: all 512; 452 more are not drawn"]),
        (5, 0, ["5 images, best first"]),
    ],
)
def test_any_number_of_images_can_be_ranked(count: int, keep: int, told: list[str], written: list[str]) -> None:
    scores = [1 - n / 1000 for n in range(count)]
    picture = draw_ranking(plain(count), scores, range(count), keep, "a cat")
    assert [text for text in written if "Kept" in text or "kept" in text or "best" in text] == told
    assert sum(text.startswith("image ") for text in written) == min(keep, 60) + min(count - keep, 18)
    assert picture.width <= 910
    assert picture.height < 2600


def test_only_images_that_are_drawn_are_asked_for_and_names_can_be_given(written: list[str]) -> None:
    asked: list[int] = []

    class Images(Sequence[Image.Image]):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return Image.new("RGB", (9, 9))

    names = [f"{'x' * n}-picture-{n}" for n in range(100)]
    draw_ranking(Images(), [0.1] * 100, range(100), 3, "a", names=names)
    assert asked == list(range(21))
    assert {"-picture-0", "x-picture-1"} <= set(written)
    assert any(text.startswith("…") and text.endswith("picture-20") for text in written)


@pytest.mark.parametrize(
    ("scores", "order", "keep", "message"),
    [
        ([0.1], [0, 1], 1, "2 images need as many scores.*got 1 scores and 2 indices"),
        ([0.1, 0.2], [1, 1], 1, "each index once"),
        ([0.1, 0.2], [1, 0], 3, "keep must be 0 to 2, the number of images, got 3"),
    ],
)
def test_rankings_that_do_not_fit_are_refused(scores: list[float], order: list[int], keep: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw_ranking(plain(2), scores, order, keep, "a")


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_large_images_of_any_mode_are_drawn(mode: str) -> None:
    image = Image.new("RGB", (1200, 900), (200, 30, 30)).convert("L" if mode == "I;16" else mode)
    if mode == "I;16":
        image = image.convert("I").convert("I;16")
    draw_ranking([image] * 3, [0.3, 0.2, 0.1], [0, 1, 2], 1, "a red wall")
    draw_similarity([[0.3]], ["a red wall"], [image])


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
