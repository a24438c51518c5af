"""Detection of values that become infinite when a tensor is cast to a narrower type."""

from __future__ import annotations

import torch
from torch import Tensor


def overflow(stored: Tensor, cast: Tensor) -> str:
    """Message about finite values that are no longer finite in another type, and how to avoid it.

    Args:
        stored: The original tensor, of any shape and floating point type.
        cast: The tensor in the target type, on any device.

    Returns:
        The message, or an empty string if all finite values are still finite.
    """
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
