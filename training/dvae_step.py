"""One update of a discrete VAE: the loss on some pictures, with relaxed tokens.

Notation: b images, h and w pixels along the sides, r x c tokens, K token values, f pixels along each side of a token.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.1 and appendix A; for the relaxation
E. Jang et al. and C. Maddison et al., both 2016.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..dalle.dvae import DVAE, map_pixels
from ..dalle.layers import LogitNorm, SmallEncoder


def gumbel_noise(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Gumbel noise; the argmax of logits plus noise is a sample."""
    # exponential samples are never 0 here, so the logarithm is finite
    return -torch.empty_like(logits, memory_format=torch.contiguous_format).exponential_(generator=generator).log()


def relaxed_tokens(logits: Tensor, temperature: float, noise: Tensor | None) -> Tensor:
    """Sample tokens with the Gumbel-softmax relaxation: softmax((logits + noise) / temperature), over K."""
    return ((logits if noise is None else logits + noise) / temperature).softmax(1)


def hard_tokens(logits: Tensor, noise: Tensor | None) -> Tensor:
    """Sample tokens by the same noise without relaxation: one-hot, ``[b, K, r, c]``."""
    best = (logits if noise is None else logits + noise).argmax(1, keepdim=True)
    return torch.zeros_like(logits).scatter_(1, best, 1.0)


def logit_laplace_nll(pixels: Tensor, mu: Tensor, log_scale: Tensor | float) -> Tensor:
    """Minus log of the logit-Laplace density (equation 2): -ln of exp(-|logit x - μ| / b) / (2 b x (1 - x))."""
    if not isinstance(log_scale, Tensor):
        log_scale = torch.as_tensor(log_scale, dtype=mu.dtype, device=mu.device)
    within = pixels.log() + torch.log1p(-pixels)
    return math.log(2) + log_scale + within + (torch.logit(pixels) - mu).abs() * torch.exp(-log_scale)


def kl_to_uniform(logits: Tensor) -> Tensor:
    """Kullback-Leibler divergence from the uniform distribution, ``[b, r, c]``, in nats from 0 to ln K."""
    log_shares = logits.log_softmax(1)
    return (log_shares.exp() * (log_shares + math.log(logits.shape[1]))).sum(1)


def negative_elb(nll: Tensor, kl: Tensor, kl_weight: float, downsampling: int) -> Tensor:
    """The loss: the negative evidence lower bound, divided by the number of values in an image.

    The likelihood covers all 3·h·w values, the divergence all positions. There is one position per f² pixels, so its
    weight becomes β / (3·f²): β / 192 at 8 pixels per token.
    """
    return nll.mean() + kl_weight / (3 * downsampling**2) * kl.mean()


def perplexity(counts: Tensor) -> float:
    """Effective number of tokens in use: exp of the entropy of their frequencies.

    >>> perplexity(torch.tensor([5, 5, 0, 5, 5]))
    4.0
    """
    shares = counts.double() / counts.sum()
    return round(math.exp(-float(torch.special.xlogy(shares, shares).sum())), 9)


class Terms(NamedTuple):
    """The two terms of the loss, means over all values and all positions, each of shape ``[]``."""

    nll: Tensor
    """Nats per value of the picture."""
    kl: Tensor
    """Nats per position."""


class TrainedDVAE(nn.Module):
    """Modules being trained, wrapped in one for distributed training."""

    def __init__(self, dvae: DVAE, laplace_scale: float) -> None:
        """Wrap a discrete VAE."""
        super().__init__()
        self.dvae = dvae
        self.log_scale = math.log(laplace_scale)
        self.norm: LogitNorm | None = None
        if isinstance(dvae.encoder, SmallEncoder):
            self.norm = LogitNorm(dvae.config.vocab_size)
            bias = dvae.encoder.output.bias
            assert bias is not None
            bias.requires_grad_(False)  # the norm cancels it

    def logits(self, mapped: Tensor) -> Tensor:
        """Logits of tokens for mapped pixels."""
        logits = self.dvae.encoder(mapped).to(mapped.dtype)
        return logits if self.norm is None else self.norm(logits)

    def nll(self, mapped: Tensor, shares: Tensor) -> Tensor:
        """Negative log-likelihood of each value, in the shape of the pixels."""
        found = self.dvae.decoder(shares).to(mapped.dtype)
        if self.dvae.config.has_scale:
            return logit_laplace_nll(mapped, found[:, :3], found[:, 3:])
        return logit_laplace_nll(mapped, found, self.log_scale)

    def forward(self, pictures: Tensor, temperature: float, noise: Tensor | None) -> Terms:
        """Loss on some pictures."""
        mapped = map_pixels(pictures)
        logits = self.logits(mapped)
        nll = self.nll(mapped, relaxed_tokens(logits, temperature, noise))
        return Terms(nll.mean(), kl_to_uniform(logits).mean())

    @torch.no_grad()
    def hard_nll(self, pictures: Tensor, noise: Tensor) -> Tensor:
        """Likelihood with one token per position, sampled by the same noise; shape ``[]``."""
        mapped = map_pixels(pictures)
        return self.nll(mapped, hard_tokens(self.logits(mapped), noise)).mean()

    @torch.no_grad()
    def finished(self) -> DVAE:
        """Copy for inference: in evaluation mode, without gradients, the norm folded into the last convolution."""
        dvae = copy.deepcopy(self.dvae)
        if self.norm is not None:
            output = cast("SmallEncoder", dvae.encoder).output
            output.load_state_dict(self.norm.folded_into(output))
        return dvae.eval().requires_grad_(False)


def noise_of(model: DVAE, size: int, seed: int, step: int, numbers: Sequence[int], like: Tensor) -> Tensor:
    """Noise for pictures of a batch, depending only on the seed, the step and the picture's number.

    So it is the same however the batch is split into parts and processes.
    """
    rows = size // model.config.downsampling
    empty = torch.empty((model.config.vocab_size, rows, rows), dtype=like.dtype, device=like.device)
    generator = torch.Generator(like.device)
    pieces: list[Tensor] = []
    for number in numbers:
        generator.manual_seed(hash((seed, step, number)) & (2**63 - 1))
        pieces.append(gumbel_noise(empty, generator))
    return torch.stack(pieces)
