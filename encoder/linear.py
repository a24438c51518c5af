"""Matrix multiplication of rows by weights that are not packed: types and sizes.

Source: docs/performance.md, "On a CPU".
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from .packing import ONEDNN


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
