"""Layers of CLIP's towers: activation, attention with a boolean mask, MLP, pre-norm block, stack.

Each class implements one definition of docs/lecture.md and can be read alongside it. Parameter names are those of the
Hugging Face checkpoints, so that layout needs no translation.

Shapes: b = batch, s = sequence positions, d = hidden_dim, h = heads, e = head_dim, m = mlp_dim.

Source: docs/lecture.md Definitions 5.2 to 5.8; A. Radford et al., "Learning Transferable Visual Models From Natural
Language Supervision", 2021.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .config import TextConfig, VisionConfig

Past = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Cache access of one layer: takes keys and values of new positions, ``[b, h, s, e]``, and returns those of all
positions that may be attended to."""


Mix = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention: queries, keys and values ``[..., s, d]``, all heads side by side, to ``[..., s, d]``."""


class Embedding(nn.Embedding):
    """A table of vectors. On the meta device it is left without values.

    PyTorch would draw them there by way of its compiler, whose import takes a second.
    """

    def reset_parameters(self) -> None:
        """Draw the values."""
        if not self.weight.is_meta:
            super().reset_parameters()


class BlockSizes(Protocol):
    """Sizes of a model that a block needs."""

    @property
    def hidden_dim(self) -> int:
        """Width of hidden states, d."""
        ...

    @property
    def num_heads(self) -> int:
        """Number of attention heads, h."""
        ...

    @property
    def mlp_dim(self) -> int:
        """Inner width of the MLP, m."""
        ...

    @property
    def activation(self) -> str:
        """Non-linearity of the MLP, one of `ACTIVATIONS`."""
        ...

    @property
    def layer_norm_eps(self) -> float:
        """Epsilon of layer norms, added to the variance."""
        ...


def quick_gelu(x: Tensor) -> Tensor:
    """``x * sigmoid(1.702 x)``, the activation of OpenAI's CLIP (Definition 5.3, equation 31)."""
    return x * torch.sigmoid(1.702 * x)


_FUNCTIONS = {
    "quick_gelu": quick_gelu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
}
"""`ACTIVATIONS` by name."""


class Arithmetic:
    """Computation of a block's parts: here each by its own module, as in PyTorch; `fast.py` has a faster one."""

    def norm(self, layer: nn.LayerNorm, hidden: Tensor) -> Tensor:
        """Apply layer norm."""
        return layer(hidden)

    def products(self, layers: Sequence[nn.Linear], x: Tensor) -> tuple[Tensor, ...]:
        """Compute ``x W^T + b`` for each layer."""
        return tuple(layer(x) for layer in layers)

    def activated(self, activation: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Apply the activation of an MLP; ``x`` may be overwritten."""
        return activation(x)

    def added(self, hidden: Tensor, change: Tensor) -> Tensor:
        """Return the sum; ``change`` may be overwritten."""
        return hidden + change


PLAIN = Arithmetic()


class SelfAttention(nn.Module):
    """Multi-head self-attention with an explicit boolean mask (Definition 5.5, equations 34 to 39).

    The lecture's equations have no biases; CLIP has one in each of the four projections, and so does this class.
    """

    def __init__(self, hidden_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(hidden_dim, hidden_dim)
        self.k_proj = nn.Linear(hidden_dim, hidden_dim)
        self.v_proj = nn.Linear(hidden_dim, hidden_dim)
        self.out_proj = nn.Linear(hidden_dim, hidden_dim)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        past: Past | None = None,
        rotate: Rotation | None = None,
        mix: Mix | None = None,
        arithmetic: Arithmetic = PLAIN,
    ) -> Tensor:
        """Mix positions.

        Args:
            hidden: ``[b, s, d]``.
            mask: Bool ``[b or 1, 1, s, s]``, True = may be attended; or None.
            is_causal: Whether to apply the causal mask; only allowed without ``mask``, which otherwise includes
                causality.
            past: Cache of earlier positions to attend to.
            rotate: Rotation of queries and keys for rotary positions.
            mix: Attention that replaces ours; ``mask``, ``is_causal``, ``past`` and ``rotate`` are then ignored.
            arithmetic: Computation of the matrix products.

        Returns:
            ``[b, s, d]``.
        """
        q, k, v = arithmetic.products((self.q_proj, self.k_proj, self.v_proj), hidden)  # [b, s, d] each
        if mix is None:
            mixed = self._mixed(q, k, v, mask, is_causal=is_causal, past=past, rotate=rotate)
        else:
            mixed = mix(q, k, v)
        return arithmetic.products((self.out_proj,), mixed)[0]

    def _mixed(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        past: Past | None,
        rotate: Rotation | None,
    ) -> Tensor:
        """Map queries, keys and values, ``[b, s, d]`` each, to ``[b, s, d]``."""
        q, k, v = (states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for states in (q, k, v))  # [b, h, s, e]
        if rotate is not None:
            q, k = rotate(q), rotate(k)
        if past is not None:
            k, v = past(k, v)
        # softmax(q k^T / sqrt(e), masked with -inf) v
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal)
        return mixed.transpose(1, 2).flatten(2)  # [b, h, s, e] -> [b, s, d]


class MLP(nn.Module):
    """Two linear maps with an activation in between, applied to each position (Definition 5.6, equations 40 to 43)."""

    def __init__(self, hidden_dim: int, mlp_dim: int, activation: str) -> None:
        super().__init__()
        self.activation = _FUNCTIONS[activation]
        self.fc1 = nn.Linear(hidden_dim, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, hidden_dim)

    def forward(self, hidden: Tensor, arithmetic: Arithmetic = PLAIN) -> Tensor:
        """Transform ``[b, s, d]`` to ``[b, s, d]``."""
        (inner,) = arithmetic.products((self.fc1,), hidden)  # [b, s, d] -> [b, s, m]
        (result,) = arithmetic.products((self.fc2,), arithmetic.activated(self.activation, inner))
        return result  # [b, s, d]


class EncoderBlock(nn.Module):
    """Pre-norm encoder layer: norm, attention, add; norm, MLP, add (Definition 5.7, equations 44 to 48)."""

    def __init__(self, config: BlockSizes) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)
        self.self_attn = SelfAttention(config.hidden_dim, config.num_heads)
        self.layer_norm2 = nn.LayerNorm(config.hidden_dim, eps=config.layer_norm_eps)
        self.mlp = MLP(config.hidden_dim, config.mlp_dim, config.activation)

    def forward(
        self,
        hidden: Tensor,
        mask: Tensor | None,
        *,
        is_causal: bool,
        past: Past | None = None,
        rotate: Rotation | None = None,
        mix: Mix | None = None,
        arithmetic: Arithmetic = PLAIN,
    ) -> Tensor:
        """Transform ``[b, s, d]`` to ``[b, s, d]``; other arguments as in `SelfAttention.forward`."""
        normed = arithmetic.norm(self.layer_norm1, hidden)
        more = {"is_causal": is_causal, "past": past, "rotate": rotate, "mix": mix, "arithmetic": arithmetic}
        hidden = arithmetic.added(hidden, self.self_attn(normed, mask, **more))
        return arithmetic.added(hidden, self.mlp(arithmetic.norm(self.layer_norm2, hidden), arithmetic))


class TransformerEncoder(nn.Module):
    """Stack of blocks (Definition 5.8, equations 49 to 51; the final norm of equation 52 belongs to the tower)."""

    def __init__(self, config: TextConfig | VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(config) for _ in range(config.num_layers))
        self.is_checkpointed = False
        """Whether to keep only the states between layers for the backward pass, which recomputes the rest: less memory,
        more time, the same gradients. No effect without gradients."""

    def forward(
        self, hidden: Tensor, mask: Tensor | None, *, is_causal: bool, rotate: Rotation | None = None
    ) -> list[Tensor]:
        """Run every layer.

        Args:
            hidden: ``[b, s, d]``, the embeddings H_0.
            mask: As in `SelfAttention.forward`.
            is_causal: As in `SelfAttention.forward`.
            rotate: As in `SelfAttention.forward`.

        Returns:
            H_0 to H_N, each ``[b, s, d]``: the input first, then each layer's output.
        """
        states = [hidden]
        for layer in self.layers:
            if self.is_checkpointed and torch.is_grad_enabled():
                state = checkpoint(layer, states[-1], mask, is_causal=is_causal, rotate=rotate, use_reentrant=False)
            else:
                state = layer(states[-1], mask, is_causal=is_causal, rotate=rotate)
            states.append(state)
        return states


def projection(config: TextConfig | VisionConfig) -> nn.Linear | None:
    """Linear map of pooled vectors ``[b, d]`` to ``[b, projection_dim]``; None if a tower has none."""
    dim = config.projection_dim
    return None if dim is None else nn.Linear(config.hidden_dim, dim, bias=False)


# Rotary positions
#
# Queries and keys are rotated by angles proportional to their position, instead of a learned table. The score of a
# query and a key then depends on their distance, not on their absolute positions, so a model can read texts longer than
# those it was trained on. No released CLIP was trained this way.
#
# A head of e channels is e / 2 pairs. Pair i is rotated by m theta_i at position m, theta_i = 10000^(-2(i - 1)/e),
# counted from 1. Channels i and i + e / 2 make a pair, as in Llama; with channels 2i - 1 and 2i, as in the paper, the
# scores are the same for queries and keys with reordered channels.
#
# Source: J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021; the layout of pairs as in
# transformers' Llama.

BASE = 10000.0

ABOUT = f"half-split pairs as Llama's, base {BASE:g}"
"""Metadata entry of a file under ``rotary``; files with other rotary positions are not read."""

Rotation = Callable[[Tensor], Tensor]
"""Rotates queries or keys ``[..., h, s, e]`` by their positions, keeping the shape."""


def angles_of(positions: Tensor, head_dim: int) -> Tensor:
    """Rotation angles of the pairs of a head.

    Args:
        positions: ``[...]``, whole numbers.
        head_dim: e, even.

    Returns:
        ``[..., e / 2]``, float64, in radians, on the CPU.

    >>> angles_of(torch.tensor([0, 3]), 4).tolist()
    [[0.0, 0.0], [3.0, 0.03]]
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return positions.cpu().double().unsqueeze(-1) * BASE**-exponents


def rotation(positions: Tensor, head_dim: int) -> Rotation:
    """Function that rotates queries and keys by their positions.

    Args:
        positions: ``[s]``, or ``[b, s]`` if they differ between the rows of a batch; whole numbers.
        head_dim: e, even.

    Returns:
        Function of ``[b, h, s, e]`` (``[h, s, e]`` for positions ``[s]``) that computes in its argument's type.
    """
    angles = angles_of(positions, head_dim).unsqueeze(-3)  # [b, 1, s, e / 2]
    cosines, sines = angles.cos(), angles.sin()

    def turned(states: Tensor) -> Tensor:
        # cast first, as not every device has float64
        cos, sin = (part.to(states.dtype).to(states.device) for part in (cosines, sines))
        first, second = states.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return turned
