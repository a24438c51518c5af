"""Finding references that live in hosts, and running each in its own Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import peers
from ..find_hosts import PEERS_VENV, Host, find_hosts, find_packs, python_of
from ..job import run_job
from .prompts import PROMPTS
from .subjects import Subject

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "model.safetensors"
"""File name of the model."""
EMBEDDINGS = "embeddings"
"""Name of the folder of embeddings, in the references' formats."""
SECONDS = 5400
"""Timeout of a reference."""
PEERS = {"adv_clip_emb": "ADV_CLIP_emb", "prompt_control": "comfyui-prompt-control"}
"""Packs that compute differently under numpy 2, by (part of) their folder names."""
PPM = "ComfyUI-ppm"


@dataclass(frozen=True)
class HostReference:
    """A reference that was found, and how to run it."""

    module: str
    """Its module in peers."""
    python: Path
    host: Path
    """Working directory: the host's checkout."""
    folder: Path
    """The reference's own folder: a pack's, or the host's."""


class HostOutput(NamedTuple):
    """Results of a reference."""

    about: dict[str, str]
    """Versions."""
    hidden: dict[str, Tensor]
    """Hidden states by ``subject key/number of the prompt``, prefixed with ``host/`` for our path through its
    encoder."""


def find_references(folder: Path) -> dict[str, list[HostReference]]:
    """Look for every host reference in a folder.

    Args:
        folder: Folder of checkouts, or a checkout.

    Returns:
        Hosts by reference; an empty list for one that is missing or has no Python. Packs run in the newest ComfyUI,
        those of `PEERS` with the Python of ``peers-venv`` if it exists, and once more with that ComfyUI's own.
    """
    comfy = find_hosts(folder, "ComfyUI")
    found = {"comfyui": [_of_host("comfyui", host) for host in comfy]}
    for name, pack_name in PEERS.items():
        packs = find_packs(folder, comfy, pack_name) if comfy else []
        pythons = [python_of(folder.resolve(), (PEERS_VENV,)), comfy[-1].python] if packs else []
        found[name] = [HostReference(name, python, comfy[-1].folder, packs[0]) for python in pythons if python]
    packs = find_packs(folder, comfy, PPM) if comfy else []
    found["ppm"] = [HostReference("ppm", comfy[-1].python, comfy[-1].folder, pack) for pack in packs[:1]]
    found["forge"] = [_of_host("forge", host) for host in find_hosts(folder, "Forge")]
    return found


def _of_host(module: str, host: Host) -> HostReference:
    return HostReference(module, host.python, host.folder, host.folder)


def run_reference(
    reference: HostReference, subjects: Sequence[Subject], work: Path, step: int, guests: Sequence[Subject] = ()
) -> HostOutput:
    """Encode the prompts of some subjects with a reference.

    Args:
        reference: The reference.
        subjects: The subjects.
        work: Folder for the job and its result, with `WEIGHTS` and `EMBEDDINGS` in it.
        step: 1 for every prompt, n for every n-th.
        guests: Subjects of other references, run only on our path through this reference's encoder.

    Returns:
        Its `HostOutput`.

    Raises:
        HostFailed: If it fails or takes too long.
    """
    from safetensors import safe_open

    jobs: list[dict[str, Any]] = []
    for subject in (*subjects, *guests):
        prompts = PROMPTS[subject.prompts][::step]
        if subject not in guests:
            jobs.append({"key": subject.key, "settings": subject.settings, "prompts": prompts})
        if subject in guests or subject.host_limit is not None:
            settings = {"way": "weighted_clip", "options": subject.options}
            jobs.append({"key": f"host/{subject.key}", "settings": settings, "prompts": prompts})
    paths = {"weights": work / WEIGHTS, "embeddings": work / EMBEDDINGS, "folder": reference.folder}
    paths["tensors"] = work / "result.safetensors"
    job = {"reference": reference.module, "subjects": jobs, **{name: str(path) for name, path in paths.items()}}
    variables = {"OMP_NUM_THREADS": "1"}
    about = run_job(peers.run, job, reference.python, folder=reference.host, seconds=SECONDS, **variables)
    with safe_open(paths["tensors"], framework="pt") as file:
        # copies: the next reference overwrites the file that safetensors maps
        return HostOutput(about, {key: file.get_tensor(key).clone() for key in file.keys()})  # noqa: SIM118
