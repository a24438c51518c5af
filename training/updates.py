"""Updates of the weights by the gradients of a step. What is not finite never reaches the weights, nor a file.

A step whose loss or gradient is not finite is skipped. Several in a row end the run, with the last good weights.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from . import checkpoint
from .checkpoint import MOST_IN_A_ROW, NotFiniteError, check_weights, local
from .grad_cache import over_processes
from .grad_scaling import GradientScales

if TYPE_CHECKING:
    from accelerate import Accelerator

    from .powersgd import Compression


class Trained(Protocol):
    """A run, as far as its updates need it."""

    folder: Path
    step: int
    accelerator: Accelerator
    model: nn.Module
    optimizer: Any
    average: AveragedModel | None
    scales: GradientScales | None
    compression: Compression | None

    def take(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""

    def write_results(self) -> None:
        """Write the weights."""


class Updates:
    """Applies the gradients of each step of a run, and counts skipped steps."""

    def __init__(self, run: Trained, clip: float | None = None) -> None:
        """Set up."""
        self._run, self._clip = run, clip
        self.num_skipped = 0
        """Number of skipped updates in this process's life."""
        self.is_skipped = False
        """Whether the last update was skipped."""
        self._in_a_row = 0

    def __call__(self, loss: float) -> bool:
        """Update the weights, unless the loss or a gradient is not finite.

        Gradients beyond float16 that `GradientScales` finds are skipped too, but do not end the run: scales follow.
        """
        run = self._run
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
        accelerator, parameters = self._run.accelerator, list(self._run.model.parameters())
        norm = None if self._clip is None else accelerator.clip_grad_norm_(parameters, self._clip)
        if accelerator.scaler is not None:  # which skips by itself, and expects that at first
            return True
        if norm is not None:
            is_finite = bool(_whole(norm).isfinite())
        else:
            gradients = [local(one.grad) for one in parameters if one.grad is not None]
            is_finite = bool(torch.stack([torch.linalg.vector_norm(one).isfinite() for one in gradients]).all())
        return not over_processes(accelerator, float(not is_finite), "sum")

    def log(self) -> dict[str, float]:
        """Log values of the last update: levels of the scales, if any, and ``skipped``, always 1 without scales."""
        levels = {} if self._run.scales is None else self._run.scales.levels()
        return levels | ({"skipped": 1.0} if self.is_skipped else {})

    @property
    def note(self) -> str:
        """Addition to a line of progress; empty if no update was skipped."""
        return f", {self.num_skipped:,} updates skipped, as a gradient was not finite" if self.num_skipped else ""

    def check_weights(self) -> None:
        """Check the weights and their average."""
        run, problem = self._run, ""
        average = None if run.average is None else run.average.module
        try:
            for model in (run.accelerator.unwrap_model(run.model), average):
                check_weights({} if model is None else model.state_dict())
        except NotFiniteError as error:
            problem = str(error)
        if over_processes(run.accelerator, float(bool(problem)), "sum"):
            raise NotFiniteError(problem or "weights of another process are too large")

    def end(self, error: NotFiniteError) -> ValueError:
        """End a run with the last good weights: its own, or those of its last checkpoint."""
        run = self._run
        try:
            self.check_weights()
        except NotFiniteError:
            if not (run.folder / checkpoint.NAME).is_file():
                return ValueError(f"{error}. No weights are written, as there is no checkpoint with good ones yet")
            run.take(checkpoint.load(run.folder))
        run.write_results()
        return ValueError(f"{error}. The last good weights, of step {run.step:,}, are written to {run.folder}")


def _whole(tensor: Any) -> Tensor:
    """The whole of a tensor, if it is sharded."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
