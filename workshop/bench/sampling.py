"""Costs of weights during sampling: encoding and a step of KSampler in a real ComfyUI, compared with its stock nodes.

Stable Diffusion 1.5's U-Net and CLIP at full size, with seeded random weights. The host is found as in hosts.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..job import HostFailed
from ..peers.transformers import sizes_of
from .hosts import STOCK, find_places, run_in
from .machine import load
from .page import NOT_FOUND, table, times
from .scale import Scale
from .timing import compare

HEAD = ("Prompt", "Way", "Rows", "Work", "Ours, ms", "Stock, ms", "Ours / stock", "Middle half")
STOCK_PROMPT = "a photo of a red fox, a blue bird and a green frog in deep snow, oil painting"
TIMED = ("encoding", "sampling")


def _weighed(weight: float) -> str:
    return STOCK_PROMPT.replace("red", f"(red:{weight:g})")


def _way(node: str, wired: bool = False, **inputs: Any) -> dict[str, Any]:
    return {"node": node, "inputs": {"syntax": "comfy", **inputs}, "wired": wired}


_MENUS = {"chunking": "as syntax", "padding": "attend", "pooled": "unweighted", "normalization": "none"}
_REPEAT: dict[str, Any] = {"node": "WeightedCLIPTextEncode", "scheme": "repeat", **_MENUS}
_ATTENTION: dict[str, Any] = {
    "node": "WeightedCLIPWeighAttention",
    "text": _weighed(1.5),
    "how": "bias",
    "strength": 1.0,
}
_PHRASES = "a red fox\na blue bird\na green frog"
WAYS: dict[tuple[str, str], dict[str, Any]] = {
    ("no weights", "comfy"): _way("WeightedCLIPTextEncode", text=STOCK_PROMPT, scheme="comfy"),
    ("(red:1.5)", "repeat, steps of 1/2"): _way(**_REPEAT, text=_weighed(1.5), finest_step="2"),
    ("(red:1.3)", "repeat, steps of 1/10"): _way(**_REPEAT, text=_weighed(1.3), finest_step="10"),
    ("(red:1.5)", "Weigh Attention"): _way(**_ATTENTION),
    ("(red:1.5)", "Weigh Attention, with MODEL"): _way(**_ATTENTION, wired=True),
    ("three phrases", "Bind Phrases"): _way(
        "WeightedCLIPBindPhrases", text=STOCK_PROMPT, phrases=_PHRASES, rest="full", strength=1.0, scheme="comfy"
    ),
}
"""Node that encodes each prompt in each way, with its inputs."""


def sampling_block(scale: Scale, folder: Path | None = None, say: Callable[[str], None] = print) -> str:
    """Section in Markdown: what ran, and rows for encoding and sampling in each way.

    The host is searched for in ``folder``; ``say`` is called with the reason if it did not run.
    """
    from ..parity.native import save_model

    place = find_places(folder).get(STOCK)
    if place is None:
        return table(HEAD, _missing(NOT_FOUND), num_left=4)
    busy = load("the minute before")
    model = scale.model()
    with tempfile.TemporaryDirectory() as temporary:
        weights = Path(temporary, "model.safetensors")
        save_model(model, weights)
        job = {
            "weights": str(weights),
            "sizes": sizes_of(model.config),
            "unet": scale.unet_sizes | {"context_dim": model.config.hidden_dim},
            "side": scale.latent_side,
            "repetitions": scale.sampling_repetitions,
            "stock": STOCK_PROMPT,
            "sampling": {", ".join(names): way for names, way in WAYS.items()},
        }
        try:
            found = run_in(place, job)
        except HostFailed as error:
            say(f"ComfyUI did not run:\n{str(error)[-3000:]}")
            return table(HEAD, _missing("failed"), num_left=4)
    about = f"{STOCK}: " + ", ".join(f"{name} {value}" for name, value in found["about"].items())
    pixels = f"a step of KSampler at {8 * scale.latent_side} x {8 * scale.latent_side} pixels, negative prompt empty"
    lines = [f"- {line}" for line in (about, pixels, *busy)]
    return "\n".join([*lines, "", table(HEAD, _rows(found["sampling"]), num_left=4)])


def _rows(found: dict[str, Any]) -> list[list[str]]:
    rows: list[list[str]] = []
    for work in TIMED:
        for names in WAYS:
            name = ", ".join(names)
            compared = compare(found[work][name], found[work]["peer"])
            rows.append([*names, str(found["rows"][name]), work, *times(compared)])
    return rows


def _missing(why: str) -> list[list[str]]:
    return [[*names, "-", work, "-", "-", "-", why] for work in TIMED for names in WAYS]
