"""The CLIP text encoder as a list of blocks with their weights and output shapes.

Depends only on a `TextConfig`; ``architecture_drawing.py`` draws the list.

Source: docs/lecture.md Figure 2, Definitions 5.1 to 5.10; biases as in the released checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...encoder.config import TextConfig

ACTIVATIONS = {"quick_gelu": ("QuickGELU", "x · σ(1.702 x)"), "gelu": ("GELU", "x · Φ(x)")}
"""Name and formula of each activation."""


@dataclass(frozen=True)
class Block:
    """One box of the picture."""

    key: str
    """Permanent name, e.g. ``mlp_in``."""
    title: str
    """Its title."""
    detail: str = ""
    """Its function in a few words."""
    shape: tuple[int, ...] = ()
    """Shape of its output."""
    num_parameters: int = 0
    """Trainable numbers in one copy of it."""
    copies: int = 1
    """Number of copies: every layer has its own."""
    in_layer: bool = False
    """Whether it is part of the repeated layer."""
    kind: Literal["module", "operation", "tensor"] = "module"
    """``module`` has weights or is a step of the encoder, ``operation`` is a sign, ``tensor`` an input or output."""


def architecture_blocks(config: TextConfig, *, batch: int = 1) -> list[Block]:
    """All sub-layers of a text encoder in the order of computation.

    Args:
        config: Sizes of the encoder.
        batch: Chunks encoded together.

    Returns:
        The blocks. Those of a layer appear once, with ``copies`` set.

    Raises:
        ValueError: If ``batch`` is below 1.
    """
    if batch < 1:
        raise ValueError(f"batch must be at least 1 chunk, got {batch}")
    length, dim = config.context_length, config.hidden_dim
    ids, hidden = (batch, length), (batch, length, dim)
    mask = (1, length, length)
    blocks = [
        Block("token_ids", "token ids", "BOS, tokens, EOS, PAD", ids, kind="tensor"),
        Block("token_embedding", "token embedding", f"{config.vocab_size} × {dim}", hidden, config.vocab_size * dim),
        *_position_blocks(config, hidden),
        Block("causal_mask", "causal mask", "", mask, kind="tensor"),
        Block("padding_mask", "PAD mask", "", (batch, 1, length), kind="tensor"),
        Block("mask_product", "mask of the attention", "", (batch, length, length), kind="tensor"),
        *_layer_blocks(config, batch),
        Block("final_norm", "final LayerNorm", _norm_detail(config), hidden, 2 * dim),
        Block("hidden", "hidden states", "for the U-Net's cross-attention", hidden, kind="tensor"),
        Block("first_eos", "state at the first EOS", "", (batch, dim)),
        Block("pooled", "pooled", "", (batch, dim), kind="tensor"),
    ]
    if config.projection_dim is not None:
        width = config.projection_dim
        blocks += [
            Block("text_projection", "text projection", f"{dim} → {width}", (batch, width), dim * width),
            Block("projected", "projected", "", (batch, width), kind="tensor"),
        ]
    return blocks


def num_parameters(blocks: Sequence[Block]) -> int:
    """Trainable numbers in all blocks, including copies."""
    return sum(block.num_parameters * block.copies for block in blocks)


def count_text(count: int) -> str:
    """Format a number of parameters with three digits.

    >>> [count_text(count) for count in (1536, 2362368, 123060480, 999)]
    ['1.54 K', '2.36 M', '123 M', '999']
    """
    for unit, size in (("G", 10**9), ("M", 10**6), ("K", 10**3)):
        if count >= size:
            value = count / size
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f} {unit}"
    return str(count)


def _position_blocks(config: TextConfig, hidden: tuple[int, ...]) -> list[Block]:
    """A learned table added to the tokens; empty for rotary positions."""
    if config.positions == "rotary":
        return []
    length, dim = config.context_length, config.hidden_dim
    return [
        Block("position_embedding", "position embedding", f"{length} × {dim}", (length, dim), length * dim),
        Block("embedding_sum", "+", "", hidden, kind="operation"),
    ]


def _layer_blocks(config: TextConfig, batch: int) -> list[Block]:
    length, dim, heads, mlp = config.context_length, config.hidden_dim, config.num_heads, config.mlp_dim
    hidden = (batch, length, dim)
    split, square = (batch, heads, length, config.head_dim), (batch, heads, length, length)
    linear = dim * dim + dim
    turned = ", rotary" if config.positions == "rotary" else ""
    blocks = [
        Block("norm_1", "LayerNorm", _norm_detail(config), hidden, 2 * dim),
        Block("value", "V", f"{dim} → {dim}", split, linear),
        Block("query", "Q", f"{dim} → {dim}{turned}", split, linear),
        Block("key", "K", f"{dim} → {dim}{turned}", split, linear),
        Block("scores", f"Q Kᵀ / √{config.head_dim}", f"{heads} heads", square),
        Block("softmax", "masked softmax", "", square),
        Block("mix", "times V, heads joined", "", hidden),
        Block("attention_out", "output projection", f"{dim} → {dim}", hidden, linear),
        Block("residual_1", "+", "", hidden, kind="operation"),
        Block("norm_2", "LayerNorm", _norm_detail(config), hidden, 2 * dim),
        Block("mlp_in", "linear", f"{dim} → {mlp}", (batch, length, mlp), dim * mlp + mlp),
        Block("activation", *ACTIVATIONS[config.activation], (batch, length, mlp)),
        Block("mlp_out", "linear", f"{mlp} → {dim}", hidden, mlp * dim + dim),
        Block("residual_2", "+", "", hidden, kind="operation"),
    ]
    return [replace(block, copies=config.num_layers, in_layer=True) for block in blocks]


def _norm_detail(config: TextConfig) -> str:
    return f"ε = {config.layer_norm_eps:g}"
