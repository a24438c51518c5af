"""Timed prompts in ComfyUI: a conditioning with an entry for each text and the steps at which it is active.

ComfyUI converts each entry's ``start_percent`` and ``end_percent``, fractions of the way from pure noise to the image,
to noise levels and uses every entry whose range includes a step's level, both ends included. So a change between two
steps must lie between their levels, and the entry before it must end slightly before the next one starts.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/timed.md, "In ComfyUI".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ....weighting.options import EncodeOptions
from ....weighting.text.prompt import Issue, Span, shortened
from ....weighting.timed.schedule import Counter, Mixed, TimedPrompt, runs
from ....weighting.towers import read_together
from ..joints import with_joints
from ..mixing import mixed
from ..models.models import NativeClip
from ..placing.placed_parts import PlacedPart, check_parts, placed_entries
from ..types import Conditioning, ModelPatcher
from .clip import EitherClip, EncodedText, encode_texts, is_stable_diffusion, readers_of
from .towers import has_towers

PercentToSigma = Callable[[float], float]
"""From a fraction of the way, 0 to 1, to the noise level there; decreasing."""

GAP = 1e-6
"""Gap between the end of one entry and the start of the next: a thousandth of one of the model's 1000 noise levels."""
PLACE = 0.75
"""Position of a change between the logarithms of two steps' noise levels: after the middle, where second-order samplers
call the denoiser in between."""
STABLE_DIFFUSION_SIGMAS = (0.0292, 14.6146)
"""Lowest and highest noise level of Stable Diffusion 1.x, 2.x and XL."""


CALLS = "weighted_clip_calls"
"""Name of the attribute that SIGMAS of A1111 Sampler have: their `Calls`."""
CALLED = "weighted_clip_called"
"""Key of an entry that is read at some calls of the model: its `Called`, by which A1111 Sampler goes."""


class Calls(NamedTuple):
    """Calls of the denoiser, for a sampler that makes more or fewer than one a step; the WebUI counts times by them."""

    levels: tuple[float, ...]
    """Noise level of each call, none above the one before."""
    counted: int
    """Number of calls that the WebUI expects, of which times are fractions."""


class Called(NamedTuple):
    """Calls at which a conditioning entry is read."""

    first: int
    end: float
    """The call after the last one; infinite if there is none."""
    times: tuple[float, float]
    """Start and end that say the same, but for calls at one noise level: if the entry has others, these count."""
    levels: tuple[float, ...]
    """Noise levels of the calls, by which their sampler is known."""


@dataclass(frozen=True)
class Timing:
    """Number of steps, and positions between them where a prompt can change."""

    steps: int
    """Number of steps, each one call of the denoiser."""
    borders: tuple[float, ...]
    """``borders[k]``: position, 0 to 1, of the change between step k - 1 and step k; the first is 0, the last, after
    the last step, 1."""
    note: str
    """Origin of the times, in words."""
    issues: tuple[Issue, ...] = ()
    """Issues about them for the user."""
    expected: int | None = None
    """Number of steps that the WebUI expects, if it is another."""
    levels: tuple[float, ...] = ()
    """Noise levels of the calls, if the steps are calls of a sampler that counts them."""

    @property
    def counted(self) -> int:
        """Number of steps of which times are fractions."""
        return self.expected or self.steps

    def start_of(self, step: int) -> float:
        """Position from which a step is active, slightly before its border."""
        return max(0.0, self.borders[step] - GAP / 2)

    def entry_times(self, first: int, end: int) -> dict[str, Any]:
        """Keys of a conditioning entry for steps ``first`` to ``end - 1``; empty if these are all steps.

        The gap is before the border. With assumed equal steps, a step may be on the border, like the middle one of an
        odd number in ComfyUI's schedule ``normal``; in the gap it would have no entry at all.
        """
        times: dict[str, float] = {}
        if first > 0:
            times["start_percent"] = self.start_of(first)
        if end < self.steps:
            times["end_percent"] = self.borders[end] - 3 * GAP / 2
        if not times:
            return {}
        start, stop = times.get("start_percent", 0.0), times.get("end_percent", 1.0)
        keys = {"start_percent": start, "end_percent": stop}
        if not self.levels:
            return keys
        return {**keys, CALLED: Called(first, end if end < self.steps else math.inf, (start, stop), self.levels)}


def uniform_timing(steps: int) -> Timing:
    """Steps of equal length; changes in the middle between two steps, so that small deviations do no harm."""
    borders = tuple((index - 0.5) / steps for index in range(1, steps))
    message = f"{steps} steps of equal length are assumed: connect sigmas, and the prompt changes on exactly its steps."
    issue = Issue("uniform-steps", message, Span(0, 0))
    return Timing(steps, (0.0, *borders, 1.0), f"{steps} steps, assumed to be of equal length", (issue,))


def timing_of(
    sigmas: Sequence[float], model: ModelPatcher | None, *, is_stable_diffusion: bool, may_repeat: bool = False
) -> Timing:
    """Timing for a sampler's noise levels.

    Args:
        sigmas: One level per step and one after the last, decreasing, as in ComfyUI's SIGMAS.
        model: ComfyUI's MODEL, whose noise levels these are; None for Stable Diffusion's own.
        is_stable_diffusion: Whether to assume the levels of Stable Diffusion if there is no model.
        may_repeat: Whether two steps may have one level, of which the later decides, but for samplers by `Called`.

    Returns:
        The timing, or a uniform one with an issue if it cannot be determined.

    Raises:
        ValueError: If ``sigmas`` has no step.
    """
    steps = len(sigmas) - 1
    if steps < 1:
        raise ValueError(f"sigmas must hold at least two noise levels, which make one step; got {len(sigmas)}")
    lowest, highest = STABLE_DIFFUSION_SIGMAS
    if model is not None:
        # the same conversion that the host will use when sampling
        percent_to_sigma = model.get_model_object("model_sampling").percent_to_sigma
        levels = "the model's noise levels"
    elif is_stable_diffusion and highest + 0.1 > max(sigmas) and all(sigma > lowest - 0.01 for sigma in sigmas[:-1]):
        percent_to_sigma, levels = stable_diffusion_sigma, "Stable Diffusion's noise levels"
    else:
        return _uniform_with_issue(steps, "These are not Stable Diffusion's noise levels: connect the model too.")
    borders: list[float] = []
    for step, (before, after) in enumerate(pairwise(sigmas[:-1]), 1):
        if may_repeat and before == after and borders:
            borders.append(borders[-1])  # the earlier one's text is for samplers that go by `Called` alone
            continue
        change_sigma = before ** (1 - PLACE) * after**PLACE if before > after > 0 else before
        start, border, end = (_percent_of(sigma, percent_to_sigma) for sigma in (before, change_sigma, after))
        if not (start + 2 * GAP < border < end - GAP):
            pair = f"{before:.4g} and {after:.4g}"
            return _uniform_with_issue(
                steps,
                f"The noise levels of steps {step} and {step + 1}, {pair}, leave no room for a change in between.",
            )
        borders.append(border)
    return Timing(steps, (0.0, *borders, 1.0), f"{steps} steps, timed by sigmas and {levels}")


def timing_from(
    clip: EitherClip, steps: int, sigmas: Tensor | None, model: ModelPatcher | None, *, by_calls: bool = False
) -> Timing:
    """Timing from the inputs of a node: ``sigmas`` as in `timing_of` if connected, otherwise a number of steps.

    ``by_calls`` counts what the WebUI counts, for SIGMAS that say it.
    """
    if sigmas is None:
        return uniform_timing(steps)
    is_known = is_stable_diffusion(clip)
    calls: Calls | None = getattr(sigmas, CALLS, None) if by_calls else None
    if calls is None:
        return timing_of(sigmas.tolist(), model, is_stable_diffusion=is_known)
    timing = timing_of([*calls.levels, 0.0], model, is_stable_diffusion=is_known, may_repeat=True)
    note = f"{timing.note}, counted by calls of the model"
    return replace(timing, expected=calls.counted, note=note, levels=() if timing.issues else calls.levels)


def _uniform_with_issue(steps: int, message: str) -> Timing:
    issue = Issue("no-timing", f"{message} Steps of equal length are assumed.", Span(0, 0))
    return replace(uniform_timing(steps), issues=(issue,))


def _percent_of(sigma: float, percent_to_sigma: PercentToSigma) -> float:
    """Fraction of the way at which the level is reached, by bisection; 0 or 1 beyond the model's levels."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if float(percent_to_sigma(middle)) > sigma else (low, middle)
    return high


_BETAS = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
_ALPHAS = np.cumprod(1 - _BETAS)
_LOG_SIGMAS = 0.5 * np.log((1 - _ALPHAS) / _ALPHAS)


def stable_diffusion_sigma(percent: float) -> float:
    """Noise level of Stable Diffusion at a fraction of the way.

    Its 1000 levels follow from betas from 0.00085 to 0.012 with evenly spaced square roots; between two levels the
    logarithm is interpolated. ``percent`` goes from 0 (pure noise, level 14.6) to 1 (level 0.029).
    """
    return float(np.exp(np.interp((1 - percent) * 999, np.arange(1000), _LOG_SIGMAS)))


class TimedEncoded(NamedTuple):
    """Result of encoding a timed prompt."""

    conditioning: Conditioning
    """For the sampler: an entry for each run, with its times and strength."""
    texts: dict[str, EncodedText]
    """Each text as encoded."""


def encode_timed(
    clip: EitherClip,
    prompt: TimedPrompt,
    options: EncodeOptions,
    timing: Timing,
    counter: Counter,
    *,
    as_webui: bool = False,
    clips: Sequence[EitherClip] = (),
) -> TimedEncoded:
    """Encode a prompt that changes while an image is sampled; each text once, as `encode_text` does.

    With ``as_webui`` the texts of a part between ANDs are encoded together, as our WebUI script does: all have as many
    rows as the longest, and the WebUI's emphasis evens them out over all of them. Of padding that is dropped, all keep
    what any of the prompt's texts needs; so they do where the prompt glides. ``clips`` are those of the parts, if each
    has one of its own.

    Returns:
        The conditioning: for each part between ANDs and each run of steps an entry whose ``strength`` is the weight of
        the part. A prompt of one text equals the result of `encode_text`.

    Raises:
        ValueError: If the weights of the parts do not sum to more than 0, or as in `encode_text`.
    """
    check_branches(prompt)
    branches = [runs(branch, timing.steps, counter) for branch in prompt.branches]
    together = [[fragment.text for text in branch.texts for fragment in text.fragments] for branch in prompt.branches]
    every_run = [run for branch_runs in branches for run in branch_runs]
    is_even = as_webui or (options.drops_padding and any(run.mixture for run in every_run))
    rows_to_keep = _rows_to_keep(clip, [text for group in together for text in group], options) if is_even else None
    if not as_webui and not clips:
        together = [list(dict.fromkeys(each.fragment.text for run in every_run for each in run.shares))]
    encoded = [
        dict(zip(group, encode_texts(one, group, options, rows_to_keep=rows_to_keep), strict=True))
        for group, one in zip(together, clips or [clip] * len(together), strict=True)
    ]
    conditioning = timed_entries(
        prompt,
        timing,
        counter,
        lambda index, text: encoded[index if len(encoded) > 1 else 0][text].conditioning,
        lambda: encode_texts(clip, [""], options)[0].conditioning,
    )
    return TimedEncoded(conditioning, {text: encoded_text for group in encoded for text, encoded_text in group.items()})


def timed_entries(
    prompt: TimedPrompt,
    timing: Timing,
    counter: Counter,
    encoded: Callable[[int, str], Conditioning],
    empty: Callable[[], Conditioning],
) -> Conditioning:
    """Conditioning of a timed prompt.

    Args:
        prompt: The prompt.
        timing: Its times.
        counter: Way of counting calls.
        encoded: Function from a part's number and one of its texts to a conditioning.
        empty: Conditioning of the empty prompt, for texts of different lengths that are mixed.
    """
    parts: list[PlacedPart] = []
    filling = cache(empty)
    joined = prompt.joined
    for index, branch in enumerate(prompt.branches):
        entries: Conditioning = []
        mixtures: dict[tuple[Mixed, ...], Conditioning] = {}
        for run in runs(branch, timing.steps, counter):
            times = timing.entry_times(run.first, run.end)
            if run.mixture and run.mixture not in mixtures:
                shares = [(each.share, encoded(index, each.fragment.text)) for each in run.mixture]
                mixtures[run.mixture] = mixed(shares, filling)
            conditioning = mixtures[run.mixture] if run.mixture else encoded(index, run.fragment.text)
            entries += [
                [hidden, {**entry_values, **times}]
                for hidden, entry_values in conditioning
                if _meet(entry_values, times)
            ]
        parts.append(PlacedPart(entries, branch.weight, branch.place))
    return placed_entries(parts) if joined is None else with_joints([part.entries for part in parts], joined)


def check_branches(prompt: TimedPrompt) -> None:
    """Refuse parts between ANDs and COUPLEs that the host cannot join."""
    weights = [branch.weight for branch in prompt.branches]
    if prompt.joined is not None:  # the others are not divided by
        weights = [part.weight for part in prompt.joined.parts if part.joint == "AND"]
    if (len(weights) > 1 or prompt.joined is not None) and not sum(weights) > 0:
        written = " + ".join(f"{weight:g}" for weight in weights)
        raise ValueError(
            f"The weights of the parts between ANDs sum to {sum(weights):g} ({shortened(written)}). ComfyUI divides by "
            "this sum, so it has to be above 0. What the picture should move away from belongs in the negative prompt."
        )
    if not check_parts([PlacedPart([], branch.weight, branch.place) for branch in prompt.branches]):
        raise ValueError("The only part of this prompt has the weight 0 and is left out, as in prompt-control.")


def _rows_to_keep(clip: EitherClip, texts: Sequence[str], options: EncodeOptions) -> Sequence[int]:
    """Numbers of rows of each chunk that a prompt's texts keep together if padding is dropped."""
    if not options.drops_padding or not (isinstance(clip, NativeClip) or has_towers(clip)):
        return ()
    reads = read_together(list(dict.fromkeys(texts)), options, readers_of(clip))
    return next(iter(reads.values()))[0].kept or ()


def _meet(hooked: Mapping[str, Any], times: Mapping[str, float]) -> bool:
    """Whether an entry, of which the host's hooks made one for each of their times, has some of a text's times."""
    if "clip_start_percent" not in hooked:
        return True
    start = max(hooked["clip_start_percent"], times.get("start_percent", 0.0))
    return start < min(hooked.get("clip_end_percent", 1.0), times.get("end_percent", 1.0))
