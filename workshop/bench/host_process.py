"""Time ComfyUI's stock nodes, ADV_CLIP_emb and ours in one process of a ComfyUI's own Python.

Called by hosts.py, with the checkout as working directory. A job is ``weights`` (a safetensors file), ``sizes`` (of its
text encoder), ``repetitions``, and one of these tasks:

- ``prompts``: name to ``template`` (as in texts.py), ``peer`` (how the peer encodes it) and ``ours`` (name to ``way``,
  which is ``host``, ``memory`` or ``native``, and ``options``), with ``adv`` (folder of ADV_CLIP_emb, or null). Every
  contestant gets the same sequence of distinct texts, and its own cache.
- ``sampling``: name to ``node`` (of ours), its ``inputs`` and ``wired`` (whether it gets the MODEL too), with ``unet``
  (sizes of the U-Net), ``side`` (of its latent) and ``stock`` (the prompt for the stock node). Encoding and a step of
  sampling are timed separately.

The result holds all times, versions, and largest differences from the peer or numbers of rows.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import dataclasses
import importlib
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

MEBIBYTES = 64
"""Cache size of the caching CLIP and the native encoder: the latter's default."""


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job."""
    from comfy.cli_args import args

    args.cpu = True
    import comfyui_version
    import numpy
    import torch

    with torch.inference_mode():
        result = {"sampling": sample(job)} if "sampling" in job else {"prompts": encode(job)}
    about = {
        "ComfyUI": comfyui_version.__version__,
        "torch": torch.__version__,
        "threads:": torch.get_num_threads(),
        "numpy": numpy.__version__,
    }
    return {"about": about, **result}


def encode(job: dict[str, Any]) -> dict[str, Any]:
    """For each prompt, seconds of the peer and of ours, and the difference of ours from the peer."""
    from .texts import fresh
    from .timing import times_in_turn

    clips = {"host": open_clip(job), "native": open_native(job)}
    peer_of = adv_peer(job) if job["adv"] else stock_peer()
    results: dict[str, Any] = {}
    for name, prompt in job["prompts"].items():
        runs = {
            way: ours(new_memory(clips, how["way"]), fresh(prompt["template"], "comfy"), how["options"])
            for way, how in prompt["ours"].items()
        }
        runs["peer"] = peer_of(clips["host"], fresh(prompt["template"], "comfy"), prompt["peer"])
        expected = runs["peer"]()
        differences = {way: float((run() - expected).abs().max()) for way, run in runs.items() if way != "peer"}
        times = times_in_turn(runs, repetitions=job["repetitions"])
        results[name] = {"times": times, "differences": differences}
    return results


def sample(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of encoding and of a step of KSampler, and numbers of rows, for the stock node and each of ours."""
    import torch

    from ...nodes import NODE_CLASS_MAPPINGS
    from .timing import times_in_turn

    host = importlib.import_module("nodes")
    clip, model = open_clip(job), open_unet(job["unet"])
    (negative,) = host.CLIPTextEncode().encode(clip, "")
    latent = {"samples": torch.zeros(1, 4, job["side"], job["side"])}

    def encoding(node: str, inputs: dict[str, Any], wired: bool) -> Callable[[], Any]:
        given = {**inputs, "model": model} if wired else inputs
        ours: Any = NODE_CLASS_MAPPINGS[node]()
        return lambda: ours.encode(clip=clip, **given)["result"]

    def sampling(conditioning: Any, model: Any) -> Callable[[], Any]:
        settings = {"seed": 1, "steps": 1, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal"}
        inputs = {"positive": conditioning, "negative": negative, "latent_image": latent, "model": model}
        return lambda: host.KSampler().sample(**settings, **inputs)

    ways = job["sampling"]
    encodings = {name: encoding(**way) for name, way in ways.items()}
    encodings["peer"] = lambda: host.CLIPTextEncode().encode(clip, job["stock"])
    results = {name: run() for name, run in encodings.items()}
    wired = {name for name, way in ways.items() if way["wired"]}
    samplings = {name: sampling(found[0], found[-1] if name in wired else model) for name, found in results.items()}
    return {
        "rows": {name: found[0][0][0].shape[1] for name, found in results.items()},
        "encoding": times_in_turn(encodings, repetitions=job["repetitions"]),
        "sampling": times_in_turn(samplings, repetitions=job["repetitions"], warm_up=1),
    }


def open_unet(sizes: dict[str, Any]) -> Any:
    """A MODEL of Stable Diffusion 1 with seeded random weights, in float32."""
    import torch
    from comfy import model_patcher, supported_models

    config = supported_models.SD15({**sizes, "dtype": torch.float32})
    cpu = torch.device("cpu")
    model = config.get_model({}, device=cpu)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.diffusion_model.parameters():
        parameter.normal_(std=0.02, generator=generator)
    return model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)


def open_clip(job: dict[str, Any]) -> Any:
    """ComfyUI's CLIP object, in float32."""
    import comfy.sd
    import torch

    return comfy.sd.load_clip(
        ckpt_paths=[job["weights"]],
        clip_type=comfy.sd.CLIPType.STABLE_DIFFUSION,
        model_options={"dtype": torch.float32, "model_config": job["sizes"]},
    )


def open_native(job: dict[str, Any]) -> Any:
    """Our own encoder on the same file, managed by the host."""
    import torch

    from ...hosts.comfy.models import load_native

    return load_native(job["weights"], clip_skip=1, dtype=torch.float32, device="auto")


def new_memory(clips: dict[str, Any], way: str) -> Any:
    """One of the CLIPs, with the same weights and an empty cache."""
    from ...encoder.families import encoders_for
    from ...hosts.comfy.cache import with_memory

    if way == "host":
        return clips["host"]
    if way == "memory":
        return with_memory(clips["host"], MEBIBYTES)
    models = {name: encoder.model for name, encoder in clips["native"].encoders.items()}
    return dataclasses.replace(clips["native"], encoders=encoders_for(models, max_bytes=MEBIBYTES * 2**20)[1])


def ours(clip: Any, texts: Iterator[str], options: dict[str, Any]) -> Callable[[], Any]:
    """Function that our nodes call."""
    from ...hosts.comfy.clip import encode_text
    from ...weighting.options import EncodeOptions

    chosen = EncodeOptions(**options)
    return lambda: encode_text(clip, next(texts), chosen).conditioning[0][0]


def stock_peer() -> Callable[[Any, Iterator[str], Any], Callable[[], Any]]:
    """ComfyUI's node CLIP Text Encode."""
    node = importlib.import_module("nodes").CLIPTextEncode()
    return lambda clip, texts, settings: lambda: node.encode(clip, next(texts))[0][0][0]


def adv_peer(job: dict[str, Any]) -> Callable[[Any, Iterator[str], Any], Callable[[], Any]]:
    """Function that ADV_CLIP_emb's node CLIP Text Encode (Advanced) calls; the setting is its weight interpretation."""
    advanced_encode = runpy.run_path(str(Path(job["adv"], "adv_encode.py")))["advanced_encode"]
    return lambda clip, texts, style: lambda: advanced_encode(clip, next(texts), "none", style)[0]
