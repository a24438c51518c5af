"""A training run of a discrete VAE: from pictures to a file, stopped and resumed at will."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..dalle.dvae import DVAE
from ..dalle.files import save_dvae
from ..dalle.losses import negative_elb, perplexity
from . import checkpoint, log
from .batches import Batches, held_out
from .data import Data, Example, Problem, summary
from .dvae_options import DVAEOptions
from .dvae_step import TrainedDVAE, noise_of
from .features import NUM_THREADS
from .pictures import picture_of
from .step import over_processes

if TYPE_CHECKING:
    from accelerate import Accelerator

NAME = "dvae.safetensors"
SECONDS_BETWEEN_CHECKPOINTS = 600.0
NUM_EVALUATIONS = 10
"""How often held-out pictures are measured in a run, beside before it."""
MEASURED = 2**40
"""In the place of the step in the noise of measurements, which is always the same."""


class DVAERun:
    """One training of a discrete VAE on some pictures. A run is made, perhaps resumed, and trained to its end."""

    def __init__(
        self, data: Data, folder: Path, options: DVAEOptions, accelerator: Accelerator, say: Callable[[str], None]
    ) -> None:
        """Look at the pictures and set all up.

        Args:
            data: The pictures; captions are not looked at.
            folder: For all that is written; it is there.
            options: What to do.
            accelerator: Which runs it.
            say: Called with lines for people.

        Raises:
            ValueError: If too few pictures are left to train on.
        """
        self.folder, self.options, self.accelerator, self.say = folder, options, accelerator, say
        self.step = 0
        self.is_stopped = False
        """Set it, and the run ends after the step that it is in, with a checkpoint."""
        self.data = data.without(self._unusable(data.examples))
        count = options.num_held_out(len(self.data.examples))
        if len(self.data.examples) <= count:
            left_out = "; ".join(summary(self.data.problems))
            raise ValueError(
                f"{len(self.data.examples)} usable pictures{f': {left_out}' if left_out else ''}, {count} of them held "
                "out: none is left to train on"
            )
        self.examples, self.held = held_out(self.data.examples, count, options.seed)
        self._share = self._size_of_share()
        self.batches = Batches(self.examples, self._share * accelerator.num_processes, options.seed)
        self._build()

    def _unusable(self, examples: Sequence[Example]) -> list[Problem]:
        """Open every picture once."""
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

    def _size_of_share(self) -> int:
        """Pictures of a batch that are this process's; fewer than asked for where there are not so many."""
        processes = self.accelerator.num_processes
        asked = self.options.batch * self.options.accumulate
        share = min(asked, sum(example.repeats for example in self.examples) // processes)
        if share < 1:
            raise ValueError(f"{len(self.examples)} pictures are too few for {processes} processes")
        if share < asked:
            self.say(f"batch of {share * processes} pictures, as there are no more than {len(self.examples)}")
        return share

    def _build(self) -> None:
        """Model, optimizer and average."""
        options = self.options
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(options.seed)
            self.trained = TrainedDVAE(DVAE(options.config), options.laplace_scale)
        trainable = [parameter for parameter in self.trained.parameters() if parameter.requires_grad]
        # before the accelerator changes the model, so that it is a copy of the model alone
        self.average = None
        if options.ema:
            of_weights = get_ema_multi_avg_fn(options.ema)
            self.average = AveragedModel(self.trained, self.accelerator.device, multi_avg_fn=of_weights)
        plain = torch.optim.AdamW(
            trainable, lr=options.rate(0), betas=options.betas, eps=1e-8, weight_decay=options.weight_decay
        )
        self.model, self.optimizer = self.accelerator.prepare(self.trained, plain)

    # ---- training

    def train(self) -> dict[str, float]:
        """Train to the end, and write the model.

        Returns:
            What was measured at the end, as `measure` gives it.

        Raises:
            KeyboardInterrupt: If it was stopped. The checkpoint has all that was done.
            ValueError: If the loss is no number any more. The model up to there is written.
            OSError: If a file cannot be written.
        """
        if self.step == 0:
            self._log({"step": 0, **self.measure()})
        every = max(1, self.options.steps // NUM_EVALUATIONS)
        began, first = time.monotonic(), self.step
        saved = said = began
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            following = self._load(pool, self.step)
            while self.step < self.options.steps:
                pictures = self._stacked(following)
                if self.step + 1 < self.options.steps:
                    following = self._load(pool, self.step + 1)
                found = self._train_on(pictures)
                self.step += 1
                now = time.monotonic()
                self._log({"step": self.step, **found})
                if now - said > 5 or self.step in (first + 1, self.options.steps):
                    said = now
                    self.say(self._progress(found, (now - began) / (self.step - first)))
                if self.step % every == 0 or self.step == self.options.steps:
                    self._log({"step": self.step, **self.measure()})
                if over_processes(self.accelerator, float(self.is_stopped), "sum"):
                    self.save()
                    raise KeyboardInterrupt
                if now - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    self.save()
                    saved = time.monotonic()
        self.save()
        self.write_results()
        return self.measure(is_quiet=True)

    def _train_on(self, pictures: Tensor) -> dict[str, float]:
        """One update; its loss and the numbers that it followed."""
        options, step = self.options, self.step
        rate, weight, temperature = options.rate(step), options.kl_weight(step), options.temperature(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
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
        if not math.isfinite(loss):
            self.write_results()
            raise ValueError(
                f"the loss of step {step + 1} is {loss}: try a lower --rate, --clip, or another --precision. The model "
                f"before that step is written to {self.folder}"
            )
        if options.clip is not None:
            self.accelerator.clip_grad_norm_(self.model.parameters(), options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update_parameters(self.trained)
        return {"loss": loss, "nll": nll, "kl": kl, "rate": rate, "kl weight": weight, "temperature": temperature}

    def _load(self, pool: ThreadPoolExecutor, step: int) -> list[Future[Tensor | Problem]]:
        """Pictures of this process's share of a step, as they come."""
        epoch, indices = self.batches(step)
        first = self.accelerator.process_index * self._share
        futures: list[Future[Tensor | Problem]] = []
        for number in range(first, first + self._share):
            example = self.examples[indices[number]]
            rng = random.Random(f"{self.options.seed}/{epoch}/{number}/{example.name}")
            chance = rng if self.options.is_augmented else None
            futures.append(pool.submit(picture_of, example, self.options.size, chance))
        return futures

    def _stacked(self, loaded: Sequence[Future[Tensor | Problem]]) -> Tensor:
        """``[b, 3, size, size]``, in 0..1, on the device."""
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

    # ---- what is said and written

    def _progress(self, found: Mapping[str, float], seconds: float) -> str:
        """A line on a step."""
        left = log.duration(seconds * (self.options.steps - self.step))
        rate = self._share * self.accelerator.num_processes / seconds
        return (
            f"step {self.step:,} of {self.options.steps:,}: loss {found['loss']:.4f} (likelihood {found['nll']:.4f}, "
            f"KL {found['kl']:.2f} x {found['kl weight']:.3g}), temperature {found['temperature']:.3f}, {rate:.1f} "
            f"pictures/s, {left} left"
        )

    @property
    def _result(self) -> TrainedDVAE:
        """What is measured and written: the average, if there is one."""
        return self.trained if self.average is None else cast("TrainedDVAE", self.average.module)

    @torch.no_grad()
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Measure on held-out pictures.

        Args:
            is_quiet: Whether the line about it is kept from being said.

        Returns:
            ``relaxed`` and ``hard``: the negative ELB for one value, KL weighted by 1, with relaxed tokens and with one
            token sampled at each position; ``held-out KL``; ``error``: how far pixels are off, from 0 to 1, when tokens
            are the likeliest ones; ``tokens`` and ``perplexity``: how many of these are met, and their perplexity.
        """
        options, result = self.options, self._result
        f, temperature = options.config.downsampling, options.temperature(max(0, self.step - 1))
        result.eval()
        dvae = result.finished()
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
        """Some held-out pictures, and what their tokens give: both ``[n, 3, size, size]``, in 0..1."""
        pictures = self._held_pictures(self.held[:count])
        dvae = self._result.finished()
        return pictures.float().cpu(), dvae.images(dvae.tokens(pictures)).float().cpu()

    def _log(self, entry: Mapping[str, float]) -> None:
        """A line of the log; the first process writes it."""
        if self.accelerator.is_main_process:
            log.append(self.folder, entry)

    def about(self) -> dict[str, Any]:
        """What a resumed run has to have in common with the one that it goes on with."""
        return {
            "data": self.data.digest,
            "pictures": len(self.data.examples),
            "processes": self.accelerator.num_processes,
            **{f"options.{name}": json.dumps(value) for name, value in self.options.as_dict().items()},
        }

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            OSError: If it cannot be written; the last one is still there.
        """
        if self.accelerator.is_main_process:
            scaler = self.accelerator.scaler
            state = {
                "about": self.about(),
                "step": self.step,
                "model": self.trained.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "average": None if self.average is None else self.average.state_dict(),
                "scaler": None if scaler is None else scaler.state_dict(),
            }
            checkpoint.save(self.folder, state)
        self.accelerator.wait_for_everyone()

    def resume(self) -> None:
        """Go on where the checkpoint ends.

        Raises:
            ValueError: If there is none, or it is of other data or options.
        """
        state = checkpoint.load(self.folder)
        checkpoint.check_same(self.folder, state["about"], self.about())
        self.step = state["step"]
        self.trained.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.accelerator.is_main_process:
            log.cut_after(self.folder, self.step)
        self.say(f"goes on after step {self.step:,} of {self.options.steps:,}")

    def write_results(self) -> None:
        """Write the model.

        Raises:
            OSError: If the file cannot be written.
        """
        if self.accelerator.is_main_process:
            about = {
                "trained_by": "weighted-clip dalle train-vae",
                "steps": str(self.step),
                "options": json.dumps(self.options.as_dict()),
            }
            save_dvae(self._result.finished(), self.folder / NAME, about)
        self.accelerator.wait_for_everyone()
