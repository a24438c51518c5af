"""Values that become infinite where a tensor is turned into a narrower type: said, and never let through."""

from __future__ import annotations

import torch
from torch import Tensor


def overflow(stored: Tensor, cast: Tensor) -> str:
    """Say that finite values of a tensor are no longer finite in another type, and what to do.

    Args:
        stored: The tensor as it was, of any shape and any floating point type.
        cast: The same in the type that is wanted, on any device.

    Returns:
        What to say of it; the empty string if every finite value is still finite.
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
