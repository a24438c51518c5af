"""Timed prompts in ComfyUI: a conditioning with an entry for each text and the steps at which it is active.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/timed.md, "In ComfyUI".
"""

from __future__ import annotations

from typing import NamedTuple

from ...weighting.options import EncodeOptions
from ...weighting.timed.schedule import Counter, TimedPrompt, runs
from .clip import EitherClip, Encoded, encode_texts
from .timing import Timing
from .types import Conditioning


class TimedEncoded(NamedTuple):
    """Result of encoding a timed prompt."""

    conditioning: Conditioning
    """For the sampler: an entry for each run, with its times and strength."""
    texts: dict[str, Encoded]
    """Each text as encoded."""


def encode_timed(
    clip: EitherClip, prompt: TimedPrompt, options: EncodeOptions, timing: Timing, counter: Counter
) -> TimedEncoded:
    """Encode a prompt that changes while an image is sampled; each text once, as `encode_text` does.

    Returns:
        The conditioning: for each part between ANDs and each run of steps an entry whose ``strength`` is the weight of
        the part. A prompt of one text equals the result of `encode_text`.

    Raises:
        ValueError: If the weights of the parts do not sum to more than 0, or as in `encode_text`.
    """
    weights = [branch.weight for branch in prompt.branches]
    if len(weights) > 1 and not sum(weights) > 0:
        written = " + ".join(f"{weight:g}" for weight in weights)
        raise ValueError(
            f"The weights of the parts between ANDs sum to {sum(weights):g} ({written}). ComfyUI divides by this sum, "
            "so it has to be above 0. What the picture should move away from belongs in the negative prompt."
        )
    branches = [runs(branch, timing.steps, counter) for branch in prompt.branches]
    different = list(dict.fromkeys(run.fragment.text for branch in branches for run in branch))
    texts = dict(zip(different, encode_texts(clip, different, options), strict=True))
    conditioning: Conditioning = []
    for weight, branch in zip(weights, branches, strict=True):
        strength = {"strength": weight} if len(weights) > 1 else {}
        for run in branch:
            values = {**timing.entry_times(run.first, run.end), **strength}
            conditioning += [[hidden, {**others, **values}] for hidden, others in texts[run.fragment.text].conditioning]
    return TimedEncoded(conditioning, texts)
