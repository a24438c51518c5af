"""Sigmas of A1111's and Forge's schedule types, for models of discrete steps such as SD 1.5 and SDXL.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06); Karras et al., arXiv:2206.00364 (Karras);
Sabour et al., arXiv:2404.14507 (Align Your Steps); Lee et al., arXiv:2407.12173 (Beta).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


class Sigmas:
    """Noise levels of a model by its steps, and between them: straight in their logarithms."""

    def __init__(self, table: Tensor, logs: Tensor, *, is_sdxl: bool = False) -> None:
        self.table = table.float()
        """Sigmas in rising order, ``[1000]``."""
        self.logs = logs.float()
        """Their logarithms, as the model has them: those of the rounded sigmas differ in the last bit."""
        self.is_sdxl = is_sdxl
        """Whether the model is SDXL, for which *Align Your Steps* has sigmas of its own."""
        self.ends = 0, len(table) - 1
        """First and last step."""
        self.whole: Sigmas = self
        """Those of all the model's steps."""

    @property
    def smallest(self) -> float:
        """Smallest sigma."""
        return self.table[0].item()

    @property
    def largest(self) -> float:
        """Largest sigma."""
        return self.table[-1].item()

    def at(self, steps: Tensor) -> Tensor:
        """Sigmas at steps, which may lie between whole ones."""
        steps = steps.float().clamp(min=0, max=len(self.table) - 1)
        share = steps.frac()
        return ((1 - share) * self.logs[steps.floor().long()] + share * self.logs[steps.ceil().long()]).exp()

    def spread(self, num_steps: int) -> Tensor:
        """Sigmas of steps spread evenly from the last to the first."""
        return self.at(torch.linspace(self.ends[1], self.ends[0], num_steps))


class LcmSigmas(Sigmas):
    """Every 20th sigma of a model, as latent consistency models were distilled; steps are counted as in the whole."""

    _EVERY = 20

    def __init__(self, sigmas: Sigmas) -> None:
        alphas = (1.0 / (sigmas.table**2 + 1.0))[self._EVERY - 1 :: self._EVERY]
        table = ((1 - alphas) / alphas) ** 0.5
        super().__init__(table, table.log(), is_sdxl=sigmas.is_sdxl)
        self.ends = self._EVERY - 1, len(table) * self._EVERY - 1
        self.whole = sigmas

    def at(self, steps: Tensor) -> Tensor:
        """Sigmas at steps of the whole model."""
        return super().at((steps - self.ends[0]) / self._EVERY)


def _karras(sigmas: Sigmas, n: int) -> Tensor:
    largest, smallest = sigmas.largest ** (1 / 7), sigmas.smallest ** (1 / 7)
    return (largest + torch.linspace(0, 1, n) * (smallest - largest)) ** 7


def _polyexponential(sigmas: Sigmas, n: int) -> Tensor:
    largest, smallest = math.log(sigmas.largest), math.log(sigmas.smallest)
    return torch.exp(torch.linspace(1, 0, n) * (largest - smallest) + smallest)


def _kl_optimal(sigmas: Sigmas, n: int) -> Tensor:
    smallest, largest = torch.tensor(sigmas.smallest).arctan(), torch.tensor(sigmas.largest).arctan()
    share = torch.arange(n + 1) / n
    return torch.tan(share * smallest + (1.0 - share) * largest)


_ALIGNED = {
    False: (14.615, 6.475, 3.861, 2.697, 1.886, 1.396, 0.963, 0.652, 0.399, 0.152, 0.029),
    True: (14.615, 6.315, 3.771, 2.181, 1.342, 0.862, 0.555, 0.380, 0.234, 0.113, 0.029),
}


def _align_your_steps(sigmas: Sigmas, n: int) -> Tensor:
    levels = np.array(_ALIGNED[sigmas.is_sdxl])
    if n != len(levels):
        logs = np.interp(np.linspace(0, 1, n), np.linspace(0, 1, len(levels)), np.log(levels[::-1]))
        levels = np.exp(logs)[::-1].copy()
    return torch.from_numpy(levels).float()


def _beta(sigmas: Sigmas, n: int) -> Tensor:
    from scipy import stats

    shares = stats.beta.ppf(1 - np.linspace(0, 1, n), 0.6, 0.6)
    return torch.from_numpy(sigmas.smallest + shares * (sigmas.largest - sigmas.smallest)).float()


def _turbo(sigmas: Sigmas, n: int) -> Tensor:
    steps = torch.flip(torch.arange(1, n + 1) * (1000.0 / n) - 1, (0,)).round().clip(0, 999)
    return sigmas.whole.at(steps)


SCHEDULES: dict[str, Callable[[Sigmas, int], Tensor]] = {
    "Uniform": lambda sigmas, n: sigmas.spread(n),
    "Karras": _karras,
    "Exponential": lambda sigmas, n: torch.linspace(math.log(sigmas.largest), math.log(sigmas.smallest), n).exp(),
    "Polyexponential": _polyexponential,
    "SGM Uniform": lambda sigmas, n: sigmas.at(torch.linspace(sigmas.ends[1], sigmas.ends[0], n + 1)[:-1]),
    "KL Optimal": _kl_optimal,
    "Align Your Steps": _align_your_steps,
    "Simple": lambda sigmas, n: sigmas.table[[-(1 + int(i * (len(sigmas.table) / n))) for i in range(n)]],
    "Normal": lambda sigmas, n: sigmas.spread(n),
    "DDIM": lambda sigmas, n: sigmas.table[1 :: max(len(sigmas.table) // n, 1)].flip(0),
    "Beta": _beta,
    "Turbo": _turbo,
}
"""Sigmas for a number of steps by the WebUI's name of the schedule type, without the 0 at their end."""
WITHOUT_ZERO = frozenset({"KL Optimal"})
"""Schedules that end above 0."""


def make_sigmas(schedule: str, sigmas: Sigmas, num_steps: int) -> Tensor:
    """Make the sigmas of a schedule, from the largest to 0 at the end, as the WebUI does: ``[steps + 1]``.

    Args:
        schedule: One of `SCHEDULES`.
        sigmas: The model's.
        num_steps: Number of steps, from 1.
    """
    levels = SCHEDULES[schedule](sigmas, num_steps)
    return levels if schedule in WITHOUT_ZERO else torch.cat([levels, levels.new_zeros(1)])
