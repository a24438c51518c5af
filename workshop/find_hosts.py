"""Finding checkouts in the folder of ``--hosts``: ComfyUI and WebUIs, each with its own Python, and packs of nodes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["ComfyUI", "Forge", "Forge Classic", "A1111"]
WEBUIS: tuple[Kind, ...] = ("Forge", "Forge Classic", "A1111")
"""Kinds that run our extension."""

# the first kind whose files all exist
_FILES: dict[Kind, tuple[str, ...]] = {
    "ComfyUI": ("main.py", "comfy"),
    "Forge": ("launch.py", "modules/processing.py", "backend/text_processing"),
    "Forge Classic": ("launch.py", "modules/processing.py", "modules_forge/forge_version.py", "ldm_patched"),
    "A1111": ("launch.py", "modules/processing.py"),
}
_VERSIONS: dict[Kind, tuple[str, str]] = {
    "ComfyUI": ("comfyui_version.py", r'__version__ = "(.+)"'),
    "Forge": ("modules_forge/forge_version.py", r"version = '(.+)'"),
    "Forge Classic": ("modules_forge/forge_version.py", r'version = "(.+)"'),
    "A1111": ("CHANGELOG.md", r"## (\S+)"),
}
PEERS_VENV = "peers-venv"
"""Name of the folder with a Python for packs that need older libraries than their host."""


@dataclass(frozen=True)
class Host:
    """A checkout with its virtual environment."""

    kind: Kind
    """Kind of program."""
    folder: Path
    """The checkout."""
    python: Path
    """Python of its environment."""

    @property
    def version(self) -> str:
        """Version stated by the checkout."""
        file, pattern = _VERSIONS[self.kind]
        return stated(self.folder / file, pattern)


def find_hosts(folder: Path, *kinds: Kind) -> list[Host]:
    """All hosts of some kinds in a folder, or the folder itself, that have a virtual environment ``.venv`` or ``venv``.

    They come kind by kind, the newest version last.
    """
    folder = folder.resolve()
    hosts: list[Host] = []
    for place in (folder, *folders_in(folder)):
        kind = next((kind for kind, files in _FILES.items() if all((place / file).exists() for file in files)), None)
        python = python_of(place)
        if kind in kinds and python is not None:
            hosts.append(Host(kind, place, python))
    return sorted(hosts, key=lambda host: (host.kind, [int(part) for part in re.findall(r"\d+", host.version)]))


def find_packs(folder: Path, hosts: Sequence[Host], name: str) -> list[Path]:
    """Folders with a pack's name in theirs, in any case, next to the hosts and in the ``custom_nodes`` of each."""
    places = [folder.resolve(), *(host.folder / "custom_nodes" for host in hosts)]
    return [path for place in places for path in folders_in(place) if name.lower() in path.name.lower()]


def stated(file: Path, pattern: str) -> str:
    """The group of a pattern in a file; "unknown" if it is not in it, or there is no such file."""
    match = re.search(pattern, file.read_text(encoding="utf-8")) if file.is_file() else None
    return match[1] if match else "unknown"


def python_of(folder: Path, environments: Sequence[str] = (".venv", "venv")) -> Path | None:
    """Python of the first virtual environment of a folder, or None."""
    files = (folder / name / python for name in environments for python in ("bin/python", "Scripts/python.exe"))
    return next((file for file in files if file.is_file()), None)


def folders_in(folder: Path) -> list[Path]:
    """Folders in a folder by name; none if it does not exist."""
    return sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []


# ---- references in hosts

PEERS = {"adv_clip_emb": "ADV_CLIP_emb", "prompt_control": "comfyui-prompt-control"}
"""Packs that compute differently under numpy 2, by (part of) their folder names."""
PPM = "ComfyUI-ppm"


@dataclass(frozen=True)
class HostReference:
    """A reference that was found, and its place."""

    module: str
    """Its key in ``peers.OPENERS``."""
    python: Path
    host: Path
    """Working directory: the host's checkout."""
    folder: Path
    """The reference's own folder: a pack's, or the host's."""


def find_references(folder: Path) -> dict[str, list[HostReference]]:
    """Hosts by reference; an empty list for one that is missing or has no Python.

    Packs run in the newest ComfyUI, those of `PEERS` with the Python of ``peers-venv`` if it exists, and once more with
    that ComfyUI's own.
    """
    comfy = find_hosts(folder, "ComfyUI")
    references = {"comfyui": [_of_host("comfyui", host) for host in comfy]}
    for name, pack_name in PEERS.items():
        packs = find_packs(folder, comfy, pack_name) if comfy else []
        pythons = [python_of(folder.resolve(), (PEERS_VENV,)), comfy[-1].python] if packs else []
        references[name] = [HostReference(name, python, comfy[-1].folder, packs[0]) for python in pythons if python]
    packs = find_packs(folder, comfy, PPM) if comfy else []
    references["ppm"] = [HostReference("ppm", comfy[-1].python, comfy[-1].folder, pack) for pack in packs[:1]]
    references["forge"] = [_of_host("forge", host) for host in find_hosts(folder, "Forge")]
    return references


def _of_host(module: str, host: Host) -> HostReference:
    return HostReference(module, host.python, host.folder, host.folder)
