"""The U-Net with cross-attention that Stable Diffusion has, at any size, under the keys of Stable Diffusion 1.5.

ComfyUI's own ``UNetModel`` holds the same tensors when it is told the sizes of `UNetConfig`.

Source: Rombach et al. 2022, High-Resolution Image Synthesis with Latent Diffusion Models; keys and sizes of
``v1-5-pruned.safetensors``; behaviour of ComfyUI 0.29.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...weighting.placing.fields import logarithms, means


@dataclass(frozen=True)
class UNetConfig:
    """Sizes of a U-Net. The defaults are the small world's."""

    channels: int = 32
    """Channels of the first level, a multiple of 32: so many groups have the norms."""
    multipliers: tuple[int, ...] = (1, 2, 2)
    """Channels of each level, in multiples of the first."""
    depths: tuple[int, ...] = (0, 1, 1)
    """Transformer blocks of each level; the middle has as many as the last."""
    in_channels: int = 12
    """Channels of a latent: the four pixels of each 2 x 2 square, three colours each."""
    context_dim: int = 128
    """Width of the text's rows."""
    num_heads: int = 4
    """Heads of each attention."""

    def for_host(self) -> dict[str, Any]:
        """Arguments of ComfyUI's ``UNetModel``."""
        return {
            "image_size": 16,
            "in_channels": self.in_channels,
            "out_channels": self.in_channels,
            "model_channels": self.channels,
            "channel_mult": self.multipliers,
            "num_res_blocks": [1] * len(self.multipliers),
            "transformer_depth": list(self.depths),
            "transformer_depth_middle": self.depths[-1],
            "transformer_depth_output": [depth for depth in self.depths for _ in range(2)],
            "context_dim": self.context_dim,
            "use_spatial_transformer": True,
            "use_linear_in_transformer": False,
            "legacy": False,
            "use_checkpoint": False,
            "num_heads": self.num_heads,
            "num_head_channels": -1,
            "adm_in_channels": None,
        }


class Text(NamedTuple):
    """Rows of a text, and the effect of its weights where a place reads them."""

    rows: Tensor
    """``[batch or 1, rows, context_dim]``."""
    bias: Tensor | None = None
    """``[batch or 1, rows]``, added to each row's logit; ``-inf`` hides it."""
    factor: Tensor | None = None
    """``[batch or 1, rows]``, factors of the values."""
    fields: tuple[tuple[Tensor, Tensor], ...] = ()
    """Weights at each place of a latent, ``[h, w]``, and which rows have them, 1 or 0, ``[batch or 1, rows]``."""
    words: Tensor | None = None
    """Words whose maps are recorded: 1 for each one's rows, else 0, ``[batch or 1, words, rows]``."""

    def expanded(self, batch: int) -> Text:
        """The same for each picture of a batch."""
        bias, factor = (None if part is None else part.expand(batch, -1) for part in (self.bias, self.factor))
        fields = tuple((weights, own.expand(batch, -1)) for weights, own in self.fields)
        words = None if self.words is None else self.words.expand(batch, -1, -1)
        return Text(self.rows.expand(batch, -1, -1), bias, factor, fields, words)

    def part(self, numbers: slice) -> Text:
        """The texts of some pictures, without fields and words."""
        bias, factor = (None if part is None else part[numbers] for part in (self.bias, self.factor))
        return Text(self.rows[numbers], bias, factor)

    def mask(self, cells: tuple[int, int]) -> Tensor | None:
        """Bias of each row at each place of a layer, ``[batch or 1, 1, places or 1, rows]``."""
        parts = [logarithms(weights, cells)[:, None] * own[:, None] for weights, own in self.fields]
        if self.bias is not None:
            parts.append(self.bias.clamp_min(-1e4)[:, None])
        return sum(parts[1:], parts[0])[:, None] if parts else None


class Regions(NamedTuple):
    """Texts that have a share in each place of a picture."""

    texts: tuple[Text, ...]
    shares: Tensor
    """``[texts, h, w]`` for a latent's places, of sum 1 at each."""
    are_predicted: bool = False
    """Whether predictions are mixed by them instead of what places read in each attention."""
    blend: bool = False
    """Whether all is read everywhere in every second block, where text and picture share an attention."""

    def expanded(self, batch: int) -> Regions:
        """The same for each picture of a batch."""
        return self._replace(texts=tuple(text.expanded(batch) for text in self.texts))

    def mixed(self, predict: Callable[[Text], Tensor]) -> Tensor:
        """Sum of the predictions for each text, by their shares."""
        predicted = [predict(text) * share for text, share in zip(self.texts, self.shares, strict=True)]
        return torch.stack(predicted).sum(0)

    def in_layer(self, cells: tuple[int, int]) -> Iterator[tuple[Tensor, Text]]:
        """Share at each place of a layer, ``[places, 1]``, and the text."""
        return zip(means(self.shares, cells, of_layer=True).float().flatten(1)[:, :, None], self.texts, strict=True)


class UNet(nn.Module):
    """Prediction of a velocity from a noisy latent, its time and the rows of a text."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        first, time_dim = config.channels, 4 * config.channels
        self.time_embed = nn.Sequential(nn.Linear(first, time_dim), nn.SiLU(), nn.Linear(time_dim, time_dim))

        def res_block(wide: int, out: int) -> ResBlock:
            return ResBlock(wide, out, time_dim)

        def level(block: ResBlock, wide: int, depth: int, *more: nn.Module) -> Level:
            transformers = [SpatialTransformer(wide, depth, config)] if depth else []
            return Level(block, *transformers, *more)

        widths = [first * multiplier for multiplier in config.multipliers]
        down: list[Level] = [Level(nn.Conv2d(config.in_channels, first, 3, padding=1))]
        skips, wide = [first], first
        for index, (width, depth) in enumerate(zip(widths, config.depths, strict=True)):
            down.append(level(res_block(wide, width), width, depth))
            skips.append(width)
            wide = width
            if index < len(widths) - 1:
                down.append(Level(Downsample(width)))
                skips.append(width)
        self.input_blocks = nn.ModuleList(down)
        self.middle_block = Level(
            res_block(wide, wide), SpatialTransformer(wide, config.depths[-1], config), res_block(wide, wide)
        )
        up: list[Level] = []
        for index, (width, depth) in reversed(list(enumerate(zip(widths, config.depths, strict=True)))):
            for is_last in (False, True):
                more = [Upsample(width)] if index and is_last else []
                up.append(level(res_block(wide + skips.pop(), width), width, depth, *more))
                wide = width
        self.output_blocks = nn.ModuleList(up)
        self.out = nn.Sequential(nn.GroupNorm(32, first), nn.SiLU(), nn.Conv2d(first, config.in_channels, 3, padding=1))

    def forward(
        self,
        x: Tensor,  # [batch, channels, h, w]
        timesteps: Tensor,  # [batch], 0..1000
        text: Text | Regions,
    ) -> Tensor:
        """Velocity, in the shape of the latent; h and w are multiples of 2 for each level but the first."""
        if isinstance(text, Regions) and text.are_predicted:
            return text.mixed(lambda one: self(x, timesteps, one))
        time = self.time_embed(timestep_embedding(timesteps, self.config.channels).to(x.dtype))
        skips: list[Tensor] = []
        for block in self.input_blocks:
            x = block(x, time, text)
            skips.append(x)
        x = self.middle_block(x, time, text)
        for block in self.output_blocks:
            x = block(torch.cat([x, skips.pop()], 1), time, text)
        return self.out(x)


def timestep_embedding(timesteps: Tensor, dim: int) -> Tensor:
    """Cosines and sines of timesteps at ``dim / 2`` frequencies from 1 to 1 / 10,000: ``[batch, dim]``."""
    half = dim // 2
    frequencies = torch.exp(-math.log(10000) * torch.arange(half, device=timesteps.device) / half)
    angles = timesteps[:, None].float() * frequencies
    return torch.cat([angles.cos(), angles.sin()], 1)


class Level(nn.Sequential):
    """Modules in order, each given what it takes."""

    def forward(self, x: Tensor, time: Tensor, text: Text | Regions) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Output of the last."""
        for module in self:
            if isinstance(module, ResBlock):
                x = module(x, time)
            elif isinstance(module, SpatialTransformer):
                x = module(x, text)
            else:
                x = module(x)
        return x


class ResBlock(nn.Module):
    """Two convolutions around what the time adds, beside an identity."""

    def __init__(self, wide: int, out: int, time_dim: int) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(32, wide), nn.SiLU(), nn.Conv2d(wide, out, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time_dim, out))
        last = nn.Conv2d(out, out, 3, padding=1)
        nn.init.zeros_(last.weight)
        self.out_layers = nn.Sequential(nn.GroupNorm(32, out), nn.SiLU(), nn.Identity(), last)
        self.skip_connection = nn.Identity() if wide == out else nn.Conv2d(wide, out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """``[b, wide, h, w]`` to ``[b, out, h, w]``."""
        hidden = self.in_layers(x) + self.emb_layers(time)[:, :, None, None]
        return self.skip_connection(x) + self.out_layers(hidden)


class Downsample(nn.Module):
    """Half the height and width."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.op = nn.Conv2d(wide, wide, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, c, h, w]`` to ``[b, c, h / 2, w / 2]``, rounded up."""
        return self.op(x)


class Upsample(nn.Module):
    """Twice the height and width."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(wide, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, c, h, w]`` to ``[b, c, 2 h, 2 w]``."""
        return self.conv(F.interpolate(x, scale_factor=2.0))


class SpatialTransformer(nn.Module):
    """Transformer blocks over all places of a picture."""

    def __init__(self, wide: int, depth: int, config: UNetConfig) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, wide, eps=1e-6)
        self.proj_in = nn.Conv2d(wide, wide, 1)
        self.transformer_blocks = nn.ModuleList(TransformerBlock(wide, config) for _ in range(depth))
        self.proj_out = nn.Conv2d(wide, wide, 1)
        nn.init.zeros_(self.proj_out.weight)

    def forward(self, x: Tensor, text: Text | Regions) -> Tensor:
        """``[b, c, h, w]``, in and out."""
        hidden = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2)  # [b, h w, c]
        for block in self.transformer_blocks:
            hidden = block(hidden, text, x.shape[-2:])
        return x + self.proj_out(hidden.transpose(1, 2).reshape(x.shape))


class TransformerBlock(nn.Module):
    """Attention among places, attention from places to the text, and an MLP."""

    def __init__(self, wide: int, config: UNetConfig) -> None:
        super().__init__()
        self.attn1 = Attention(wide, wide, config.num_heads)
        self.ff = FeedForward(wide)
        self.attn2 = Attention(wide, config.context_dim, config.num_heads)
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(wide), nn.LayerNorm(wide), nn.LayerNorm(wide)

    def forward(self, x: Tensor, text: Text | Regions, cells: tuple[int, int]) -> Tensor:
        """``[b, places, c]``, in and out; ``cells`` are the rows and columns of places."""
        x = x + self.attn1(self.norm1(x))
        if isinstance(text, Regions):
            read = self.norm2(x)
            x = x + sum(share * self.attn2(read, one, cells) for share, one in text.in_layer(cells))
        else:
            x = x + self.attn2(self.norm2(x), text, cells)
        return x + self.ff(self.norm3(x))


class Attention(nn.Module):
    """Attention of several heads."""

    def __init__(self, wide: int, context_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.to_q = nn.Linear(wide, wide, bias=False)
        self.to_k = nn.Linear(context_dim, wide, bias=False)
        self.to_v = nn.Linear(context_dim, wide, bias=False)
        self.to_out = nn.Sequential(nn.Linear(wide, wide), nn.Identity())

    def forward(self, x: Tensor, text: Text | None = None, cells: tuple[int, int] = (0, 0)) -> Tensor:
        """``[b, places, c]``, reading itself, or a text at so many rows and columns of places."""
        read = x if text is None else text.rows
        q, k, v = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # [b, heads, places or rows, c / heads]
            for states in (self.to_q(x), self.to_k(read), self.to_v(read))
        )
        mask = None if text is None else text.mask(cells)
        if text is not None and text.factor is not None:
            v = v * text.factor[:, None, :, None]
        return self.to_out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """MLP of four times the width whose inner states are gated by a GELU."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.net = nn.Sequential(Gated(wide, 4 * wide), nn.Identity(), nn.Linear(4 * wide, wide))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., c]``, in and out."""
        return self.net(x)


class Gated(nn.Module):
    """Linear layer whose one half is multiplied by the GELU of the other."""

    def __init__(self, wide: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(wide, 2 * inner)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., wide]`` to ``[..., inner]``."""
        states, gate = self.proj(x).chunk(2, -1)
        return states * F.gelu(gate)
