"""When a timed prompt changes, in ComfyUI's terms: parts of the way from pure noise to the image.

ComfyUI turns each entry's ``start_percent`` and ``end_percent`` into noise levels and uses every entry that a step's
level lies within, both ends included. So a change between two steps has to lie between their levels, and the entry
before it has to end a little before the one after it starts.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/timed.md, "In ComfyUI".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from ...weighting.prompt import Issue, Span
from .types import ModelPatcher

PercentToSigma = Callable[[float], float]
"""Part of the way, 0 to 1, to the noise level there; falling."""

GAP = 1e-6
"""Between the end of one entry and the start of the next: a thousandth of one of the model's 1000 noise levels."""
PLACE = 0.75
"""Where between the logarithms of two steps' noise levels a change lies: behind the middle, at which samplers of second
order call the denoiser in between."""
STABLE_DIFFUSION_SIGMAS = (0.0292, 14.6146)
"""Lowest and highest noise level of Stable Diffusion 1.x, 2.x and XL."""


@dataclass(frozen=True)
class Timing:
    """How many steps there are and where between them a prompt can change."""

    steps: int
    """Number of steps, each one call of the denoiser."""
    borders: tuple[float, ...]
    """``borders[k]``: where the change between step k - 1 and step k lies, 0 to 1; the first is 0, the last, behind
    the last step, 1."""
    note: str
    """Where the times come from, in words."""
    issues: tuple[Issue, ...] = ()
    """What the user should know of them."""

    def entry_times(self, first: int, end: int) -> dict[str, float]:
        """The keys of a conditioning entry for steps ``first`` to ``end - 1``; none if these are all.

        The gap lies before the border. Where equal steps were assumed, a step may lie on the border, as the middle one
        of an odd number does in ComfyUI's schedule ``normal``; in the gap it would have no entry at all.
        """
        times: dict[str, float] = {}
        if first > 0:
            times["start_percent"] = self.borders[first] - GAP / 2
        if end < self.steps:
            times["end_percent"] = self.borders[end] - 3 * GAP / 2
        return times and {"start_percent": 0.0, "end_percent": 1.0, **times}


def uniform_timing(steps: int) -> Timing:
    """Steps of equal length; changes in the middle between two steps, so that small deviations do no harm."""
    borders = tuple((index - 0.5) / steps for index in range(1, steps))
    message = f"{steps} steps of equal length are assumed: connect sigmas, and the prompt changes on exactly its steps."
    issue = Issue("uniform-steps", message, Span(0, 0))
    return Timing(steps, (0.0, *borders, 1.0), f"{steps} steps, assumed to be of equal length", (issue,))


def timing_of(sigmas: Sequence[float], model: ModelPatcher | None, *, is_stable_diffusion: bool) -> Timing:
    """The timing of a sampler's noise levels.

    Args:
        sigmas: One level for each step and one behind the last, falling, as in ComfyUI's SIGMAS.
        model: ComfyUI's MODEL, whose noise levels these are; None for Stable Diffusion's own.
        is_stable_diffusion: Whether the levels of Stable Diffusion may be assumed where there is no model.

    Returns:
        The timing, or a uniform one with an issue if it cannot be worked out.

    Raises:
        ValueError: If there is not one step in ``sigmas``.
    """
    steps = len(sigmas) - 1
    if steps < 1:
        raise ValueError(f"sigmas must hold at least two noise levels, which make one step; got {len(sigmas)}")
    lowest, highest = STABLE_DIFFUSION_SIGMAS
    if model is not None:
        # the very conversion that the host will do when it samples
        percent_to_sigma = model.get_model_object("model_sampling").percent_to_sigma
        levels = "the model's noise levels"
    elif is_stable_diffusion and highest + 0.1 > max(sigmas) and all(sigma > lowest - 0.01 for sigma in sigmas[:-1]):
        percent_to_sigma, levels = stable_diffusion_sigma, "Stable Diffusion's noise levels"
    else:
        return _uniform_with_issue(steps, "These are not Stable Diffusion's noise levels: connect the model too.")
    borders: list[float] = []
    for step, (before, after) in enumerate(pairwise(sigmas[:-1]), 1):
        between = before ** (1 - PLACE) * after**PLACE if before > after > 0 else before
        start, border, end = (_percent_of(sigma, percent_to_sigma) for sigma in (before, between, after))
        if not (start + 2 * GAP < border < end - GAP):
            pair = f"{before:.4g} and {after:.4g}"
            return _uniform_with_issue(
                steps,
                f"The noise levels of steps {step} and {step + 1}, {pair}, leave no room for a change in between.",
            )
        borders.append(border)
    return Timing(steps, (0.0, *borders, 1.0), f"{steps} steps, timed by sigmas and {levels}")


def _uniform_with_issue(steps: int, message: str) -> Timing:
    issue = Issue("no-timing", f"{message} Steps of equal length are assumed.", Span(0, 0))
    return replace(uniform_timing(steps), issues=(issue,))


def _percent_of(sigma: float, percent_to_sigma: PercentToSigma) -> float:
    """The part of the way at which the level is reached, by bisection; 0 or 1 beyond the model's levels."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if float(percent_to_sigma(middle)) > sigma else (low, middle)
    return high


_BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
_ALPHAS = np.cumprod(1 - _BETAS)
_LOG_SIGMAS = 0.5 * np.log((1 - _ALPHAS) / _ALPHAS)


def stable_diffusion_sigma(percent: float) -> float:
    """The noise level of Stable Diffusion at a part of the way.

    Its 1000 levels follow from betas from 0.00085 to 0.012 whose square roots are evenly spaced; between two levels
    the logarithm is interpolated.

    Args:
        percent: 0 (pure noise, level 14.6) to 1 (level 0.029).
    """
    return float(np.exp(np.interp((1 - percent) * 999, np.arange(1000), _LOG_SIGMAS)))
