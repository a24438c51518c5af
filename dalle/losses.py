"""What the discrete VAE is trained by: relaxed tokens, the logit-Laplace likelihood, and the divergence from uniform.

Notation: b images, h and w pixels along the sides, r x c tokens, K token values, f pixels along each side of a token.

Source: A. Ramesh et al., "Zero-Shot Text-to-Image Generation", 2021, section 2.1 and appendix A; for the relaxation
E. Jang et al. and C. Maddison et al., both 2016.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gumbel_noise(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Noise that, added to logits, makes their maximum a sample.

    Args:
        logits: Of any shape; of what shape and type the noise is.
        generator: On the device of the logits.
    """
    # that of an exponential distribution is never 0 here, so its logarithm is finite
    return -torch.empty_like(logits, memory_format=torch.contiguous_format).exponential_(generator=generator).log()


def relaxed_tokens(logits: Tensor, temperature: float, noise: Tensor | None) -> Tensor:
    """Samples of tokens by the Gumbel-softmax relaxation: softmax((logits + noise) / temperature).

    Args:
        logits: ``[b, K, r, c]``.
        temperature: τ, above 0; the lower, the nearer to one token.
        noise: As `gumbel_noise` gives it; None for none.

    Returns:
        Shares of each token, ``[b, K, r, c]``, which sum to 1 over K.
    """
    return ((logits if noise is None else logits + noise) / temperature).softmax(1)


def hard_tokens(logits: Tensor, noise: Tensor | None) -> Tensor:
    """Samples of tokens that are not relaxed, by the same noise: one-hot, ``[b, K, r, c]``."""
    best = (logits if noise is None else logits + noise).argmax(1, keepdim=True)
    return torch.zeros_like(logits).scatter_(1, best, 1.0)


def logit_laplace_nll(pixels: Tensor, mu: Tensor, log_scale: Tensor | float) -> Tensor:
    """Negative logarithm of the logit-Laplace density (equation 2): -ln of exp(-|logit x - μ| / b) / (2 b x (1 - x)).

    Args:
        pixels: x, between 0 and 1, both excluded, as `map_pixels` gives them.
        mu: μ, of the same shape.
        log_scale: ln b, likewise, or one number for all.

    Returns:
        In nats, of the same shape.
    """
    if not isinstance(log_scale, Tensor):
        log_scale = torch.as_tensor(log_scale, dtype=mu.dtype, device=mu.device)
    within = pixels.log() + torch.log1p(-pixels)
    return math.log(2) + log_scale + within + (torch.logit(pixels) - mu).abs() * torch.exp(-log_scale)


def kl_to_uniform(logits: Tensor) -> Tensor:
    """Kullback-Leibler divergence of each position's distribution from the uniform one.

    Args:
        logits: ``[b, K, r, c]``.

    Returns:
        In nats, 0 to ln K, ``[b, r, c]``.
    """
    log_shares = logits.log_softmax(1)
    return (log_shares.exp() * (log_shares + math.log(logits.shape[1]))).sum(1)


def negative_elb(nll: Tensor, kl: Tensor, kl_weight: float, downsampling: int) -> Tensor:
    """The loss: the negative evidence lower bound, divided by the number of values in an image.

    The likelihood is that of all 3·h·w values, the divergence that of all positions; of these there is one to f²
    pixels, so that its weight becomes β / (3·f²): at 8 pixels to a token β / 192.

    Args:
        nll: ``[b, 3, h, w]``, as `logit_laplace_nll` gives it.
        kl: ``[b, r, c]``, as `kl_to_uniform` gives it.
        kl_weight: β.
        downsampling: f.

    Returns:
        Nats for one value, shape ``[]``.
    """
    return nll.mean() + kl_weight / (3 * downsampling**2) * kl.mean()


def perplexity(counts: Tensor) -> float:
    """How many tokens are in use, counted by their shares: exp of the entropy.

    Args:
        counts: How often each token was met, ``[K]``.

    >>> perplexity(torch.tensor([5, 5, 0, 5, 5]))
    4.0
    """
    shares = counts.double() / counts.sum()
    return round(math.exp(-float(torch.special.xlogy(shares, shares).sum())), 9)
