"""Placed phrases in Forge's own sampler and U-Net, compared with its cross attention written out in float64.

Run by test_webui_python.py in Forge's own Python, with its checkout as working directory:

    python forge_places.py PACKAGE OUTCOME --always-cpu --data-dir DIR

The text engine and the U-Net are Forge's classes, small, with random weights; everything between them is Forge's:
prompt editing, AND, batches, samplers, guidance. Which rows a phrase has is written down here by hand, and what a place
is, which cells a layer has and at which noise a time begins are worked out here once more.

Writes for each case the largest difference and the largest change by the places, both relative to the largest number.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from forge_cutoff import make_engine
from forge_unet import make_unet
from webui_engines import load_package, ours

SIZE = (96, 160)
"""Height and width of pictures."""
TEXT = "a red cat and a blue dog on a mat"
ROWS = {"red cat": (2, 3), "blue dog": (6, 7), "mat": (10,)}
"""Rows of phrases of `TEXT` in Stable Diffusion; the start token is row 0."""
NEGATIVE = "ugly, blurry"
LONG = "ugly, " * 60
EDITED = "a [red cat:green hat:0.5] and a blue dog"
STEPS = 6
Weight = Callable[[int, int], torch.Tensor]
"""Weights at the places of a latent of a height and width, float64."""


class Field(NamedTuple):
    """Weights of some rows of a text."""

    rows: tuple[int, ...]
    weight: Weight
    start: float = math.inf
    """Noise level from which on it acts."""
    end: float = 0.0
    """Noise level from which on it does not act any more."""


def between(left: float, right: float, inside: float = 1.0, outside: float = 0.0) -> Weight:
    """Weights between two columns, in parts of the width."""

    def weight(height: int, width: int) -> torch.Tensor:
        shares = [max(0.0, min(right * width, x + 1) - max(left * width, x)) for x in range(width)]
        mask = torch.tensor(shares, dtype=torch.float64).expand(height, width)
        return outside + mask * (inside - outside)

    return weight


def below(part: float, inside: float = 1.0, outside: float = 0.0) -> Weight:
    """Weights below a row, in parts of the height."""
    return lambda height, width: between(part, 1.0, inside, outside)(width, height).T


LEFT, RIGHT = between(0, 0.5), between(0.5, 1)


def cells_of(weight: torch.Tensor, num_queries: int) -> torch.Tensor:
    """Mean weights in the cells of a layer, each of 1, 2, 4, ... places along both sides: ``[queries]``."""
    height, width = weight.shape
    side = 1
    while -(-height // side) * -(-width // side) > num_queries:
        side *= 2
    rows, across = range(0, height, side), range(0, width, side)
    assert len(rows) * len(across) == num_queries, (height, width, num_queries)
    return torch.stack([weight[y : y + side, x : x + side].mean() for y in rows for x in across])


@contextmanager
def read_by_place(unet: torch.nn.Module, texts: Sequence[tuple[torch.Tensor, Sequence[Field]]]) -> Iterator[None]:
    """Let a U-Net read text by an attention in float64 with weights by place for the rows of known encodings."""
    now: dict[str, Any] = {}

    def look(_: Any, args: Any, inputs: Any) -> None:
        options = inputs["transformer_options"]
        now.update(size=args[0].shape[-2:], sigma=options["sigmas"][0], kinds=options["cond_or_uncond"])

    def weights_of(context: torch.Tensor, number: int, num_pictures: int, num_queries: int) -> torch.Tensor:
        found = torch.ones(num_queries, len(context), dtype=torch.float64)
        if now["kinds"][number // (num_pictures // len(now["kinds"]))] == 1:
            return found
        longest = max(len(rows) for rows, _ in texts)
        matching = [
            fields
            for rows, fields in texts
            if torch.equal(
                context,
                torch.cat([rows, rows[-1:].expand(longest - len(rows), -1)]).repeat(len(context) // longest, 1),
            )
        ]
        assert len(matching) == 1
        for rows, weight, start, end in matching[0]:
            if now["sigma"] <= torch.tensor(start) and (now["sigma"] > torch.tensor(end) or end == 0):
                for row in rows:
                    found[:, row::longest] *= cells_of(weight(*now["size"]), num_queries)[:, None]
        return found

    def forward_of(layer: Any) -> Callable[..., torch.Tensor]:
        def forward(x: torch.Tensor, context: torch.Tensor, **_: Any) -> torch.Tensor:
            q, k, v = (
                part(tensor).double().unflatten(-1, (layer.heads, -1)).transpose(1, 2)
                for part, tensor in ((layer.to_q, x), (layer.to_k, context), (layer.to_v, context))
            )
            logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
            shares = torch.exp(logits - logits.amax(-1, keepdim=True))
            weights = [weights_of(one, number, len(context), x.shape[1]) for number, one in enumerate(context)]
            shares = shares * torch.stack(weights)[:, None]
            read = (shares / shares.sum(-1, keepdim=True)) @ v
            return layer.to_out(read.transpose(1, 2).flatten(2).to(x.dtype))

        return forward

    with ExitStack() as undone:
        undone.callback(unet.register_forward_pre_hook(look, with_kwargs=True).remove)
        for name, module in unet.named_modules():
            if name.endswith("attn2"):
                undone.enter_context(patch.object(module, "forward", forward_of(module)))
        yield


def make_model() -> Any:
    """A model of Forge, with its text engine and its U-Net."""
    from backend.diffusion_engine.base import ForgeObjects
    from backend.modules.k_prediction import Prediction
    from backend.patcher.unet import UnetPatcher

    unet = make_unet()
    unet.storage_dtype = unet.computation_dtype = torch.float32
    unet.load_device = unet.offload_device = unet.initial_device = torch.device("cpu")
    patcher = UnetPatcher.from_model(unet, None, None, Prediction(prediction_type="epsilon"))
    engine = make_engine()
    model = SimpleNamespace(
        text_processing_engine=engine,
        get_learned_conditioning=torch.inference_mode()(engine),
        set_clip_skip=lambda _: None,
        **{"is_sdxl": False, "is_inpaint": False, "use_distilled_cfg_scale": False, "sd_checkpoint_info": None},
        extra_generation_params={},
        forge_objects=ForgeObjects(unet=patcher, clip=None, vae=None, clipvision=None),
    )
    model.forge_objects_original = model.forge_objects_after_applying_lora = model.forge_objects
    return model


def sampled(model: Any, *prompts: str, script: Sequence[Any] = (), negative: str = NEGATIVE, **fields: Any) -> Any:
    """The generation of a batch, with what was sampled as ``samples``: latents, also where hires. fix decodes them.

    ``latent`` is what img2img begins with, ``mask`` where inpainting keeps it.
    """
    from modules import processing, rng, shared

    generation = ours("hosts.webui.generation")
    denoised: torch.Tensor | None = fields.pop("latent", None)
    mask: torch.Tensor | None = fields.pop("mask", None)
    kind = processing.StableDiffusionProcessingTxt2Img
    if denoised is not None:
        kind = processing.StableDiffusionProcessingImg2Img
    given = {"sampler_name": "Euler", "scheduler": "Normal", "steps": STEPS, "cfg_scale": 3.0, **fields}
    p = kind(prompt=list(prompts), negative_prompt=negative, batch_size=len(prompts), **given)
    p.height, p.width = SIZE
    p.scripts_value = SimpleNamespace(
        alwayson_scripts=[],
        process_before_every_sampling=lambda p, **given: generation.begin_pass(p, given["x"]),
        **dict.fromkeys(("after_extra_networks_activate", "before_hr", "on_mask_blend"), lambda *_, **__: None),
    )
    p.fill_fields_from_opts()
    p.setup_prompts()
    p.all_seeds = p.seeds = list(range(len(prompts)))
    p.prompts, p.negative_prompts, p.extra_network_data = p.all_prompts, p.all_negative_prompts, {}
    generation.arm(p, script)
    shape = (getattr(model, "channels", 4), SIZE[0] // 8, SIZE[1] // 8)
    p.rng = rng.ImageRNG(shape, p.seeds)
    if denoised is not None:
        from modules import sd_samplers

        p.init_latent, p.denoising_strength = denoised, 0.5
        p.image_conditioning = denoised.new_zeros(len(denoised), 5, 1, 1)
        p.sampler = sd_samplers.create_sampler(p.sampler_name, model)
        p.initial_noise_multiplier = 1.0
        p.mask, p.nmask = mask, None if mask is None else 1 - mask
    if getattr(p, "enable_hr", False):
        p.calculate_target_resolution()
        p.hr_prompts, p.hr_negative_prompts, p.hr_extra_network_data = p.all_hr_prompts, p.all_hr_negative_prompts, {}
        p.latent_scale_mode, p.hr_scheduler = shared.latent_upscale_modes["Latent"], p.scheduler
    kept = patch.object(processing, "decode_latent_batch", lambda model, samples, **_: samples)
    with kept, torch.inference_mode():
        p.setup_conds()
        p.samples = p.sample(p.c, p.uc, p.seeds, p.seeds, 0.0, p.prompts)
    assert p.samples.isfinite().all()
    return p


def script(*lines: str, **settings: Any) -> list[Any]:
    """Values of our script's controls."""
    known = vars(ours("hosts.webui.settings").Settings())
    return list({**known, "enabled": True, "places": "\n".join(lines), **settings}.values())


def compared(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of a case from its reference, the change that it makes, and what is told."""
    fields, prompts = dict(case.get("fields", {})), case.get("prompts", (TEXT,))
    placed = sampled(model, *prompts, script=script(*case["lines"], **case.get("settings", {})), **fields)
    unet = model.forge_objects.unet.model.diffusion_model
    plain = sampled(model, *prompts, script=script(**case.get("settings", {})), **fields)
    assert sum(len(module._forward_pre_hooks) for module in unet.modules()) == 0
    texts = [(rows, case["texts"].get(text, ())) for text, rows in rows_of_texts(model, case, plain)]
    with read_by_place(unet, texts):
        expected = sampled(model, *prompts, script=script(**case.get("settings", {})), **fields).samples
    scale = float(expected.abs().max())
    difference, change = (float((one.samples - expected).abs().max()) / scale for one in (placed, plain))
    return difference, change, list(placed.comments)


def rows_of_texts(model: Any, case: Mapping[str, Any], plain: Any) -> list[tuple[str, torch.Tensor]]:
    """Texts that a case knows, with their rows in the generation without places."""
    rows: list[torch.Tensor] = []
    for parts in plain.c.batch:
        for part in parts:
            for entry in part.schedules:
                if not any(torch.equal(entry.cond, one) for one in rows):
                    rows.append(entry.cond)
    assert len(rows) == len(case["texts"]), (len(rows), list(case["texts"]))
    return list(zip(case["texts"], rows, strict=True))


def level(part: float) -> float:
    """Noise level of Stable Diffusion a part of the way from noise to the picture, written out in float64."""
    betas = torch.linspace(0.00085**0.5, 0.012**0.5, 1000, dtype=torch.float64) ** 2
    kept = torch.cumprod(1 - betas, 0)
    sigmas = ((1 - kept) / kept).sqrt()
    at = (1 - part) * 999
    low, rest = int(at), at - int(at)
    between_levels = (1 - rest) * sigmas[low].log() + rest * sigmas[min(low + 1, 999)].log()
    return float(between_levels.exp())


def levels(model: Any, num_steps: int = STEPS) -> list[float]:
    """Noise levels of the steps of Euler and Normal, as Forge has them."""
    from modules import sd_samplers

    sampler = sd_samplers.create_sampler("Euler", model)
    p = SimpleNamespace(
        is_hr_pass=False, scheduler="Normal", sampler_noise_scheduler_override=None, extra_generation_params={}
    )
    return sampler.get_sigmas(p, num_steps).tolist()


def cases(model: Any) -> dict[str, dict[str, Any]]:
    """Everything that is compared, by name."""
    cat, dog = ROWS["red cat"], ROWS["blue dog"]
    left = Field(cat, LEFT)
    steps, latent = levels(model), torch.randn(1, 4, SIZE[0] // 8, SIZE[1] // 8)
    found: dict[str, dict[str, Any]] = {
        "left half": {"lines": ["Red  cat: left half"], "texts": {TEXT: [left]}},
        "weights, rows of the picture": {
            "lines": ["mat: 0 1, 0.3 1, inside 3, outside 0.4"],
            "texts": {TEXT: [Field(ROWS["mat"], below(0.3, 3.0, 0.4))]},
        },
        "two phrases": {
            "lines": ["red cat: left half", "blue dog: 48 160, 0 1, outside 0.1"],
            "texts": {TEXT: [left, Field(dog, between(0.3, 1, 1.0, 0.1))]},
        },
        "two lines of one phrase multiply": {
            "lines": ["red cat: left half, outside 0.3", "red cat: 0 1, 0.5 1, outside 0.2"],
            "texts": {TEXT: [Field(cat, between(0, 0.5, 1, 0.3)), Field(cat, below(0.5, 1, 0.2))]},
        },
        "everywhere": {"lines": ["red cat: inside 0"], "texts": {TEXT: [Field(cat, between(0, 1, 0.0))]}},
        "first half": {
            "lines": ["red cat: left half, 0-0.5"],
            "texts": {TEXT: [left._replace(end=level(0.5))]},
        },
        "second half": {
            "lines": ["red cat: left half, 0.5-1"],
            "texts": {TEXT: [left._replace(start=level(0.5))]},
        },
        "steps": {
            "lines": ["red cat: left half, 2-4 steps"],
            "texts": {TEXT: [left._replace(start=steps[2], end=steps[4])]},
        },
        "two steps of Heun": {
            "lines": ["red cat: left half, 1-3 steps"],
            "texts": {TEXT: [left._replace(start=steps[1], end=steps[3])]},
            "fields": {"sampler_name": "Heun"},
        },
        "a batch of three": {
            "prompts": (TEXT, "a blue dog", "a red cat"),
            "lines": ["red cat: left half", "blue dog: right half"],
            "texts": {
                TEXT: [left, Field(dog, RIGHT)],
                "a blue dog": [Field((2, 3), RIGHT)],
                "a red cat": [Field((2, 3), LEFT)],
            },
        },
        "prompts of two lengths": {
            "prompts": (TEXT, TEXT + ", snow" * 60),
            "lines": ["red cat: left half"],
            "texts": {TEXT: [left], "long": [left]},
        },
        "AND": {
            "prompts": ("a red cat AND a blue dog :0.7",),
            "lines": ["red cat: left half", "blue dog: right half"],
            "texts": {"a red cat": [Field((2, 3), LEFT)], "a blue dog": [Field((2, 3), RIGHT)]},
        },
        "prompt editing": {
            "prompts": (EDITED,),
            "lines": ["red cat: left half", "blue dog: right half"],
            "texts": {"a red cat and a blue dog": [left, Field(dog, RIGHT)], "a green hat": [Field(dog, RIGHT)]},
        },
        "a long negative prompt": {
            "lines": ["red cat: left half"],
            "texts": {TEXT: [left]},
            "fields": {"negative": LONG},
        },
        "the prompt as its own negative": {
            "lines": ["red cat: left half"],
            "texts": {TEXT: [left]},
            "fields": {"negative": TEXT},
        },
        "guidance 1": {
            "lines": ["red cat: left half"],
            "texts": {TEXT: [left]},
            "fields": {"cfg_scale": 1.0},
        },
        "img2img": {
            "lines": ["red cat: left half, 1-2 steps"],
            "texts": {TEXT: [left._replace(start=steps[3], end=steps[4])]},
            "fields": {"latent": latent},
        },
        "DDIM": {
            "lines": ["red cat: left half, 0-0.5"],
            "texts": {TEXT: [left._replace(end=level(0.5))]},
            "fields": {"sampler_name": "DDIM"},
        },
        "weighted by masked_blend": {
            "prompts": ("a (red:0.5) cat and a blue dog on a mat",),
            "lines": ["red cat: left half"],
            "texts": {TEXT: [left]},
            "settings": {"scheme": "masked_blend"},
        },
    }  # fmt: skip
    for sampler in ("Euler a", "DPM++ 2M", "DPM++ 2S a", "DPM++ SDE", "UniPC", "LMS"):
        found[sampler] = {
            "lines": ["red cat: left half, 0-0.6"],
            "texts": {TEXT: [left._replace(end=level(0.6))]},
            "fields": {"sampler_name": sampler},
        }
    return found


def run_cases(
    cases_of: Callable[[Any], Mapping[str, Any]],
    compare: Callable[[Any, Any], object],
    models: Callable[[], Mapping[str, Any]] | None = None,
) -> None:
    """Compare the cases of a model, or of several by name, by the command line's program, and write what was found."""
    package, outcome = map(Path, sys.argv[1:3])
    del sys.argv[1:3]
    sys.path.insert(0, str(Path.cwd()))
    sys.path.remove(str(Path(__file__).resolve().parent))
    from modules import initialize

    initialize.imports()
    from modules import sd_models, sd_samplers

    sd_samplers.set_samplers()
    load_package(package)
    found: dict[str, Any] = {}
    for title, model in (models or (lambda: {"": make_model()}))().items():
        sd_models.model_data.sd_model = model
        for name, case in cases_of(model).items():
            try:
                found[f"{title}{name}"] = compare(model, case)
            except Exception:
                found[f"{title}{name}"] = traceback.format_exc()
    outcome.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    run_cases(cases, compared)
