"""Attention weights of one layer of the text tower, for display.

Encoding does not use this module: PyTorch's fused attention does not return the weights. This is a separate pass that
computes queries, keys, softmax and the sum of values step by step, up to the requested layer.

Source: docs/lecture.md Definition 5.5, equations 35 to 37; transformers' ``output_attentions`` with
``attn_implementation="eager"``, to which the weights are equal within 1e-6.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from ..masks import causal_mask, check_mask, combine
from .layers import EncoderBlock, Rotation
from .linear import widened
from .text_model import TextModel, Vectors, check_ids


def allowed_keys(batch: int, length: int, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """Positions each position may attend to: the caller's mask combined with causality.

    Args:
        batch: Number of chunks.
        length: Positions in a chunk.
        mask: As in `TextModel.forward`.
        is_causal: As in `TextModel.forward`.

    Returns:
        ``[batch, length, length]``, bool, query by key, True = may be attended.

    Raises:
        MaskError: If the mask does not fit or hides BOS.
    """
    caller_mask = None if mask is None else check_mask(mask, batch, length)
    causal = None
    if is_causal:
        causal = causal_mask(length) if caller_mask is None else causal_mask(length).to(caller_mask.device)
    product = combine(caller_mask, causal)
    everything = torch.ones(1, 1, length, dtype=torch.bool)
    return (everything if product is None else product).expand(batch, length, length)


@torch.no_grad()
def attention_weights(
    model: TextModel,
    ids: Tensor,
    mask: Tensor | None = None,
    *,
    layer: int,
    vectors: Vectors | None = None,
    is_causal: bool = True,
) -> Tensor:
    """Share of attention that each position gives to each other, in one layer.

    Args:
        model: The tower.
        ids: ``[batch, positions]``, int64, token ids.
        mask: As in `TextModel.forward`.
        layer: 1 is the first, ``num_layers`` the last.
        vectors: As in `TextModel.forward`.
        is_causal: As in `TextModel.forward`.

    Returns:
        ``[batch, heads, positions, positions]``, query by key, float32 (float64 for a float64 model): rows sum to 1,
        with 0 for masked positions.

    Raises:
        MaskError: If the mask does not fit or hides BOS.
        ValueError: If there is no such layer, or as in `TextModel.forward`.

    >>> from .config import TextConfig
    >>> from ..files.checkpoint import seeded_text_model
    >>> model = seeded_text_model(TextConfig(hidden_dim=8, num_heads=2, num_layers=2, mlp_dim=16))
    >>> weights = attention_weights(model, torch.full((1, 77), 49407), layer=2)
    >>> tuple(weights.shape), weights[0, 0, 0, 0].item()
    ((1, 2, 77, 77), 1.0)
    """
    blocks = cast("list[EncoderBlock]", list(model.encoder.layers))
    if not 1 <= layer <= len(blocks):
        raise ValueError(f"layer {layer} is out of range: this encoder has layers 1 to {len(blocks)}")
    check_ids(ids, model.config)
    batch, length = ids.shape
    allowed = allowed_keys(batch, length, mask, is_causal=is_causal).to(ids.device).unsqueeze(1)  # [b, 1, s, s]
    rotate = model.rotation(torch.arange(ids.shape[1]))
    hidden: Tensor = model.embeddings(ids, vectors)
    for block in blocks[: layer - 1]:
        weights, values = _attended(block, hidden, allowed, rotate)
        mixed = (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2)  # [b, h, s, e] -> [b, s, d]
        hidden = hidden + block.self_attn.out_proj(mixed)
        hidden = hidden + block.mlp(block.layer_norm2(hidden))
    return _attended(blocks[layer - 1], hidden, allowed, rotate)[0]


def _attended(block: EncoderBlock, hidden: Tensor, allowed: Tensor, rotate: Rotation | None) -> tuple[Tensor, Tensor]:
    """A layer's weights ``[b, h, s, s]``, and their values ``[b, h, s, e]`` (equations 35 to 37)."""
    attention, normed = block.self_attn, block.layer_norm1(hidden)
    q, k, v = (
        project(normed).unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)  # [b, s, d] -> [b, h, s, e]
        for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if rotate is not None:
        q, k = rotate(q), rotate(k)
    scores = widened(q) @ widened(k).transpose(-1, -2) * q.shape[-1] ** -0.5  # [b, h, s, s]
    return scores.masked_fill(~allowed, -torch.inf).softmax(-1), v
