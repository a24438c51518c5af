"""Pictures of sorted images, by their counts, colours, labels and thumbnails; and of an image with its tokens."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from weighted_clip.web.pictures import draw_token_grid, style
from weighted_clip.web.pictures.canvas import Canvas
from weighted_clip.web.pictures.matrices import draw_confusion
from weighted_clip.web.pictures.sheets import KEPT_SIDE, Card, draw_unsure
from weighted_clip.web.pictures.style import LIGHT, MIN_CONTRAST, contrast, readable
from weighted_clip.web.pictures.token_grid import LEFT, TOP, cell_at, cell_side, token_color

from .test_similarity_pictures import ODD_IMAGES, TEXTS


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every text that is drawn, in order."""
    texts: list[str] = []

    def watched(real):
        def text(self: Canvas, x: float, y: float, text: str, *arguments: object, **options: object):
            texts.append(text)
            return real(self, x, y, text, *arguments, **options)

        return text

    for name in ("text", "upright_text"):
        monkeypatch.setattr(Canvas, name, watched(getattr(Canvas, name)))
    return texts


def test_a_matrix_has_the_counts_by_row_and_what_is_right(written: list[str]) -> None:
    draw_confusion([[3, 1, 0], [0, 7, 5], [0, 0, 0]], ["cat", "dog", "bird"], title="Eleven")
    labels = [text for text in written if text in ("cat", "dog", "bird")]
    assert labels == ["cat", "cat", "dog", "dog", "bird", "bird"]  # above its column and next to its row
    numbers = [text for text in written if text.isdigit() or text.endswith("%") or text == "none"]
    assert numbers == ["3", "1", "0", "75 %", "0", "7", "5", "58 %", "0", "0", "0", "none"]
    assert written[0] == "Eleven"


def test_a_cell_has_the_colour_of_its_share_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    fills: list[style.Color] = []
    real = Canvas.box

    def box(self: Canvas, *arguments: float, **options: object) -> None:
        fills.append(options["fill"])
        real(self, *arguments, **options)

    monkeypatch.setattr(Canvas, "box", box)
    draw_confusion([[10, 0], [1, 1]], ["a", "b"])
    light = style.LIGHT
    middle = style.mix(light.surface, light.visible, 0.5)
    assert fills == [light.visible, light.surface, middle, middle]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("count", [1, 2, 9, 17, 40])
def test_any_labels_are_drawn_and_those_that_are_not_are_counted(count: int, theme: str, written: list[str]) -> None:
    labels = [(TEXTS[number] if number < len(TEXTS) else f"label {number}") for number in range(count)]
    picture = draw_confusion([[10**6] * count for _ in labels], labels, title="x " * 90, theme=theme)
    assert picture.mode == "RGB"
    assert max(picture.size) < 1500
    assert ("not drawn: 8 more labels" in written) == (count == 40)


@pytest.mark.parametrize(("counts", "labels"), [([], []), ([[1]], ["a", "b"]), ([[1, 2], [3]], ["a", "b"])])
def test_a_matrix_that_does_not_fit_is_refused(counts: list[list[int]], labels: list[str]) -> None:
    with pytest.raises(ValueError, match="labels need as many rows and columns of counts"):
        draw_confusion(counts, labels)


def test_unsure_images_have_both_labels_their_probabilities_and_the_end_of_their_name(written: list[str]) -> None:
    cards = [Card("x" * 60 + "end.png", (("cat", 0.514), ("dog", 0.486))), Card("b.png", (("dog", 0.9), ("cat", 0.1)))]
    images = [Image.new("RGB", (9, 9), "red"), Image.new("RGB", (9, 9), "blue")]
    picture = draw_unsure(images, cards, "The title")
    assert [text for text in written if not text.startswith("…")] == [
        *("The title", "cat", "51 %", "dog", "49 %"),
        *("dog", "90 %", "cat", "10 %", "b.png"),
    ]
    assert next(text for text in written if text.startswith("…")).endswith("xend.png")
    colors = dict((color, count) for count, color in picture.getcolors(picture.width * picture.height))
    assert colors[255, 0, 0] == colors[0, 0, 255] == KEPT_SIDE * KEPT_SIDE


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_any_images_and_labels_are_drawn(theme: str) -> None:
    cards = [Card(name, ((name, 1.0), (name, 0.0))) for name in TEXTS[: len(ODD_IMAGES)]]
    picture = draw_unsure(ODD_IMAGES, cards, "x", theme=theme)
    assert picture.mode == "RGB"
    assert picture.width < 1000


def test_cards_that_do_not_fit_are_refused() -> None:
    for images in ([], [Image.new("RGB", (3, 3))]):
        with pytest.raises(ValueError, match="images need as many cards, and there must be one"):
            draw_unsure(images, [], "x")


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
