"""The picture of DALL·E's masks: every cell against the encoder's masks, the order of its labels, and its words.

Pixels are only compared where a flat colour is expected, so any font will do.
"""

import itertools

import pytest
from PIL import Image
from weighted_clip.encoder.sparse_masks import column_mask, convolutional_mask, row_mask, transposed_column_mask
from weighted_clip.web.pictures.fonts import text_width
from weighted_clip.web.pictures.masks import CAPTION_SIZE
from weighted_clip.web.pictures.style import LIGHT
from weighted_clip.workshop.sparse_pictures import (
    CELL,
    GRID,
    KERNEL_SIZE,
    TEXT_LENGTH,
    VIEW_CELL,
    VIEW_GAP,
    Drawing,
    draw_sparse_masks,
    origins,
    sparse_panels,
)

MASKS = [
    *(make(TEXT_LENGTH, GRID) for make in (row_mask, column_mask, transposed_column_mask)),
    convolutional_mask(TEXT_LENGTH, GRID, kernel_size=KERNEL_SIZE),
]
READ = [{5, 6, 7, 8, 9}, {1, 5, 9}, {1, 5, 9}, {4, 5, 6, 8, 9}]
"""Image tokens read by token 9 under each mask."""


@pytest.fixture(scope="module")
def image() -> Image.Image:
    return draw_sparse_masks()


@pytest.fixture(scope="module")
def drawings() -> list[Drawing]:
    return [Drawing(panel) for panel in sparse_panels()]


def pixel(image: Image.Image, x: float, y: float) -> object:
    return image.getpixel((int(x), int(y)))


def test_every_cell_is_that_of_the_encoders_mask(image: Image.Image, drawings: list[Drawing]) -> None:
    assert pixel(image, 2, 2) == LIGHT.background
    for drawing, (left, top), mask in zip(drawings, origins(drawings), MASKS, strict=True):
        for query, key in itertools.product(range(mask.shape[1]), repeat=2):
            x = left + drawing.left + drawing.place(key) + CELL / 2
            y = top + drawing.top + drawing.place(query) + CELL / 2
            of_its_kind = LIGHT.down if key < TEXT_LENGTH else LIGHT.visible
            expected = of_its_kind if mask[0, query, key] else LIGHT.hidden
            assert pixel(image, x, y) == expected, (drawing.panel.title, query, key)


def test_panels_stand_apart_and_inside(image: Image.Image, drawings: list[Drawing]) -> None:
    boxes = [(x, y, x + d.width, y + d.height) for d, (x, y) in zip(drawings, origins(drawings), strict=True)]
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] < b[0] or a[3] < b[1] or b[2] < a[0]
    assert all(right < image.width and bottom < image.height for _, _, right, bottom in boxes)
    for drawing in drawings:
        beside = drawing.width - drawing.left - GRID[1] * VIEW_CELL
        assert all(text_width(line, CAPTION_SIZE) < beside for line in drawing.words)


def test_labels_are_raster_numbers_and_the_transposed_ones_go_down_the_columns(drawings: list[Drawing]) -> None:
    row, column, transposed, convolutional = drawings
    text = [f"t{number}" for number in range(1, 7)]
    for drawing in (row, column, convolutional):
        assert drawing.labels == text + [str(number) for number in range(1, 17)]
    assert " ".join(transposed.labels[6:]) == "1 5 9 13 2 6 10 14 3 7 11 15 4 8 12 16"
    assert row.place(6) - row.place(5) > row.place(10) - row.place(9) > row.place(2) - row.place(1)  # gaps


def test_words_and_image_below_a_mask_show_what_its_token_reads(image: Image.Image, drawings: list[Drawing]) -> None:
    for drawing, (left, top), tokens in zip(drawings, origins(drawings), READ, strict=True):
        assert " ".join(drawing.reads) == f"Token 9 reads {', '.join(map(str, sorted(tokens)))} and the text:"
        bottom = top + drawing.top + drawing.side + VIEW_GAP
        for token in range(16):
            # near the corner, above its number
            x, y = left + drawing.left + token % 4 * VIEW_CELL + 3, bottom + token // 4 * VIEW_CELL + 3
            color = LIGHT.visible if token + 1 in tokens else LIGHT.hidden
            assert pixel(image, x, y) == color, (drawing.panel.title, token + 1)
