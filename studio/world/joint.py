"""A network with joint attention, as Flux has in its single blocks, and its text encoder, as Qwen 3 is, at any size.

ComfyUI's own classes ``Flux`` and ``Qwen3_4B`` hold the same tensors when they are told the sizes of `JointConfig` and
`QwenConfig`. Text and picture are rows of one sequence, text in front; every row reads every other.

Source: keys of ``flux1-schnell.safetensors`` and of Qwen 3's; behaviour of ComfyUI 0.29.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...encoder.models.layers import Embedding
from ...weighting.placing.fields import HIDDEN, logarithms
from .unet import Regions, Text, timestep_embedding


@dataclass(frozen=True)
class JointConfig:
    """Sizes of a network with joint attention. The defaults are the small world's."""

    hidden_size: int = 128
    """Width of each row, a multiple of the number of heads."""
    num_heads: int = 4
    depth: int = 6
    """Single blocks; there are no others."""
    in_channels: int = 12
    """Channels of a latent."""
    patch_size: int = 2
    """Side of the square of a latent's cells that is a row."""
    context_dim: int = 128
    """Width of the text's rows."""
    axes_dim: tuple[int, ...] = (8, 12, 12)
    """Numbers of each head that are turned by a text row's number, and by the row and the column of a place."""
    theta: int = 100

    def for_host(self) -> dict[str, Any]:
        """Arguments of ComfyUI's ``Flux``."""
        return {
            "image_model": "flux",
            "in_channels": self.in_channels,
            "out_channels": self.in_channels,
            "vec_in_dim": None,
            "context_in_dim": self.context_dim,
            "hidden_size": self.hidden_size,
            "mlp_ratio": 4.0,
            "num_heads": self.num_heads,
            "depth": 0,
            "depth_single_blocks": self.depth,
            "axes_dim": list(self.axes_dim),
            "theta": self.theta,
            "patch_size": self.patch_size,
            "qkv_bias": True,
            "guidance_embed": False,
            "txt_ids_dims": [0],
        }


@dataclass(frozen=True)
class QwenConfig:
    """Sizes of a text encoder. The defaults are the small world's; heads are 128 wide, as everywhere in Qwen 3."""

    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 1
    num_key_value_heads: int = 1


HEAD_DIM, ROPE_THETA, EPS = 128, 1e6, 1e-6


class Joint(nn.Module):
    """Prediction of a velocity from a noisy latent, its time and the rows of a text."""

    def __init__(self, config: JointConfig) -> None:
        super().__init__()
        self.config, wide = config, config.hidden_size
        numbers = config.in_channels * config.patch_size**2
        self.img_in = nn.Linear(numbers, wide)
        self.time_in = Embedder(256, wide)
        self.txt_in = nn.Linear(config.context_dim, wide)
        self.single_blocks = nn.ModuleList(SingleBlock(config) for _ in range(config.depth))
        self.final_layer = LastLayer(wide, numbers)

    def forward(
        self,
        x: Tensor,  # [batch, channels, h, w]
        timesteps: Tensor,  # [batch], 0..1000
        text: Text | Regions,
    ) -> Tensor:
        """Velocity, in the shape of the latent; h and w are multiples of the patch's side."""
        if isinstance(text, Regions) and text.are_predicted:
            return text.mixed(lambda part: self(x, timesteps, part))
        side = self.config.patch_size
        cells = x.shape[-2] // side, x.shape[-1] // side
        reading = reading_of(text, cells)
        places = self.img_in(F.pixel_unshuffle(x, side).flatten(2).transpose(1, 2))
        rows = torch.cat([self.txt_in(reading.rows).expand(len(x), -1, -1), places], 1)
        count = reading.rows.shape[1]
        time = self.time_in(timestep_embedding(timesteps, 256).to(x.dtype))
        turns = turned_by(self.config, count, cells).to(x.device)
        for number, block in enumerate(self.single_blocks):
            rows = block(rows, time, turns, reading, number % 2)
        out = self.final_layer(rows[:, count:], time)
        return F.pixel_shuffle(out.transpose(1, 2).unflatten(2, cells), side)


class Reading(NamedTuple):
    """A text, or several, as the blocks read it: its rows are the first queries and keys, places the others."""

    rows: Tensor
    """``[batch or 1, rows, context_dim]``."""
    masks: tuple[Tensor | None, Tensor | None]
    """Bias of each key at each query in the first, third, ... block and in every other, ``[batch or 1, 1, queries or 1,
    keys]``."""
    factor: Tensor | None
    """Factors of the values, ``[batch or 1, keys]``."""
    words: Tensor | None
    """1 for the keys of each word whose map is recorded, else 0: ``[batch or 1, words, keys]``."""
    cells: tuple[int, int]


def reading_of(text: Text | Regions, cells: tuple[int, int]) -> Reading:
    """Prepare a text for blocks with some number of rows and columns of places."""
    texts = text.texts if isinstance(text, Regions) else (text,)
    lengths, num_places = [part.rows.shape[1] for part in texts], math.prod(cells)

    def joined(parts: Sequence[Tensor | None], plain: float) -> Tensor | None:
        """Numbers of the keys of all texts, where any has them, and of places."""
        if all(part is None for part in parts):
            return None
        size = max(len(part) for part in parts if part is not None)
        full = [
            torch.full((size, length), plain) if part is None else part.expand(size, -1)
            for part, length in zip(parts, lengths, strict=True)
        ]
        return F.pad(torch.cat(full, 1), (0, num_places), value=plain)

    mask = joined([part.bias for part in texts], 0.0)
    if mask is not None:
        mask = mask.clamp_min(-1e4)[:, None]
    by_place = [_by_place(part, cells) for part in texts]
    if any(part is not None for part in by_place):
        parts = [
            torch.zeros(1, 1, length) if part is None else part for part, length in zip(by_place, lengths, strict=True)
        ]
        sizes = [max(part.shape[axis] for part in parts) for axis in (0, 1)]
        fields = torch.cat([part.expand(*sizes, -1) for part in parts], 2)
        # rows of text are no places: for them a row has the least weight that it has anywhere
        fields = torch.cat([fields.amin(1, keepdim=True).expand(-1, sum(lengths), -1), fields], 1)
        mask = F.pad(fields, (0, num_places)) + (0.0 if mask is None else mask)
    masks = mask, mask
    if isinstance(text, Regions):
        apart = _apart(text, lengths, cells)
        every = apart if mask is None else apart + mask
        masks = every, mask if text.blend else every
    word_keys = [part.words for part in texts]
    assert len(word_keys) == 1 or all(keys is None for keys in word_keys), "maps of words in regions are not made here"
    words = None if word_keys[0] is None else F.pad(word_keys[0], (0, num_places))
    first, second = (None if mask is None else mask[:, None] for mask in masks)
    rows = torch.cat([part.rows for part in texts], 1)
    return Reading(rows, (first, second), joined([part.factor for part in texts], 1.0), words, cells)


def _by_place(text: Text, cells: tuple[int, int]) -> Tensor | None:
    """Logarithm of each row's weight at each place by its fields, ``[batch or 1, places, rows]``."""
    parts = [logarithms(weights, cells)[:, None] * rows[:, None] for weights, rows in text.fields]
    return sum(parts[1:], parts[0]) if parts else None


def _apart(regions: Regions, lengths: Sequence[int], cells: tuple[int, int]) -> Tensor:
    """Bias by which places read texts by their shares, and rows those of their own text: ``[1, queries, keys]``."""
    num_places = math.prod(cells)
    owners = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    of_rows = torch.where(owners[:, None] == owners, 0.0, HIDDEN)
    of_places = logarithms(regions.shares, cells).T[:, owners]  # [places, rows]
    return F.pad(torch.cat([of_rows, of_places]), (0, num_places))[None]


@cache
def turned_by(config: JointConfig, num_text: int, cells: tuple[int, int]) -> Tensor:
    """Unit complex numbers by which pairs of numbers of queries and keys are turned, ``[text and places, pairs]``."""
    rows, columns = torch.meshgrid(*(torch.arange(size, dtype=torch.float64) for size in cells), indexing="ij")
    text, places = torch.arange(num_text, dtype=torch.float64), torch.zeros(math.prod(cells), dtype=torch.float64)
    none = torch.zeros_like(text)
    parts = [
        torch.cat(positions)[:, None] * config.theta ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        for positions, dim in zip(
            ((text, places), (none, rows.flatten()), (none, columns.flatten())), config.axes_dim, strict=True
        )
    ]
    angles = torch.cat(parts, 1)
    return torch.polar(torch.ones_like(angles), angles).to(torch.complex64)


class Embedder(nn.Module):
    """MLP of the time."""

    def __init__(self, dim: int, wide: int) -> None:
        super().__init__()
        self.in_layer, self.out_layer = nn.Linear(dim, wide), nn.Linear(wide, wide)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, dim]`` to ``[batch, wide]``."""
        return self.out_layer(F.silu(self.in_layer(x)))


class Norms(nn.Module):
    """Norms of queries and keys."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query_norm, self.key_norm = Scale(dim), Scale(dim)


class Scale(nn.Module):
    """Root mean square norm under Flux's key."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., dim]``, in and out."""
        return F.rms_norm(x, self.scale.shape, self.scale)


class Modulation(nn.Module):
    """Shift, scale and gate from the time."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.lin = nn.Linear(wide, 3 * wide)

    def forward(self, time: Tensor) -> tuple[Tensor, ...]:
        """Three of ``[batch, 1, wide]`` from ``[batch, wide]``."""
        return self.lin(F.silu(time))[:, None].chunk(3, -1)


class SingleBlock(nn.Module):
    """Attention and an MLP side by side."""

    def __init__(self, config: JointConfig) -> None:
        super().__init__()
        wide = config.hidden_size
        self.num_heads = config.num_heads
        self.linear1, self.linear2 = nn.Linear(wide, 7 * wide), nn.Linear(5 * wide, wide)
        self.norm = Norms(wide // config.num_heads)
        self.modulation = Modulation(wide)

    def forward(self, x: Tensor, time: Tensor, turns: Tensor, reading: Reading, number: int = 0) -> Tensor:
        """``[batch, rows, wide]``, in and out; the number is that of the reading's mask."""
        _, _, gate = self.modulation(time)
        q, k, v, inner = self.states(x, time, turns)
        if reading.factor is not None:
            v = v * reading.factor[:, None, :, None]
        attended = F.scaled_dot_product_attention(q, k, v, reading.masks[number]).transpose(1, 2).flatten(2)
        return torch.addcmul(x, gate, self.linear2(torch.cat([attended, F.gelu(inner, approximate="tanh")], -1)))

    def states(self, x: Tensor, time: Tensor, turns: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries, keys and values, ``[batch, heads, rows, dim]``, and the inner states of the MLP."""
        shift, scale, _ = self.modulation(time)
        wide = x.shape[-1]
        changed = torch.addcmul(shift, F.layer_norm(x, (wide,), eps=1e-6), 1 + scale)
        attended, inner = self.linear1(changed).split((3 * wide, 4 * wide), -1)
        q, k, v = attended.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return turned(self.norm.query_norm(q), turns), turned(self.norm.key_norm(k), turns), v, inner


def turned(x: Tensor, turns: Tensor) -> Tensor:
    """Queries or keys ``[..., rows, dim]``, each pair of numbers turned."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


class LastLayer(nn.Module):
    """Numbers of each place."""

    def __init__(self, wide: int, numbers: int) -> None:
        super().__init__()
        self.linear = nn.Linear(wide, numbers)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(wide, 2 * wide))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """``[batch, places, wide]`` to ``[batch, places, numbers]``."""
        shift, scale = self.adaLN_modulation(time)[:, None].chunk(2, -1)
        return self.linear(torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-6), 1 + scale))


# ---- text


class Qwen(nn.Module):
    """Causal text encoder."""

    def __init__(self, config: QwenConfig, num_tokens: int) -> None:
        super().__init__()
        self.embed_tokens = Embedding(num_tokens, config.hidden_size)
        self.layers = nn.ModuleList(QwenLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, EPS)

    def forward(self, ids: Tensor) -> Tensor:
        """Rows ``[batch, tokens, hidden]`` of ids ``[batch, tokens]``."""
        x = self.embed_tokens(ids)
        places = torch.arange(ids.shape[1], dtype=torch.float32, device=ids.device)[:, None]
        angles = places * ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2, device=ids.device) / HEAD_DIM)
        turns = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], 1)
        for layer in self.layers:
            x = layer(x, turns)
        return self.norm(x)


class QwenLayer(nn.Module):
    """Attention to what is before, and an MLP."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = QwenAttention(config), QwenMLP(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, EPS)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, EPS)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """``[batch, tokens, hidden]``, in and out."""
        x = x + self.self_attn(self.input_layernorm(x), turns)
        return x + self.mlp(self.post_attention_layernorm(x))


class QwenAttention(nn.Module):
    """Causal attention whose queries and keys have norms."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        wide = config.hidden_size
        self.q_proj = nn.Linear(wide, config.num_attention_heads * HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(wide, config.num_key_value_heads * HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(wide, config.num_key_value_heads * HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(config.num_attention_heads * HEAD_DIM, wide, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(HEAD_DIM, EPS), nn.RMSNorm(HEAD_DIM, EPS)

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """``[batch, tokens, hidden]``, in and out."""
        q, k, v = (
            states.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2)
            for states in (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        )
        q, k = (
            states * turns[0] + states.roll(HEAD_DIM // 2, -1) * turns[1] for states in (self.q_norm(q), self.k_norm(k))
        )
        return self.o_proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)
        )


class QwenMLP(nn.Module):
    """MLP whose inner states are gated by a SiLU."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        wide, inner = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = nn.Linear(wide, inner, bias=False), nn.Linear(wide, inner, bias=False)
        self.down_proj = nn.Linear(inner, wide, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., hidden]``, in and out."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
