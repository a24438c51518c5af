"""Masks of DALL·E's sparse transformer (row, column, transposed column, convolutional), and their order in the layers.

A sequence is a caption of ``text_length`` positions followed by the tokens of an image in raster order: row by row,
each from left to right. All masks treat the text alike. Text reads text causally and no image; image tokens read all
text. They differ in which image tokens an image token reads: always itself and some of the tokens before it.

Shape and polarity are those of ``masks.py``: bool, ``[1, query, key]``, True = may be attended. Explained with a
picture in docs/reference/dalle.md.

ru-DALL-E has the same row and column masks, two other convolutional ones, and another order of layers. They are
included as variants, because weights only work with the masks they were trained with.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.2, appendix B.1 and Figure 11; rudalle
1.1.3, by its masks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .masks import causal_mask
from .models.config import KERNEL_SIZE, MASK_VARIANTS, MaskVariant
from .quoting import quote

LayerMask = Literal["row", "column", "convolutional"]
"""Mask of a layer. ``column`` is `column_mask`, or `transposed_column_mask` on transposed states, with the same
result."""


def row_mask(text_length: int, grid: Sequence[int]) -> Tensor:
    """Mask where an image token reads back in raster order to the token above it (Figure 11a).

    That is itself and as many tokens before it as a row has columns. The paper's extent counts the token itself: it
    is 5 for rows of 4, "so that the last token being attended to is the one in the same column of the previous row".

    Args:
        text_length: Text positions, at least 0.
        grid: ``(rows, columns)`` of the image.

    Returns:
        ``[1, s, s]``, bool, with s = text_length + rows * columns.

    Raises:
        ValueError: If ``text_length`` is negative, or ``grid`` is not two positive numbers.

    >>> row_mask(0, (2, 2)).int().tolist()
    [[[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]]
    """
    rows, columns = _checked(text_length, grid)
    return _behind_text(text_length, _distances(rows * columns) <= columns)


def column_mask(text_length: int, grid: Sequence[int]) -> Tensor:
    """Mask where an image token reads itself and the tokens above it in its column (Figure 11b).

    Args, result and errors as in `row_mask`.

    >>> column_mask(0, (2, 2)).int().tolist()
    [[[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]]
    """
    rows, columns = _checked(text_length, grid)
    return _behind_text(text_length, _distances(rows * columns) % columns == 0)


def transposed_column_mask(text_length: int, grid: Sequence[int]) -> Tensor:
    """Column mask for states with a transposed image, stored column by column (Figure 11c).

    Then the tokens of a column are neighbours, and the mask consists of dense blocks instead of scattered cells. With
    ``order = transposed_order(text_length, grid)`` it is ``column_mask(...)[:, order][:, :, order]``. Attention with it
    on ``hidden[:, order]`` equals attention with the column mask on ``hidden``, in that order. The text does not move:
    both masks have the same rows and columns for it.

    Args, result and errors as in `row_mask`; ``grid`` is that of the image before it is transposed.

    >>> transposed_column_mask(0, (2, 2)).int().tolist()
    [[[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]]
    """
    rows, columns = _checked(text_length, grid)
    column = torch.arange(rows * columns) // rows
    return _behind_text(text_length, column.unsqueeze(1) == column)


def transposed_order(text_length: int, grid: Sequence[int]) -> Tensor:
    """Order of positions that transposes the image and keeps the text in place.

    ``hidden[:, transposed_order(text_length, (rows, columns))]`` are the transposed states. The same with ``(columns,
    rows)`` reverses it.

    Args and errors as in `row_mask`; ``grid`` is that of the image before it is transposed.

    Returns:
        ``[s]``, int64: the old position for each new one.

    >>> transposed_order(1, (2, 3)).tolist()
    [0, 1, 4, 2, 5, 3, 6]
    """
    rows, columns = _checked(text_length, grid)
    image = torch.arange(rows * columns).reshape(rows, columns).T.flatten()
    return torch.cat([torch.arange(text_length), text_length + image])


def convolutional_mask(
    text_length: int, grid: Sequence[int], *, kernel_size: int = KERNEL_SIZE, variant: MaskVariant = "dalle"
) -> Tensor:
    """Mask where an image token reads the square around it up to itself in raster order (Figure 11d).

    The variants differ in the parts of the square outside the image:

    - ``dalle``: They wrap around as in the row mask. The square's cell ``down`` rows and ``right`` columns away is the
      token ``down * columns + right`` places away in raster order. So parts beyond the right edge continue at the left,
      one row further down, and parts beyond the left edge at the right, one row further up. This is a convolution over
      the sequence of image tokens, where nothing comes before the first.
    - ``rudalle-v2``: Opposite edges of the image meet, as on a torus: outside parts continue at the other end of the
      same rows, or of the same columns. Tokens of the last rows therefore read the first rows as well.
    - ``rudalle-v3``: They are cut off.

    Args, result and errors as in `row_mask`. ``kernel_size``, the rows and columns of the square, is a positive odd
    number: 3 in the figure, 11 in the models. ``variant`` is one of `MASK_VARIANTS`.

    >>> convolutional_mask(0, (2, 2), kernel_size=1).int().tolist()
    [[[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]]
    """
    rows, columns = _checked(text_length, grid)
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be an odd number from 1, so that it has a middle, got {kernel_size}")
    _check_variant(variant)
    half = kernel_size // 2
    place = torch.arange(rows * columns)
    if variant == "dalle":
        # a token so many places back is in the square if it is near enough to the cell above in the nearest row
        down = ((place + columns // 2) // columns).clamp_max(half)
        is_in = (place - down * columns).abs() <= half
        return _behind_text(text_length, is_in[_distances(rows * columns).clamp_min(0)])
    is_near = torch.ones(len(place), len(place), dtype=torch.bool)
    for coordinate, extent in ((place // columns, rows), (place % columns, columns)):
        apart = (coordinate.unsqueeze(1) - coordinate).abs()
        if variant == "rudalle-v2":
            apart = torch.minimum(apart, extent - apart)  # the shorter way around
        is_near &= apart <= half
    return _behind_text(text_length, is_near)


def layer_schedule(num_layers: int, variant: MaskVariant = "dalle") -> list[LayerMask]:
    """Mask of each layer: the last has the convolutional one, of the others 2, 6, 10, ... the column mask.

    In both variants of ru-DALL-E layers 2, 6, 10, ... have the column mask even where one of them is the last. Models
    with such a number of layers have no convolutional mask.

    Args:
        num_layers: Attention layers, 64 in DALL·E.
        variant: One of `MASK_VARIANTS`.

    Returns:
        One name per layer, in order.

    Raises:
        ValueError: If there is no layer, or the variant is unknown.

    >>> layer_schedule(6)
    ['row', 'column', 'row', 'row', 'row', 'convolutional']
    >>> layer_schedule(6, "rudalle-v3")
    ['row', 'column', 'row', 'row', 'row', 'column']
    """
    if num_layers < 1:
        raise ValueError(f"num_layers must be at least 1, got {num_layers}")
    _check_variant(variant)
    before = range(1, num_layers)  # the paper counts layers from 1
    schedule: list[LayerMask] = [*("column" if (index - 2) % 4 == 0 else "row" for index in before), "convolutional"]
    if variant != "dalle" and (num_layers - 2) % 4 == 0:
        schedule[-1] = "column"
    return schedule


def _checked(text_length: int, grid: Sequence[int]) -> tuple[int, int]:
    if text_length < 0:
        raise ValueError(f"text_length must be at least 0 positions, got {text_length}")
    if len(grid) != 2 or min(grid) < 1:
        raise ValueError(f"grid must be (rows, columns) of the image, both at least 1, got {tuple(grid)}")
    return grid[0], grid[1]


def _check_variant(variant: str) -> None:
    if variant not in MASK_VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(MASK_VARIANTS)}, got {quote(variant)}")


def _distances(num_tokens: int) -> Tensor:
    """``[query, key]``: distance in raster order from a key to a later query; negative for later keys."""
    place = torch.arange(num_tokens)
    return place.unsqueeze(1) - place


def _behind_text(text_length: int, image: Tensor) -> Tensor:
    """Prepend a text that every position may read to ``[image query, image key]``, and apply causality."""
    length = text_length + len(image)
    mask = torch.ones(1, length, length, dtype=torch.bool)
    mask[:, text_length:, text_length:] = image
    return mask & causal_mask(length)
