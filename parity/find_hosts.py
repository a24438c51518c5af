"""Finding hosts in the folder of ``--hosts``: checkouts of ComfyUI and of WebUIs, each with a Python of its own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["ComfyUI", "Forge", "Forge Classic", "A1111"]
WEBUIS: tuple[Kind, ...] = ("Forge", "Forge Classic", "A1111")
"""The kinds that take our extension."""

# the first whose files are all there
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
"""Folder with a Python for packs that want older libraries than their host."""


@dataclass(frozen=True)
class Host:
    """A checkout with its virtual environment."""

    kind: Kind
    """Which program."""
    folder: Path
    """The checkout."""
    python: Path
    """The Python of its environment."""

    @property
    def version(self) -> str:
        """As the checkout states it."""
        file, pattern = _VERSIONS[self.kind]
        place = self.folder / file
        found = re.search(pattern, place.read_text(encoding="utf-8")) if place.is_file() else None
        return found[1] if found else "unknown"


def find_hosts(folder: Path, *kinds: Kind) -> list[Host]:
    """Every host of some kinds in a folder that has a virtual environment, ``.venv`` or ``venv``.

    Args:
        folder: Holds the checkouts, or is one.
        *kinds: Which programs.

    Returns:
        Kind by kind, the newest version last.
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
    """Folders of a node pack, beside the hosts and in the ``custom_nodes`` of each.

    Args:
        folder: Holds the checkouts.
        hosts: ComfyUIs.
        name: What the pack's folder is called; it may have more to its name, and any case.

    Returns:
        The folders.
    """
    places = [folder.resolve(), *(host.folder / "custom_nodes" for host in hosts)]
    return [path for place in places for path in folders_in(place) if name.lower() in path.name.lower()]


def python_of(folder: Path, environments: Sequence[str] = (".venv", "venv")) -> Path | None:
    """The Python of the first virtual environment that a folder has, if it has one."""
    files = (folder / name / python for name in environments for python in ("bin/python", "Scripts/python.exe"))
    return next((file for file in files if file.is_file()), None)


def folders_in(folder: Path) -> list[Path]:
    """The folders in a folder, by name; none if it is not there."""
    return sorted(child for child in folder.iterdir() if child.is_dir()) if folder.is_dir() else []
