"""The text tower on a GPU, where calling kernels takes the time: whole chunks, one copy to it, and no wait for it.

Nothing is shared or remembered: to see whether the weights are still the same would take a wait.

Source: docs/performance.md, "On a GPU".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..encoding import Encoding
from ..masks import causal_mask, check_mask
from .fast_layers import Fast, Layers
from .graphs import Graphs
from .layers import EncoderBlock, quick_gelu
from .linear import linear, widened
from .text_model import TextEncoder, Vectors, check_ids, first_eos


def encode_whole(
    encoder: TextEncoder,
    ids: Sequence[Sequence[Any]],
    mask: Tensor | None,
    *,
    is_causal: bool,
    graphs: Graphs | None = None,
) -> Encoding:
    """Encode chunks as `TextEncoder` does, up to rounding; in half types states are added up in float32.

    By ``graphs``, if there are any and no token has a vector of its own.
    """
    plain, vectors = encoder.split(ids)
    tokens = torch.tensor(plain, dtype=torch.long)
    check_ids(tokens, encoder.config)
    batch, length = tokens.shape
    allowed = None if mask is None else check_mask(mask.cpu(), batch, length)
    if allowed is not None and bool(allowed.all()):
        allowed = None
    ends = first_eos(tokens, encoder.config.eos_id) + length * torch.arange(batch)
    on_processor = [tokens, ends]
    weight = encoder.model.final_layer_norm.weight
    if allowed is not None:
        allowed = allowed & causal_mask(length) if is_causal else allowed
        bias = torch.zeros(len(allowed), 1, length, -(-length // 8) * 8, dtype=weight.dtype)  # [b or 1, 1, s, s + 0..7]
        bias[..., :length].masked_fill_(~allowed.unsqueeze(1), -torch.inf)
        on_processor.insert(0, bias)  # it and its rows begin where kernels can read them
    device = weight.device
    packed, unpacked = packed_bytes(on_processor, is_pinned=device.type == "cuda")

    def run(received: Tensor) -> Encoding:
        return _passed(encoder, unpacked(received), vectors, is_causal=is_causal)

    if graphs is None or vectors:
        return run(packed.to(device, non_blocking=True))
    kind = batch, length, allowed is not None, is_causal, encoder.clip_skip, encoder.final_norm, encoder.projected
    return graphs.run(kind, packed, encoder.model, run)


def _passed(encoder: TextEncoder, received: Sequence[Tensor], vectors: Vectors, *, is_causal: bool) -> Encoding:
    """Encode tokens, given the bias of keys, if any are hidden, and the last position of each chunk in all."""
    model = encoder.model
    *biases, tokens, ends = received
    length = tokens.shape[1]
    bias = biases[0][..., :length] if biases else None

    hidden = chosen = widened(model.embeddings(tokens, vectors))  # [b, s, d]
    rotate = model.rotation(torch.arange(length))
    blocks = cast("Sequence[EncoderBlock]", model.encoder.layers)
    arithmetic = _FewOperators(blocks, model.final_layer_norm, hidden.dtype)
    is_causal = is_causal and bias is None  # which has it, too
    for index, block in enumerate(blocks):
        hidden = block(hidden, bias, is_causal=is_causal, rotate=rotate, arithmetic=arithmetic)
        if index == len(blocks) - encoder.clip_skip:
            chosen = hidden
    last = arithmetic.norm(model.final_layer_norm, hidden)
    pooled = last.flatten(0, 1).index_select(0, ends)
    if encoder.projected and model.text_projection is not None:
        pooled = linear(pooled, model.text_projection)
    if encoder.final_norm:
        chosen = last if chosen is hidden else arithmetic.norm(model.final_layer_norm, chosen)
    return Encoding(widened(chosen), widened(pooled))


QUICK = 1.702
"""Factor within `quick_gelu`."""


class _FewOperators(Fast):
    """Arithmetic in few operators: layer norms in the type of the states, whose weights are converted all at once.

    As ``x sigmoid(1.702 x)`` is ``silu(1.702 x) / 1.702``, the products before and after it have these factors.
    """

    def __init__(self, blocks: Sequence[EncoderBlock], last: nn.LayerNorm, dtype: torch.dtype) -> None:
        super().__init__("plain")
        norms = [norm for block in blocks for norm in (block.layer_norm1, block.layer_norm2)] + [last]
        self._by_layer = {id(norm): (norm.weight, norm.bias) for norm in norms}
        if norms[0].weight.dtype != dtype:
            wide = torch.cat([tensor for pair in self._by_layer.values() for tensor in pair]).to(dtype)
            pieces = wide.split(len(norms[0].weight))
            self._by_layer = dict(zip(self._by_layer, zip(pieces[::2], pieces[1::2], strict=True), strict=True))
        mlps = [block.mlp for block in blocks if block.mlp.activation is quick_gelu]
        self._scaled: dict[int, tuple[Tensor, float]] = {id(mlp.fc2): (mlp.fc2.bias, 1 / QUICK) for mlp in mlps}
        if mlps:
            biases = torch.cat([mlp.fc1.bias for mlp in mlps]).mul(QUICK).split(len(mlps[0].fc1.bias))
            self._scaled |= {id(mlp.fc1): (bias, QUICK) for mlp, bias in zip(mlps, biases, strict=True)}

    def products(self, layers: Layers, x: Tensor) -> tuple[Tensor, ...]:
        if id(layers[0]) not in self._scaled:
            return super().products(layers, x)
        bias, factor = self._scaled[id(layers[0])]
        rows = x.to(bias.dtype).flatten(0, -2)
        return (torch.addmm(bias, rows, layers[0].weight.t(), alpha=factor).unflatten(0, x.shape[:-1]),)

    def activated(self, activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return functional.silu(x) if activation is quick_gelu else activation(x)

    def norm(self, layer: nn.LayerNorm, hidden: Tensor) -> Tensor:
        weight, bias = self._by_layer[id(layer)]
        return functional.layer_norm(hidden, layer.normalized_shape, weight, bias, layer.eps)


def packed_bytes(tensors: Sequence[Tensor], *, is_pinned: bool) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
    """Bytes of tensors of the CPU, each a multiple of 8, to be sent by one copy; and from these to the tensors.

    A copy from pinned memory is not waited for.
    """
    parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in tensors]
    packed = torch.cat(parts)

    def unpacked(received: Tensor) -> list[Tensor]:
        pieces = received.split([part.numel() for part in parts])
        return [piece.view(tensor.dtype).view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]

    return packed.pin_memory() if is_pinned else packed, unpacked
