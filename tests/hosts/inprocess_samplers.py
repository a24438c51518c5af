"""A1111 Sampler beside Forge's own sampler functions, in one process of ComfyUI's Python and on one small model.

Run by test_same_picture.py with ComfyUI's checkout as working directory; see inprocess.py:

    python inprocess_samplers.py PACK RESULTS.json FORGE

Writes for each sampler the largest difference of latents, relative to their standard deviation, and that of our own
when the model's noise is moved by one last bit, up or down at random. Pictures of two whole programs differ by the
rounding of two U-Nets, too. The small model is far from linear: one whose noise is nearly the same at each step, as
that of random weights, hides how a sampler goes on from several steps.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from pack_code import package
from torch import Tensor
from torch.nn.functional import conv2d

PACK, RESULTS, FORGE = (Path(argument) for argument in sys.argv[1:4])
KERNEL = torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(3)) * 0.6
ABSENT = {
    "torchdiffeq": (),
    "backend.modules.k_prediction": (),
    "modules.devices": (),
    "modules.sd_samplers_cfg_denoiser": ("CFGDenoiser",),
    "modules.sd_samplers_common": ("SamplerData",),
    "modules.sd_samplers_kdiffusion": ("KDiffusionSampler",),
}
"""Modules that Forge's samplers import and do not use here, and classes of them."""


class Anything:
    """Class of a module that is not there."""

    def __init__(self, *values: Any) -> None:
        pass


def forges() -> tuple[Any, Any, Any]:
    """Forge's modules with the samplers of k-diffusion, of steps, and LCM, without the rest of Forge."""
    for name, folder in (("modules", "modules"), ("k_diffusion", "k_diffusion"), ("backend", "none")):
        package(name, FORGE / folder)
    package("backend.modules", FORGE / "none")
    for name, classes in ABSENT.items():
        module = sys.modules[name] = ModuleType(name)
        for found in ("PredictionFlux", "odeint", *classes):
            setattr(module, found, Anything)
        setattr(sys.modules.get(name.rpartition(".")[0], module), name.rpartition(".")[2], module)
    shared: Any = ModuleType("modules.shared")
    shared.opts = SimpleNamespace(
        uni_pc_variant="bh1", uni_pc_skip_type="time_uniform", uni_pc_order=3, uni_pc_lower_order_final=True
    )
    sys.modules["modules.shared"] = sys.modules["modules"].shared = shared  # type: ignore[attr-defined]
    names = ("k_diffusion.sampling", "modules.sd_samplers_timesteps_impl", "modules.sd_samplers_lcm")
    sampling, steps, lcm = (importlib.import_module(name) for name in names)
    return sampling, steps, lcm


def denoised(x: Tensor, sigma: Tensor, moved: torch.Generator | None = None) -> Tensor:
    """Picture that the small model sees in latents ``[batch, 4, height, width]`` of a noise level.

    Args:
        x: Latents.
        sigma: Noise level, ``[batch]``.
        moved: Generator for whether the last bit of each value of the noise goes up or down; None leaves it.
    """
    level = sigma[:, None, None, None]
    scaled = x / (level**2 + 1) ** 0.5
    noise = torch.tanh(conv2d(scaled, KERNEL, padding=1) + torch.sin(level.log())) * 0.6 + 0.5 * scaled
    if moved is not None:
        noise = torch.nextafter(noise, (torch.rand(noise.shape, generator=moved) - 0.5) * 1e9)
    return x - level * noise


def main() -> None:
    """Compare each sampler at several numbers of steps."""
    sys.path.insert(0, str(Path.cwd()))
    sys.path.remove(str(Path(__file__).resolve().parent))
    from comfy.cli_args import args

    args.cpu = True
    from comfy import model_sampling

    sampling = type("Sampling", (model_sampling.ModelSamplingDiscrete, model_sampling.EPS), {})()
    alphas = 1.0 / (sampling.sigmas**2.0 + 1.0)
    package(PACK.name, PACK)
    samplers = importlib.import_module(f"{PACK.name}.hosts.comfy.a1111.samplers")
    noises = importlib.import_module(f"{PACK.name}.hosts.comfy.a1111.noise")
    schedules = importlib.import_module(f"{PACK.name}.hosts.comfy.a1111.schedules")
    sigmas = schedules.Sigmas(sampling.sigmas, sampling.log_sigmas)
    host = SimpleNamespace(
        model_sampling=sampling,
        inner_model=SimpleNamespace(model_sampling=sampling),
        model_patcher=SimpleNamespace(get_model_object=lambda _: sampling),
        conds={},
    )
    forge = SimpleNamespace(predictor=None, inner_model=SimpleNamespace(alphas_cumprod=alphas))
    by_levels, by_steps, lcm = forges()

    class Model:
        """The small model as a host's."""

        latent_image = None

        def __init__(self, inner: Any, noise: Tensor | None = None, moved: torch.Generator | None = None) -> None:
            self.inner_model, self.noise, self.moved = inner, noise, moved

        def __call__(self, x: Tensor, sigma: Tensor, **rest: Any) -> Tensor:
            return denoised(x, sigma, self.moved)

    class ModelOfSteps(Model):
        """The small model as Forge gives it to samplers of steps: noise of latents of variance 1."""

        def __call__(self, x: Tensor, sigma: Tensor, **rest: Any) -> Tensor:
            known = ((1 - alphas) / alphas) ** 0.5
            level = known[sigma.round().long().clip(0, len(known))]
            x = x * ((level**2.0 + 1.0) ** 0.5)[:, None, None, None]
            return (x - denoised(x, level)) / level[:, None, None, None]

    def ours(
        name: str, run: Any, noise: Any, first: Tensor, start: Tensor, moved: torch.Generator | None = None
    ) -> Tensor:
        sampler = samplers.make_sampler(name, run, noise, sigmas).sampler_function
        given = {"extra_args": {}, "callback": lambda _: None, "disable": True}
        return sampler(Model(host, first, moved), start.clone(), run.sigmas, **given)

    def theirs(name: str, run: Any, noise: Any, steps: int, start: Tensor) -> Tensor:
        kind, given = samplers.KINDS[name], {"extra_args": {}, "callback": lambda _: None, "disable": True}
        draw = noise.step_noise(start.shape)
        by_levels.torch = SimpleNamespace(**{**vars(torch), "randn_like": lambda _: draw()})
        if not isinstance(kind.run, str):
            times = torch.clip(torch.arange(0, 1000, 1000 // steps) + 1, 0, 999)
            return getattr(by_steps, kind.run.__name__)(ModelOfSteps(forge), start.clone(), times, **given)
        if kind.noise == "paths":
            given["noise_sampler"] = samplers._noise_of_paths(start, noise, run.ends, {})
        function = lcm.sample_lcm if name == "LCM" else getattr(by_levels, kind.run)
        return function(Model(forge), start.clone(), run.sigmas, **given, **kind.options)

    found: dict[str, list[float]] = {}
    with torch.inference_mode():
        for name, kind in samplers.KINDS.items():
            for steps in (5, 6, 8, 15):
                noise = noises.A1111Noise(11 + steps, "CPU")
                run = samplers.make_run(sigmas, name, samplers.AUTOMATIC, steps, 1.0, exact=False)
                first = noise.generate_noise({"samples": torch.zeros(2, 4, 8, 8)})
                start = first * run.sigmas[0] if isinstance(kind.run, str) else first
                one, other = ours(name, run, noise, first, start), theirs(name, run, noise, steps, start)
                bits = ours(name, run, noise, first, start, torch.Generator().manual_seed(steps))
                apart = [float((one - another).abs().max() / other.std()) for another in (other, bits)]
                assert not any(map(math.isnan, apart)), (name, steps)
                found[name] = [max(both) for both in zip(found.get(name, apart), apart, strict=True)]
    RESULTS.write_text(json.dumps(found), encoding="utf-8")


main()
