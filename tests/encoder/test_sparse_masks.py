"""DALL·E's masks: by the coordinates of the image, by what the paper says, in an attention layer; and ru-DALL-E's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from weighted_clip.encoder.masks import causal_mask, check_mask
from weighted_clip.encoder.models.config import MaskVariant
from weighted_clip.encoder.models.layers import Attention
from weighted_clip.encoder.sparse_masks import (
    column_mask,
    convolutional_mask,
    layer_schedule,
    row_mask,
    transposed_column_mask,
    transposed_order,
)

from ..dalle.rudalle import RUDALLE, their_mask, their_schedule

FIGURE = (6, (4, 4))
"""Text positions and grid of the paper's Figure 11."""
DALLE = (256, (32, 32))
MASKS: dict[str, Callable[..., torch.Tensor]] = {
    "row": row_mask,
    "column": column_mask,
    "transposed": transposed_column_mask,
    "convolutional": lambda text_length, grid: convolutional_mask(text_length, grid, kernel_size=3),
}
Cell = tuple[int, int]


def by_coordinates(name: str, text_length: int, grid: Cell, kernel_size: int = 3) -> list[list[bool]]:
    """The definitions once more: for each pair of positions, their cells in the image are compared."""
    rows, columns = grid
    cells = [(row, column) for row in range(rows) for column in range(columns)]
    if name == "transposed":
        cells = [(row, column) for column in range(columns) for row in range(rows)]

    def reads(query: Cell, key: Cell) -> bool:
        (row, column), (key_row, key_column) = query, key
        if name == "row":
            return (key_row == row and key_column <= column) or (key_row == row - 1 and key_column >= column)
        if name == "convolutional":
            return key in square(query)
        return key_column == column and key_row <= row

    def square(middle: Cell) -> set[Cell]:
        half, found = kernel_size // 2, set()
        for row in range(middle[0] - half, middle[0] + half + 1):
            for column in range(middle[1] - half, middle[1] + half + 1):
                cell = (row, column)
                while cell[1] < 0:
                    cell = (cell[0] - 1, cell[1] + columns)
                while cell[1] >= columns:
                    cell = (cell[0] + 1, cell[1] - columns)
                if cell <= middle:  # tuples compare as raster order does
                    found.add(cell)
        return found

    positions: list[int | Cell] = [*range(text_length), *cells]
    table: list[list[bool]] = []
    for query in positions:
        line: list[bool] = []
        for key in positions:
            if isinstance(query, int):
                line.append(isinstance(key, int) and key <= query)
            else:
                line.append(isinstance(key, int) or reads(query, key))
        table.append(line)
    return table


def image_part(mask: torch.Tensor, text_length: int) -> torch.Tensor:
    return mask[0, text_length:, text_length:]


SIZES = st.tuples(st.integers(0, 4), st.tuples(st.integers(1, 6), st.integers(1, 6)))


@pytest.mark.parametrize("name", MASKS)
@given(sizes=SIZES)
def test_every_cell_is_as_the_coordinates_say(name: str, sizes: tuple[int, Cell]) -> None:
    mask = MASKS[name](*sizes)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [by_coordinates(name, *sizes)]


@given(sizes=SIZES, half=st.integers(0, 6))
def test_the_convolution_is_as_the_coordinates_say_for_every_kernel(sizes: tuple[int, Cell], half: int) -> None:
    # also where the kernel is wider than the image, twice and more
    mask = convolutional_mask(*sizes, kernel_size=2 * half + 1)
    assert mask.tolist() == [by_coordinates("convolutional", *sizes, kernel_size=2 * half + 1)]


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("sizes", [FIGURE, DALLE, (3, (2, 5)), (1, (5, 1)), (2, (1, 4))])
def test_nothing_reads_the_future_and_all_read_the_text(name: str, sizes: tuple[int, Cell]) -> None:
    text_length, (rows, columns) = sizes
    mask, length = MASKS[name](*sizes), text_length + rows * columns
    assert mask.shape == (1, length, length)
    assert not (mask & ~causal_mask(length)).any()
    assert mask[0].diagonal().all()
    assert torch.equal(mask[:, :text_length, :text_length], causal_mask(text_length))
    assert mask[:, text_length:, :text_length].all()
    assert check_mask(mask, 1, length) is mask


# --- what the caption of Figure 11 says


def test_the_row_masks_extent_is_5_and_ends_above() -> None:
    text_length, (_, columns) = FIGURE
    image = image_part(row_mask(*FIGURE), text_length)
    for token, line in enumerate(image):
        keys = line.nonzero().flatten().tolist()
        first = max(0, token - columns)
        assert keys == list(range(first, token + 1))  # previous tokens in raster order, without a gap
        if token >= columns:
            assert len(keys) == 5
            assert keys[0] % columns == token % columns
            assert keys[0] // columns == token // columns - 1
    dalle = image_part(row_mask(*DALLE), DALLE[0])
    assert (dalle[32:].sum(1) == 33).all()


def test_the_column_mask_reads_the_column() -> None:
    image = image_part(column_mask(*FIGURE), FIGURE[0]).reshape(4, 4, 4, 4)  # query row, column, key row, column
    assert image.sum(dim=(2, 3)).tolist() == [[1] * 4, [2] * 4, [3] * 4, [4] * 4]
    assert image[2, 1].nonzero().tolist() == [[0, 1], [1, 1], [2, 1]]


def test_the_convolution_wraps_around_as_the_row_mask_does() -> None:
    image = image_part(convolutional_mask(*FIGURE, kernel_size=3), FIGURE[0])
    # tokens by number from 0 in a grid of 4 columns
    assert image[9].nonzero().flatten().tolist() == [4, 5, 6, 8, 9]  # in the middle: no edge is near
    assert image[8].nonzero().flatten().tolist() == [3, 4, 5, 7, 8]  # left edge: 3 and 7 end the rows above
    assert image[11].nonzero().flatten().tolist() == [6, 7, 8, 10, 11]  # right edge: 8 begins its own row
    assert image[0].nonzero().flatten().tolist() == [0]
    query, key = image.nonzero().T
    assert set((query - key).tolist()) == {0, 1, 3, 4, 5}
    eleven = image_part(convolutional_mask(*DALLE), DALLE[0])
    assert eleven[20 * 32 + 16].sum() == 11 * 5 + 6


@pytest.mark.parametrize(("grid", "size"), [((4, 4), 3), ((5, 3), 3), ((3, 7), 5), ((2, 5), 1), ((32, 32), 11)])
def test_the_convolution_is_one_over_the_raster_sequence(grid: Cell, size: int) -> None:
    columns = grid[1]
    square = functional.pad(torch.ones(size, size), (0, columns - size)).flatten()  # a kernel with gaps of a row's rest
    past = square[: size // 2 * columns + size // 2 + 1]
    signals = torch.eye(grid[0] * columns).unsqueeze(1)  # one for each key
    seen = functional.conv1d(functional.pad(signals, (len(past) - 1, 0)), past[None, None])[:, 0].T
    assert torch.equal(image_part(convolutional_mask(0, grid, kernel_size=size), 0), seen > 0)


def test_without_an_edge_near_the_convolution_is_that_of_the_picture() -> None:
    rows, columns, half = 6, 7, 2
    image = image_part(convolutional_mask(0, (rows, columns), kernel_size=5), 0).reshape(rows, columns, rows, columns)
    for row in range(rows):
        for column in range(half, columns - half):
            expected = torch.zeros(rows, columns, dtype=torch.bool)
            expected[max(0, row - half) : row, column - half : column + half + 1] = True
            expected[row, column - half : column + 1] = True
            assert torch.equal(image[row, column], expected)


# --- the transposed image


@given(sizes=SIZES)
def test_transposing_twice_is_nothing(sizes: tuple[int, Cell]) -> None:
    text_length, (rows, columns) = sizes
    order, back = transposed_order(*sizes), transposed_order(text_length, (columns, rows))
    assert order[back].tolist() == list(range(text_length + rows * columns))
    image = torch.arange(rows * columns).reshape(rows, columns)
    assert torch.equal(order[text_length:] - text_length, image.T.flatten())
    mask = column_mask(*sizes)
    assert torch.equal(transposed_column_mask(*sizes), mask[:, order][:, :, order])


def make_attention(dim: int = 8) -> Attention:
    torch.manual_seed(0)
    return Attention(dim, num_heads=2).double()


@pytest.mark.parametrize("sizes", [FIGURE, (3, (2, 5)), (0, (3, 4)), (2, (1, 3))])
def test_attention_on_the_transposed_image_is_column_attention(sizes: tuple[int, Cell]) -> None:
    text_length, (rows, columns) = sizes
    attention = make_attention()
    hidden = torch.randn(2, text_length + rows * columns, 8, dtype=torch.float64)
    order, back = transposed_order(*sizes), transposed_order(text_length, (columns, rows))
    plain = attention(hidden, column_mask(*sizes).unsqueeze(1), is_causal=False)
    transposed = attention(hidden[:, order], transposed_column_mask(*sizes).unsqueeze(1), is_causal=False)
    assert torch.allclose(transposed[:, back], plain, rtol=0, atol=1e-12)
    assert torch.allclose(transposed[:, :text_length], plain[:, :text_length], rtol=0, atol=1e-12)
    if rows > 1 and columns > 1:  # and it is the mask that does it
        wrong = attention(hidden[:, order], column_mask(*sizes).unsqueeze(1), is_causal=False)
        assert not torch.allclose(wrong[:, back], plain, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", MASKS)
def test_an_output_depends_on_an_input_exactly_where_the_mask_says_so(name: str) -> None:
    attention, mask = make_attention(), MASKS[name](*FIGURE)
    hidden = torch.randn(1, 22, 8, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda h: attention(h, mask.unsqueeze(1), is_causal=False)[0], hidden)
    depends = jacobian[:, :, 0].abs().amax(dim=(1, 3))  # [query, dim, key, dim] -> [query, key]
    assert torch.equal(depends > 0, mask[0])
    assert depends[mask[0]].min() > 1e-6


# --- layers


def test_the_schedule_of_dalle() -> None:
    schedule = layer_schedule(64)
    assert len(schedule) == 64
    assert schedule[:4] == ["row", "column", "row", "row"]
    assert schedule[-1] == "convolutional"
    for index in range(1, 64):
        assert schedule[index - 1] == ("column" if (index - 2) % 4 == 0 else "row")
    assert schedule.count("column") == 16  # 2, 6, ..., 62


def test_the_last_layer_is_convolutional_whatever_its_number() -> None:
    assert layer_schedule(1) == ["convolutional"]
    assert layer_schedule(2) == ["row", "convolutional"]  # layer 2 would be a column one
    assert layer_schedule(3) == ["row", "column", "convolutional"]


# --- refusals


@pytest.mark.parametrize("make", [*MASKS.values(), transposed_order])
def test_sizes_that_are_none_are_refused(make: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="text_length must be at least 0 positions, got -1"):
        make(-1, (4, 4))
    for grid in ((0, 4), (4, -1), (4,), (4, 4, 4)):
        with pytest.raises(ValueError, match="grid must be") as error:
            make(6, grid)
        assert str(error.value).endswith(f"got {grid}")


@pytest.mark.parametrize("size", [-3, 0, 4])
def test_a_kernel_without_a_middle_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"kernel_size must be an odd number .* got {size}"):
        convolutional_mask(6, (4, 4), kernel_size=size)


def test_a_schedule_of_no_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="num_layers must be at least 1, got 0"):
        layer_schedule(0)


# --- ru-DALL-E's masks


RECORDED = Path(__file__).resolve().parents[1] / "data" / "rudalle_masks.json"
RUDALLE_SIZES = [(0, 1, 11), (3, 2, 3), (4, 4, 3), (6, 8, 11), (5, 9, 7), (6, 12, 11), (2, 13, 5), (128, 32, 11)]
"""Positions of text, side of the image, side of the kernel. The last are those of ru-DALL-E's weights."""
KINDS = ("row", "column", *RUDALLE)
LAYERS = (1, 2, 3, 4, 5, 6, 7, 10, 12, 24, 64)


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


@pytest.mark.parametrize("sizes", RUDALLE_SIZES)
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
    names = {name_of(kind, sizes): our_mask(kind, *sizes) for kind in KINDS for sizes in RUDALLE_SIZES}
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
def test_every_cell_of_rudalles_is_as_the_coordinates_say(
    variant: MaskVariant, grid: Cell, text_length: int, half: int
) -> None:
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
