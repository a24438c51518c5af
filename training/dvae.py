"""A training run of a discrete VAE: from pictures to a file, stopped and resumed at will."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from ..dalle.dvae import DVAE
from ..dalle.files import save_dvae
from . import log
from .checkpoint import check_weights
from .data import Data, Example, Problem
from .dvae_options import DVAEOptions
from .dvae_step import TrainedDVAE, negative_elb, noise_of, perplexity
from .features import NUM_THREADS
from .grad_cache import over_processes
from .loop import Loop
from .pictures import picture_of

if TYPE_CHECKING:
    from accelerate import Accelerator

NAME = "dvae.safetensors"
MEASURED = 2**40
"""Used instead of the step for the noise of measurements, which is always the same."""


class DVAERun(Loop):
    """Training of a discrete VAE on pictures."""

    what = "pictures"
    has_scales = False
    options: DVAEOptions
    trained: TrainedDVAE

    def __init__(
        self, data: Data, folder: Path, options: DVAEOptions, accelerator: Accelerator, say: Callable[[str], None]
    ) -> None:
        """Check the pictures and set up the run."""
        super().__init__(folder, options, accelerator, say, clip=options.clip)
        self.num_steps = options.steps
        self.hold_out(data.without(self._unusable(data.examples)), "usable pictures")
        self.divide_batches()
        self._build()

    def _unusable(self, examples: Sequence[Example]) -> list[Problem]:
        """Open every picture once to find unusable ones."""
        problems: list[Problem] = []
        began = said = time.monotonic()
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            found = pool.map(lambda example: picture_of(example, self.options.size, None), examples)
            for number, one in enumerate(found, 1):
                if isinstance(one, Problem):
                    problems.append(one)
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    self.say(f"images read: {number:,} of {len(examples):,}, {log.duration(said - began)}")
        return problems

    def _build(self) -> None:
        """Build model, optimizer and average."""
        options = self.options
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            whole = TrainedDVAE(DVAE(options.config), options.laplace_scale)
        trainable = [parameter for parameter in whole.parameters() if parameter.requires_grad]
        groups = [{"params": trainable, "lr": 1.0, "weight_decay": options.weight_decay}]
        self.prepare(whole, groups, partial(torch.optim.AdamW, betas=options.betas, eps=1e-8))

    # ---- training

    def factor(self, step: int) -> float:
        """The learning rate itself."""
        return self.options.rate(step)

    def _backward(self, loaded: Sequence[Future[Tensor | Problem]]) -> dict[str, float]:
        """Accumulate the gradients of a step; return its loss and schedule values."""
        options, step, pictures = self.options, self.step, self._stacked(loaded)
        weight, temperature = options.kl_weight(step), options.temperature(step)
        first = self.accelerator.process_index * self._share
        nll = kl = 0.0
        for start in range(0, self._share, options.batch):
            some = pictures[start : start + options.batch]
            noise = None
            if step >= options.noiseless:
                numbers = range(first + start, first + start + len(some))
                noise = noise_of(self.trained.dvae, options.size, options.seed, step, numbers, some)
            is_last = start + len(some) == self._share
            with nullcontext() if is_last else cast("Any", self.accelerator.no_sync(self.model)):
                terms = self.model(some, temperature, noise)
                part = len(some) / self._share
                loss = negative_elb(terms.nll, terms.kl, weight, options.config.downsampling)
                self.accelerator.backward(part * loss)
            nll, kl = nll + part * terms.nll.item(), kl + part * terms.kl.item()
        nll, kl = (over_processes(self.accelerator, value, "mean") for value in (nll, kl))
        loss = nll + weight / (3 * options.config.downsampling**2) * kl
        return {"loss": loss, "nll": nll, "kl": kl, "kl weight": weight, "temperature": temperature}

    def _load(self, pool: ThreadPoolExecutor, step: int) -> list[Future[Tensor | Problem]]:
        """Start loading this process's pictures of a step."""
        epoch, examples = self.share_of(step)
        futures: list[Future[Tensor | Problem]] = []
        for number, example in examples:
            rng = random.Random(f"{self.options.seed}/{epoch}/{number}/{example.name}")
            chance = rng if self.options.is_augmented else None
            futures.append(pool.submit(picture_of, example, self.options.size, chance))
        return futures

    def _stacked(self, loaded: Sequence[Future[Tensor | Problem]]) -> Tensor:
        """Stack loaded pictures, ``[b, 3, size, size]``, in 0..1, on the device."""
        pictures: list[Tensor] = []
        for future in loaded:
            picture = future.result()
            if isinstance(picture, Problem):
                raise ValueError(f"{picture.name} could be read before, and cannot now: {picture.reason}")
            pictures.append(picture)
        return self._scaled(torch.stack(pictures))

    def _scaled(self, pictures: Tensor) -> Tensor:
        dtype = next(self.trained.parameters()).dtype
        return pictures.to(self.accelerator.device).to(dtype) / 255

    # ---- messages and files

    def _progress(self, found: Mapping[str, float], seconds: float) -> str:
        rate = self._share * self.accelerator.num_processes / seconds
        return (
            f"loss {found['loss']:.4f} (likelihood {found['nll']:.4f}, KL {found['kl']:.2f} x "
            f"{found['kl weight']:.3g}), temperature {found['temperature']:.3f}, {rate:.1f} pictures/s"
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
            some = self.held[start : start + options.batch]
            pictures = self._held_pictures(some)
            noise = noise_of(dvae, options.size, options.seed, MEASURED, range(start, start + len(some)), pictures)
            terms, hard = result(pictures, temperature, noise), result.hard_nll(pictures, noise)
            tokens = dvae.tokens(pictures)
            share, kl = len(some) / len(self.held), float(terms.kl) / (3 * f**2)
            sums["relaxed"] += share * (float(terms.nll) + kl)
            sums["hard"] += share * (float(hard) + kl)
            sums["held-out KL"] += share * float(terms.kl)
            sums["error"] += share * float((dvae.images(tokens) - pictures).abs().mean())
            counts += torch.bincount(tokens.flatten().cpu(), minlength=len(counts))
        result.train()
        found = {**sums, "tokens": float((counts > 0).sum()), "perplexity": perplexity(counts)}
        if not is_quiet:
            self.say(
                f"{len(self.held)} held-out pictures after {self.step:,} steps: pixels off by {found['error']:.1%}, "
                f"{found['tokens']:.0f} of {options.config.vocab_size:,} tokens in use, perplexity "
                f"{found['perplexity']:.1f}; negative ELB {found['relaxed']:.3f} relaxed, {found['hard']:.3f} hard"
            )
        return found

    def _held_pictures(self, some: Sequence[Example]) -> Tensor:
        found = [picture_of(example, self.options.size, None) for example in some]
        for one in found:
            if isinstance(one, Problem):
                raise ValueError(f"{one.name} could be read before, and cannot now: {one.reason}")
        return self._scaled(torch.stack([one for one in found if isinstance(one, Tensor)]))

    def shown(self, count: int) -> tuple[Tensor, Tensor]:
        """Some held-out pictures and their reconstructions: both ``[n, 3, size, size]``, in 0..1."""
        pictures = self._held_pictures(self.held[:count])
        dvae: DVAE = self.result.finished()
        return pictures.float().cpu(), dvae.images(dvae.tokens(pictures)).float().cpu()

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues."""
        return {
            "data": self.data.digest,
            "pictures": len(self.data.examples),
            "processes": self.accelerator.num_processes,
            **self._options_listed(),
        }

    def write_results(self) -> None:
        """Write the model."""
        if self.accelerator.is_main_process:
            about = {
                "trained_by": "weighted-clip dalle train-vae",
                "steps": str(self.step),
                "options": json.dumps(self.options.as_dict()),
            }
            dvae: DVAE = self.result.finished()
            check_weights(dvae.state_dict())
            save_dvae(dvae, self.folder / NAME, about)
        self.accelerator.wait_for_everyone()
