"""Samplings of ComfyUI's own models at their real widths, plain and with our nodes' effects, for counts and for times.

Rows of text are random, so no text encoder is needed. Runs in ComfyUI's own Python, with its folder as the working one.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .scale import UNET
from .timing import times_in_turn

if TYPE_CHECKING:
    import torch
    from torch import Tensor

STOCK = "stock"
WAYS = (STOCK, "Attention Weights", "Place Phrase", "two regions", "Watch Words")
FACES = 3
"""Words that are watched."""


class Model(NamedTuple):
    """A model of ComfyUI, and how it is sampled."""

    config: str
    """The host's class of its configuration."""
    sizes: Mapping[str, Any]
    """Sizes that its configuration lacks."""
    text: tuple[int, int]
    """Rows of text, and their width."""
    pooled: int = 0
    """Width of the vector beside them; 0 if there is none."""
    latent: tuple[int, ...] = (4,)
    """Channels, and frames of a video."""
    sides: tuple[int, ...] = (64,)
    """Sides of latents that are sampled."""
    cfg: float = 7.0
    few: Mapping[str, Any] = {}
    """Sizes with few layers of the same width, for a card."""


FLUX = {
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": 768,
    "context_in_dim": 4096,
    "hidden_size": 3072,
    "mlp_ratio": 4.0,
    "num_heads": 24,
    "depth": 19,
    "depth_single_blocks": 38,
    "axes_dim": [16, 56, 56],
    "theta": 10000,
    "qkv_bias": True,
    "txt_ids_dims": [],
    "guidance_embed": True,
}
WAN = {"dim": 5120, "ffn_dim": 13824, "num_heads": 40, "num_layers": 40}
SDXL = UNET | {
    "num_res_blocks": [2, 2, 2],
    "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 2, 2, 10, 10],
    "transformer_depth_middle": 10,
    "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
    "use_linear_in_transformer": True,
    "num_heads": -1,
    "num_head_channels": 64,
    "context_dim": 2048,
    "num_classes": "sequential",
    "adm_in_channels": 2816,
}
FEW_OF_SDXL = {
    "transformer_depth": [0, 0, 1, 1, 2, 2],
    "transformer_depth_middle": 2,
    "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
}
MODELS = {
    "Stable Diffusion 1.5": Model("SD15", UNET | {"context_dim": 768}, (77, 768)),
    "Stable Diffusion XL": Model("SDXL", SDXL, (77, 2048), 1280, sides=(128,), few=FEW_OF_SDXL),
    "Flux": Model("Flux", FLUX, (256, 4096), 768, (16,), (128, 256), 1.0, {"depth": 2, "depth_single_blocks": 4}),
    "Qwen-Image": Model("QwenImage", {}, (64, 3584), 0, (16,), (128,), 4.0, {"num_layers": 4}),
    "Wan 2.1": Model("WAN21_T2V", WAN, (512, 4096), 0, (16, 21), (60,), 6.0, {"num_layers": 4}),
}


def open_host(*, is_pretended: bool, on_processor: bool = False) -> None:
    """Import ComfyUI with PyTorch's attention; on a pretended device it loads nothing and has room for everything."""
    args = importlib.import_module("comfy.cli_args").args
    args.use_pytorch_cross_attention = True
    args.cpu = args.cpu or is_pretended or on_processor
    if is_pretended:
        model_management: Any = importlib.import_module("comfy.model_management")
        model_management.load_models_gpu = lambda *_, **__: None
        model_management.get_free_memory = lambda *_, **__: 2**40


def opened(model: Model, device: torch.device, dtype: torch.dtype, *, few: bool = False) -> Any:
    """The host's MODEL on a device; on ``meta`` without numbers."""
    import torch

    from .counting import to_device

    supported_models = importlib.import_module("comfy.supported_models")
    config_class = getattr(supported_models, model.config)
    sizes = {**config_class.unet_extra_config, **model.sizes, **(model.few if few else {})}
    described = type(model.config, (config_class,), {"unet_extra_config": {}})(
        {**config_class.unet_config, **sizes, "dtype": dtype}
    )
    made = described.get_model({}, device=device)
    if device.type == "meta":
        for name, buffer in [*made.model_sampling.named_buffers()]:
            made.model_sampling.register_buffer(name, to_device(buffer), persistent=False)
    else:
        generator = torch.Generator(device).manual_seed(0)
        for parameter in made.diffusion_model.parameters():
            parameter.data.normal_(std=0.02, generator=generator)
        made.model_sampling.to(device)
    patcher_class = importlib.import_module("comfy.model_patcher").ModelPatcher
    return patcher_class(made, load_device=device, offload_device=device)


def prompts(model: Model, way: str, every: int = 1, layers: str = "all") -> tuple[Any, Any]:
    """Positive and negative CONDITIONING of a way, of rows of random numbers."""
    import torch

    from ...hosts.comfy.attention import attention
    from ...hosts.comfy.attention.fields import Field, Where
    from ...hosts.comfy.attention.recorder import Watch
    from ...weighting.attention import PLAIN, effect_of
    from ...weighting.placing.areas import read_area

    generator = torch.Generator().manual_seed(1)
    num_rows, dim = model.text

    def drawn() -> Any:
        values = {"pooled_output": torch.randn(1, model.pooled, generator=generator)} if model.pooled else {}
        return [[torch.randn(1, num_rows, dim, generator=generator), values]]

    def where(area: str) -> Where:
        return Where(area, read_area(area))

    positive, negative = drawn(), drawn()
    if way == "Attention Weights":
        effects = [effect_of(1.5) if row in (5, 6) else PLAIN for row in range(num_rows)]
        positive, _ = attention.with_effects(positive, effects)
    elif way == "Place Phrase":
        field = Field((5, 6), 1.0, 0.0, where("left half"), "red fox")
        positive = attention.with_field(positive, [field])
    elif way == "two regions":
        for area in ("left half", "right half"):
            positive = attention.with_region(positive, drawn(), 1.0, where(area), [(0.0, 1.0)])
    elif way == "Watch Words":
        watch = Watch([f"word {number}" for number in range(FACES)], every, layers)
        positive = attention.with_watch(positive, watch, [[(2 + number,) for number in range(FACES)]])
    elif way != STOCK:
        raise ValueError(f"way must be one of {', '.join(WAYS)}; got {way}")
    return positive, negative


def draw(
    model: Model, opened_model: Any, conditionings: tuple[Any, Any], side: int, steps: int, note: Callable[[int], None]
) -> Tensor:
    """Sample a picture with the host's KSampler, telling ``note`` each step that is over."""
    import torch

    channels, *frames = model.latent
    shape = 1, channels, *frames, side, side
    noise, empty = torch.randn(shape, generator=torch.Generator().manual_seed(2)), torch.zeros(shape)
    positive, negative = conditionings
    return importlib.import_module("comfy.sample").sample(
        opened_model,
        noise,
        steps,
        model.cfg,
        "euler",
        "simple",
        positive,
        negative,
        empty,
        callback=lambda step, *_: note(step),
        disable_pbar=True,
        seed=3,
    )


# ---- times


def time_samplings(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Seconds of samplings in each way, timed in turn, and the peak of memory of each.

    A job has ``models``, by name ``sides`` of latents and ``sizes`` that replace those of few layers; ``kinds`` (number
    types), ``steps``, ``repetitions`` and ``device``.
    """
    import torch

    device = torch.device(job["device"])
    open_host(is_pretended=False, on_processor=device.type == "cpu")
    found: list[dict[str, Any]] = []
    for name, how in job["models"].items():
        model = MODELS[name]._replace(few={**MODELS[name].few, **how["sizes"]})
        if "context_in_dim" in how["sizes"]:
            model = model._replace(text=(model.text[0], how["sizes"]["context_in_dim"]))
        for kind in job["kinds"]:
            opened_model = opened(model, device, getattr(torch, kind), few=True)
            for side in how["sides"]:
                found.append({"model": name, "kind": kind, "side": side, **_timed(model, opened_model, side, job)})
            del opened_model
    return found


def _timed(model: Model, opened_model: Any, side: int, job: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds of each way, and bytes of its peak of memory above what is there before; None on the processor."""
    import torch

    is_cuda = opened_model.load_device.type == "cuda"
    peaks: dict[str, int | None] = {}

    def run(way: str) -> None:
        draw(model, opened_model, prompts(model, way), side, job["steps"], lambda _: None)
        if is_cuda:
            torch.cuda.synchronize()

    with torch.inference_mode():
        for way in WAYS:
            if is_cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated() if is_cuda else 0
            run(way)
            peaks[way] = torch.cuda.max_memory_allocated() - before if is_cuda else None
        runs = {way: partial(run, way) for way in WAYS}
        return {"times": times_in_turn(runs, repetitions=job["repetitions"], warm_up=1), "peaks": peaks}
