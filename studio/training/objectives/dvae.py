"""A training run of a discrete VAE: from pictures to a file, stopped and resumed at will."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...dalle.dvae import DVAE, map_pixels
from ...dalle.layers import LogitNorm, SmallEncoder
from ...dalle.weight_files import save_dvae
from ..checkpoint import check_weights
from ..data.datasets import Data, DataProblem, Example
from ..data.image_inputs import BATCH, NUM_THREADS, in_batches, picture_of, still_readable
from ..loop import Loop
from ..optimizer import AdamW
from ..scaling.distributed import over_processes
from .dalle_options import DVAEOptions

if TYPE_CHECKING:
    from accelerate import Accelerator

NAME = "dvae.safetensors"
MEASURED = 2**40
"""Used instead of the step for the noise of measurements, which is always the same."""


class DVAERun(Loop):
    """Training of a discrete VAE on pictures."""

    what = "pictures"
    has_scales = False
    least_held_out = 1
    follow_length = ("step_size", "kl_weight", "temperature", "noiseless")
    counted_as = "pictures"
    options: DVAEOptions
    trained: TrainedDVAE

    def __init__(
        self, data: Data, folder: Path, options: DVAEOptions, accelerator: Accelerator, say: Callable[[str], None]
    ) -> None:
        """Check the pictures and set up the run."""
        super().__init__(folder, options, accelerator, say, clip=options.clip)
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            read = (pool.map(self._centre_of, batch) for batch in in_batches(data.examples, BATCH, say))
            unusable = [problem for problem in chain.from_iterable(read) if isinstance(problem, DataProblem)]
        self.hold_out(data.without(unusable), "usable pictures")
        self.divide_batches()
        self._build()

    def _centre_of(self, example: Example) -> Tensor | DataProblem:
        return picture_of(example, self.options.size, None)

    def _build(self) -> None:
        """Build model, optimizer and average."""
        options = self.options
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            whole = TrainedDVAE(DVAE(options.config), options.laplace_scale)
        trainable = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        groups = [{"params": trainable, "lr": 1.0, "weight_decay": options.weight_decay}]
        self.prepare(whole, groups, partial(AdamW, betas=options.betas, eps=1e-8))

    # ---- training

    def factor(self, step: int) -> float:
        """The learning rate itself."""
        return self.options.rate(step)

    def _backward(self, loaded: Sequence[Future[Tensor | DataProblem]]) -> dict[str, float]:
        """Accumulate the gradients of a step; return its loss and schedule values."""
        options, step, pictures = self.options, self.step, self._stacked(future.result() for future in loaded)
        weight, temperature = options.kl_weight(step), options.temperature(step)
        nll = kl = 0.0
        for part in self.micro_batches():
            batch, noise = pictures[part], None
            if step >= options.noiseless:
                noise = noise_of(self.trained.dvae, options.size, options.seed, step, self._numbers[part], batch)
            terms = self.model(batch, temperature, noise)
            share = len(batch) / self._share
            loss = negative_elb(terms.nll, terms.kl, weight, options.config.downsampling)
            self.accelerator.backward(share * loss)
            nll, kl = nll + share * terms.nll.item(), kl + share * terms.kl.item()
        nll, kl = (over_processes(self.accelerator, value, "mean") for value in (nll, kl))
        loss = nll + weight / (3 * options.config.downsampling**2) * kl
        return {"loss": loss, "nll": nll, "kl": kl, "kl weight": weight, "temperature": temperature}

    def _load(self, pool: ThreadPoolExecutor, step: int) -> list[Future[Tensor | DataProblem]]:
        """Start loading this process's pictures of a step."""
        epoch, examples = self.share_of(step)
        rngs = [random.Random(f"{self.options.seed}/{epoch}/{number}/{example.name}") for number, example in examples]
        chances = rngs if self.options.is_augmented else [None] * len(rngs)
        pairs = zip(examples, chances, strict=True)
        return [pool.submit(picture_of, example, self.options.size, chance) for (_, example), chance in pairs]

    def _stacked(self, pictures: Iterable[Tensor | DataProblem]) -> Tensor:
        """Stack pictures, ``[b, 3, size, size]``, in 0..1, on the device."""
        stacked = torch.stack([still_readable(picture) for picture in pictures]).to(self.accelerator.device)
        return stacked.to(next(self.trained.parameters()).dtype) / 255

    # ---- messages and files

    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        return (
            f"loss {entry['loss']:.4f} (likelihood {entry['nll']:.4f}, KL {entry['kl']:.2f} x "
            f"{entry['kl weight']:.3g}), temperature {entry['temperature']:.3f}, {speed:.1f} pictures/s"
        )

    @torch.no_grad()
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Measure on held-out pictures: negative ELBs per value with the KL weighted by 1, pixel error from 0 to 1."""
        options, result = self.options, self.result
        f, temperature = options.config.downsampling, options.temperature(max(0, self.step - 1))
        result.eval()
        dvae: DVAE = result.finished()
        sums = dict.fromkeys(("relaxed", "hard", "held-out KL", "error"), 0.0)
        counts = torch.zeros(options.config.vocab_size)
        for start in range(0, len(self.held), options.batch):
            examples = self.held[start : start + options.batch]
            pictures = self._stacked(map(self._centre_of, examples))
            noise = noise_of(dvae, options.size, options.seed, MEASURED, range(start, start + len(examples)), pictures)
            terms, hard = result(pictures, temperature, noise), result.hard_nll(pictures, noise)
            tokens = dvae.tokens(pictures)
            share, kl = len(examples) / len(self.held), float(terms.kl) / (3 * f**2)
            sums["relaxed"] += share * (float(terms.nll) + kl)
            sums["hard"] += share * (float(hard) + kl)
            sums["held-out KL"] += share * float(terms.kl)
            sums["error"] += share * float((dvae.images(tokens) - pictures).abs().mean())
            counts += torch.bincount(tokens.flatten().cpu(), minlength=len(counts))
        result.train()
        figures = {**sums, "tokens": float((counts > 0).sum()), "perplexity": perplexity(counts)}
        line = (
            f"pixels off by {figures['error']:.1%}, {figures['tokens']:.0f} of {options.config.vocab_size:,} tokens in "
            f"use, perplexity {figures['perplexity']:.1f}; negative ELB {figures['relaxed']:.3f} relaxed, "
            f"{figures['hard']:.3f} hard"
        )
        return self._measured(figures, line, is_quiet=is_quiet)

    def shown(self, count: int) -> tuple[Tensor, Tensor]:
        """Some held-out pictures and their reconstructions: both ``[n, 3, size, size]``, in 0..1."""
        pictures = self._stacked(map(self._centre_of, self.held[:count]))
        dvae: DVAE = self.result.finished()
        return pictures.float().cpu(), dvae.images(dvae.tokens(pictures)).float().cpu()

    def _write(self, result: TrainedDVAE) -> None:
        dvae = result.finished()
        check_weights(dvae.state_dict())
        save_dvae(dvae, self.folder / NAME, self.metadata("dalle train-vae"))


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
        decoded = self.dvae.decoder(shares).to(mapped.dtype)
        if self.dvae.config.has_scale:
            return logit_laplace_nll(mapped, decoded[:, :3], decoded[:, 3:])
        return logit_laplace_nll(mapped, decoded, self.log_scale)

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
