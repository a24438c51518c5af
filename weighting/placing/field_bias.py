"""Fields of words in a layer: the bias that weights by place give each key of text at each query.

Queries without a place, such as rows of text, have the least weight of the picture.

Source: docs/reference/attention.md, "Places and times".
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import pad

from .fields import logarithms
from .queries import Queries


def least_bias(weights: Tensor, rows: Tensor) -> Tensor:
    """Bias of rows by the least that all of their fields together weigh in a picture: ``[pictures, rows]``.

    Args:
        weights: Weights of fields by place, ``[pictures, fields, (frames,) height, width]``.
        rows: 1 for the rows of each field, else 0: ``[fields, rows]``.
    """
    logs = weights.flatten(2).double().log()
    kinds, kind_of_row = rows.unique(dim=1, return_inverse=True)  # of rows with the same fields
    minima = torch.stack([logs[:, kind > 0].sum(1).amin(1) for kind in kinds.T], 1)
    return minima[:, kind_of_row].float()


class FieldBias:
    """Fields in one call of a model."""

    def __init__(self, weights: Tensor, rows: Tensor, min_bias: Tensor, device: torch.device | str = "cpu") -> None:
        """Store what `Acting` has for each prompt of a batch, given on the CPU.

        ``weights`` by place are ``[batch, fields, (frames,) height, width]``, ``rows`` ``[batch, fields, keys]``,
        ``min_bias`` ``[batch, keys]``. ``device`` is the model's.
        """
        self._weights, self.rows, self.least, self._device = weights, rows, min_bias, device

    def read_again(self, num_rows: int) -> None:
        """Add the last keys once more, for layers that read them twice."""
        self.rows, self.least = (torch.cat([keys, keys[..., -num_rows:]], -1) for keys in (self.rows, self.least))

    def products(self, queries: Queries) -> list[tuple[Tensor, Tensor]]:
        """The same bias as products of a number of each query and one of each key, as `columns_of` takes them."""
        logs = logarithms(self._weights, (queries.grid[-2], queries.grid[-1])).flatten(2)
        around = queries.before, queries.behind
        unplaced = pad(torch.zeros(logs.shape[0], logs.shape[-1]), around, value=1.0)
        fields = ((pad(log, around), rows) for log, rows in zip(logs.unbind(1), self.rows.unbind(1), strict=True))
        return [(unplaced, self.least), *fields]

    def biases(self, queries: Queries) -> Iterator[Tensor]:
        """Bias of each key of text at each query of a layer, ``[queries, keys]`` in float32, prompt by prompt."""
        logs = logarithms(self._weights, (queries.grid[-2], queries.grid[-1])).flatten(2).to(self._device)
        on_device = (keys.to(self._device) for keys in (self.rows, self.least))
        for of_fields, rows, min_bias in zip(logs, *on_device, strict=True):
            of_queries = min_bias.expand(queries.before + logs.shape[-1] + queries.behind, -1).clone()
            of_places = of_queries[queries.picture].zero_()
            for log, field_rows in zip(of_fields, rows, strict=True):
                of_places.addr_(log, field_rows)
            yield of_queries
