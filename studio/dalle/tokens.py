"""Tokens of images as values: their model, their text form, and swapping some of them.

Rows and columns are counted from 1, as users do; token numbers from 0, as in the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from .config import DVAEConfig

MAX_QUOTED = 80
"""Maximum number of characters of a line quoted in a message."""

_SWAP = re.compile(
    r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*,\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*=\s*(\d{1,9})\s*", re.ASCII
)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True)
class ImageTokens:
    """Tokens of images of one size, and the kind of dVAE they belong to."""

    ids: Tensor
    """``[b, rows, columns]``, int64, on the CPU."""
    downsampling: int
    """Pixels along each side of a token."""
    vocab_size: int
    """Number of values a token can have."""

    def check_fits(self, config: DVAEConfig) -> None:
        """Raise a ValueError if a dVAE of these sizes cannot have made the tokens."""
        if (self.downsampling, self.vocab_size) != (config.downsampling, config.vocab_size):
            raise ValueError(
                f"these tokens are of a dVAE with {self.vocab_size} tokens of {self.downsampling} pixels; this one has "
                f"{config.vocab_size} tokens of {config.downsampling} pixels. Connect the dVAE that made them"
            )


@dataclass(frozen=True)
class Swap:
    """One token for all positions in some rows and columns."""

    rows: tuple[int, int]
    """First and last row, counted from 1."""
    columns: tuple[int, int]
    """First and last column, counted from 1."""
    number: int
    """Token to put there."""


def write_tokens(ids: Tensor) -> str:
    r"""Write tokens as text: a line per row of the grid, an empty line between images.

    >>> write_tokens(torch.tensor([[[3, 1], [0, 12]], [[5, 5], [5, 5]]]))
    '3 1\n0 12\n\n5 5\n5 5'
    """
    return "\n\n".join("\n".join(" ".join(map(str, row)) for row in image) for image in ids.tolist())


def read_tokens(text: str, vocab_size: int) -> Tensor:
    r"""Read tokens from text as `write_tokens` writes it; commas between numbers are allowed.

    Args:
        text: The text.
        vocab_size: Number of values a token can have.

    Returns:
        ``[b, rows, columns]``, int64.

    Raises:
        ValueError: If something in it is not a token, the rows of an image differ in length, or the images in size.

    >>> read_tokens("3 1\n0, 12", 16).tolist()
    [[[3, 1], [0, 12]]]
    """
    images: list[list[list[int]]] = [[]]
    for number, line in enumerate(text.splitlines(), 1):
        words = line.replace(",", " ").split()
        if not words:
            if images[-1]:
                images.append([])
            continue
        where = f"numbers, line {number}, {_quoted(line)}"
        for word in words:
            if not _NUMBER.fullmatch(word) or int(word) >= vocab_size:
                raise ValueError(f"{where}: {_quoted(word)} is no token; they are whole numbers, 0 to {vocab_size - 1}")
        row = [int(word) for word in words]
        if images[-1] and len(row) != len(images[-1][0]):
            raise ValueError(
                f"{where}: {len(row)} numbers, but the rows above have {len(images[-1][0])}. Write one row of the "
                "grid per line, and an empty line between images"
            )
        images[-1].append(row)
    images = [image for image in images if image]
    if not images:
        raise ValueError("numbers: there are none; write one row of the grid per line")
    sizes = [(len(image), len(image[0])) for image in images]
    for index, (rows, columns) in enumerate(sizes, 1):
        if (rows, columns) != sizes[0]:
            raise ValueError(
                f"numbers: image {index} has {rows} x {columns} tokens, but the first has {sizes[0][0]} x "
                f"{sizes[0][1]}. All images of a batch have the same size"
            )
    return torch.tensor(images)


def read_swaps(text: str, rows: int, columns: int, vocab_size: int) -> list[Swap]:
    """Read swaps from lines ``row, column = number``; ``2-4`` for several rows or columns.

    >>> read_swaps("3, 5 = 812", 32, 32, 8192)
    [Swap(rows=(3, 3), columns=(5, 5), number=812)]
    """
    swaps: list[Swap] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"swap, line {number}, {_quoted(line)}"
        match = _SWAP.fullmatch(line)
        if match is None:
            raise ValueError(f"{where}: write “row, column = number”, such as “3, 5 = 12” or “2-4, 7-9 = 12”")
        top, bottom, left, right, token = match.groups()
        swap = Swap((int(top), int(bottom or top)), (int(left), int(right or left)), int(token))
        for name, (first, last), count in (("row", swap.rows, rows), ("column", swap.columns, columns)):
            for value in (first, last):
                if not 1 <= value <= count:
                    raise ValueError(f"{where}: there is no {name} {value}; this grid has {name}s 1 to {count}")
            if last < first:
                raise ValueError(f"{where}: {name}s {first}-{last} run backwards; write {last}-{first}")
        if swap.number >= vocab_size:
            raise ValueError(f"{where}: there is no token {swap.number}; this dVAE has 0 to {vocab_size - 1}")
        swaps.append(swap)
    return swaps


def swapped(ids: Tensor, swaps: Iterable[Swap]) -> tuple[Tensor, list[str]]:
    """Put tokens into a copy of a grid, one by one, the same in every image of the batch.

    Args:
        ids: ``[b, rows, columns]``, not modified.
        swaps: Swaps within this grid.

    Returns:
        New tokens, and a line about each swap with the previous token.

    >>> swapped(torch.tensor([[[3, 1], [0, 12]]]), [Swap((1, 1), (2, 2), 7)])[1]
    ['row 1, column 2: 1 -> 7']
    """
    ids, notes = ids.clone(), []
    for swap in swaps:
        (top, bottom), (left, right) = swap.rows, swap.columns
        part = ids[:, top - 1 : bottom, left - 1 : right]
        before = part.unique().tolist()
        count, num_unchanged = part.numel(), int((part == swap.number).sum())
        place = f"{_span('row', top, bottom)}, {_span('column', left, right)}"
        was = str(before[0]) if len(before) == 1 else f"{count} tokens, {len(before)} different"
        same = ", as before" if num_unchanged == count else f", {num_unchanged} of them as before"
        notes.append(f"{place}: {was} -> {swap.number}{same if num_unchanged else ''}")
        part.fill_(swap.number)
    return ids, notes


def _span(name: str, first: int, last: int) -> str:
    return f"{name} {first}" if first == last else f"{name}s {first} to {last}"


def _quoted(text: str) -> str:
    text = text.strip()
    return f"“{text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + '…'}”"
