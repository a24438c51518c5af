"""Helpers of the checks of timed prompts: a small Stable Diffusion 1, and a spy on its denoiser.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from inprocess import WIDTHS, difference, issues_in, ours, run_ours
from toys import build, unet_sizes

COUNTERS = ("as the WebUI counts", "as written")
TextAt = Callable[[int, int], str]
"""Text of a part of a prompt between ANDs, from the step, counted from 1, and the number of steps."""


class Call(NamedTuple):
    """Input of the denoiser in one call."""

    sigma: float
    positives: tuple[torch.Tensor, ...]
    """Cross-attention tensor of each positive entry that took part."""
    guided: torch.Tensor
    """Result of guidance from its answers: the expected image."""
    unguided: torch.Tensor
    """Its answer for the negative prompt."""
    positive: torch.Tensor
    """Its answer for the positive prompt."""


def make_model() -> Any:
    """A MODEL of Stable Diffusion 1 with fewer and narrower layers than in toys.py."""
    return build("SD15", unet_sizes(WIDTHS["l"], channels=32, depth=1))


def sigmas_of(model: Any, scheduler: str, steps: int, denoise: float = 1.0) -> torch.Tensor:
    """Output of the node BasicScheduler."""
    from comfy_extras.nodes_custom_sampler import BasicScheduler

    # in 0.3.64 it is no class method yet
    return BasicScheduler().get_sigmas(model, scheduler, steps, denoise)[0]


def sample(
    model: Any, positive: Any, negative: Any, sigmas: torch.Tensor, sampler: str = "euler", cfg: float = 7.0
) -> list[Call]:
    """Sample as the node SamplerCustom does: every call of the denoiser."""
    import comfy.sample
    import comfy.samplers

    calls: list[Call] = []
    seen: list[torch.Tensor] = []

    def spy(apply_model: Any, arguments: dict[str, Any]) -> Any:
        which = arguments["cond_or_uncond"]
        rows = arguments["c"]["c_crossattn"].chunk(len(which))
        seen.extend(row for row, index in zip(rows, which, strict=True) if index == 0)
        return apply_model(arguments["input"], arguments["timestep"], **arguments["c"])

    def after_a_call(arguments: dict[str, Any]) -> Any:
        answers = (arguments[name].clone() for name in ("denoised", "uncond_denoised", "cond_denoised"))
        calls.append(Call(float(arguments["sigma"][0]), tuple(seen), *answers))
        seen.clear()
        return arguments["denoised"]

    spied = model.clone()
    spied.set_model_unet_function_wrapper(spy)
    spied.set_model_sampler_post_cfg_function(after_a_call)
    latent = torch.zeros(1, 4, 8, 8)
    noise = comfy.sample.prepare_noise(latent, 1)
    chosen = comfy.samplers.sampler_object(sampler)
    comfy.sample.sample_custom(spied, noise, cfg, chosen, sigmas, positive, negative, latent, disable_pbar=True, seed=1)
    return calls


def encode_timed(clip: Any, text: str, **inputs: Any) -> Any:
    """The conditioning of our A1111 node; its information on the sampler's steps is accepted without a problem."""
    result = run_ours("WeightedCLIPA1111Encode", clip=clip, text=text, **inputs)
    codes = {issue["code"] for issue in issues_in(result)}
    assert "sigmas" not in inputs or not codes & {"no-timing", "uniform-steps"}, issues_in(result)
    return result["result"][0]


class Encodings:
    """A text alone, as our node without times encodes it; each once."""

    def __init__(self, clip: Any) -> None:
        self.clip = clip
        self.known: dict[str, torch.Tensor] = {}

    def of(self, text: str) -> torch.Tensor:
        if text not in self.known:
            ((self.known[text], _),) = ours(self.clip, text, syntax="a1111", scheme="a1111")
        return self.known[text]


def text_at(entries: Sequence[Sequence[Any]], call: int, counter: str) -> str:
    """Text used by a call of the denoiser.

    Args:
        entries: ``[last step, text]``, steps counted from 1, as in the case files.
        call: Counted from 0.
        counter: The WebUI compares its count of calls, from 0, with the steps, from 1; as written, call 0 is step 1.

    Returns:
        The text of the first entry that has not ended.
    """
    step = call if counter == "as the WebUI counts" else call + 1
    return next((text for last, text in entries if step <= last), entries[0][1])


def entries_of(text_of: TextAt, steps: int) -> list[tuple[int, str]]:
    """An entry for each step."""
    return [(step, text_of(step, steps)) for step in range(1, steps + 1)]


def assert_positives(call: Call, expected: Sequence[torch.Tensor], where: Any) -> None:
    """Exactly these encodings, bit for bit, took part in a call, one for each part between ANDs."""
    assert len(call.positives) == len(expected), (where, len(call.positives), len(expected))
    left = list(call.positives)
    for tensor in expected:
        match = next((index for index, other in enumerate(left) if torch.equal(other, tensor)), None)
        assert match is not None, (where, "an encoding is missing")
        difference(left.pop(match), tensor)


def step_of(sigma: float, sigmas: Sequence[float]) -> int:
    """The step, counted from 0, that a noise level belongs to: the last whose own level is not below it."""
    return max(index for index, level in enumerate(sigmas[:-1]) if level >= sigma * (1 - 1e-5) or index == 0)
