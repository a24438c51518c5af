"""Layouts of queries in the attention of diffusion models: places of the picture, rows of text, and others.

A model cuts the latent into patches, each a place of the picture: row by row, frame by frame, a patch at an edge being
filled up. Where text and picture share an attention, rows of text are queries as well; padding and reference images are
queries of neither.

Source: docs/reference/attention.md, "Places and times".
"""

from __future__ import annotations

import math
from typing import NamedTuple


class QueriesError(ValueError):
    """Raised for a layer that has more or fewer queries than are known; hosts say what may have changed them."""

    def __init__(self, queries: Queries, num_queries: int, num_expected: int) -> None:
        grid = " × ".join(map(str, queries.grid))
        super().__init__(
            f"nobody knows where in the picture each of {num_queries} places is: here {num_expected} are known, the "
            f"picture's being {grid}"
        )
        self.grid, self.num_queries, self.num_expected = grid, num_queries, num_expected


class Queries(NamedTuple):
    """Layout of the queries of an attention layer: some others, the picture's places, and others again."""

    grid: tuple[int, ...]
    """Rows and columns of the picture's places, for video frames in front; each place is a query, in this order."""
    before: int = 0
    """Number of queries in front of them."""
    behind: int = 0
    """Number of queries behind them."""
    text: range = range(0)
    """Rows of text among the queries, in the order of the layer's keys of text; all others are of neither."""

    @property
    def picture(self) -> slice:
        """The picture's places among the queries."""
        return slice(self.before, self.before + math.prod(self.grid))

    def check(self, num_queries: int, num_references: int = 0) -> Queries:
        """This layout for a layer with so many queries, of which the last ones are reference images.

        A `QueriesError` says that they do not add up.
        """
        found = self._replace(behind=self.behind + num_references)
        num_expected = found.before + math.prod(found.grid) + found.behind
        if num_expected != num_queries:
            raise QueriesError(found, num_queries, num_expected)
        return found
