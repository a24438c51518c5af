"""Losses of the discrete VAE: relaxed tokens, the logit-Laplace likelihood, and the divergence from uniform.

Notation: b images, h and w pixels along the sides, r x c tokens, K token values, f pixels along each side of a token.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.1 and appendix A; for the relaxation
E. Jang et al. and C. Maddison et al., both 2016.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
