"""The same prompts inside a real ComfyUI, beside its stock node and beside ADV_CLIP_emb, on the same weights.

``--hosts DIR`` is a folder with a ComfyUI checkout that has its virtual environment (``.venv`` or ``venv``), or that
checkout itself. ADV_CLIP_emb is looked for in DIR and in the checkout's custom_nodes; it needs numpy below 2, so a
virtual environment DIR/peers-venv is preferred for it if there is one. Each peer has a process of its own, in which it
is timed in turn with ours: on ComfyUI's CLIP object, for some prompts on one whose encodings are remembered, and on our
native encoder.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..parity.find_hosts import PEERS_VENV, find_hosts, find_packs, python_of
from ..parity.host_python import own_environment, run_in_host
from .page import COMPARISON_HEAD, NOT_FOUND, comparison, missing, table
from .scale import Scale
from .texts import PROMPTS
from .timing import compare

if TYPE_CHECKING:
    from ..encoder.text_model import TextModel

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("host_process.py")
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
"""Peer, prompt and our way where the remembering CLIP is timed too."""


@dataclass(frozen=True)
class Place:
    """Where a peer is run."""

    python: Path
    """A Python with what ComfyUI needs."""
    comfyui: Path
    """The checkout."""
    adv: Path | None = None
    """Folder of ADV_CLIP_emb, if that is the peer."""


def ways_of(peer: str, prompt: str, name: str) -> list[str]:
    """Keys of `WAYS` that are timed for a peer, a prompt and a way of ours to weight it."""
    return [way for way in WAYS if way != "memory" or (peer, prompt, name) in REMEMBERED]


def host_block(scale: Scale, folder: Path | None = None, say: Callable[[str], None] = print) -> str:
    """Markdown: what ran in which process, and a row for each peer, prompt and way of ours.

    Hosts are looked for in ``folder``; ``say`` is told why a peer did not run.
    """
    model = scale.model()
    places = find_places(folder)
    about: list[str] = []
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as temporary:
        weights = Path(temporary) / "model.safetensors"
        for peer, prompts in PLAN.items():
            place, why = places.get(peer), NOT_FOUND
            result = None
            if place is not None:
                if not weights.exists():
                    _save(model, weights)
                result, log = _run(place, _job(model, weights, place, peer, scale.repetitions), Path(temporary))
                why = "failed"
                if result is None:
                    say(f"{peer} did not run:\n{log[-3000:]}")
            if result is not None:
                about.append(f"- {peer}: " + ", ".join(f"{name} {value}" for name, value in result["about"].items()))
            rows += _rows(peer, prompts, result, why)
    return "\n\n".join(["\n".join(about), table(COMPARISON_HEAD, rows, num_left=3)]).strip()


def find_places(folder: Path | None) -> dict[str, Place]:
    """Where each peer can be run: the newest ComfyUI in a folder, and ADV_CLIP_emb.

    Args:
        folder: A folder of hosts, a host, or None.

    Returns:
        A place for each peer that is there.

    Raises:
        ValueError: If the folder does not exist.
    """
    if folder is None:
        return {}
    if not folder.is_dir():
        raise ValueError(f"--hosts {folder}: there is no such folder")
    comfy = find_hosts(folder, "ComfyUI")
    if not comfy:
        return {}
    newest = comfy[-1]
    found = {STOCK: Place(newest.python, newest.folder)}
    packs = find_packs(folder, [newest], ADV)
    if packs:
        found[ADV] = Place(python_of(folder.resolve(), (PEERS_VENV,)) or newest.python, newest.folder, packs[0])
    return found


def _save(model: TextModel, path: Path) -> None:
    """The model as Hugging Face writes it, which is what ComfyUI knows as a CLIP-L."""
    from safetensors.torch import save_file

    save_file({f"text_model.{name}": tensor.contiguous() for name, tensor in model.state_dict().items()}, path)


def _job(model: TextModel, weights: Path, place: Place, peer: str, repetitions: int) -> dict[str, Any]:
    config = model.config
    return {
        "pack": str(ROOT),
        "weights": str(weights),
        "sizes": {
            "hidden_size": config.hidden_dim,
            "intermediate_size": config.mlp_dim,
            "num_hidden_layers": config.num_layers,
            "num_attention_heads": config.num_heads,
        },
        "adv": None if place.adv is None else str(place.adv),
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


def _run(place: Place, job: dict[str, Any], temporary: Path) -> tuple[dict[str, Any] | None, str]:
    """Run a job: its result, or None if it failed; and what the process wrote."""
    job_file, result_file = temporary / "job.json", temporary / "result.json"
    job_file.write_text(json.dumps(job), encoding="utf-8")
    result_file.unlink(missing_ok=True)
    try:
        done = run_in_host(
            place.python,
            [SCRIPT, job_file, result_file],
            folder=place.comfyui,
            environment={**own_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            seconds=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return None, f"it took longer than {SECONDS} seconds"
    if done.returncode or not result_file.is_file():
        return None, done.stdout
    return json.loads(result_file.read_text(encoding="utf-8")), done.stdout


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
