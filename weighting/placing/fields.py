"""Weights of words, and of prompts, that depend on the place in the picture and on the time: grids and arithmetic.

A field w of a row adds ``ln w(p)`` to the logit that place p gives the row. ``w = inside m + outside (1 - m)``, where m
is the mean of a mask over the cell that p is in. Several fields of a row multiply. A field of 1 changes nothing.

Source: docs/reference/attention.md, "Places and times".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

HIDDEN = -100.0
"""Logarithm of a weight of 0: small enough to hide a row, and finite in every number type."""


def weights_by_place(mask: Tensor, inside: float, outside: float) -> Tensor:
    """Weight at each place, exact where the mask is 0 or 1."""
    return mask * inside + (1 - mask) * outside


def shares_of(masks: Tensor) -> Tensor:
    """Share of a base and of regions at each place: the base has what the regions leave, and all add up to 1.

    Args:
        masks: ``[pictures, regions, height, width]``, not negative. Where their sum is above 1 it divides them.

    Returns:
        ``[pictures, 1 + regions, height, width]``, the base first.
    """
    total = masks.sum(1, keepdim=True)
    return torch.cat([(1 - total).clamp(min=0), masks], 1) / total.clamp(min=1)


def means(maps: Tensor, cells: tuple[int, int], *, of_layer: bool = False) -> Tensor:
    """Means of maps over the cells of another grid, which divides each side into equal parts.

    Args:
        maps: ``[..., height, width]``.
        cells: Rows and columns.
        of_layer: Whether the grid is that of a layer. Where halving a side, rounded up, leads to its number of cells, a
            cell has a power of 2 of pixels and the last one those that remain, as in a U-Net and in patches.

    Returns:
        ``[..., rows, columns]``, float64.
    """
    down, across = (_parts(size, number, of_layer) for size, number in zip(maps.shape[-2:], cells, strict=True))
    return down @ maps.double() @ across.T


def _parts(size: int, number: int, of_layer: bool) -> Tensor:
    """Part that each of ``size`` pixels has of each of some cells: ``[number, size]``, float64, rows of sum 1."""
    width = cell_side(size, number) if of_layer else size / number
    start = torch.arange(number, dtype=torch.float64)[:, None] * width
    pixel = torch.arange(size, dtype=torch.float64)
    part = (torch.minimum(start + width, pixel + 1) - torch.maximum(start, pixel)).clamp(min=0)
    return part / part.sum(1, keepdim=True)


def cell_side(size: int, number: int) -> float:
    """Pixels along a cell's side, where ``size`` pixels are ``number`` cells of a layer: a power of 2 if one fits.

    >>> cell_side(13, 7), cell_side(9, 2), cell_side(12, 5)
    (2, 8, 2.4)
    """
    side = 1
    while -(-size // side) > number:
        side *= 2
    return side if -(-size // side) == number else size / number


def logarithms(weights: Tensor, cells: tuple[int, int]) -> Tensor:
    """Bias of logits at each place of a layer: the logarithm of the mean weight in its cell.

    Args:
        weights: ``[..., height, width]``, not negative.
        cells: Rows and columns of the layer.

    Returns:
        ``[..., rows * columns]``, float32, at least `HIDDEN`.
    """
    return means(weights, cells, of_layer=True).log().clamp(min=HIDDEN).flatten(-2).float()


def acts_at(sigma: float | Tensor, start: float | Tensor, end: float | Tensor) -> bool:
    """Whether a time range includes a noise level: its start does belong to it, its end does not, except 0.

    Levels are compared in float32, as ComfyUI compares them.
    """
    sigma, start, end = (torch.as_tensor(one).float().cpu() for one in (sigma, start, end))
    return bool(sigma <= start) and (bool(sigma > end) or bool(end <= 0))


MAX_CELLS = 16
"""Most cells along a side of a small picture of a mask."""


def small_picture(mask: Tensor) -> list[list[float]]:
    """Rows of a mask ``[height, width]`` in few cells, as square as its pixels are, each a mean with two decimals.

    >>> small_picture(torch.tensor([[1.0] * 32 + [0.0] * 32] * 16))[0]
    [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    """
    pixels = max(1.0, max(mask.shape) / MAX_CELLS)  # of a cell's side
    rows, columns = (max(1, round(size / pixels)) for size in mask.shape)
    return [[round(cell, 2) for cell in row] for row in means(mask, (rows, columns)).tolist()]


def levels_of_steps(start: int, end: int, levels: Sequence[float]) -> tuple[float, float]:
    """Time range, for `acts_at`, of the steps from ``start`` to before ``end``, both counted from 0.

    ``levels``: noise levels of all steps and the one after the last.
    """
    last = len(levels) - 1
    if start >= last:
        return -1.0, 0.0  # no level is below it
    # levels may be above the first one, where a sampler adds noise
    return math.inf if start == 0 else levels[start], 0.0 if end >= last else levels[end]


def check_weight(name: str, weight: float) -> None:
    """Refuse a weight that is no number from 0, with a ValueError that quotes it."""
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"{name} must be 0 or a number above, got {weight:g}.")


def check_times(start: float, end: float, *, in_steps: bool) -> None:
    """Refuse times that have no meaning, with a ValueError that quotes them."""
    if not (math.isfinite(start) and math.isfinite(end) and start >= 0):
        raise ValueError(f"start and end must be numbers from 0, got {start:g} and {end:g}.")
    if in_steps and (start != int(start) or end != int(end)):
        raise ValueError(f"start and end count whole steps, got {start:g} and {end:g}.")
    if not in_steps and end > 1:
        raise ValueError(f"start and end go from 0 to 1, got {start:g} and {end:g}. For steps, set unit to steps.")
    if not start < end:
        of_none = ", between which is no step" if start == end else ""
        raise ValueError(f"start must be before end, got {start:g} and {end:g}{of_none}.")
