"""Encoders and decoders of the discrete VAE: the published one, with OpenAI's parameter names, and the small recipe's.

Notation: b images, h and w pixels along the sides, K token values, n ``hidden_dim``.

The small one has 4 pixels per token and is trained within minutes. During training its logits are normalised
(`LogitNorm`), so that no token can win everywhere. Afterwards the norm is folded into the last convolution.

Source: A. Ramesh et al., 2021, appendix A.1; ``dall-e`` 0.1, bit-identical in float32.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import cast

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
        """Initialise the block; its bottleneck has a quarter of ``num_out``, ``num_layers`` counts all blocks."""
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


def _layers(
    first: Conv,
    widths: Sequence[int],
    num_blocks: int,
    sizes: tuple[int, int, int, int],
    scaling: Mapping[str, nn.Module],
    num_out: int,
) -> nn.Sequential:
    """A convolution, groups of blocks, each of one resolution, with a scaling between them, and an output layer.

    The first block of a group changes the width. The output layer is applied to each position separately.
    """
    parts, before = OrderedDict[str, nn.Module](input=first), len(first.b)
    for number, width in enumerate(widths, 1):
        group = OrderedDict[str, nn.Module]()
        for index in range(num_blocks):
            group[f"block_{index + 1}"] = Block(before, width, GROUPS * num_blocks, sizes)
            before = width
        if number < GROUPS:
            group.update(scaling)
        parts[f"group_{number}"] = nn.Sequential(group)
    output = OrderedDict[str, nn.Module](relu=nn.ReLU(), conv=Conv(before, num_out, 1))
    return nn.Sequential(OrderedDict(**parts, output=nn.Sequential(output)))


class DVAEEncoder(nn.Module):
    """Images to logits of tokens."""

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        widths = [config.hidden_dim * 2**number for number in range(GROUPS)]
        first, pool = Conv(3, config.hidden_dim, 7), {"pool": nn.MaxPool2d(2)}
        self.blocks = _layers(first, widths, config.num_blocks, (3, 3, 3, 1), pool, config.vocab_size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode ``[b, 3, h, w]``, from `map_pixels`, to logits ``[b, K, h / 8, w / 8]``."""
        return self.blocks(pixels)


class DVAEDecoder(nn.Module):
    """Tokens to the distribution of images."""

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        widths = [config.hidden_dim * 2**number for number in reversed(range(GROUPS))]
        first, scaling = Conv(config.vocab_size, config.init_dim, 1), {"upsample": nn.Upsample(scale_factor=2)}
        self.blocks = _layers(first, widths, config.num_blocks, (1, 3, 3, 3), scaling, 6)

    def forward(self, shares: Tensor) -> Tensor:
        """Decode ``[b, K, h / 8, w / 8]`` to ``[b, 6, h, w]``: μ, the logit of a pixel from `map_pixels`; then ln b."""
        return self.blocks(shares)


SCALE = 3.0
"""Standard deviation of each token's normalised logits."""
MOMENTUM = 0.02
"""Weight of a batch in the running mean and variance."""
_MIDDLE, _GAIN = 0.3, 4.0  # mean of mostly dark pictures, and about 1 / standard deviation


class SmallBlock(nn.Module):
    """A residual block of two convolutions, each after a ReLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv_1 = nn.Conv2d(width, width // 2, 3, padding=1)
        self.conv_2 = nn.Conv2d(width // 2, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Transform ``[b, width, h, w]`` to the same shape."""
        return x + self.conv_2(torch.relu(self.conv_1(torch.relu(x))))


class LogitNorm(nn.Module):
    """Normalise each token's logits to mean 0 over images and positions, and to the standard deviation `SCALE`.

    Batch normalisation without gain and bias, synchronised over all processes.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, vocab_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.register_buffer("mean", torch.zeros(vocab_size))
        self.register_buffer("variance", torch.ones(vocab_size))

    def forward(self, logits: Tensor) -> Tensor:
        """Normalise ``[b, K, h, w]`` by the batch's mean and variance in training, otherwise by the running ones."""
        if not self.training:
            return self._normalised(logits, self.mean, self.variance)
        processes = 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            processes = torch.distributed.get_world_size()
        mean = _shared(logits.mean((0, 2, 3)), processes)
        variance = _shared((logits - mean[:, None, None]).square().mean((0, 2, 3)), processes)
        if variance.isfinite().all():  # else the step is skipped
            count = logits.numel() // logits.shape[1] * processes
            self.mean.lerp_(mean.detach().to(self.mean), MOMENTUM)
            self.variance.lerp_(variance.detach().to(self.variance) * (count / max(1, count - 1)), MOMENTUM)
        return self._normalised(logits, mean, variance)

    def _normalised(self, logits: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        factor = SCALE * (variance + self.eps).rsqrt()
        return (logits - mean[:, None, None]) * factor[:, None, None]

    @torch.no_grad()
    def folded_into(self, conv: nn.Conv2d) -> dict[str, Tensor]:
        """Weight and bias of the convolution with the normalisation by the running statistics folded in."""
        factor = SCALE * (self.variance + self.eps).rsqrt()
        bias = torch.zeros_like(self.mean) if conv.bias is None else conv.bias
        return {"weight": conv.weight * factor[:, None, None, None], "bias": (bias - self.mean) * factor}


def _shared(values: Tensor, processes: int) -> Tensor:
    """Mean over processes, with its gradient."""
    if processes == 1:
        return values
    from torch.distributed.nn.functional import all_reduce

    return cast("Tensor", all_reduce(values)) / processes


class SmallEncoder(nn.Module):
    """Images to logits of tokens."""

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        n = config.hidden_dim
        self.input = nn.Conv2d(3, n // 2, 4, 2, 1)
        self.down = nn.Conv2d(n // 2, n, 4, 2, 1)
        self.blocks = nn.Sequential(*(SmallBlock(n) for _ in range(config.num_blocks)))
        self.output = nn.Conv2d(n, config.vocab_size, 1)
        nn.init.zeros_(cast("Tensor", self.output.bias))

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode ``[b, 3, h, w]``, from `map_pixels`, to logits ``[b, K, h / 4, w / 4]``."""
        x = self.down(torch.relu(self.input((pixels - _MIDDLE) * _GAIN)))
        return self.output(torch.relu(self.blocks(x)))


class SmallDecoder(nn.Module):
    """Tokens to the distribution of images."""

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        n = config.hidden_dim
        self.input = nn.Conv2d(config.vocab_size, n, 1)
        self.blocks = nn.Sequential(*(SmallBlock(n) for _ in range(config.num_blocks)))
        self.up = nn.ConvTranspose2d(n, n // 2, 4, 2, 1)
        self.output = nn.ConvTranspose2d(n // 2, 3, 4, 2, 1)
        nn.init.normal_(self.input.weight, std=1.0)  # token vectors far enough apart to be distinguished from the start

    def forward(self, shares: Tensor) -> Tensor:
        """Decode ``[b, K, h / 4, w / 4]`` to μ, ``[b, 3, h, w]``: logits of pixels as in `map_pixels`."""
        return self.output(torch.relu(self.up(torch.relu(self.blocks(self.input(shares))))))
