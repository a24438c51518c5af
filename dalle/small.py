"""Encoder and decoder of the small recipe: 4 pixels per token, trained within minutes.

Notation: b images, h and w pixels along the sides, K token values.

During training its logits are normalised (`LogitNorm`), so that no token can win everywhere. Afterwards the norm is
folded into the last convolution.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from .config import DVAEConfig

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
        """Encode images.

        Args:
            pixels: ``[b, 3, h, w]``, from `map_pixels`; h and w multiples of 4.

        Returns:
            Logits ``[b, K, h / 4, w / 4]``.
        """
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
        """Decode tokens.

        Args:
            shares: ``[b, K, h / 4, w / 4]``: tokens, one-hot or relaxed.

        Returns:
            μ, ``[b, 3, h, w]``: logits of pixels as in `map_pixels`, for red, green and blue.
        """
        return self.output(torch.relu(self.up(torch.relu(self.blocks(self.input(shares))))))
