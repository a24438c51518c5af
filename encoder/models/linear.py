"""Matrix products of rows by weights, plain or packed in the order in which a library multiplies fastest; and types.

Source: docs/performance.md, "On a CPU".
"""

from __future__ import annotations

import math
import platform
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """``x W^T + b`` in the type of the weights, or in float32 on a CPU that does not support that type.

    Args:
        x: ``[..., in]``.
        layer: The weights.

    Returns:
        ``[..., out]``.
    """
    weight, bias = layer.weight, cast("Tensor | None", layer.bias)
    if ONEDNN is None or weight.device.type != "cpu" or weight.dtype not in _lacking():
        return functional.linear(x.to(weight.dtype), weight, bias)
    wide_bias = None if bias is None else bias.float()
    return ONEDNN._linear_pointwise(x.float(), weight.float(), wide_bias, "none", [], "")


def layer_norm(hidden: Tensor, layer: nn.LayerNorm) -> Tensor:
    """Layer norm in the type of the states, whatever the type of the weights."""
    weight, bias = layer.weight.to(hidden.dtype), layer.bias.to(hidden.dtype)
    return functional.layer_norm(hidden, layer.normalized_shape, weight, bias, layer.eps)


def widened(values: Tensor) -> Tensor:
    """Convert half precision to float32; others remain unchanged."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Context in which a caller's autocast does not compute matrix products in half precision."""
    # other devices do not have autocast in every supported torch
    return torch.autocast(device.type, enabled=False) if device.type in ("cpu", "cuda") else nullcontext()


def rounded_up(count: int) -> int:
    """Round up a number of rows to multiply, so that few different numbers occur.

    oneDNN generates and keeps code for each shape: 0.6 MiB, for up to 1024 shapes.

    >>> [rounded_up(count) for count in (1, 20, 65, 130, 300)]
    [8, 24, 72, 144, 320]
    """
    step = 1 << max(3, count.bit_length() - 4)
    return -(-count // step) * step


@lru_cache(maxsize=1)
def _lacking() -> set[torch.dtype]:
    """Types that this x86 CPU does not support in hardware."""
    tests = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}
    return {dtype for dtype, name in tests.items() if not getattr(ONEDNN, name, bool)()}  # bool() is False


def overflow(stored: Tensor, cast: Tensor) -> str:
    """Message about finite values that are no longer finite in another type, and how to avoid it."""
    wanted = torch.finfo(cast.dtype)
    if wanted.max >= torch.finfo(stored.dtype).max or bool(cast.isfinite().all()):
        return ""
    count = int((stored.isfinite() & ~cast.isfinite().to(stored.device)).sum())
    if not count:
        return ""
    wider = "fp32 or bf16" if cast.dtype == torch.float16 else "fp32"
    return (
        f"is stored as {_name(stored)}, and {count:,} of its {stored.numel():,} values are beyond what {_name(cast)} "
        f"can hold, {wanted.max:g}. Load the model as {wider}"
    )


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


LONGEST_SUM = 192
"""Maximum length of sums left to oneDNN. Sums of parts of this length are as exact as MKL's."""
ONEDNN_ROWS = 77
"""Number of rows that weights are packed for; oneDNN's order fits any other number as well."""
MKL_ROWS = 256
"""Number of rows that weights are packed for; fewer make large products slower."""


def _operators(library: Any, *names: str, is_available: bool) -> Any:
    is_x86 = platform.machine() in ("x86_64", "AMD64")
    return library if is_x86 and is_available and all(hasattr(library, name) for name in names) else None


_HAS_ONEDNN, _HAS_MKL = torch.backends.mkldnn.is_available(), torch.backends.mkl.is_available()
ONEDNN = _operators(torch.ops.mkldnn, "_linear_pointwise", "_reorder_linear_weight", is_available=_HAS_ONEDNN)
"""Operators of oneDNN, or None where unavailable."""
MKL = _operators(torch.ops.mkl, "_mkl_linear", "_mkl_reorder_linear_weight", is_available=_HAS_MKL)
"""MKL's operators for packed weights, or None where unavailable."""


class Packed(ABC):
    """``x W^T + b`` for layers with the same input, as one product on a copy of their weights."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        """Copy the weights."""
        self.sizes = [layer.out_features for layer in layers]
        biases = [layer.bias.detach() for layer in layers if cast("Tensor | None", layer.bias) is not None]
        self.bias: Tensor | None = torch.cat(biases) if biases else None
        self.num_bytes = sum(layer.weight.nbytes for layer in layers)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        """Multiply ``[n, in]``, float32, to ``[n, out]`` for each layer."""
        product = self._product(x)
        return product.split(self.sizes, dim=1) if len(self.sizes) > 1 else (product,)

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor:
        """Multiply ``[n, in]`` to ``[n, all outs]``."""


class PackedByOneDNN(Packed):
    """Weights in oneDNN's order, in parts, so that no sum is longer than `LONGEST_SUM`."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        """Copy the weights, see `Packed`."""
        super().__init__(layers)
        assert ONEDNN is not None
        self.num_parts = num_parts(layers[0].in_features)
        parts = zip(*(layer.weight.detach().chunk(self.num_parts, dim=1) for layer in layers), strict=True)
        # one part at a time, so that no whole second copy is held
        self.weights: list[Tensor] = [ONEDNN._reorder_linear_weight(torch.cat(part), ONEDNN_ROWS) for part in parts]

    def _product(self, x: Tensor) -> Tensor:
        assert ONEDNN is not None
        multiply = ONEDNN._linear_pointwise.default
        parts = (x,)
        if self.num_parts > 1:
            parts = x.view(x.shape[0], self.num_parts, -1).transpose(0, 1).contiguous().unbind()
        total: Tensor = multiply(parts[0], self.weights[0], self.bias, "none", [], "")
        for number in range(1, self.num_parts):
            total.add_(multiply(parts[number], self.weights[number], None, "none", [], ""))
        return total


class PackedByMKL(Packed):
    """Weights in MKL's order. For 17 rows or more the sums are those of MKL without it, mostly to the bit."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        """Copy the weights, see `Packed`."""
        super().__init__(layers)
        assert MKL is not None
        weight = torch.cat([layer.weight.detach() for layer in layers])
        self.weight: Tensor = MKL._mkl_reorder_linear_weight(weight, MKL_ROWS)
        self._shape = weight.new_zeros(1).expand(weight.shape)  # the operator asks the weights for no more

    def _product(self, x: Tensor) -> Tensor:
        assert MKL is not None
        return MKL._mkl_linear.default(x, self.weight, self._shape, self.bias, x.shape[0])


def num_parts(length: int) -> int:
    """Number of parts of equal length that a sum is split into for oneDNN.

    >>> [num_parts(length) for length in (64, 768, 1024, 1280, 3072)]
    [1, 4, 8, 8, 16]
    """
    return next(count for count in range(1, length + 1) if length % count == 0 and length // count <= LONGEST_SUM)


def blank_linear(in_features: int, out_features: int) -> nn.Linear:
    """Layer without gradients and with any values, in float32 on the CPU whatever PyTorch's defaults are."""
    layer = nn.Linear(in_features, out_features, device="meta", dtype=torch.float32)
    return layer.to_empty(device="cpu").requires_grad_(False)


@lru_cache(maxsize=1)
def has_packed_mkl() -> bool:
    """Whether MKL multiplies any number of rows by weights that were packed for `MKL_ROWS`.

    Its manual only promises the number that they were packed for, but every version tried takes any. So this one is
    tried as well, once in each process.
    """
    if MKL is None:
        return False

    def integers(*shape: int) -> Tensor:  # whose sums are exact
        return torch.arange(math.prod(shape), device="cpu").remainder(11).sub(5).view(shape).to(torch.float32)

    layer = blank_linear(96, 80)
    layer.weight.copy_(integers(80, 96))
    layer.bias.copy_(integers(80))
    try:
        packed = PackedByMKL([layer])
        return all(torch.equal(packed(x)[0], layer(x)) for x in (integers(rows, 96) for rows in (1, 8, 26, 77, 300)))
    except RuntimeError:
        return False
