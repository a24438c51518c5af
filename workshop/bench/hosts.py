"""The same prompts inside a real ComfyUI, compared with its stock node and ADV_CLIP_emb on the same weights.

``--hosts DIR`` is a folder with a ComfyUI checkout that has its virtual environment (``.venv`` or ``venv``), or that
checkout itself. ADV_CLIP_emb is searched for in DIR and in the checkout's custom_nodes; it needs numpy below 2, so a
virtual environment DIR/peers-venv is preferred for it if it exists. Each peer has its own process, in which it is timed
in turn with ours: on ComfyUI's CLIP object, for some prompts on one with a cache, and on our native encoder.
"""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...encoder.models.config import sizes_of
from ..find_hosts import HostReference, find_references
from .page import (
    COMPARISON_HEAD,
    NOT_FOUND,
    Goal,
    PageSection,
    Request,
    comparison,
    in_process,
    milliseconds,
    missing,
    rows_of,
    table,
    times,
)
from .texts import PROMPTS, fresh
from .timing import compare, in_order, load, times_in_turn

SECONDS = 1800
STOCK, ADV = "stock CLIP Text Encode", "ADV_CLIP_emb"

_COMFY = {"scheme": "comfy"}
_NESTED = {"scheme": "masked_blend", "law": "nested"}
PLAN: dict[str, dict[str, tuple[str, dict[str, dict[str, str]]]]] = {
    STOCK: {
        "plain": ("", {"comfy": _COMFY}),
        "one word up": ("", {"comfy": _COMFY}),
        "four words down": ("", {"comfy": _COMFY, "masked_blend, law nested": _NESTED}),
    },
    ADV: {"four words down": ("compel", {"adv_compel": {"scheme": "adv_compel"}})},
}
"""For each peer and prompt: the peer's setting, and our ways with their options."""

SAME = {(STOCK, "comfy"), (ADV, "adv_compel")}
"""Peers and our ways that compute the same."""

WAYS = {"host": "ComfyUI's CLIP", "memory": "ComfyUI's CLIP, remembering", "native": "native encoder"}
REMEMBERED = {(STOCK, "one word up", "comfy")}
"""Peer, prompt and our way for which the caching CLIP is timed too."""


def ways_of(peer: str, prompt: str, name: str) -> list[str]:
    """Keys of `WAYS` timed for a peer, a prompt and one of our ways to weight it."""
    return [way for way in WAYS if way != "memory" or (peer, prompt, name) in REMEMBERED]


def host_block(request: Request) -> str:
    """Section in Markdown: what ran in which process, and a row for each peer, prompt and way of ours."""
    headings: list[str] = []
    rows: list[list[str]] = []
    for peer in PLAN:
        result, why = run_in_host(request, peer, prompts_for(peer))
        if result is not None:
            headings.append(f"- {peer}: {_versions(result)}")
        rows += _host_rows(peer, result, why)
    return "\n\n".join(["\n".join(headings), table(COMPARISON_HEAD, rows, num_left=3)]).strip()


def _versions(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in result["about"].items())


def find_places(folder: Path | None) -> dict[str, HostReference]:
    """Locations of the peers that are found in a folder of hosts: the newest ComfyUI, and ADV_CLIP_emb.

    It raises ValueError if there is no such folder.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ValueError(f"--hosts {folder}: there is no such folder")
    references = find_references(folder)
    ways = {STOCK: references["comfyui"][-1:], ADV: references["adv_clip_emb"][:1]}
    return {peer: place for peer, places in ways.items() for place in places}


def prompts_for(peer: str) -> dict[str, Any]:
    """Task for `time_in_host`: all prompts and ways of a peer."""
    prompts = {
        prompt: {
            "template": PROMPTS[prompt],
            "peer": setting,
            "ours": {
                f"{name}, {WAYS[way]}": {"way": way, "options": {"syntax": "comfy", **options}}
                for name, options in way_names.items()
                for way in ways_of(peer, prompt, name)
            },
        }
        for prompt, (setting, way_names) in PLAN[peer].items()
    }
    return {"prompts": prompts}


def run_in_host(request: Request, peer: str, task: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """Result of `time_in_host` for one of its tasks, in the process of a peer; or None and the reason for that."""
    from ..parity.native import save_model

    place = find_places(request.hosts).get(peer)
    if place is None:
        return None, NOT_FOUND
    model = request.scale.model()
    with tempfile.TemporaryDirectory() as temporary:
        weights = Path(temporary, "model.safetensors")
        save_model(model, weights)
        job: dict[str, Any] = {"weights": str(weights), "sizes": sizes_of(model.config)}
        job |= {"adv": str(place.folder) if peer == ADV else None, "repetitions": request.scale.repetitions}
        try:
            how: dict[str, Any] = {"folder": place.host, "seconds": SECONDS}
            return in_process(f"{peer} did not run", time_in_host, {**job, **task}, place.python, **how), ""
        except ValueError as error:
            request.say(str(error))
            return None, "failed"


def _host_rows(peer: str, result: dict[str, Any] | None, why: str) -> list[list[str]]:
    rows: list[list[str]] = []
    for prompt, (setting, way_names) in PLAN[peer].items():
        label = f"{peer}: {setting}" if setting else peer
        for name in way_names:
            for way in ways_of(peer, prompt, name):
                full = f"{name}, {WAYS[way]}"
                if result is None:
                    rows.append(missing(prompt, full, label, why))
                    continue
                times, differences = (result["prompts"][prompt][key] for key in ("times", "differences"))
                difference = differences[full] if (peer, name) in SAME else None
                rows.append(comparison(prompt, full, label, compare(times[full], times["peer"]), difference))
    return rows


HOSTS = PageSection(
    "hosts",
    host_block,
    "Inside ComfyUI",
    (
        Goal(
            "A weighted prompt, native encoder",
            "ComfyUI's own encode",
            rows_of("one word up", f"comfy, {WAYS['native']}", STOCK),
            1.9,
        ),
        Goal(
            "A weighted prompt, ComfyUI's CLIP, remembering",
            "ComfyUI's own encode",
            rows_of("one word up", f"comfy, {WAYS['memory']}", STOCK),
            1.3,
        ),
        Goal(
            "Four words down in 60 tokens",
            "ADV_CLIP_emb",
            rows_of("four words down", f"adv_compel, {WAYS['native']}", f"{ADV}: compel"),
            2.0,
        ),
    ),
)


# ---- sampling

SAMPLING_HEAD = ("Prompt", "Way", "Rows", "Encoding, ms", "/ stock", "A step, ms", "/ stock", "Middle half")
STOCK_PROMPT = "a photo of a red fox, a blue bird and a green frog in deep snow, oil painting"
TIMED = ("encoding", "sampling")


def _weighed(weight: float) -> str:
    return STOCK_PROMPT.replace("red", f"(red:{weight:g})")


def _way(node: str, wired: bool = False, then: Sequence[dict[str, Any]] = (), **inputs: Any) -> dict[str, Any]:
    return {"node": node, "inputs": {"syntax": "comfy", **inputs}, "wired": wired, "then": [*then]}


_MENUS = {"chunking": "as syntax", "padding": "attend", "pooled": "unweighted", "normalization": "none"}
_REPEAT: dict[str, Any] = {"node": "WeightedCLIPTextEncode", "scheme": "repeat", **_MENUS}
_ATTENTION: dict[str, Any] = {
    "node": "WeightedCLIPWeighAttention",
    "text": _weighed(1.5),
    "how": "bias",
    "strength": 1.0,
}
_PHRASES = "a red fox\na blue bird\na green frog"
_PLAIN: dict[str, Any] = {"node": "WeightedCLIPTextEncode", "text": STOCK_PROMPT, "scheme": "comfy"}
_WHERE = {"area": "left half", "start": 0.0, "end": 1.0, "unit": "percent"}
_PLACE = {"node": "WeightedCLIPPlace", "phrase": "a red fox", "inside": 1.0, "outside": 0.0, **_WHERE}
_WATCH = {"node": "WeightedCLIPWatch", "words": "", "every": 1, "layers": "all"}
_REGION = {"node": "WeightedCLIPRegion", "region": "a red fox", "strength": 1.0, **_WHERE}
NODES: dict[tuple[str, str], dict[str, Any]] = {
    ("no weights", "comfy"): _way(**_PLAIN),
    ("(red:1.5)", "repeat, steps of 1/2"): _way(**_REPEAT, text=_weighed(1.5), finest_step="2"),
    ("(red:1.3)", "repeat, steps of 1/10"): _way(**_REPEAT, text=_weighed(1.3), finest_step="10"),
    ("(red:1.5)", "Attention Weights"): _way(**_ATTENTION),
    ("(red:1.5)", "Attention Weights, with MODEL"): _way(**_ATTENTION, wired=True),
    ("three phrases", "Color Bleed"): _way(
        "WeightedCLIPBindPhrases", text=STOCK_PROMPT, phrases=_PHRASES, rest="full", strength=1.0, scheme="comfy"
    ),
    ("a phrase", "Place Phrase"): _way(**_PLAIN, then=[_PLACE]),
    ("a phrase", "Place Phrase, its time over"): _way(
        **_PLAIN, then=[{**_PLACE, "unit": "steps", "start": 1, "end": 2}]
    ),
    ("each word", "Watch Words"): _way(**_PLAIN, then=[_WATCH]),
    ("two regions", "Regional Prompt"): _way(**_PLAIN, then=[_REGION, {**_REGION, "area": "right half"}]),
}
"""Node that encodes each prompt in each way, with its inputs."""


def sampling_block(request: Request) -> str:
    """Section in Markdown: what ran, and rows for encoding and sampling in each way.

    Stable Diffusion 1.5's U-Net and CLIP have their full size, with seeded random weights.
    """
    scale = request.scale
    busy = load("the minute before")
    task = {
        "unet": scale.unet_sizes | {"context_dim": scale.model().config.hidden_dim},
        "side": scale.latent_side,
        "stock": STOCK_PROMPT,
        "sampling": {", ".join(names): way for names, way in NODES.items()},
    }
    result, why = run_in_host(request, STOCK, {**task, "repetitions": scale.sampling_repetitions})
    if result is None:
        return table(SAMPLING_HEAD, [[*names, *["-"] * 5, why] for names in NODES], num_left=2)
    pixels = f"a step of KSampler at {8 * scale.latent_side} x {8 * scale.latent_side} pixels, negative prompt empty"
    lines = [f"- {line}" for line in (f"{STOCK}: {_versions(result)}", pixels, *busy)]
    return "\n".join([*lines, "", table(SAMPLING_HEAD, _sampling_rows(result["sampling"]), num_left=2)])


def _sampling_rows(result: dict[str, Any]) -> list[list[str]]:
    """A row for the stock node, then one for each way of ours."""
    encoding, step = (milliseconds(statistics.median(result[work]["peer"])) for work in TIMED)
    rows = [["no weights", STOCK, str(result["rows"]["peer"]), encoding, "-", step, "-", "-"]]
    for names in NODES:
        name = ", ".join(names)
        (encoding, _, encoding_ratio, _), (step, _, *ratio) = (
            times(compare(result[work][name], result[work]["peer"])) for work in TIMED
        )
        rows.append([*names, str(result["rows"][name]), encoding, encoding_ratio, step, *ratio])
    return rows


SAMPLING = PageSection("sampling", sampling_block)


# ---- in the host

MEBIBYTES = 64
"""Cache size of the caching CLIP and the native encoder: the latter's default."""


def time_in_host(job: dict[str, Any]) -> dict[str, Any]:
    """Run a job in ComfyUI's own Python, with the checkout as working directory.

    It has ``weights`` (a safetensors file), ``sizes`` (of its text encoder), ``repetitions``, and one of these tasks:

    - ``prompts``: name to ``template`` (as in texts.py), ``peer`` (how the peer encodes it) and ``ours`` (name to
      ``way``, which is ``host``, ``memory`` or ``native``, and ``options``), with ``adv`` (folder of ADV_CLIP_emb, or
      null). Every contestant gets the same sequence of distinct texts, and its own cache.
    - ``sampling``: name to ``node`` (of ours), its ``inputs``, ``wired`` (whether it gets the MODEL too) and ``then``
      (further nodes with their inputs, a region as text for the stock node), with ``unet`` (sizes of the U-Net),
      ``side`` (of its latent) and ``stock`` (the prompt for the stock node). Encoding and a step of sampling are timed
      separately.

    The result holds all times, versions, and largest differences from the peer or numbers of rows.
    """
    import torch

    from ..peers.comfyui import open_clip

    with torch.inference_mode():
        clip, versions = open_clip(job)
        result = {"sampling": _sample(job, clip)} if "sampling" in job else {"prompts": _encode(job, clip)}
    environment = {
        "ComfyUI": versions["ComfyUI"],
        "torch": torch.__version__,
        "threads:": torch.get_num_threads(),
        "numpy": versions["numpy"],
    }
    return {"about": environment, **result}


def _encode(job: dict[str, Any], clip: Any) -> dict[str, Any]:
    """For each prompt, seconds of the peer and of ours, and the difference of ours from the peer."""
    import torch

    from ...hosts.comfy.models.models import load_native
    from ..peers.comfyui import encode_with, ours

    native = load_native(job["weights"], clip_skip=1, dtype=torch.float32, device="auto")  # managed by the host
    clips = {"host": clip, "native": native}
    node = importlib.import_module("nodes").CLIPTextEncode()

    def stock(settings: dict[str, str], text: str) -> Any:
        return node.encode(clip, text)[0][0][0]

    encode_peer = encode_with(clip, job["adv"]) if job["adv"] else stock

    results: dict[str, Any] = {}
    for name, prompt in job["prompts"].items():
        template, settings = prompt["template"], {"style": prompt["peer"], "normalization": "none"}
        runs = {
            way: in_order(partial(ours, new_memory(clips, how["way"])), how["options"], fresh(template, "comfy"))
            for way, how in prompt["ours"].items()
        }
        runs["peer"] = in_order(encode_peer, settings, fresh(template, "comfy"))
        expected = runs["peer"]()
        differences = {way: float((run() - expected).abs().max()) for way, run in runs.items() if way != "peer"}
        times = times_in_turn(runs, repetitions=job["repetitions"])
        results[name] = {"times": times, "differences": differences}
    return results


def _sample(job: dict[str, Any], clip: Any) -> dict[str, Any]:
    """Seconds of encoding and of a step of KSampler, and numbers of rows, for the stock node and each of ours."""
    import torch

    from ...nodes import NODE_CLASS_MAPPINGS
    from .samplings import MODELS, opened

    host = importlib.import_module("nodes")
    sizes = MODELS["Stable Diffusion 1.5"]._replace(sizes=job["unet"])
    model = opened(sizes, torch.device("cpu"), torch.float32)
    (negative,) = host.CLIPTextEncode().encode(clip, "")
    latent = {"samples": torch.zeros(1, 4, job["side"], job["side"])}

    def encoding(node: str, inputs: dict[str, Any], wired: bool, then: list[dict[str, Any]]) -> Callable[[], Any]:
        node_inputs = {**inputs, "model": model} if wired else inputs
        instance: Any = NODE_CLASS_MAPPINGS[node]()

        def run() -> Any:
            outputs = instance.encode(clip=clip, **node_inputs)["result"]
            for further in then:
                outputs = passed(outputs[0], **further)
            return outputs

        return run

    def passed(conditioning: Any, node: str, **inputs: Any) -> Any:
        instance: Any = NODE_CLASS_MAPPINGS[node]()
        run = getattr(instance, instance.FUNCTION)
        if "region" in inputs:
            (region,) = host.CLIPTextEncode().encode(clip, inputs.pop("region"))
            return run(base=conditioning, region=region, **inputs)["result"]
        outputs = run(conditioning=conditioning, **inputs)
        return outputs if isinstance(outputs, tuple) else outputs["result"]

    def sampling(conditioning: Any, model: Any) -> Callable[[], Any]:
        settings = {"seed": 1, "steps": 1, "cfg": 7.0, "sampler_name": "euler", "scheduler": "normal"}
        inputs = {"positive": conditioning, "negative": negative, "latent_image": latent, "model": model}
        return lambda: host.KSampler().sample(**settings, **inputs)

    ways = job["sampling"]
    encodings = {name: encoding(**way) for name, way in ways.items()}
    encodings["peer"] = lambda: host.CLIPTextEncode().encode(clip, job["stock"])
    results = {name: run() for name, run in encodings.items()}
    wired = {name for name, way in ways.items() if way["wired"]}
    samplings = {
        name: sampling(outputs[0], outputs[-1] if name in wired else model) for name, outputs in results.items()
    }
    return {
        "rows": {name: outputs[0][0][0].shape[1] for name, outputs in results.items()},
        "encoding": times_in_turn(encodings, repetitions=job["repetitions"]),
        "sampling": times_in_turn(samplings, repetitions=job["repetitions"], warm_up=1),
    }


def new_memory(clips: dict[str, Any], way: str) -> Any:
    """One of the CLIPs, with the same weights and an empty cache."""
    from ...encoder.models.prefix import encoders_for
    from ...hosts.comfy.models.cache import with_memory

    if way == "host":
        return clips["host"]
    if way == "memory":
        return with_memory(clips["host"], MEBIBYTES)
    models = {name: encoder.model for name, encoder in clips["native"].encoders.items()}
    return dataclasses.replace(clips["native"], encoders=encoders_for(models, max_bytes=MEBIBYTES * 2**20)[1])
