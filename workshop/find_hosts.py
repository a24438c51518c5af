"""Finding hosts in the folder of ``--hosts``: checkouts of ComfyUI and of WebUIs, each with its own Python."""

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
        place = self.folder / file
        found = re.search(pattern, place.read_text(encoding="utf-8")) if place.is_file() else None
        return found[1] if found else "unknown"


def find_hosts(folder: Path, *kinds: Kind) -> list[Host]:
    """All hosts of some kinds in a folder that have a virtual environment, ``.venv`` or ``venv``.

    Args:
        folder: Folder of checkouts, or a checkout.
        *kinds: Kinds of programs.

    Returns:
        Hosts kind by kind, the newest version last.
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
    """Folders of a node pack, next to the hosts and in the ``custom_nodes`` of each.

    Args:
        folder: Folder of checkouts.
        hosts: ComfyUI hosts.
        name: Part of the folder's name, in any case.

    Returns:
        The folders.
    """
    places = [folder.resolve(), *(host.folder / "custom_nodes" for host in hosts)]
    return [path for place in places for path in folders_in(place) if name.lower() in path.name.lower()]


def python_of(folder: Path, environments: Sequence[str] = (".venv", "venv")) -> Path | None:
    """Python of the first virtual environment of a folder, or None."""
    files = (folder / name / python for name in environments for python in ("bin/python", "Scripts/python.exe"))
    return next((file for file in files if file.is_file()), None)


def folders_in(folder: Path) -> list[Path]:
    """Folders in a folder by name; none if it does not exist."""
    return sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
