"""Samplers of A1111 and Forge as ComfyUI's SAMPLER: with the WebUI's first noise, noise of the steps and sigmas.

Most formulas are the host's own, in its k-diffusion; DDIM, PLMS and UniPC are written here as the WebUI has them.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06); Song et al., arXiv:2010.02502 (DDIM); Liu et al.,
arXiv:2202.09778 (PLMS); Zhao et al., arXiv:2302.04867 (UniPC).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..clip.timed_prompts import CALLED, CALLS, Called, Calls
from ..contract import host
from ..types import ModelPatcher
from .brownian import BrownianPath
from .noise import A1111Noise
from .schedules import LcmSigmas, Sigmas, make_sigmas

AUTOMATIC = "Automatic"
"""Schedule type: the sampler's own."""
Denoiser = Callable[[Tensor, int], Tensor]
"""Predicted noise of latents, scaled so that their variance stays 1, at a step of the model."""
StepReport = Callable[[int, Tensor, Tensor], None]
"""Function of a call's number, the latents and the picture they lead to."""


class Kind(NamedTuple):
    """One of the WebUI's samplers."""

    run: str | Callable[..., Tensor]
    """Name of its function in the host's k-diffusion; or a function of steps (`ddim`)."""
    schedule: str = "Uniform"
    """Schedule type that *Automatic* is."""
    drops_penultimate: bool = False
    """Whether it takes a step more, without the sigma before 0."""
    noise: Literal["none", "steps", "paths"] = "none"
    """Noise after the first: none, some at each step, or a Brownian path."""
    options: Mapping[str, Any] = {}
    """More arguments of the function."""
    calls: Literal["one", "end", "middle", "first twice"] = "one"
    """Calls of the model, by which the WebUI counts editing: one a step; a second one at the level where the step ends,
    or halfway to it; or a second one in the first step alone, where that ends."""
    by_logarithms: bool = False
    """Whether the WebUI asks a Brownian path by levels that went through a logarithm: the last bit moves the path."""
    ends_by_formula: bool = False
    """Whether the step to 0 is made as all others; the host ends with the last call's picture."""

    @property
    def calls_a_step(self) -> int:
        """Number of calls for a step that the WebUI expects."""
        return 2 if self.calls in ("end", "middle") else 1


def ddim(predict: Denoiser, x: Tensor, alphas: Tensor, steps: list[int], report: StepReport) -> Tensor:
    """Sample by DDIM without noise; each step goes to the next smaller of the given ones, and ends at the smallest."""
    for i in range(len(steps) - 1):
        noise = predict(x, steps[i])
        x, picture = _moved(x, noise, alphas, steps, i)
        report(i, x, picture)
    return x


def plms(predict: Denoiser, x: Tensor, alphas: Tensor, steps: list[int], report: StepReport) -> Tensor:
    """Sample by DDIM's steps with the noise of up to four calls; the first step is done twice."""
    old: list[Tensor] = []
    for i in range(len(steps) - 1):
        noise = predict(x, steps[i])
        if not old:
            ahead, _ = _moved(x, noise, alphas, steps, i)
            mixed = (noise + predict(ahead, steps[i + 1])) / 2
        else:
            factors = _ADAMS_BASHFORTH[len(old)]
            mixed = _weighed(noise.new_tensor(factors), [noise, *reversed(old)], noise) / sum(factors)
        x, picture = _moved(x, mixed, alphas, steps, i)
        old = [*old[-2:], noise]
        report(i, x, picture)
    return x


_ADAMS_BASHFORTH = {1: (3, -1), 2: (23, -16, 5), 3: (55, -59, 37, -9)}
"""Factors of the newest call and older ones, by the number of older ones; the result is divided by their sum."""


def _moved(x: Tensor, noise: Tensor, alphas: Tensor, steps: list[int], i: int) -> tuple[Tensor, Tensor]:
    """Latents after a step, and the picture they lead to."""
    alpha, after = (x.new_tensor(alphas[step].item()) for step in steps[i : i + 2])
    picture = (x - (1 - alpha).sqrt() * noise) / alpha.sqrt()
    return after.sqrt() * picture + (1.0 - after).sqrt() * noise, picture


def unipc(
    predict: Denoiser,
    x: Tensor,
    alphas: Tensor,
    steps: list[int],
    report: StepReport,
    *,
    start: float = 1.0,
    order: int = 3,
) -> Tensor:
    """Sample by UniPC, bh1, on even times; latents follow the exact times, and the model is asked at whole steps.

    Args:
        predict: The model.
        x: First latents.
        alphas: Share of the picture's variance at each of the model's steps, ``[1000]``.
        steps: As many as there shall be steps.
        report: Called after each step.
        start: First time, 1 at the last step of the model.
        order: Number of earlier calls that are used.
    """
    num_steps, count = len(steps), len(alphas)
    logs = 0.5 * alphas.log()
    times = torch.linspace(start, 1 / count, num_steps + 1, device=x.device)
    grid = torch.linspace(0, 1, count + 1, device=x.device)[1:]
    high = torch.searchsorted(grid, times).clamp(1, count - 1)
    low = high - 1
    log_alpha = logs[low] + (times - grid[low]) * (logs[high] - logs[low]) / (grid[high] - grid[low])
    alpha, sigma = log_alpha.exp(), (1 - (2 * log_alpha).exp()).sqrt()
    ratio = log_alpha - 0.5 * (1 - (2 * log_alpha).exp()).log()

    def picture(x: Tensor, i: int) -> Tensor:
        step = ((times[i] - 1 / count) * 1000).round().long().clip(0, count - 1)
        return (x - sigma[i] * predict(x, int(step))) / alpha[i]

    pictures = [picture(x, 0)]
    for i in range(1, num_steps + 1):
        used = min(order, i, num_steps + 1 - i)
        width = ratio[i] - ratio[i - 1]
        nodes = torch.stack([(ratio[i - 1 - k] - ratio[i - 1]) / width for k in range(1, used)] + [width.new_ones(())])
        slopes = [(pictures[-1 - k] - pictures[-1]) / nodes[k - 1] for k in range(1, used)]
        bound = -width
        phi = torch.expm1(bound)
        term, factorial, terms = phi / bound - 1, 1, []
        for k in range(1, used + 1):
            terms.append(term * factorial / bound)
            factorial *= k + 1
            term = term / bound - 1 / factorial
        powers = torch.stack([nodes**k for k in range(used)])
        right = torch.stack(terms)
        base = sigma[i] / sigma[i - 1] * x - alpha[i] * phi * pictures[-1]
        weights = right.new_full((used - 1,), 0.5) if used < 3 else torch.linalg.solve(powers[:-1, :-1], right[:-1])
        x = base - alpha[i] * bound * _weighed(weights, slopes, base)
        if i == num_steps:
            report(i - 1, x, pictures[-1])
            break
        next_picture = picture(x, i)
        weights = right.new_full((1,), 0.5) if used == 1 else torch.linalg.solve(powers, right)
        x = base - alpha[i] * bound * _weighed(weights, [*slopes, next_picture - pictures[-1]], base)
        report(i - 1, x, next_picture)
        pictures = [*pictures[1 - order :], next_picture]
    return x


def _weighed(weights: Tensor, tensors: list[Tensor], like: Tensor) -> Tensor:
    """Weighted sum of tensors; 0 for none."""
    return sum((w * t for w, t in zip(weights, tensors, strict=True)), torch.zeros_like(like))


KINDS: dict[str, Kind] = {
    "Euler a": Kind("sample_euler_ancestral", noise="steps"),
    "Euler": Kind("sample_euler"),
    "DPM++ 2M": Kind("sample_dpmpp_2m", "Karras"),
    "DPM++ SDE": Kind("sample_dpmpp_sde", "Karras", noise="paths", calls="middle", by_logarithms=True),
    "DPM++ 2M SDE": Kind("sample_dpmpp_2m_sde", "Exponential", noise="paths"),
    "DPM++ 2M SDE Heun": Kind("sample_dpmpp_2m_sde", "Exponential", noise="paths", options={"solver_type": "heun"}),
    "DPM++ 2S a": Kind("sample_dpmpp_2s_ancestral", "Karras", noise="steps", calls="end"),
    "DPM++ 3M SDE": Kind("sample_dpmpp_3m_sde", "Exponential", drops_penultimate=True, noise="paths"),
    "LMS": Kind("sample_lms", ends_by_formula=True),
    "Heun": Kind("sample_heun", calls="end"),
    "DPM2": Kind("sample_dpm_2", "Karras", drops_penultimate=True, calls="middle"),
    "DPM2 a": Kind("sample_dpm_2_ancestral", "Karras", drops_penultimate=True, noise="steps", calls="end"),
    "LCM": Kind("sample_lcm", noise="steps"),
    "DDIM": Kind(ddim),
    "PLMS": Kind(plms, calls="first twice"),
    "UniPC": Kind(unipc),
}
"""The WebUI's samplers that are as they are there, by their names."""


def model_sigmas(model: ModelPatcher) -> Sigmas:
    """Sigmas of a model; an error for those whose steps are not SD's."""
    sampling = model.get_model_object("model_sampling")
    table = getattr(sampling, "sigmas", None)
    if not hasattr(sampling, "log_sigmas") or table is None or len(table) != 1000:
        raise ValueError(
            f"A1111 Sampler: the samplers of A1111 are proven for SD 1.x, SD 2.x and SDXL; this model samples by "
            f"{type(sampling).__mro__[1].__name__}. Use KSampler, or its parts, for it"
        )
    is_sdxl = type(getattr(model, "model", None)).__name__ == "SDXL"
    return Sigmas(table.cpu(), sampling.log_sigmas.cpu(), is_sdxl=is_sdxl)


class SamplerRun(NamedTuple):
    """A sampler's way through the noise levels."""

    sigmas: Tensor
    """Noise levels, for the host: ``[calls + 1]``."""
    ends: tuple[float, float] = (0.0, 0.0)
    """Smallest and largest sigma above 0 of the whole schedule."""
    steps: tuple[int, ...] = ()
    """The model's steps, from the last on, for a sampler of steps."""
    start: int | None = None
    """Step of the noise that a given picture gets for such a sampler; None: there is no picture."""

    def levels_of_calls(self, kind: Kind) -> tuple[float, ...]:
        """Noise level of each call of the model."""
        levels = self.sigmas.tolist()
        if kind.calls == "first twice":
            calls = [*levels[:2], *levels[1:-1]]
        elif kind.calls == "one":
            calls = levels[:-1]
        else:
            calls = []
            for before, after in pairwise(levels):
                second = after if kind.calls == "end" else math.sqrt(before * after)
                calls += [before, second] if after else [before]
        return tuple(calls)

    def timed(self, sampler: str, num_steps: int) -> Tensor:
        """Noise levels that say what calls of the model a sampler makes at them, for prompts that change in time."""
        kind, levels = KINDS[sampler], self.sigmas.clone()
        setattr(levels, CALLS, Calls(self.levels_of_calls(kind), num_steps * kind.calls_a_step))
        return levels


def check_denoise(sampler: str, num_steps: int, denoise: float, *, exact: bool) -> None:
    """Refuse a denoising strength of which no step is left; arguments as in `make_run`."""
    if not 0 < denoise <= 1:
        raise ValueError(f"A1111 Sampler: denoise must be above 0 and at most 1; got {denoise}")
    if not isinstance(KINDS[sampler].run, str) and denoise < 1 and _num_steps(num_steps, denoise, exact)[1] < 2:
        raise ValueError("A1111 Sampler: denoise is so small that no step is left; give it more, or more steps")


def _num_steps(num_steps: int, denoise: float, exact: bool) -> tuple[int, int]:
    """Steps of the whole way, and of the part of it that is done."""
    if denoise >= 1:
        return num_steps, num_steps
    short = min(denoise, 0.999)
    return (int(num_steps / short), num_steps) if exact else (num_steps, int(short * num_steps) + 1)


def make_run(sigmas: Sigmas, sampler: str, schedule: str, num_steps: int, denoise: float, *, exact: bool) -> SamplerRun:
    """Make the noise levels of a sampler.

    Args:
        sigmas: The model's.
        sampler: One of `KINDS`.
        schedule: One of `SCHEDULES`, or `AUTOMATIC`; samplers of steps have their own.
        num_steps: Number of steps.
        denoise: Denoising strength; 1: the whole way.
        exact: Whether as many steps are done as are asked for, as hires. fix does; else a share of them, as img2img.
    """
    check_denoise(sampler, num_steps, denoise, exact=exact)
    kind = KINDS[sampler]
    whole, calls = _num_steps(num_steps, denoise, exact)
    if not isinstance(kind.run, str):
        return _run_of_steps(sigmas, kind, whole, calls if denoise < 1 else None)
    if sampler == "LCM":
        sigmas = LcmSigmas(sigmas)
    levels = make_sigmas(kind.schedule if schedule == AUTOMATIC else schedule, sigmas, whole + kind.drops_penultimate)
    if kind.drops_penultimate:
        levels = torch.cat([levels[:-2], levels[-1:]])
    above = levels[levels > 0]
    return SamplerRun(levels[whole - calls :], (above.min().item(), above.max().item()))


def _run_of_steps(sigmas: Sigmas, kind: Kind, num_steps: int, calls: int | None) -> SamplerRun:
    """Make the steps of a sampler of steps; ``calls`` of them, and one less, for a given picture."""
    steps = [min(step + 1, 999) for step in range(0, 1000, 1000 // min(num_steps, 1000))]
    start = None
    if calls is not None:
        steps, start = steps[: calls - 1], steps[calls - 1]
    steps.reverse()
    levels = sigmas.table[steps]
    if kind.run is unipc:
        levels = sigmas.at(torch.linspace(999 if start is None else steps[0], 0, len(steps) + 1))
    return SamplerRun(levels, steps=tuple(steps), start=start)


def make_sampler(sampler: str, run: SamplerRun, noise: A1111Noise, sigmas: Sigmas) -> Any:
    """Make the host's SAMPLER.

    Args:
        sampler: One of `KINDS`.
        run: Its way, by `make_run`.
        noise: Noise of the WebUI; the same goes into the host's sampling.
        sigmas: The model's.
    """
    kind = KINDS[sampler]

    def sample(model: Any, x: Tensor, levels: Tensor, *, extra_args: Any, callback: Any, disable: Any) -> Tensor:
        if torch.equal(levels.cpu(), run.sigmas):
            model = Counting(model, run.levels_of_calls(kind))
        if not callable(kind.run):
            options = dict(kind.options)
            if kind.ends_by_formula:
                levels = levels.clamp(min=torch.finfo(levels.dtype).tiny)  # all but 0, which the host looks for
            if kind.noise == "steps":
                draw = noise.step_noise(x.shape)
                options["noise_sampler"] = lambda *_: draw().to(x)
            elif kind.noise == "paths":
                asked = levels.log().exp() if kind.by_logarithms else levels
                times = dict(zip(levels.tolist(), asked.tolist(), strict=True))
                options["noise_sampler"] = _noise_of_paths(x, noise, run.ends, times)
            function = getattr(host("comfy.k_diffusion.sampling"), kind.run)
            return function(model, x, levels, extra_args=extra_args, callback=callback, disable=disable, **options)
        if not torch.equal(levels.cpu(), run.sigmas):
            raise ValueError(f"A1111 Sampler: {sampler} goes by steps: connect the SIGMAS of the same node, unchanged")
        alphas = (1.0 / (sigmas.table**2 + 1.0)).to(x)
        step_sigmas = ((1 - alphas) / alphas) ** 0.5

        def predict(x: Tensor, step: int) -> Tensor:
            sigma = step_sigmas[step]
            scaled = x * (sigma**2 + 1.0) ** 0.5
            return (scaled - model(scaled, sigma * x.new_ones(len(x)), **extra_args)) / sigma

        def report(i: int, x: Tensor, picture: Tensor) -> None:
            callback({"i": i, "x": x, "denoised": picture})

        first, options = model.noise, {}
        if run.start is not None:
            share = alphas[run.start]
            first = model.latent_image * share.sqrt() + first * (1 - share).sqrt()
            if kind.run is unipc:
                options["start"] = (run.steps[0] + 1) / 1000
        return kind.run(predict, first, alphas, list(run.steps), report, **options)

    host_sampler = host("comfy.samplers").KSAMPLER(sample)
    host_sampler.max_denoise = lambda *_: False  # the first noise is never scaled by the square root of 1 + sigma^2
    return host_sampler


class Counting:
    """The host's model, whose conditionings change at its calls: two of these may be at one noise level."""

    def __init__(self, model: Any, levels: tuple[float, ...]) -> None:
        self._model, self._levels, self._number = model, levels, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Ask the model, with the entries of this call alone."""
        for entry in chain(*self._model.inner_model.conds.values()):
            called: Called | None = entry.get(CALLED)
            times = entry.get("start_percent", 0.0), entry.get("end_percent", 1.0)
            if called and called.levels == self._levels and called.times == times:
                is_read = called.first <= self._number < called.end
                entry["timestep_start"], entry["timestep_end"] = math.inf if is_read else -1.0, -1.0
        self._number += 1
        return self._model(*args, **kwargs)


def _noise_of_paths(
    x: Tensor, noise: A1111Noise, ends: tuple[float, float], times: Mapping[float, float]
) -> Callable[[Any, Any], Tensor]:
    """Noise of each step from a Brownian path for each picture; ``times`` maps a step's noise level to its time."""
    paths = [BrownianPath(noise.seeds(i)[0], noise.source, ends, x.shape[1:]) for i in range(len(x))]

    def draw(sigma: Any, after: Any) -> Tensor:
        low, high = sorted(times.get(float(level), float(level)) for level in (sigma, after))
        increment = torch.stack([path.between(low, high) for path in paths]) / (high - low) ** 0.5
        return (increment if sigma < after else -increment).to(x)

    return draw
