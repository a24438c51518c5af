"""Weights, places and word maps in Forge's Flux, Chroma and Stable Diffusion 3.5, compared with a softmax in float64.

Run by test_webui_python.py in Forge's own Python, with its checkout as working directory:

    python forge_joint.py PACKAGE OUTCOME --always-cpu --data-dir DIR

Engines, networks and tokenizers are Forge's classes, small, with random weights; everything between them is Forge's:
prompt editing, AND, batches, samplers, guidance. Which rows a word has is written down here by hand.

Writes for each case of each model the largest difference and the largest change that is made, both relative to the
largest number, and the lines that are told; for word maps the largest difference of a share and the largest share.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from forge_cutoff import make_engine
from forge_places import LEFT, RIGHT, Field, between, run_cases, sampled, script
from webui_engines import draw, ours

WIDTH = 64
"""Width of T5's rows."""
TEXT = "a red cat and a blue dog on a mat"
IN_T5 = {"red": (2,), "cat": (3,), "blue": (7,), "dog": (8,), "mat": (12,), "red cat": (2, 3), "blue dog": (7, 8)}
"""Rows of words of `TEXT` in T5, of which a word may be two; there is no start token."""
IN_CLIP = {"red": (2,), "cat": (3,), "blue": (6,), "dog": (7,), "mat": (10,), "red cat": (2, 3), "blue dog": (6, 7)}
"""The same in CLIP."""
NEGATIVE = "ugly, blurry"
Rule = tuple[float, float]
"""Factor of a row's share before normalising, and factor of its value."""


class Weighed(NamedTuple):
    """A text with rules for some of its words."""

    words: Mapping[str, Rule]
    fields: Sequence[tuple[str, Any]] = ()
    """Words with a `Field` whose rows are left out."""
    is_negative: bool = False
    known: Sequence[str] = ()
    """Words of a text other than `TEXT`: those in order, of one row each."""
    num_clip: int = 77
    """Rows of CLIP in Stable Diffusion 3.5."""


def make_t5(width: int) -> Any:
    """Forge's T5, narrow; its rows are filled up with zeros to a width."""
    from backend.nn.t5 import IntegratedT5

    config = {"num_layers": 2, "d_model": WIDTH, "d_ff": 128, "dense_act_fn": "gelu_pytorch_tanh", "num_heads": 4}
    t5 = IntegratedT5({**config, "is_gated_act": True, "model_type": "t5", "vocab_size": 32128})
    draw(t5)

    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.shared = t5.transformer, t5.transformer.shared

        def forward(self, input_ids: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(self.inner(input_ids, **more), (0, width - WIDTH))

    t5.transformer = Wide()
    return t5


KINDS = ("Flux", "Chroma", "Stable Diffusion 3.5")
SCHNELL = "Flux schnell"
STORED = ("8 bits", "GGUF", "NF4")
"""Ways to store the weights of a network in fewer bits; the last needs bitsandbytes, which Forge installs on demand."""


def make_models(
    chroma: Mapping[str, int] = MappingProxyType({"depth": 2, "single": 2}),
    kinds: Sequence[str] = KINDS,
    stored: str = "",
) -> dict[str, Any]:
    """A model of each kind, by its name; ``chroma`` are Chroma's numbers of blocks, ``stored`` is one of `STORED`."""
    from backend.diffusion_engine.chroma import Chroma
    from backend.diffusion_engine.flux import Flux
    from backend.diffusion_engine.sd35 import StableDiffusion3
    from backend.modules.k_prediction import PredictionDiscreteFlow, PredictionFlux
    from backend.nn.chroma import IntegratedChromaTransformer2DModel
    from backend.nn.flux import IntegratedFluxTransformer2DModel
    from backend.nn.mmditx import MMDiTX
    from modules import shared

    shared.opts.data["sd3_enable_t5"] = True
    sizes = {"in_channels": 16, "hidden_size": 64, "mlp_ratio": 2.0, "num_heads": 4, "depth": 2, "theta": 10_000}
    joint = {**sizes, "context_in_dim": WIDTH, "depth_single_blocks": 2, "axes_dim": [4, 6, 6], "qkv_bias": True}
    guided = {"guidance_out_dim": 64, "guidance_hidden_dim": 64, "guidance_n_layers": 2}
    flux = partial(IntegratedFluxTransformer2DModel, **joint, vec_in_dim=128, guidance_embed=True)
    blocks = {"depth": chroma["depth"], "depth_single_blocks": chroma["single"]}
    network = partial(IntegratedChromaTransformer2DModel, **{**joint, **blocks, **guided}, vec_in_dim=128)
    embedder = {"target": "torch.nn.Linear", "params": {"in_features": 4096, "out_features": 128}}
    sd3 = partial(
        MMDiTX,
        **{"input_size": None, "in_channels": 16, "depth": 2, "adm_in_channels": 256, "qk_norm": "rms"},
        **{"context_embedder_config": embedder, "pos_embed_max_size": 32, "num_patches": 1024},
        x_block_self_attn_layers=[0],
    )
    made = {
        "Flux": (Flux, flux, PredictionFlux(), 256, "l"),
        SCHNELL: (Flux, partial(flux, guidance_embed=False), PredictionFlux(mu=1.0), 256, "l"),
        "Chroma": (Chroma, network, PredictionFlux(mu=1.0), 1, ""),
        "Stable Diffusion 3.5": (StableDiffusion3, sd3, PredictionDiscreteFlow(shift=3.0), 256, "lg"),
    }
    return {f"{kind}{f' in {stored}' if stored else ''}: ": finished(*made[kind], stored) for kind in kinds}


def every_model() -> dict[str, Any]:
    """A model of each kind, and those of which a few cases are compared, with the names of these as ``few``."""
    from backend import operations

    there = STORED if operations.bnb_avaliable else STORED[:-1]
    few = {SCHNELL: make_models(kinds=[SCHNELL])} | {stored: make_models(stored=stored) for stored in there}
    for name, models in few.items():
        for model in models.values():
            model.few = FEW[name]
    return make_models() | {title: model for models in few.values() for title, model in models.items()}


def stored_in(stored: str, build: Callable[[], Any], weights: Mapping[str, torch.Tensor]) -> torch.nn.Module:
    """A network with weights as Forge loads them from a file in one of `STORED`."""
    from backend.operations import using_forge_operations

    eighths = {"device": "cpu", "dtype": torch.float8_e4m3fn, "manual_cast_enabled": True}
    fourths = {"device": "cpu", "dtype": torch.float32, "bnb_dtype": stored.lower()}
    with using_forge_operations(**eighths if stored == "8 bits" else fourths):
        network = build()
    if stored == "8 bits":
        network.to(torch.float8_e4m3fn)
        network.load_state_dict(weights)
        return network
    linear = {f"{name}.weight" for name, part in network.named_modules() if type(part).__name__ == "Linear"}
    pack = {"GGUF": in_gguf, "NF4": in_nf4}[stored]
    state = {name: weight for name, weight in weights.items() if name not in linear}
    for name in linear:
        state |= {f"{name}{part}": packed for part, packed in pack(weights[name]).items()}
    assert not network.load_state_dict(state, strict=False).missing_keys  # parts of a weight are unexpected
    return network


def in_gguf(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A weight as Forge reads it from a GGUF file with 4 bits."""
    import gguf
    from backend.operations_gguf import ParameterGGUF

    kind = gguf.GGMLQuantizationType.Q4_0
    packed = {"data": gguf.quantize(weight.numpy(), kind), "tensor_type": kind, "shape": [*reversed(weight.shape)]}
    return {"": ParameterGGUF(SimpleNamespace(**packed))}


def in_nf4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """A weight with the parts of its file in the format of bitsandbytes."""
    from bitsandbytes.nn import Params4bit

    packed = Params4bit(weight, requires_grad=False, compress_statistics=False, quant_type="nf4")._quantize("cpu")
    parts = packed.quant_state.as_dict(packed=True)
    return {"": packed.data, **{f".{name}": part for name, part in parts.items()}}


def finished(kind: Any, build: Callable[[], Any], predictor: Any, min_length: int, clips: str, stored: str = "") -> Any:
    """A model of a class of Forge with a network, T5 and some CLIPs."""
    from backend.diffusion_engine.base import ForgeObjects
    from backend.patcher.clip import CLIP
    from backend.patcher.unet import UnetPatcher
    from backend.text_processing.t5_engine import T5TextProcessingEngine
    from transformers import T5TokenizerFast

    network = build()
    draw(network)
    if clips == "lg":
        network.pos_embed.normal_(generator=torch.Generator().manual_seed(2))
    if stored:
        network = stored_in(stored, build, network.state_dict())
    network.eval()
    network.storage_dtype = network.computation_dtype = torch.float32  # pyright: ignore[reportAttributeAccessIssue]
    network.load_device = network.offload_device = network.initial_device = torch.device("cpu")  # pyright: ignore
    t5 = make_t5(4096 if clips == "lg" else WIDTH)
    folder = Path("backend", "huggingface", "black-forest-labs", "FLUX.1-dev", "tokenizer_2")
    model = kind.__new__(kind)
    model.is_inpaint = False
    model.fix_for_webui_backward_compatibility()
    model.use_distilled_cfg_scale = getattr(network, "guidance_embed", False)
    tokenizer = T5TokenizerFast.from_pretrained(folder)
    model.text_processing_engine_t5 = T5TextProcessingEngine(t5, tokenizer, min_length=min_length)
    for name in clips:
        engine = make_engine()
        engine.embedding_key, engine.return_pooled, engine.embeddings.embedding_key = (
            f"clip_{name}",
            True,
            f"clip_{name}",
        )
        setattr(model, f"text_processing_engine_{name}", engine)
    clip = CLIP(model_dict={"t5xxl": t5}, tokenizer_dict={})
    patcher = UnetPatcher.from_model(network, None, None, predictor)
    model.forge_objects = ForgeObjects(unet=patcher, clip=clip, vae=None, clipvision=None)
    model.forge_objects_original = model.forge_objects_after_applying_lora = model.forge_objects
    # by this the host caches texts, with the guidance of those that have it
    model.sd_checkpoint_info = f"{kind.__name__} {stored} {model.use_distilled_cfg_scale}"
    model.extra_generation_params = {}
    model.channels, model.is_sd3 = 16, clips == "lg"
    return model


# The reference


def rows_of(model: Any, words: str, text: Weighed) -> list[int]:
    """Rows of words by hand: T5's, behind CLIP's in Stable Diffusion 3.5."""
    if text.known:
        places = [text.known.index(word) for word in words.split()]
        in_t5, in_clip = places, [1 + place for place in places]
    else:
        in_t5, in_clip = IN_T5[words], IN_CLIP[words]
    return [*in_clip, *(text.num_clip + row for row in in_t5)] if model.is_sd3 else list(in_t5)


def cells_of(weight: torch.Tensor) -> torch.Tensor:
    """Mean weights in patches of 2 × 2, row by row; those at the edges may be smaller."""
    rows, columns = (range(0, size, 2) for size in weight.shape)
    return torch.stack([weight[y : y + 2, x : x + 2].mean() for y in rows for x in columns])


@contextmanager
def read_otherwise(model: Any, texts: Sequence[tuple[torch.Tensor, Weighed]], found: list[Any]) -> Iterator[None]:
    """Let a network read by an attention in float64 with rules for the rows of known texts.

    Shares of all keys at the picture's queries of each image that reads one of these texts are added to ``found``.
    """
    family = ours("hosts.webui.attention.joint_models").family_of(model)
    network = model.forge_objects.unet.model.diffusion_model
    module = __import__(family.module, fromlist=["x"])
    now: dict[str, Any] = {}

    def look(_: Any, args: Any, inputs: Any) -> None:
        options = inputs["transformer_options"]
        now.update(size=args[0].shape[-2:], context=inputs["context"], sigma=options["sigmas"][0])
        now.update(kinds=options["cond_or_uncond"])

    def read_by(image: int) -> tuple[Weighed, int] | None:
        context = now["context"][image]
        is_negative = now["kinds"][image // (len(now["context"]) // len(now["kinds"]))] == 1
        for rows, text in texts:
            for period in range(len(rows), len(context) + 1 if text.is_negative == is_negative else 0):
                filled = torch.cat([rows, rows[-1:].expand(period - len(rows), -1)])
                if len(context) % period == 0 and torch.equal(context, filled.repeat(len(context) // period, 1)):
                    return text, period
        return None

    def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, **_: Any) -> torch.Tensor:
        if q.dim() == 3:
            q, k = (one.unflatten(-1, (heads, -1)).transpose(1, 2) for one in (q, k))
            v = v.unflatten(-1, (heads, -1)).transpose(1, 2) if v.dim() == 3 else v.transpose(1, 2)
        q, k, v = q.double(), k.double(), v.double()
        logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        shares = torch.exp(logits - logits.amax(-1, keepdim=True))
        num_text, (height, width) = now["context"].shape[1], now["size"]
        num_places = -(-height // 2) * -(-width // 2)
        if k.shape[2] != num_places:  # an attention of the picture alone has no rows of text
            assert k.shape[2] == num_text + num_places
            for image in range(len(q)):
                known = read_by(image)
                if known is None:
                    continue
                text, period = known
                starts = range(0, num_text, period)
                for words, (share, value) in text.words.items():
                    for row in (start + row for start in starts for row in rows_of(model, words, text)):
                        shares[image, :, :, row] *= share
                        v[image, :, row] *= value
                by_row: dict[int, torch.Tensor] = {}
                for words, (_, weight, start, end) in text.fields:
                    if now["sigma"] <= torch.tensor(start) and (now["sigma"] > torch.tensor(end) or end == 0):
                        for row in rows_of(model, words, text):
                            by_row[row] = by_row.get(row, 1.0) * weight(height, width)
                for row, weight in by_row.items():
                    for key in (start + row for start in starts):
                        shares[image, :, num_text:, key] *= cells_of(weight)
                        shares[image, :, :num_text, key] *= weight.min()
                normal = shares[image] / shares[image].sum(-1, keepdim=True)
                of_text = normal[:, num_text:, :num_text].mean(0).T.unflatten(1, (-(-height // 2), -1))
                found.append((image, text, period, of_text))
        read = (shares / shares.sum(-1, keepdim=True)) @ v
        return read.transpose(1, 2).flatten(2).float()

    with ExitStack() as undone:
        undone.enter_context(network.register_forward_pre_hook(look, with_kwargs=True))
        undone.enter_context(patch.object(module, family.function, reference))
        yield


# What is compared


def texts_in(model: Any, p: Any) -> list[torch.Tensor]:
    """Different rows of a generation's texts, those of prompts first."""
    rows: list[torch.Tensor] = []
    passes = [(p.c, p.uc), (getattr(p, "hr_c", None), getattr(p, "hr_uc", None))]
    schedules = [part.schedules for c, _ in passes if c is not None for parts in c.batch for part in parts]
    for own in (schedules, [one for _, uc in passes for one in uc or ()]):  # none with guidance 1
        found: list[torch.Tensor] = []
        for entry in (entry for schedule in own for entry in schedule):
            cond = entry.cond["crossattn"] if isinstance(entry.cond, dict) else entry.cond
            if not any(torch.equal(cond, one) for one in found):
                found.append(cond)
        rows += found
    return rows


def is_clean(model: Any) -> bool:
    """Whether nothing of ours is left in a model or the host."""
    import backend.attention
    import backend.nn.flux
    import backend.nn.mmditx

    modules = [*model.forge_objects.unet.model.diffusion_model.modules()]
    hooks = sum(len(one._forward_pre_hooks) + len(one._forward_hooks) for one in modules)
    is_own = backend.nn.flux.attention_function is backend.attention.attention_function
    return not hooks and is_own and backend.nn.mmditx.attention.__closure__ is None


def weights_of(model: Any) -> list[torch.Tensor]:
    """The bytes of all parameters of a model's network."""
    network = model.forge_objects.unet.model.diffusion_model
    return [one.data.contiguous().view(torch.uint8).clone() for one in network.parameters() if one.dim()]


def compared(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of a case from its reference, the change that it makes, and what is told."""
    fields, prompts = dict(case.get("fields", {})), case.get("prompts", (TEXT,))
    chosen = {"scheme": "a1111", "attention": "bias", **case.get("settings", {})}
    stock = sampled(model, *case.get("plain", (TEXT,)), **{**fields, **case.get("plain_fields", {})})
    stored = weights_of(model)
    acted = sampled(model, *prompts, script=script(*case.get("lines", ()), **chosen), **fields)
    assert is_clean(model)
    assert all(map(torch.equal, stored, weights_of(model)))
    again = sampled(model, *case.get("plain", (TEXT,)), **{**fields, **case.get("plain_fields", {})})
    assert torch.equal(again.samples, stock.samples)
    rows = texts_in(model, acted)
    assert len(rows) == len(case["texts"]), (len(rows), list(case["texts"]))
    with read_otherwise(model, list(zip(rows, case["texts"].values(), strict=True)), []):
        expected = sampled(
            model, *case.get("hosts", case.get("plain", (TEXT,))), **{**fields, **case.get("plain_fields", {})}
        )
    scale = float(expected.samples.abs().max())
    difference, change = (float((one.samples - expected.samples).abs().max()) / scale for one in (acted, stock))
    assert case.get("told", "") in "".join(acted.comments), acted.comments
    return difference, change, list(acted.comments)


PLAIN = Weighed({})
OTHER = Weighed({}, is_negative=True)
HIRES = {
    **{"enable_hr": True, "hr_scale": 1.5, "hr_second_pass_steps": 3, "hr_cfg": 3.0, "denoising_strength": 0.6},
    "hr_additional_modules": ["Use same choices"],
}
WEIGHTED = "a (red:1.5) cat and a (blue dog:0.4) on a (mat:-0.7)"


FEW = {
    SCHNELL: ("one step", "without text in one step"),
    **dict.fromkeys(STORED, ("value", "two phrases and weights", "weight 1", "maps with weights")),
}
"""Cases of models of which not all are compared."""


def every_case(model: Any) -> dict[str, dict[str, Any]]:
    """Cases of a model, by name."""
    found = {**cases(model), **other_cases(model)}
    return {name: found[name] for name in getattr(model, "few", found)}


def cases(model: Any) -> dict[str, dict[str, Any]]:
    """Everything that is compared, by name."""
    signed = {"red": (1.5, 1.0), "blue dog": (0.4, 1.0), "mat": (0.7, -1.0)}
    values = {"red": (1.0, 1.5), "blue dog": (1.0, 0.4), "mat": (1.0, -0.7)}
    krea2 = {"red": (math.exp(1.0), 1.0), "blue dog": (1.0, 0.4), "mat": (1.0, -0.7)}
    half = {"red": (1.25, 1.0), "blue dog": (0.7, 1.0), "mat": (0.15, 1.0)}
    left = Field((), LEFT)
    latent = torch.randn(1, 16, 12, 20, generator=torch.Generator().manual_seed(4))
    long = TEXT + ", snow" * 120
    return {
        "bias": {"prompts": (WEIGHTED,), "texts": {TEXT: Weighed(signed), "": OTHER}},
        "value": {
            "prompts": (WEIGHTED,),
            "settings": {"attention": "value"},
            "texts": {TEXT: Weighed(values), "": OTHER},
        },
        "krea2": {
            "prompts": (WEIGHTED,),
            "settings": {"attention": "krea2"},
            "texts": {TEXT: Weighed(krea2), "": OTHER},
        },
        "strength": {
            "prompts": (WEIGHTED,),
            "settings": {"attention_strength": 0.5},
            "texts": {TEXT: Weighed(half), "": OTHER},
        },
        "hidden": {
            "prompts": ("a red (cat:0) and a blue dog on a mat",),
            "texts": {TEXT: Weighed({"cat": (0.0, 1.0)}), "": OTHER},
        },
        "above 1 as the WebUI": {
            "prompts": (WEIGHTED,),
            "settings": {"above_one": "as the WebUI"},
            "hosts": ("a (red:1.5) cat and a blue dog on a mat",),
            "texts": {TEXT: Weighed({name: signed[name] for name in ("blue dog", "mat")}), "": OTHER},
        },
        "syntax of compel": {
            "prompts": ("a (red)1.5 cat and a (blue dog)0.4 on a mat",),
            "settings": {"syntax": "compel"},
            "texts": {TEXT: Weighed({name: signed[name] for name in ("red", "blue dog")}), "": OTHER},
        },
        "a negative prompt": {
            "fields": {"negative": "(ugly:0.5) dog"},
            "plain_fields": {"negative": "ugly dog"},
            "texts": {
                TEXT: PLAIN,
                "": Weighed({"dog": (1.0, 1.0), "ugly": (0.5, 1.0)}, is_negative=True, known=("ugly", "dog")),
            },
        },
        "the prompt as its own negative": {
            "prompts": (WEIGHTED,),
            "fields": {"negative": TEXT},
            "texts": {TEXT: Weighed(signed), "": OTHER},
        },
        "a long negative prompt": {
            "prompts": (WEIGHTED,),
            "fields": {"negative": "ugly, " * 90},
            "texts": {TEXT: Weighed(signed), "": OTHER},
        },
        "guidance 1": {
            "prompts": (WEIGHTED,),
            "fields": {"cfg_scale": 1.0},
            "texts": {TEXT: Weighed(signed)},
        },
        "one step": {
            "prompts": (WEIGHTED,),
            "fields": {"steps": 1, "cfg_scale": 1.0},
            "texts": {TEXT: Weighed(signed)},
        },
        "distilled guidance": {
            "prompts": (WEIGHTED,),
            "fields": {"distilled_cfg_scale": 9.0, "cfg_scale": 1.0},
            "texts": {TEXT: Weighed(signed)},
        },
        "hires. fix": {
            "prompts": (WEIGHTED,),
            "lines": ["red cat: left half"],
            "fields": HIRES,
            "texts": {TEXT: Weighed(signed, [("red cat", left)]), "": OTHER},
        },
        "hires. fix with another prompt": {
            "prompts": (WEIGHTED,),
            "fields": {**HIRES, "hr_prompt": "red (cat:0.5)"},
            "plain_fields": {"hr_prompt": "red cat"},
            "texts": {
                TEXT: Weighed(signed),
                "red cat": Weighed({"cat": (0.5, 1.0)}, known=("red", "cat")),
                "": OTHER,
            },
        },
        "DPM2": {
            "prompts": (WEIGHTED,),
            "fields": {"sampler_name": "DPM2"},
            "texts": {TEXT: Weighed(signed), "": OTHER},
        },
        "AND": {
            "prompts": ("red (cat:0.5) AND blue (dog:1.5) :0.7",),
            "plain": ("red cat AND blue dog :0.7",),
            "texts": {
                "red cat": Weighed({"cat": (0.5, 1.0)}, known=("red", "cat")),
                "blue dog": Weighed({"dog": (1.5, 1.0)}, known=("blue", "dog")),
                "": OTHER,
            },
        },
        "AND of the same words": {
            "prompts": ("red (cat:0.5) AND red (cat:1.5)",),
            "plain": ("red cat AND red cat",),
            "texts": {"red cat": Weighed({"cat": (0.5, 1.0)}, known=("red", "cat")), "": OTHER},
            "told": "those of the first part acted in both",
        },
        "prompt editing": {
            "prompts": ("red [(cat:0.5):(dog:1.5):0.5]",),
            "plain": ("red [cat:dog:0.5]",),
            "texts": {
                "red cat": Weighed({"cat": (0.5, 1.0)}, known=("red", "cat")),
                "red dog": Weighed({"dog": (1.5, 1.0)}, known=("red", "dog")),
                "": OTHER,
            },
        },
        "left half": {
            "lines": ["Red  cat: left half"],
            "settings": {"attention": "as the WebUI"},
            "texts": {TEXT: Weighed({}, [("red cat", left)]), "": OTHER},
        },
        "two phrases and weights": {
            "prompts": (WEIGHTED.replace("-0.7", "0.7"),),
            "lines": ["red cat: left half", "blue dog: right half, outside 0.2", "cat: 0 1, 0.5 1, outside 0.5"],
            "texts": {
                TEXT: Weighed(
                    {"red": (1.5, 1.0), "blue dog": (0.4, 1.0), "mat": (0.7, 1.0)},
                    [
                        ("red cat", left),
                        ("blue dog", Field((), lambda h, w: 0.2 + 0.8 * RIGHT(h, w))),
                        ("cat", Field((), lambda h, w: 0.5 + 0.5 * between(0.5, 1.0)(w, h).T)),
                    ],
                ),
                "": OTHER,
            },
        },
        "first half": {
            "lines": ["red cat: left half, 0-0.5"],
            "settings": {"attention": "as the WebUI"},
            "texts": {TEXT: Weighed({}, [("red cat", left._replace(end=0.5))]), "": OTHER},
        },
        "img2img": {
            "prompts": (WEIGHTED,),
            "fields": {"latent": latent},
            "texts": {TEXT: Weighed(signed), "": OTHER},
        },
        "inpainting": {
            "prompts": (WEIGHTED,),
            "lines": ["red cat: left half"],
            "fields": {"latent": latent, "mask": (torch.arange(20) < 8).float().expand(16, 12, 20)},
            "texts": {TEXT: Weighed(signed, [("red cat", left)]), "": OTHER},
        },
        "a batch": {
            "prompts": (TEXT, "a blue dog on a red mat"),
            "plain": (TEXT, "a blue dog on a red mat"),
            "lines": ["red cat: left half"],
            "texts": {TEXT: Weighed({}, [("red cat", left)]), "other": PLAIN, "": OTHER},
        },
        "prompts of different lengths": {
            "prompts": (WEIGHTED, long.replace("cat", "(cat:0.3)")),
            "plain": (TEXT, long),
            "lines": ["blue dog: right half"],
            "texts": {
                TEXT: Weighed(signed, [("blue dog", Field((), RIGHT))]),
                long: Weighed({"cat": (0.3, 1.0)}, [("blue dog", Field((), RIGHT))], num_clip=4 * 77),
                "": OTHER,
            },
        },
    }  # fmt: skip


def compared_pairs(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of texts with equal rows and other weights from generations in which each is alone."""
    chosen = script(**{"scheme": "a1111", "attention": "bias", **case.get("settings", {})})
    acted = sampled(model, *case["prompts"], script=chosen).samples
    alone = [sampled(model, *[one] * len(case["prompts"]), script=chosen).samples for one in case["prompts"]]
    scale = float(acted.abs().max())
    largest = max(float((acted[number] - own[number]).abs().max()) / scale for number, own in enumerate(alone))
    change = float((alone[0] - alone[1]).abs().max()) / scale
    return largest, change, []


def compared_stock(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the host's own picture, which must be 0."""
    fields = dict(case.get("fields", {}))
    stock = sampled(model, *case["hosts"], **fields)
    acted = sampled(model, *case["prompts"], script=script(*case.get("lines", ()), **case["settings"]), **fields)
    same = torch.equal(acted.samples, stock.samples)
    assert is_clean(model)
    return 0.0 if same else 1.0, 1.0, list(acted.comments)


def compared_interrupted(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the host's own picture after one with weights, places and maps was interrupted or skipped."""
    from modules import shared

    stock = sampled(model, TEXT).samples
    network = model.forge_objects.unet.model.diffusion_model
    for name in ("interrupted", "skipped"):
        handle = network.register_forward_pre_hook(lambda *_, name=name: setattr(shared.state, name, True))
        chosen = script("red cat: left half", scheme="a1111", attention="bias", word_maps=True)
        try:
            cut = sampled(model, TEXT.replace("dog", "(dog:0.3)"), script=chosen).samples
        finally:
            handle.remove()
            setattr(shared.state, name, False)
        assert is_clean(model)
        assert not torch.equal(cut, stock)
    same = torch.equal(sampled(model, TEXT).samples, stock)
    return 0.0 if same else 1.0, 1.0, []


@contextmanager
def patched(model: Any) -> Iterator[None]:
    """Give a model what others put on it in Forge: a LoRA, a wrapper of its network, another guidance."""
    plain = model.forge_objects_after_applying_lora
    model.forge_objects_after_applying_lora = objects = plain.shallow_copy()
    objects.unet = unet = plain.unet.clone()
    name, weight = next(one for one in unet.model.named_parameters() if one[0].endswith("qkv.weight"))
    difference = 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(5))
    unet.add_patches(filename="small.safetensors", patches={name: ("diff", (difference,))}, strength_patch=0.5)
    unet.set_model_unet_function_wrapper(
        lambda apply, asked: 0.98 * apply(asked["input"], asked["timestep"], **asked["c"])
    )
    unet.set_model_sampler_post_cfg_function(lambda asked: 0.97 * asked["denoised"])
    try:
        yield
    finally:
        model.forge_objects_after_applying_lora = plain


def compared_beside_patches(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of a case from its reference, both with what others have put on the model."""
    bare = sampled(model, TEXT).samples
    with patched(model):
        beside = sampled(model, TEXT).samples
        found = compared(model, case)
    again = sampled(model, TEXT).samples
    assert torch.equal(again, bare) and not torch.allclose(beside, bare, rtol=0, atol=1e-2 * float(bare.abs().max()))
    return found


def compared_unknown_encoder(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the host's own picture of a known network with a text encoder that nobody here knows."""
    model.text_processing_engine_other = object()
    try:
        difference, change, lines = compared_stock(model, case)
    finally:
        del model.text_processing_engine_other
    assert len(lines) == 1 and "does not know this WebUI's" in lines[0], lines
    return difference, change, lines


def compared_functions(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Largest difference of a picture by each attention of Forge, and by one that takes no mask, and the change."""
    import backend.attention

    family = ours("hosts.webui.attention.joint_models").family_of(model)
    module, chosen = sys.modules[family.module], script("red cat: left half", scheme="a1111", attention="bias")
    host, calls = getattr(module, family.function), list[int]()

    def attention_sage(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, heads: int, **choices: Any) -> torch.Tensor:
        assert "mask" not in choices
        calls.append(1)
        return host(q, k, v, heads, **choices)

    names = () if model.is_sd3 else ("basic", "split", "sub_quad")  # it has a function of its own
    functions = [attention_sage, *(getattr(backend.attention, f"attention_{name}") for name in names)]
    prompt = WEIGHTED.replace("-0.7", "0.7")
    stock, expected = sampled(model, TEXT).samples, sampled(model, prompt, script=chosen).samples
    largest, scale = 0.0, float(expected.abs().max())
    for function in functions:
        with patch.object(module, family.function, function):
            acted = sampled(model, prompt, script=chosen).samples
        largest = max(largest, float((acted - expected).abs().max()) / scale)
    assert calls or not model.is_sd3, "an attention of the picture alone is the function's"
    return largest, float((stock - expected).abs().max()) / scale, []


def compared_left_behind(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference from the host's own picture after another extension has wrapped the attention and not put it back.

    It does so before a picture of ours, and while one is sampled; in the end its functions are all that is there.
    """
    family = ours("hosts.webui.attention.joint_models").family_of(model)
    module, network = sys.modules[family.module], model.forge_objects.unet.model.diffusion_model
    stock, host = sampled(model, TEXT).samples, getattr(module, family.function)
    chosen = script("red cat: left half", scheme="a1111", attention="bias")
    weighed, calls = sampled(model, WEIGHTED, script=chosen).samples, list[str]()

    def wrap(name: str) -> None:
        inner = getattr(module, family.function)

        @wraps(inner)
        def theirs(*inputs: Any, **choices: Any) -> torch.Tensor:
            calls.append(name)
            return inner(*inputs, **choices)

        setattr(module, family.function, theirs)

    try:
        wrap("before")
        before = sampled(model, WEIGHTED, script=chosen).samples
        handle = network.register_forward_pre_hook(lambda *_: None if "while" in calls else wrap("while"))
        sampled(model, WEIGHTED, script=chosen)
        handle.remove()
        assert {*calls} == {"before", "while"}
        after, again = sampled(model, TEXT).samples, sampled(model, WEIGHTED, script=chosen).samples
    finally:
        setattr(module, family.function, host)
    assert is_clean(model)
    same = [*map(torch.equal, (before, after, again), (weighed, stock, weighed))]
    return 0.0 if all(same) else 1.0, 1.0, list(map(str, same))


def compared_maps(model: Any, case: Mapping[str, Any]) -> tuple[float, float, list[str]]:
    """Difference of shares of words from those written out, and the largest."""
    chosen = {"scheme": "a1111", "attention": "bias", **case.get("settings", {})}
    fields = dict(case.get("fields", {}))
    watched = sampled(model, *case["prompts"], script=script(**chosen, word_maps=True), **fields)
    assert is_clean(model)
    plain = sampled(model, *case["prompts"], script=script(**chosen), **fields)
    assert torch.equal(watched.samples, plain.samples)
    rows = texts_in(model, plain)
    shares: list[Any] = []
    with read_otherwise(model, list(zip(rows, case["texts"].values(), strict=True)), shares):
        sampled(model, *case["hosts"], **fields)
    largest = most = 0.0
    for picture, maps in enumerate(watched.weighted_clip_sampling.word_maps.pictures):
        for one in maps:
            expected = []
            for image, text, period, own in shares:
                if not text.is_negative and image % len(case["prompts"]) == picture and one.word in IN_T5:
                    keys = [key for row in rows_of(model, one.word, text) for key in range(row, len(own), period)]
                    expected.append(enlarged(own[keys].sum(0), one.shares.shape))
            if expected:
                mean = torch.stack(expected).mean(0)
                largest = max(largest, float((one.shares - mean).abs().max()))
                most = max(most, float(mean.max()))
    return largest, most, []


def enlarged(shares: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """Shares at patches of 2 × 2, between their centres at the places of the latent."""

    def along(number: int, cells: int) -> torch.Tensor:
        at = ((torch.arange(number, dtype=torch.float64) + 0.5) / 2 - 0.5).clamp(0, cells - 1)
        return (1 - (at[:, None] - torch.arange(cells)).abs()).clamp(min=0)

    return along(size[0], shares.shape[0]) @ shares @ along(size[1], shares.shape[1]).T


def other_cases(model: Any) -> dict[str, dict[str, Any]]:
    """Cases that are compared otherwise, by name."""
    ways = {"attention": "bias", "scheme": "a1111"}
    weighed = {TEXT: Weighed({"red": (1.5, 1.0), "blue dog": (0.4, 1.0), "mat": (0.7, -1.0)}), "": OTHER}
    return {
        "a batch with other weights": {
            "compare": compared_pairs,
            "prompts": ("a red (cat:0.3)", "a red (cat:1.7)"),
        },
        "weight 1": {
            "compare": compared_stock,
            "settings": ways,
            "prompts": ("a (red:1.0) cat \\(big\\) and a blue dog",),
            "hosts": ("a (red:1.0) cat \\(big\\) and a blue dog",),
        },
        "above 1 is the host's": {
            "compare": compared_stock,
            "settings": {**ways, "above_one": "as the WebUI"},
            "prompts": ("a ((red)) cat and a (blue dog:1.3)",),
            "hosts": ("a ((red)) cat and a (blue dog:1.3)",),
        },
        "a scheme of CLIP": {
            "compare": compared_stock,
            "settings": {"scheme": "masked_blend", "bind": "red cat", "padding": "mask", "syntax": "compel"},
            "prompts": ("a (red:0.5) cat",),
            "hosts": ("a (red:0.5) cat",),
        },
        "interrupted and skipped": {"compare": compared_interrupted},
        "hooks left behind": {"compare": compared_left_behind},
        "functions of the host": {"compare": compared_functions},
        "other patches": {
            "compare": compared_beside_patches,
            "prompts": (WEIGHTED.replace("-0.7", "0.7"),),
            "lines": ["red cat: left half"],
            "texts": {
                TEXT: Weighed(
                    {"red": (1.5, 1.0), "blue dog": (0.4, 1.0), "mat": (0.7, 1.0)}, [("red cat", Field((), LEFT))]
                ),
                "": OTHER,
            },
        },
        "an unknown encoder": {
            "compare": compared_unknown_encoder,
            "settings": {**ways, "word_maps": True},
            "lines": ["red cat: left half"],
            "prompts": (WEIGHTED,),
            "hosts": (WEIGHTED,),
        },
        "without text": {"compare": compared_stock, "settings": ways, "prompts": ("",), "hosts": ("",)},
        "without text in one step": {
            **{"compare": compared_stock, "settings": ways, "prompts": ("",), "hosts": ("",)},
            "fields": {"steps": 1, "cfg_scale": 1.0, "negative": "(ugly:0.3)"},
        },
        "maps": {"compare": compared_maps, "prompts": (TEXT,), "hosts": (TEXT,), "texts": {TEXT: PLAIN, "": OTHER}},
        "maps with weights": {
            "compare": compared_maps,
            "prompts": (WEIGHTED,),
            "hosts": (TEXT,),
            "texts": weighed,
        },
        "maps by guidance 1": {
            "compare": compared_maps,
            "prompts": (TEXT,),
            "hosts": (TEXT,),
            "fields": {"cfg_scale": 1.0},
            "texts": {TEXT: PLAIN},
        },
    }


def compare(model: Any, case: Mapping[str, Any]) -> object:
    own: Callable[..., object] = case.get("compare", compared)
    return own(model, case)


if __name__ == "__main__":
    run_cases(every_case, compare, every_model)
