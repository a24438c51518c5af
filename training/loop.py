"""Training loop shared by DALL·E's two halves: steps with a log, checkpoints, an average; stopped and resumed."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from . import checkpoint, log, powersgd
from .checkpoint import NotFiniteError
from .features import NUM_THREADS
from .options import Precision
from .scales import GradientScales
from .sharding import Sharding, sharding_for
from .step import over_processes
from .updates import Updates

if TYPE_CHECKING:
    from accelerate import Accelerator

SECONDS_BETWEEN_CHECKPOINTS = 600.0
NUM_EVALUATIONS = 10
"""Number of evaluations in a run, besides the initial one."""


class LoopOptions(Protocol):
    """Options that the loop needs."""

    @property
    def batch(self) -> int:
        """Examples in one part of a batch."""
        ...

    @property
    def accumulate(self) -> int:
        """Parts in a batch."""
        ...

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        ...

    @property
    def precision(self) -> Precision:
        """Precision of the computation."""
        ...

    @property
    def clip(self) -> float | None:
        """Maximum norm of all gradients; None for no limit."""
        ...

    def rate(self, step: int) -> float:
        """Learning rate of an update, counted from 0."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """The options as a dict, for a record."""
        ...


class Loop(ABC):
    """One training run. It is created, optionally resumed, and trained to its end."""

    model: nn.Module
    """The model as prepared by the accelerator."""
    trained: nn.Module
    """The model before preparation."""
    average: AveragedModel | None = None
    """Moving average of the weights, measured and written instead of them, or None."""

    scales: GradientScales | None = None
    """Gradient scales of the resblocks in float16, or None."""
    compression: powersgd.Compression | None = None
    """Compression of the gradients between processes, or None."""

    def __init__(
        self,
        folder: Path,
        options: LoopOptions,
        accelerator: Accelerator,
        say: Callable[[str], None],
        *,
        is_sharded: bool = False,
    ) -> None:
        """Set up what all runs have.

        Args:
            folder: Existing folder for all output.
            options: Options of the run.
            accelerator: Accelerator of the run.
            say: Called with each line of output.
            is_sharded: Whether to shard the model over processes, by `Sharding`.
        """
        self.folder, self.accelerator, self.say = folder, accelerator, say
        self._is_sharded = is_sharded
        self._sharding: Sharding | None = None
        self._options = options
        self.step = 0
        self.is_stopped = False
        """Set to True to end the run after the current step, with a checkpoint."""
        self._updates = Updates(self, options.clip)

    def _prepare(
        self, trained: nn.Module, groups: list[dict[str, Any]], betas: tuple[float, float], ema: float
    ) -> None:
        """Prepare optimizer and average of a model."""
        self.trained = trained
        # before the accelerator changes the model, so that the copy is of the model alone
        if ema:
            of_weights = get_ema_multi_avg_fn(ema)
            self.average = AveragedModel(trained, self.accelerator.device, multi_avg_fn=of_weights)
        if self._is_sharded:
            self._sharding = sharding_for(self.accelerator, trained, self._options.precision, "adamw", self.say)
        if self._sharding:
            groups = self._sharding.divide(trained, groups)
            if self.average is not None:
                self._sharding.divide(self.average.module)
        self._make_optimizer = partial(torch.optim.AdamW, lr=self._options.rate(0), betas=betas, eps=1e-8)
        plain = self._make_optimizer(groups)
        prepare = self._sharding.prepare if self._sharding else self.accelerator.prepare
        self.model, self.optimizer = prepare(trained, plain)

    def _size_of_share(self, num_examples: int, what: str) -> int:
        """This process's share of a batch; smaller than requested if there are not enough examples."""
        processes = self.accelerator.num_processes
        asked = self._options.batch * self._options.accumulate
        share = min(asked, num_examples // processes)
        if share < 1:
            raise ValueError(f"{num_examples} {what} are too few for {processes} processes")
        if share < asked:
            self.say(f"batch of {share * processes} {what}, as there are no more than {num_examples}")
        return share

    # ---- to be defined by each training

    @abstractmethod
    def _load(self, pool: ThreadPoolExecutor, step: int) -> Any:
        """Begin to load this process's share of a step."""

    @abstractmethod
    def _backward(self, loaded: Any) -> dict[str, float]:
        """Accumulate the gradients of a step; return its ``loss`` and schedule values."""

    @abstractmethod
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Evaluate the current result on held-out examples.

        Args:
            is_quiet: Whether to suppress the line about it.
        """

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues."""

    @abstractmethod
    def write_results(self) -> None:
        """Write the model.

        Raises:
            OSError: If the file cannot be written.
        """

    @abstractmethod
    def _progress(self, found: Mapping[str, float], seconds: float) -> str:
        """Part of the progress line after step number and time left; ``seconds`` is the time per step."""

    # ---- training

    def train(self) -> dict[str, float]:
        """Train to the end, and write the model.

        Returns:
            Final measurements, as returned by `measure`.

        Raises:
            KeyboardInterrupt: If it was stopped. The checkpoint holds all progress.
            ValueError: If losses, gradients or weights are not finite. The last good weights are written.
            OSError: If a file cannot be written.
        """
        try:
            found = self._train()
            self.save()
        except NotFiniteError as error:
            raise self._updates.end(error) from error
        self.write_results()
        if self.compression is not None:
            self.say(self.compression.line())
        return found or self.measure(is_quiet=True)

    def _train(self) -> dict[str, float]:
        """Train the remaining steps; return the last measurements, if any."""
        num_steps = self._options.steps
        found: dict[str, float] = {}
        if self.step == 0:
            found = self.measure()
            self._log({"step": 0, **found})
        every = max(1, num_steps // NUM_EVALUATIONS)
        began, first = time.monotonic(), self.step
        saved = said = began
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            following = self._load(pool, self.step) if self.step < num_steps else None
            while self.step < num_steps:
                loaded = following
                if self.step + 1 < num_steps:
                    following = self._load(pool, self.step + 1)
                entry = self._train_on(loaded)
                self.step += 1
                now = time.monotonic()
                self._log({"step": self.step, **entry})
                if now - said > 5 or self.step in (first + 1, num_steps):
                    said, seconds = now, (now - began) / (self.step - first)
                    left = f"{log.duration(seconds * (num_steps - self.step))} left{self._updates.note}"
                    self.say(f"step {self.step:,} of {num_steps:,}: {self._progress(entry, seconds)}, {left}")
                if self.step % every == 0 or self.step == num_steps:
                    found = self.measure()
                    self._log({"step": self.step, **found})
                if over_processes(self.accelerator, float(self.is_stopped), "sum"):
                    self.save()
                    _ = self.result  # gathered by all processes, for later access
                    self.say(f"stopped after step {self.step:,} of {num_steps:,}: --resume goes on from here")
                    raise KeyboardInterrupt
                if now - saved > SECONDS_BETWEEN_CHECKPOINTS:
                    self.save()
                    saved = time.monotonic()
        return found

    def _train_on(self, loaded: Any) -> dict[str, float]:
        """Perform one update."""
        rate = self._options.rate(self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        entry = {**self._backward(loaded), "rate": rate}
        if self._updates(entry["loss"]):
            self._update_average()
            if self._sharding:
                self._sharding.forget()
        return entry | self._updates.log()

    def _update_average(self) -> None:
        """Update the average after an update."""
        if self.average is not None:
            self.average.update_parameters(self.trained)

    @property
    def result(self) -> nn.Module:
        """The model that is measured and written: the average, if any. If sharded, all processes must call this."""
        result = self.trained if self.average is None else self.average.module
        return self._sharding.whole(result) if self._sharding else result

    # ---- output

    def _log(self, entry: Mapping[str, float]) -> None:
        """Append a line to the log, on the first process only."""
        if self.accelerator.is_main_process:
            log.append(self.folder, entry)

    def _options_listed(self) -> dict[str, str]:
        return {f"options.{name}": json.dumps(value) for name, value in self._options.as_dict().items()}

    def save(self) -> None:
        """Write the checkpoint.

        Raises:
            NotFiniteError: If a weight is not finite; the last one is kept.
            OSError: If it cannot be written; the last one is kept.
        """
        self._updates.check_weights()
        state = self._state()
        if self._sharding:
            state = self._sharding.gathered(state)
        with powersgd.saved(self.compression, self.folder, self.step, self.accelerator):
            if self.accelerator.is_main_process:
                checkpoint.save(self.folder, state)
            self.accelerator.wait_for_everyone()

    def _state(self) -> dict[str, Any]:
        """State for the checkpoint; tensors of a sharded model are sharded."""
        scaler = self.accelerator.scaler
        return {
            "about": self.about(),
            "step": self.step,
            "model": self.trained.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
            "scales": None if self.scales is None else self.scales.state_dict(),
        }

    def resume(self) -> None:
        """Continue from the checkpoint.

        Raises:
            ValueError: If there is none, it has other data or options, or a file of it is damaged.
        """
        like, is_main = self._state(), self.accelerator.is_main_process

        def check(state: dict[str, Any]) -> None:
            steps = self._options.steps
            checkpoint.check_state(state, like, steps, self._make_optimizer, self.optimizer, self.scales)

        state = checkpoint.load_same(self.folder, like, check, self.say, is_main_process=is_main)
        if state is None:
            return
        self.take(state)
        if self.accelerator.is_main_process:
            log.cut_after(self.folder, self.step)
        self.say(f"goes on after step {self.step:,} of {self._options.steps:,}")

    def take(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of this run."""
        self.step = state["step"]
        if self._sharding:
            self._sharding.divide_state(state, self.trained, self.optimizer, self.average)
        self.trained.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.scales is not None:
            self.scales.load_state_dict(state["scales"])
        if self.compression is not None:
            self.compression.load(self.folder, self.step, self.accelerator)
