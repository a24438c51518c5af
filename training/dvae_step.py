"""One update of a discrete VAE: the loss on some pictures, with relaxed tokens."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from ..dalle.dvae import DVAE, map_pixels
from ..dalle.layers import LogitNorm, SmallEncoder
from ..dalle.losses import gumbel_noise, hard_tokens, kl_to_uniform, logit_laplace_nll, relaxed_tokens


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
