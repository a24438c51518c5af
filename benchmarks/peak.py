"""Limits of an encoder: this processor's multiplication speed, and the share of it reached on one chunk of a prompt."""

from __future__ import annotations

import statistics
from functools import partial
from typing import TYPE_CHECKING

from .breakdown import HEAD as PARTS_HEAD
from .breakdown import breakdown, rows_of
from .page import NOT_FOUND, milliseconds, table
from .runs import TRANSFORMERS, native, ours, transformers_of
from .scale import Scale
from .texts import PROMPTS, fresh
from .timing import Run, times_in_turn

if TYPE_CHECKING:
    from ..encoder.config import TextConfig

BY_TORCH = "PyTorch's matmul"
BY_KERNEL = {"onednn": "oneDNN, packed weights", "mkl": "MKL, packed weights"}
NATIVE, EXACT = "native encoder", "ours, bit for bit"
HEAD = ("Work", "By", "GFLOP", "ms", "GFLOP/s", "Part of PyTorch's", "Part of the fastest")


def peak_block(scale: Scale) -> str:
    """Section in Markdown: a row for each way to multiply, then for each encoder on one plain chunk."""
    import torch
    from torch import nn

    from ..encoder.kernels import PACKED, available
    from ..encoder.text_model import TextEncoder

    model, side = scale.model(), scale.side
    theirs = transformers_of(model)
    prompt = PROMPTS["plain"]
    left, layer = torch.rand(side, side), nn.Linear(side, side, bias=False).requires_grad_(False)
    right = layer.weight.T
    packed = {BY_KERNEL[kernel]: PACKED[kernel]([layer]) for kernel in available() if kernel in PACKED}
    multiply: dict[str, Run] = {BY_TORCH: lambda: left @ right}
    multiply |= {name: partial(product, left) for name, product in packed.items()}
    encode: dict[str, Run] = {} if theirs is None else {TRANSFORMERS: theirs.one(fresh(prompt, "none"))}
    encode[EXACT] = ours(TextEncoder(model), fresh(prompt, "comfy"))
    encode[NATIVE] = ours(native(model), fresh(prompt, "comfy"))
    with torch.no_grad():
        taken = times_in_turn(multiply | encode, repetitions=scale.repetitions)
    times = {name: statistics.median(these) for name, these in taken.items()}
    square, chunk = 2.0 * side**3, chunk_flop(model.config)
    peaks = [square / times[BY_TORCH], square / min(times[name] for name in multiply)]

    def row(work: str, name: str, flop: float) -> list[str]:
        if name not in times:
            return [work, name, f"{flop / 1e9:.3g}", *["-"] * 3, NOT_FOUND]
        speed = flop / times[name]
        parts = (f"{speed / peak:.2f}" for peak in peaks)
        return [work, name, f"{flop / 1e9:.3g}", milliseconds(times[name]), f"{speed / 1e9:.3g}", *parts]

    rows = [row(f"{side} x {side} x {side}", name, square) for name in (BY_TORCH, *BY_KERNEL.values())]
    rows += [row("one chunk, plain", name, chunk) for name in (TRANSFORMERS, EXACT, NATIVE)]
    with torch.no_grad():
        parts = breakdown(encode, scale.repetitions)
    products = chunk_flop(model.config, has_attention=False)
    return "\n\n".join([table(HEAD, rows, num_left=2), table(PARTS_HEAD, rows_of(parts, products), num_left=1)])


def chunk_flop(config: TextConfig, *, has_attention: bool = True) -> float:
    """Additions and multiplications in the matrix products of one chunk.

    Four matrices of ``d x d`` and two of ``d x d_mlp`` for each position and layer; attention multiplies each query
    with all keys, and the result with all values, counted in full although the later half is masked.

    Args:
        config: Sizes.
        has_attention: Whether to count the products in attention.

    Returns:
        Number of operations.

    >>> from ..encoder.config import CLIP_L
    >>> round(chunk_flop(CLIP_L) / 1e9, 1)
    13.3
    """
    width, length = config.hidden_dim, config.context_length
    matrices = 2 * (4 * width**2 + 2 * width * config.mlp_dim)
    attention = 2 * 2 * length * width * has_attention
    return float(length * config.num_layers * (matrices + attention))
