"""Encoder and decoder of the published discrete VAE, with OpenAI's parameter names.

Notation: b images, h and w pixels along the sides, K token values, n ``hidden_dim``.

Source: A. Ramesh et al., 2021, appendix A.1; ``dall-e`` 0.1, bit-identical in float32.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from .config import DVAEConfig

GROUPS = 4
"""Number of resolutions: the image's, and three halvings of it."""


class Conv(nn.Module):
    """A convolution that keeps the size. Its parameters are called ``w`` and ``b``, as in OpenAI's code."""

    def __init__(self, num_in: int, num_out: int, size: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.empty(num_out, num_in, size, size))
        self.b = nn.Parameter(torch.zeros(num_out))
        nn.init.normal_(self.w, std=1 / math.sqrt(num_in * size**2))

    def forward(self, x: Tensor) -> Tensor:
        """``[b, num_in, h, w]`` to ``[b, num_out, h, w]``."""
        return functional.conv2d(x, self.w, self.b, padding=(self.w.shape[-1] - 1) // 2)


class Block(nn.Module):
    """A residual block with a bottleneck. Its branch is scaled by 1 / num_layers², for a stable start."""

    def __init__(self, num_in: int, num_out: int, num_layers: int, sizes: tuple[int, int, int, int]) -> None:
        """Initialise the block.

        Args:
            num_in: Input feature maps.
            num_out: Output feature maps; the bottleneck has a quarter of them.
            num_layers: Blocks in the whole encoder or decoder.
            sizes: Kernel sizes of its convolutions, in pixels.
        """
        super().__init__()
        self.gain = 1 / num_layers**2
        self.id_path = Conv(num_in, num_out, 1) if num_in != num_out else nn.Identity()
        widths = (num_in, *(num_out // 4,) * 3, num_out)
        parts: OrderedDict[str, nn.Module] = OrderedDict()
        for number, size in enumerate(sizes, 1):
            parts[f"relu_{number}"] = nn.ReLU()
            parts[f"conv_{number}"] = Conv(widths[number - 1], widths[number], size)
        self.res_path = nn.Sequential(parts)

    def forward(self, x: Tensor) -> Tensor:
        """``[b, num_in, h, w]`` to ``[b, num_out, h, w]``."""
        return self.id_path(x) + self.gain * self.res_path(x)


def _blocks(widths: tuple[int, int], num_layers: int, count: int, sizes: tuple[int, int, int, int]) -> dict[str, Block]:
    """Blocks of one resolution; the first of them changes the width."""
    return {f"block_{number + 1}": Block(widths[number > 0], widths[1], num_layers, sizes) for number in range(count)}


def _output(num_in: int, num_out: int) -> nn.Sequential:
    """Output layer, applied to each position separately."""
    parts: OrderedDict[str, nn.Module] = OrderedDict(relu=nn.ReLU(), conv=Conv(num_in, num_out, 1))
    return nn.Sequential(parts)


class DVAEEncoder(nn.Module):
    """Images to logits of tokens."""

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        n, count = config.hidden_dim, config.num_blocks
        widths = [n * 2**number for number in range(GROUPS)]
        parts: OrderedDict[str, nn.Module] = OrderedDict(input=Conv(3, n, 7))
        for number, width in enumerate(widths):
            before = widths[max(0, number - 1)]
            group: OrderedDict[str, nn.Module] = OrderedDict(
                _blocks((before, width), GROUPS * count, count, (3, 3, 3, 1))
            )
            if number < GROUPS - 1:
                group["pool"] = nn.MaxPool2d(2)
            parts[f"group_{number + 1}"] = nn.Sequential(group)
        parts["output"] = _output(widths[-1], config.vocab_size)
        self.blocks = nn.Sequential(parts)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode images.

        Args:
            pixels: ``[b, 3, h, w]``, from `map_pixels`; h and w multiples of 8.

        Returns:
            Logits ``[b, K, h / 8, w / 8]``.
        """
        return self.blocks(pixels)


class DVAEDecoder(nn.Module):
    """Tokens to the distribution of images."""

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        n, count = config.hidden_dim, config.num_blocks
        widths = [n * 2**number for number in reversed(range(GROUPS))]
        parts: OrderedDict[str, nn.Module] = OrderedDict(input=Conv(config.vocab_size, config.init_dim, 1))
        before = config.init_dim
        for number, width in enumerate(widths):
            group: OrderedDict[str, nn.Module] = OrderedDict(
                _blocks((before, width), GROUPS * count, count, (1, 3, 3, 3))
            )
            if number < GROUPS - 1:
                group["upsample"] = nn.Upsample(scale_factor=2, mode="nearest")
            parts[f"group_{number + 1}"] = nn.Sequential(group)
            before = width
        parts["output"] = _output(n, 6)
        self.blocks = nn.Sequential(parts)

    def forward(self, shares: Tensor) -> Tensor:
        """Decode tokens.

        Args:
            shares: ``[b, K, h / 8, w / 8]``: one-hot tokens, or their relaxation.

        Returns:
            ``[b, 6, h, w]``: μ for red, green and blue, the logit of a pixel from `map_pixels`; then ln b.
        """
        return self.blocks(shares)
