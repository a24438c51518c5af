"""The same prompts inside a real ComfyUI, compared with its stock node and ADV_CLIP_emb, on the same weights.

``--hosts DIR`` is a folder with a ComfyUI checkout that has its virtual environment (``.venv`` or ``venv``), or that
checkout itself. ADV_CLIP_emb is searched for in DIR and in the checkout's custom_nodes; it needs numpy below 2, so a
virtual environment DIR/peers-venv is preferred for it if it exists. Each peer has its own process, in which it is timed
in turn with ours: on ComfyUI's CLIP object, for some prompts on one with a cache, and on our native encoder.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..job import HostFailed, run_job
from ..parity.hosts import HostReference, find_references
from ..peers.transformers import sizes_of
from . import host_process
from .page import COMPARISON_HEAD, NOT_FOUND, comparison, missing, table
from .scale import Scale
from .texts import PROMPTS
from .timing import compare

if TYPE_CHECKING:
    from ...encoder.text_model import TextModel

SECONDS = 1800
STOCK, ADV = "stock CLIP Text Encode", "ADV_CLIP_emb"

_COMFY = {"scheme": "comfy"}
_FADES = {
    "adv_compel": {"scheme": "adv_compel"},
    "masked_blend, law nested": {"scheme": "masked_blend", "law": "nested"},
    "masked_blend, law compel": {"scheme": "masked_blend", "law": "compel"},
}
PLAN: dict[str, dict[str, tuple[str, dict[str, dict[str, str]]]]] = {
    STOCK: {
        "plain": ("", {"comfy": _COMFY}),
        "one word up": ("", {"comfy": _COMFY}),
        "four words down": ("", {"comfy": _COMFY, "masked_blend, law nested": _FADES["masked_blend, law nested"]}),
    },
    ADV: {
        "plain": ("comfy", {"comfy": _COMFY}),
        "one word up": ("comfy", {"comfy": _COMFY}),
        "four words down": ("compel", _FADES),
    },
}
"""For each peer and prompt: the peer's setting, and our ways with their options."""

SAME = {(STOCK, "comfy"), (ADV, "comfy"), (ADV, "adv_compel")}
"""Peers and our ways that compute the same."""

WAYS = {"host": "ComfyUI's CLIP", "memory": "ComfyUI's CLIP, remembering", "native": "native encoder"}
REMEMBERED = {(STOCK, "plain", "comfy"), (STOCK, "one word up", "comfy"), (ADV, "four words down", "adv_compel")}
"""Peer, prompt and our way for which the caching CLIP is timed too."""


def ways_of(peer: str, prompt: str, name: str) -> list[str]:
    """Keys of `WAYS` timed for a peer, a prompt and one of our ways to weight it."""
    return [way for way in WAYS if way != "memory" or (peer, prompt, name) in REMEMBERED]


def host_block(scale: Scale, folder: Path | None = None, say: Callable[[str], None] = print) -> str:
    """Section in Markdown: what ran in which process, and a row for each peer, prompt and way of ours.

    Hosts are searched for in ``folder``; ``say`` is called with the reason if a peer did not run.
    """
    from ..parity.native import save_model

    model = scale.model()
    places = find_places(folder)
    about: list[str] = []
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        weights = Path(temporary) / "model.safetensors"
        for peer, prompts in PLAN.items():
            result, why = None, NOT_FOUND
            if peer in places:
                if not weights.exists():
                    save_model(model, weights)
                job = job_for(model, weights, places[peer], peer, scale.repetitions)
                try:
                    result = run_in(places[peer], job)
                    about.append(
                        f"- {peer}: " + ", ".join(f"{name} {value}" for name, value in result["about"].items())
                    )
                except HostFailed as error:
                    why = "failed"
                    say(f"{peer} did not run:\n{str(error)[-3000:]}")
            rows += _rows(peer, prompts, result, why)
    return "\n\n".join(["\n".join(about), table(COMPARISON_HEAD, rows, num_left=3)]).strip()


def find_places(folder: Path | None) -> dict[str, HostReference]:
    """Locations of the peers: the newest ComfyUI in a folder, and ADV_CLIP_emb.

    Args:
        folder: A folder of hosts, a host, or None.

    Returns:
        A location for each peer found.

    Raises:
        ValueError: If the folder does not exist.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ValueError(f"--hosts {folder}: there is no such folder")
    found = find_references(folder)
    ways = {STOCK: found["comfyui"][-1:], ADV: found["adv_clip_emb"][:1]}
    return {peer: place for peer, places in ways.items() for place in places}


def job_for(model: TextModel, weights: Path, place: HostReference, peer: str, repetitions: int) -> dict[str, Any]:
    """Job for host_process.py: all prompts and ways of a peer."""
    return {
        "weights": str(weights),
        "sizes": sizes_of(model.config),
        "adv": str(place.folder) if peer == ADV else None,
        "repetitions": repetitions,
        "prompts": {
            prompt: {
                "template": PROMPTS[prompt],
                "peer": setting,
                "ours": {
                    f"{name}, {WAYS[way]}": {"way": way, "options": {"syntax": "comfy", **options}}
                    for name, options in ours.items()
                    for way in ways_of(peer, prompt, name)
                },
            }
            for prompt, (setting, ours) in PLAN[peer].items()
        },
    }


def run_in(place: HostReference, job: dict[str, Any]) -> dict[str, Any]:
    """Have host_process.py run a job in a host."""
    return run_job(host_process.run, job, place.python, folder=place.host, seconds=SECONDS)


def _rows(
    peer: str, prompts: dict[str, tuple[str, dict[str, Any]]], result: dict[str, Any] | None, why: str
) -> list[list[str]]:
    rows: list[list[str]] = []
    for prompt, (setting, ours) in prompts.items():
        label = f"{peer}: {setting}" if setting else peer
        for name in ours:
            for way in ways_of(peer, prompt, name):
                full = f"{name}, {WAYS[way]}"
                if result is None:
                    rows.append(missing(prompt, full, label, why))
                    continue
                times, differences = (result["prompts"][prompt][key] for key in ("times", "differences"))
                difference = differences[full] if (peer, name) in SAME else None
                rows.append(comparison(prompt, full, label, compare(times[full], times["peer"]), difference))
    return rows
