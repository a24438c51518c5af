"""The picture of DALL·E's masks: every cell against the encoder's masks, the order of its labels, extreme sizes.

Pixels are only compared where a flat colour is expected, so any font will do.
"""

import itertools
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from weighted_clip.encoder.sparse_masks import column_mask, convolutional_mask, row_mask, transposed_column_mask
from weighted_clip.web.pictures import style
from weighted_clip.web.pictures.fonts import text_width
from weighted_clip.web.pictures.masks import CAPTION_SIZE

TOOL = runpy.run_path(str(Path(__file__).resolve().parents[2] / "workshop" / "sparse_pictures.py"))
draw_sparse_masks, sparse_panels, origins = (TOOL[name] for name in ("draw_sparse_masks", "sparse_panels", "origins"))
SIZES = [(6, (4, 4), 3), (3, (2, 5), 5), (0, (3, 2), 3), (2, (1, 1), 1), (1, (1, 6), 3), (0, (6, 1), 11)]


def drawings_of(
    text_length: int, grid: tuple[int, int], kernel_size: int, *, theme: style.ThemeName = "light", cell: int = 18
) -> list[Any]:
    token, colors = grid[0] // 2 * grid[1], style.THEMES[theme]
    panels = sparse_panels(text_length, grid, kernel_size)
    return [TOOL["Drawing"](panel, text_length, grid, token, cell, colors) for panel in panels]


def masks_of(text_length: int, grid: tuple[int, int], kernel_size: int) -> list[torch.Tensor]:
    plain = [make(text_length, grid) for make in (row_mask, column_mask, transposed_column_mask)]
    return [*plain, convolutional_mask(text_length, grid, kernel_size=kernel_size)]


def pixel(image: Image.Image, x: float, y: float) -> tuple[int, ...]:
    found = image.getpixel((int(x), int(y)))
    assert isinstance(found, tuple)
    return found


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text_length", "grid", "kernel_size"), SIZES)
def test_every_cell_is_that_of_the_encoders_mask(
    text_length: int, grid: tuple[int, int], kernel_size: int, theme: style.ThemeName
) -> None:
    image = draw_sparse_masks(text_length, grid, kernel_size=kernel_size, theme=theme)
    colors = style.THEMES[theme]
    assert image.mode == "RGB"
    assert pixel(image, 2, 2) == colors.background
    drawings = drawings_of(text_length, grid, kernel_size, theme=theme)
    masks = masks_of(text_length, grid, kernel_size)
    for drawing, (left, top), mask in zip(drawings, origins(drawings), masks, strict=True):
        for query, key in itertools.product(range(mask.shape[1]), repeat=2):
            x = left + drawing.left + drawing.place(key) + drawing.cell / 2
            y = top + drawing.top + drawing.place(query) + drawing.cell / 2
            of_its_kind = colors.down if key < text_length else colors.visible
            expected = of_its_kind if mask[0, query, key] else colors.hidden
            assert pixel(image, x, y) == expected, (drawing.panel.title, query, key)


@pytest.mark.parametrize(("text_length", "grid", "kernel_size"), SIZES)
def test_panels_stand_apart_and_inside(text_length: int, grid: tuple[int, int], kernel_size: int) -> None:
    image = draw_sparse_masks(text_length, grid, kernel_size=kernel_size)
    drawings = drawings_of(text_length, grid, kernel_size)
    places = origins(drawings)
    boxes = [(x, y, x + d.width, y + d.height) for d, (x, y) in zip(drawings, places, strict=True)]
    for a, b in itertools.combinations(boxes, 2):
        assert a[2] < b[0] or a[3] < b[1] or b[2] < a[0]
    assert all(right < image.width and bottom < image.height for _, _, right, bottom in boxes)
    for drawing in drawings:
        beside = drawing.width - drawing.left - grid[1] * drawing.view_cell
        assert all(text_width(line, CAPTION_SIZE) < beside for line in drawing.words)


def test_labels_are_raster_numbers_and_the_transposed_ones_go_down_the_columns() -> None:
    row, column, transposed, convolutional = drawings_of(6, (4, 4), 3)
    text = [f"t{number}" for number in range(1, 7)]
    for drawing in (row, column, convolutional):
        assert drawing.labels == text + [str(number) for number in range(1, 17)]
    assert " ".join(transposed.labels[6:]) == "1 5 9 13 2 6 10 14 3 7 11 15 4 8 12 16"
    assert row.place(6) - row.place(5) > row.place(10) - row.place(9) > row.place(2) - row.place(1)  # gaps


def test_the_words_name_what_a_token_reads() -> None:
    read = [" ".join(drawing.reads) for drawing in drawings_of(6, (4, 4), 3)]
    assert read == [
        "Token 9 reads 5, 6, 7, 8, 9 and the text:",
        "Token 9 reads 1, 5, 9 and the text:",
        "Token 9 reads 1, 5, 9 and the text:",
        "Token 9 reads 4, 5, 6, 8, 9 and the text:",
    ]
    many = " ".join(drawings_of(0, (4, 8), 11)[3].reads)
    assert many == "Token 17 reads 1, 2, 3, 4, 5, 6, …:"


@pytest.mark.parametrize("cell", [6, 18, 40])
def test_the_image_below_a_mask_shows_what_its_token_reads(cell: int) -> None:
    image = draw_sparse_masks(cell=cell)
    drawings = drawings_of(6, (4, 4), 3, cell=cell)
    expected = [{5, 6, 7, 8, 9}, {1, 5, 9}, {1, 5, 9}, {4, 5, 6, 8, 9}]
    for drawing, (left, top), tokens in zip(drawings, origins(drawings), expected, strict=True):
        size = drawing.view_cell
        bottom = top + drawing.top + drawing.side + 20
        for token in range(16):
            # near the corner, above its number
            x, y = left + drawing.left + token % 4 * size + 3, bottom + token // 4 * size + 3
            color = style.LIGHT.visible if token + 1 in tokens else style.LIGHT.hidden
            assert pixel(image, x, y) == color, (drawing.panel.title, token + 1)


def test_another_token_another_picture() -> None:
    assert draw_sparse_masks(token=9).tobytes() == draw_sparse_masks().tobytes()
    assert draw_sparse_masks(token=16).tobytes() != draw_sparse_masks().tobytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"text_length": -1}, "text_length .* got -1"),
        ({"grid": (0, 4)}, r"grid .* got \(0, 4\)"),
        ({"kernel_size": 2}, "kernel_size .* got 2"),
        ({"token": 0}, "token must be from 1 to 16, got 0"),
        ({"token": 17}, "token must be from 1 to 16, got 17"),
        ({"cell": 0}, "cell .* got 0"),
        ({"theme": "blue"}, "theme"),
    ],
)
def test_what_cannot_be_drawn_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        draw_sparse_masks(**options)
