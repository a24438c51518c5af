"""The training loop of every objective: steps with a log, checkpoints, an average; stopped and resumed at will.

An objective is a `Loop` that defines the rates of its steps, loads and propagates a batch, measures and writes results.
"""

from __future__ import annotations

import json
import math
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from ..output.files import write_text
from . import checkpoint, log
from .checkpoint import MOST_IN_A_ROW, NotFiniteError, check_weights, local
from .data.captions import Batches, held_out, num_in_epoch
from .data.datasets import Data, summary
from .data.examples import DataProblem, Example, Examples
from .data.image_inputs import FEW, NUM_THREADS, Images, LeftOut, Loaded
from .optimizer import Groups, factor_of
from .options import MAX_HELD_OUT, Optimizer, Saving
from .scaling import powersgd
from .scaling.distributed import over_processes
from .scaling.fsdp import Sharding, sharding_for
from .scaling.grad_scaling import GradientScales

if TYPE_CHECKING:
    from accelerate import Accelerator

_DUE = 2.0**20
"""Added to the number of stopped processes by the first process, when a checkpoint is due by its clock."""
HELD_OUT_NAME = "held_out.txt"
"""File in a run's folder with the names of the held-out examples, one per line."""
WAITED = "seconds waited"
"""Log key of the seconds that a step waited for its data."""
MAX_TRIES = 1000
"""Maximum number of replacements tried for an unreadable image."""
NUM_EVALUATIONS = 10
"""Number of evaluations in a run, besides the initial one."""


class Loop(ABC):
    """One training run. It is created, optionally resumed, and trained to its end."""

    what = "pairs"
    """Examples, in messages."""
    has_scales = True
    """Whether float16 is trained with `GradientScales`, rather than one scale for the whole loss."""
    saves_frozen = True
    """Whether frozen weights are in checkpoints, too."""
    least_held_out = 0
    """Fewest examples held out, unless the options say how many."""
    least_between = 1
    """Fewest steps between two measurements."""
    ema_every = 1
    """Updates between two steps of the average."""
    follow_length: tuple[str, ...] = ()
    """Options that change with the number of steps."""
    may_differ: tuple[str, ...] = ()
    """Options that a resumed run need not share with the one it continues."""
    counted_as = "pairs"
    """Name of the number of examples among the properties of a run."""

    num_steps: int
    """Steps of the whole run."""
    model: nn.Module
    """The model as prepared by the accelerator."""
    trained: Any
    """The model before preparation."""
    average: AveragedModel | None = None
    """Moving average of the weights, measured and written instead of them, or None."""
    scales: GradientScales | None = None
    """Gradient scales of the resblocks in float16, or None."""
    compression: powersgd.Compression | None = None
    """Compression of the gradients between processes, or None."""
    waited: float | None = None
    """Seconds that the last step waited for its data, or None if unknown."""
    workers = NUM_THREADS
    """Number of threads that load data."""
    saving: Saving = Saving()
    """Rhythm of the checkpoints, and how many are kept."""

    def __init__(
        self,
        folder: Path,
        options: Any,
        accelerator: Accelerator,
        say: Callable[[str], None],
        *,
        clip: float | None = None,
        is_sharded: bool = False,
    ) -> None:
        """Set up the parts that all runs share."""
        self.folder, self.options, self.accelerator, self.say = folder, options, accelerator, say
        self._is_sharded = is_sharded
        self._sharding: Sharding | None = None
        self.step = 0
        self._on_board: Callable[[Mapping[str, float]], None] | None = None
        self._saved_step: int | None = None
        """Step of the checkpoint on the disk, if it is of this run."""
        self.is_stopped = False
        """Set to True to end the run after the current step, with a checkpoint."""
        self._updates = Updates(self, clip)

    def hold_out(
        self,
        data: Data,
        kind: str,
        *,
        minimum: int = 1,
        why: str = ": none is left to train on",
        images: Images | None = None,
    ) -> None:
        """Split usable data into training and held-out examples; at least ``minimum`` must be left for training.

        If images are given, they are opened: all of them if there are few, otherwise only the held-out ones.
        """
        few = images if len(data.examples) <= FEW else None
        if few:
            data = data.without(self._unreadable(few, data.examples))
            few.drop()
        self.data = data
        asked = self.options.held_out
        count = max(self.least_held_out, min(MAX_HELD_OUT, len(data.examples) // 10)) if asked is None else asked
        if len(data.examples) - count < minimum:
            left_out = "; ".join(summary(data.problems))
            raise ValueError(
                f"{log.number_of(len(data.examples), kind)}{f': {left_out}' if left_out else ''}, {count} of them held "
                f"out{why}"
            )
        self.examples, self.held = held_out(data.examples, count, self.options.seed)
        if images and not few:
            bad = self._unreadable(images, self.held)
            for problem in bad:
                images.left_out.add(problem)
            self.held = self.held.without(problem.name for problem in bad)
        if self.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(self.folder / HELD_OUT_NAME, "".join(f"{example.name}\n" for example in self.held))

    def _unreadable(self, images: Images, examples: Examples) -> list[DataProblem]:
        # the first process keeps features that the others find
        with self.accelerator.main_process_first() if images.digest else nullcontext():
            return images.check(examples, self.say)

    def divide_batches(self, *, minimum: int = 1) -> None:
        """Divide examples into batches, smaller if there are too few, and among processes; count the run's steps."""
        processes, options = self.accelerator.num_processes, self.options
        num_examples = num_in_epoch(self.examples.repeats)
        asked = options.batch * options.accumulate
        self._share = min(asked, num_examples // processes)
        if self._share * processes < max(minimum, processes):
            count_text, are = log.number_of(num_examples, self.what), "are" if num_examples != 1 else "is"
            raise ValueError(f"{count_text} {are} too few for {log.number_of(processes, 'processes')}")
        if self._share < asked:
            self.say(f"batch of {self._share * processes} {self.what}, as there are no more than {num_examples}")
        self.batches = Batches(self.examples.repeats, self._share * processes, options.seed)
        self.num_steps = options.steps or options.epochs * self.batches.per_epoch

    def share_of(self, step: int) -> tuple[int, list[tuple[int, Example]]]:
        """Epoch of a step, and this process's share of its batch: examples with their numbers in it."""
        epoch, indices = self.batches(step)
        return epoch, [(number, self.examples[indices[number]]) for number in self._numbers]

    @property
    def _numbers(self) -> range:
        first = self.accelerator.process_index * self._share
        return range(first, first + self._share)

    def micro_batches(self) -> Iterator[slice]:
        """Parts of this process's share of a batch; while the last is computed, processes exchange their gradients."""
        size = self.options.batch
        for start in range(0, self._share, size):
            is_last = start + size >= self._share
            with nullcontext() if is_last else cast("Any", self.accelerator.no_sync(self.model)):
                yield slice(start, start + size)

    def begin_images(self, pool: ThreadPoolExecutor, step: int, images: Images) -> tuple[list[Loaded], list[bool]]:
        """Begin to load this process's images; also return whether each is its example's first in the batch."""
        epoch, indices = self.batches(step)
        first = {index: number for number, index in reversed([*enumerate(indices)])}
        share = [self._candidates(step, number, indices, images.left_out) for number in self._numbers]
        return images.begin(pool, epoch, share), [first[indices[number]] == number for number in self._numbers]

    def _candidates(self, step: int, number: int, batch: Sequence[int], left_out: LeftOut) -> Iterator[Example]:
        """Candidates for a place in a batch: its example, unless known to be unreadable, then random replacements."""
        first = self.examples[batch[number]]
        if first not in left_out:
            yield first
        rng = random.Random(f"{self.options.seed}/{step}/{number}/in its place")
        in_batch = {*batch} if len({*batch}) < len(self.examples) else ()
        for _ in range(MAX_TRIES):
            index = rng.randrange(len(self.examples))
            if index not in in_batch and (example := self.examples[index]) not in left_out:
                yield example
        reasons = "; ".join(summary(left_out.problems()))
        raise ValueError(f"of {MAX_TRIES:,} images drawn at random none can be read: {reasons}")

    def prepare(
        self, trained: nn.Module, groups: Groups, make_optimizer: Callable[[Groups], torch.optim.Optimizer]
    ) -> None:
        """Prepare average, sharding, optimizer (`factor` multiplies its ``lr``), scales and compression of a model.

        Raises:
            ValueError: If the model cannot be sharded, or its gradients cannot be compressed.
        """
        self.trained, options, compress = trained, self.options, getattr(self.options, "compress", 0)
        # before the accelerator changes the model, so that the copy is of the model alone
        if options.ema:
            of_weights = get_ema_multi_avg_fn(options.ema)
            self.average = AveragedModel(trained, self.accelerator.device, multi_avg_fn=of_weights)
        if self._is_sharded:
            optimizer: Optimizer = getattr(options, "optimizer", "adamw")
            self._sharding = sharding_for(self.accelerator, trained, options.precision, optimizer, self.say)
        if self._sharding:
            groups = self._sharding.divide(trained, groups)
            if self.average is not None:
                self._sharding.divide(self.average.module)
        self._make_optimizer = make_optimizer
        plain = make_optimizer(groups)
        for group in plain.param_groups:
            group["initial_lr"] = group["lr"]
        if self._sharding:
            self.model, self.optimizer = self._sharding.prepare(trained, plain)
        else:  # without the default, for which accelerate imports what takes half a second
            self.model, self.optimizer = self.accelerator.prepare(trained, plain, device_placement=[True, True])
        if options.precision == "fp16" and self.has_scales:  # after the average, whose model gets no hooks
            self.scales = GradientScales(trained, self.accelerator.num_processes)
        self.compression = powersgd.compression_of(self.accelerator, self.model, compress, self.scales)
        if self.compression is not None:
            self.say(
                f"--compress {compress}: {self.compression.coverage:.1%} of the numbers of a gradient are compressed"
            )

    # ---- to be defined by each objective

    @abstractmethod
    def _load(self, pool: ThreadPoolExecutor, step: int) -> Any:
        """Begin to load this process's share of a step."""

    @abstractmethod
    def _backward(self, loaded: Any) -> dict[str, float]:
        """Accumulate the gradients of a step; return its ``loss`` and other values for the log."""

    @abstractmethod
    def measure(self, *, is_quiet: bool = False) -> dict[str, float]:
        """Evaluate the current result on held-out examples, and say so unless it should be quiet."""

    @abstractmethod
    def _write(self, result: Any) -> None:
        """Write the model; called by the first process alone."""

    @abstractmethod
    def _progress(self, entry: Mapping[str, float], speed: float) -> str:
        """Part of the progress line after step number and time left; ``speed`` is in examples per second."""

    def _measured(self, figures: dict[str, float], line: str, *, is_quiet: bool) -> dict[str, float]:
        """Say a line about figures of held-out examples, unless it should be quiet; return them."""
        if not is_quiet:
            self.say(f"{log.number_of(len(self.held), f'held-out {self.what}')} after {self.step:,} steps: {line}")
        return figures

    # ---- what an objective may add

    def factor(self, step: int) -> float:
        """Factor of all learning rates at an update, counted from 0."""
        return factor_of(self.options, step, self.num_steps)

    def about(self) -> dict[str, Any]:
        """Properties that a resumed run must share with the one it continues."""
        return {
            "data": self.data.digest,
            self.counted_as: len(self.data.examples),
            "processes": self.accelerator.num_processes,
            **listed(self.options, self.may_differ),
        }

    def whole_loss(self, entry: Mapping[str, float]) -> float:
        """The loss whose gradients a step has accumulated."""
        return entry["loss"]

    def after_update(self) -> None:  # noqa: B027 - most objectives need nothing here
        """Correct the weights, or what the optimizer keeps, after an update."""

    def judged(self, figures: dict[str, float]) -> dict[str, float]:
        """Take note of a measurement."""
        return figures

    def told(self) -> list[str]:
        """Lines about problems found during the run, for its end and the report."""
        return []

    @property
    def is_over(self) -> bool:
        """Whether the run should end before its last step."""
        return False

    def finish(self) -> bool:
        """Change the trained weights before they are written; return whether they were."""
        return False

    # ---- training

    def train(self) -> dict[str, float]:
        """Train to the end, write the model, and return the final measurements.

        Raises:
            KeyboardInterrupt: If it was stopped. The checkpoint holds all progress.
            ValueError: If losses, gradients or weights are not finite. The last good weights are written.
            OSError: If a file cannot be written.
        """
        board = log.board(self.folder, self.step) if self.accelerator.is_main_process else nullcontext()
        try:
            with board as self._on_board:
                figures = self._train()
            self.save()
        except NotFiniteError as error:
            raise self._updates.end(error) from error
        if self.finish():
            figures = {}
        self.write_results()
        if self.compression is not None:
            self.say(self.compression.line())
        return figures or self.measure(is_quiet=True)

    def _train(self) -> dict[str, float]:
        """Train the remaining steps; return the last measurements, if any."""
        num_steps = self.num_steps
        figures: dict[str, float] = {}
        if self.step == 0:
            figures = self._evaluate()
        asked = getattr(self.options, "val_every", None)
        every = asked or max(self.least_between, num_steps // NUM_EVALUATIONS)
        began, first = time.monotonic(), self.step
        saved = said = began
        with ThreadPoolExecutor(self.workers) as pool:
            following = self._load(pool, self.step) if self.step < num_steps else None
            while self.step < num_steps and not self.is_over:
                loaded = following
                if self.step + 1 < num_steps:
                    following = self._load(pool, self.step + 1)
                start = time.monotonic()
                entry = self._train_on(loaded)
                self.step += 1
                now = time.monotonic()
                self._log({"step": self.step, **entry, **self._pace(now - start)})
                if now - said > 5 or self.step in (first + 1, num_steps):
                    said, seconds = now, (now - began) / (self.step - first)
                    left = f"{log.duration(seconds * (num_steps - self.step))} left{self._updates.note}"
                    progress = self._progress(entry, self._speed(seconds))
                    self.say(f"step {self.step:,} of {num_steps:,}: {progress}, {left}")
                if self.step % every == 0 or self.step == num_steps:
                    figures = self._evaluate()
                is_due = self.saving.is_due(self.step, now - saved) and self.accelerator.is_main_process
                signals = over_processes(self.accelerator, self.is_stopped + _DUE * is_due, "sum")
                if signals % _DUE:
                    self.save()
                    _ = self.result  # gathered by all processes, for later access
                    self.say(f"stopped after step {self.step:,} of {num_steps:,}: --resume goes on from here")
                    raise KeyboardInterrupt
                if signals:
                    self.save()
                    saved = time.monotonic()
        return figures

    def _pace(self, seconds: float) -> dict[str, float]:
        """Entries that a step of some length adds to the log."""
        if self.waited is None:
            return {}
        return {f"{self.what}/s": round(self._speed(max(seconds, 1e-9)), 3), WAITED: round(self.waited, 6)}

    def _speed(self, seconds: float) -> float:
        """Examples per second, given the seconds of a step."""
        return self._share * self.accelerator.num_processes / seconds

    def _evaluate(self) -> dict[str, float]:
        figures = self.judged(self.measure())
        self._log({"step": self.step, **figures})
        return figures

    def _train_on(self, loaded: Any) -> dict[str, float]:
        """Perform one update; return an entry of the log."""
        self._set_rates()
        entry = {**self._backward(loaded), "rate": float(self.optimizer.param_groups[0]["lr"])}
        if self._updates(self.whole_loss(entry)):
            self.after_update()
            if self.average is not None and (self.step + 1) % self.ema_every == 0:
                self.average.update_parameters(self.trained)
            if self._sharding:
                self._sharding.forget()
        return entry | self._updates.log()

    def _set_rates(self) -> None:
        """Let the next update have its rates."""
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * self.factor(self.step)

    @property
    def result(self) -> Any:
        """The model that is measured and written: the average, if any. If sharded, all processes must call this."""
        result = self.trained if self.average is None else self.average.module
        return self._sharding.whole(result) if self._sharding else result

    # ---- output

    def _log(self, entry: Mapping[str, float]) -> None:
        """Append a line to the log, to TensorBoard's and to a tracker's, on the first process only."""
        if self.accelerator.is_main_process and len(entry) > 1:
            log.append(self.folder, entry)
            if self._on_board:
                self._on_board(entry)
            self.accelerator.log({name: value for name, value in entry.items() if name != "step"}, int(entry["step"]))

    def metadata(self, command: str) -> dict[str, str]:
        """What a file of the result says of the run."""
        options = json.dumps(asdict(self.options))
        return {"trained_by": f"weighted-clip {command}", "steps": str(self.step), "options": options}

    def write_results(self) -> None:
        """Write the model."""
        result = self.result  # gathered by all processes
        if self.accelerator.is_main_process:
            self._write(result)
        self.accelerator.wait_for_everyone()

    def save(self) -> None:
        """Write the checkpoint."""
        self._updates.check_weights()
        state = self._state()
        if self._sharding:
            state = self._sharding.gathered(state)
        before, self._saved_step = self._saved_step, self.step
        with powersgd.saved(self.compression, self.folder, self.step, self.accelerator):
            if self.accelerator.is_main_process:
                if before not in (None, self.step) and self.saving.keep > 1:
                    checkpoint.keep(self.folder, before)
                checkpoint.save(self.folder, state)
                checkpoint.remove_kept(self.folder, self.step, self.saving.keep - 1)
            self.accelerator.wait_for_everyone()

    def _state(self) -> dict[str, Any]:
        """State for the checkpoint; tensors of a sharded model are sharded."""
        scaler = self.accelerator.scaler
        return {
            "about": self.about(),
            "step": self.step,
            "model": self._weights(self.trained),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self._weights(self.average),
            "scaler": None if scaler is None else scaler.state_dict(),
            "scales": None if self.scales is None else self.scales.state_dict(),
        }

    def _weights(self, model: nn.Module) -> dict[str, Any]:
        return model.state_dict() if self.saves_frozen else checkpoint.trained_state(model)

    def resume(self) -> None:
        """Continue from the checkpoint.

        Raises:
            ValueError: If there is none, it has other data, weights or options that change what is learned besides the
                number of steps, it has done more of them, or a file of it is damaged.
        """
        is_main = self.accelerator.is_main_process
        follow = [f"options.{name}" for name in self.follow_length]
        defaults = {"processes": 1, **listed(type(self.options)())}
        current = checkpoint.CurrentRun(self._state(), self._check, self.num_steps, follow, defaults)
        state = checkpoint.load_same(self.folder, current, self.say, is_main_process=is_main)
        if state is None:
            return
        self.take(state)
        if is_main:
            log.cut_after(self.folder, self.step)
        self.say(f"goes on after step {self.step:,} of {self.num_steps:,}")

    def _check(self, state: dict[str, Any]) -> None:
        """Check a checkpoint of a run with the same properties, and take options from the current run."""
        like = self._state()
        checkpoint.check_state(state, like, self.num_steps, self._make_optimizer, self.optimizer, self.scales)

    def take(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint of this run."""
        self.step = self._saved_step = state["step"]
        if self._sharding:
            self._sharding.divide_state(state, self.trained, self.optimizer, self.average)
        checkpoint.load_trained_state(self.trained, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            checkpoint.load_trained_state(self.average, state["average"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        if self.scales is not None:
            self.scales.load_state_dict(state["scales"])
        if self.compression is not None:
            self.compression.load(self.folder, self.step, self.accelerator)


def listed(options: Any, left_out: Container[str] = ()) -> dict[str, str]:
    """Options as entries of `Loop.about`."""
    values = asdict(options).items()
    return {f"options.{name}": json.dumps(value) for name, value in values if name not in left_out}


class Updates:
    """Applies the gradients of each step of a run, and counts skipped steps."""

    def __init__(self, run: Loop, clip: float | None = None) -> None:
        """Set up."""
        self._run, self._clip = run, clip
        self.num_skipped = 0
        """Number of skipped updates in this process's life."""
        self.is_skipped = False
        """Whether the last update was skipped."""
        self._norm = math.nan
        self._in_a_row = 0

    def __call__(self, loss: float) -> bool:
        """Update the weights, unless the loss or a gradient is not finite.

        Gradients beyond float16 that `GradientScales` finds are skipped too, but do not end the run: scales follow.
        """
        run, self._norm = self._run, math.nan
        is_in_range = run.scales is None or run.scales.unscale()
        is_finite = math.isfinite(loss) and (not is_in_range or self._has_finite_gradients())
        is_updated = is_in_range and is_finite
        if is_updated:
            run.optimizer.step()
            self._in_a_row = 0
        elif run.compression is not None:
            run.compression.undo()
        run.optimizer.zero_grad()
        self.is_skipped = not is_updated or run.optimizer.step_was_skipped  # by the scaler of accelerate
        self.num_skipped += self.is_skipped
        if not is_finite:
            self._in_a_row += 1
        if self._in_a_row == MOST_IN_A_ROW:
            what = "a gradient" if math.isfinite(loss) else "the loss"
            value = "not finite" if math.isfinite(loss) else str(loss)
            raise NotFiniteError(
                f"{what} of step {run.step + 1} is {value}, after {MOST_IN_A_ROW - 1} such steps: try a lower --rate, "
                "or another --precision"
            )
        return is_updated

    def _has_finite_gradients(self) -> bool:
        """Clip the gradients, and return whether their norm is finite on all processes."""
        accelerator = self._run.accelerator
        accelerator.unscale_gradients()
        parameters = [parameter for parameter in self._run.model.parameters() if parameter.grad is not None]
        sharded = [parameter for parameter in parameters if local(parameter.grad) is not parameter.grad]
        whole = [parameter for parameter in parameters if local(parameter.grad) is parameter.grad]
        parts = [part for part in (sharded, whole) if part]
        norms = [nn.utils.get_total_norm([cast("Tensor", parameter.grad) for parameter in part]) for part in parts]
        wholes = [cast("Any", norm).full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
        norm = wholes[0] if len(wholes) == 1 else torch.stack(wholes).norm()
        for part in parts if self._clip is not None else ():
            nn.utils.clip_grads_with_norm_(part, cast("float", self._clip), norm)
        self._norm = norm.item()
        if accelerator.scaler is not None:  # which skips by itself, and expects that at first
            return True
        return not over_processes(accelerator, float(not math.isfinite(self._norm)), "sum")

    def log(self) -> dict[str, float]:
        """Log values of the last update.

        The norm of all gradients before clipping, if it is finite; levels of the scales, if any; and ``skipped``,
        always 1 without scales.
        """
        norm = {"gradient norm": self._norm} if math.isfinite(self._norm) else {}
        levels = {} if self._run.scales is None else self._run.scales.levels()
        return norm | levels | ({"skipped": 1.0} if self.is_skipped else {})

    @property
    def note(self) -> str:
        """Addition to a line of progress; empty if no update was skipped."""
        return f", {self.num_skipped:,} updates skipped, as a gradient was not finite" if self.num_skipped else ""

    def check_weights(self) -> None:
        """Check the weights and their average."""
        run, problem = self._run, ""
        average = None if run.average is None else run.average.module
        try:
            for model in (run.trained, average):
                check_weights({} if model is None else model.state_dict())
        except NotFiniteError as error:
            problem = str(error)
        if over_processes(run.accelerator, float(bool(problem)), "sum"):
            raise NotFiniteError(problem or "weights of another process are too large")

    def end(self, error: NotFiniteError) -> ValueError:
        """End a run with the last good weights: the current ones, or the last checkpoint's."""
        run = self._run
        try:
            self.check_weights()
        except NotFiniteError:
            if not (run.folder / checkpoint.NAME).is_file():
                return ValueError(f"{error}. No weights are written, as there is no checkpoint with good ones yet")
            run.take(checkpoint.load(run.folder))
        run.write_results()
        return ValueError(f"{error}. The last good weights, of step {run.step:,}, are written to {run.folder}")
