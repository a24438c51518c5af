"""Weights in the order in which a library multiplies fastest, and products by them.

Source: docs/performance.md, "On a CPU".
"""

from __future__ import annotations

import platform
from collections.abc import Sequence

import torch
from torch import Tensor, nn

LONGEST_SUM = 192
"""Maximum length of sums left to oneDNN. Sums of parts of this length are as exact as MKL's."""
PACKED_ROWS = 77
"""Number of rows that weights are packed for; oneDNN's order fits any other number as well."""

_IS_X86 = platform.machine() in ("x86_64", "AMD64")
_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight")
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
ONEDNN = torch.ops.mkldnn if _IS_X86 and _HAS_ONEDNN else None
"""Operators of oneDNN, or None where unavailable."""


class Packed:
    """``x W^T + b`` for layers with the same input, as one product by oneDNN on a copy of their weights."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        """Copy the weights.

        Args:
            layers: Layers in float32 on the CPU, either all with a bias or all without.
        """
        assert ONEDNN is not None
        self.sizes = [layer.out_features for layer in layers]
        self.num_parts = num_parts(layers[0].in_features)
        weights = [layer.weight.detach() for layer in layers]
        parts = zip(*(weight.chunk(self.num_parts, dim=1) for weight in weights), strict=True)
        # one part at a time, so that no whole second copy is held
        self.weights: list[Tensor] = [ONEDNN._reorder_linear_weight(torch.cat(part), PACKED_ROWS) for part in parts]
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]  # pyright: ignore[reportUnnecessaryComparison]
        self.bias: Tensor | None = torch.cat(biases) if biases else None
        self.num_bytes = sum(weight.nbytes for weight in weights)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Multiply ``[n, in]``, float32, to ``[n, out]`` for each layer."""
        assert ONEDNN is not None
        multiply = ONEDNN._linear_pointwise.default
        parts = (x,)
        if self.num_parts > 1:
            parts = x.view(x.shape[0], self.num_parts, -1).transpose(0, 1).contiguous().unbind()
        total: Tensor = multiply(parts[0], self.weights[0], self.bias, "none", [], "")
        for number in range(1, self.num_parts):
            total.add_(multiply(parts[number], self.weights[number], None, "none", [], ""))
        return total.split(self.sizes, dim=1) if len(self.sizes) > 1 else (total,)


def num_parts(length: int) -> int:
    """Number of parts of equal length that a sum is split into for oneDNN.

    >>> [num_parts(length) for length in (64, 768, 1024, 1280, 3072)]
    [1, 4, 8, 8, 16]
    """
    return next(count for count in range(1, length + 1) if length % count == 0 and length // count <= LONGEST_SUM)
