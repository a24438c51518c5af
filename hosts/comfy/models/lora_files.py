"""Files of ComfyUI's loras folder, by their names, by the alias in their metadata, and by the hashes of infotexts.

Source: behaviour of stable-diffusion-webui-forge dfdcbab6 (2025-06) and of A1111 1.10, which write a file's alias into
prompts unless two files have it, and hashes as 12 characters: the hash in the metadata, else that of the tensors
(A1111) or of the whole file (Forge).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path, PurePath
from typing import NamedTuple

from safetensors import SafetensorError

from ....encoder.files.safetensors_file import opened
from ....studio.world.model import PURPLE
from ..contract import host

MAX_HEADER = 32 << 20
"""Largest header of a file that is read for its metadata, in bytes."""
MAX_HASHED = 8 << 30
"""Most bytes of files that are hashed in one search."""

OWN = {"small-world-purple.safetensors": PURPLE}
"""LoRAs of the pack, which need not be in the loras folder."""

_HASH = re.compile(r"[0-9a-f]{8,64}")


class LoraNames(NamedTuple):
    """Name and hash in a LoRA's metadata."""

    alias: str = ""
    """Name that it was trained under; empty if there is none."""
    hash: str = ""
    """SHA-256 of its tensors, as its trainer wrote it; empty if it did not."""


def lora_files() -> Sequence[str]:
    """Files in the host's loras folder, and the small world's."""
    files = host("folder_paths").get_filename_list("loras")
    return [*files, *(file for file, path in OWN.items() if file not in files and path.is_file())]


def path_of(file: str) -> str | None:
    """Path of a file of `lora_files`; None if it is gone."""
    found = host("folder_paths").get_full_path("loras", file)
    return str(OWN[file]) if found is None and file in OWN else found


def files_named(name: str, files: Sequence[str]) -> list[str]:
    """Files of a name: by path, else bare; with or without suffix; else ignoring case; else by their alias."""
    posix_name = name.replace("\\", "/").strip()
    paths = [PurePath(file.replace("\\", "/")) for file in files]
    for fold in (str, str.lower):
        for searched_paths in (paths, [PurePath(path.name) for path in paths]):
            names = [(path.as_posix(), path.with_suffix("").as_posix()) for path in searched_paths]
            matches = [
                file for file, file_names in zip(files, names, strict=True) if fold(posix_name) in map(fold, file_names)
            ]
            if matches:
                return matches
    for fold in (str, str.lower):
        if posix_name and (matches := [file for file in files if fold(names_in(file).alias) == fold(posix_name)]):
            return matches
    return []


def file_by_hash(short: str, files: Sequence[str] | None = None) -> str | None:
    """The file of a hash as infotexts and Civitai write it.

    Hashes in metadata come first. Files without one are hashed, `MAX_HASHED` bytes at most, and remembered.

    Args:
        short: The first 8 or more hexadecimal characters of a SHA-256.
        files: Files to search; those of the loras folder by default.

    Returns:
        The file as the host lists it; None if there is none.
    """
    short = short.strip().lower()
    if not _HASH.fullmatch(short):
        return None
    files = lora_files() if files is None else files
    hashes = {file: names_in(file).hash for file in files}
    if match := next((file for file, digest in hashes.items() if digest.startswith(short)), None):
        return match
    room = MAX_HASHED
    for file in (file for file, digest in hashes.items() if not digest):
        path, mtime, size = _file_stat(file)
        room -= size
        if path is not None and room >= 0 and any(digest.startswith(short) for digest in _hashes(path, mtime, size)):
            return file
    return None


def names_in(file: str) -> LoraNames:
    """Name and hash in the metadata of a file; empty if it cannot be read."""
    path, mtime, size = _file_stat(file)
    return _names_in(path, mtime, size) if path is not None else LoraNames()


def _file_stat(file: str) -> tuple[Path | None, int, int]:
    """Path of a file with its modification time and size; no path if it is none that can be read."""
    found = path_of(file)
    path = Path(found) if found else None
    try:
        stat = path.stat() if path else None
        is_file = path is not None and path.is_file()  # no pipe, which would wait for ever
    except (OSError, ValueError):
        return None, 0, 0
    return (path, stat.st_mtime_ns, stat.st_size) if stat is not None and is_file else (None, 0, 0)


@lru_cache(maxsize=16384)
def _names_in(path: Path, mtime: int, size: int) -> LoraNames:
    """Metadata of a file, cached until it changes."""
    del mtime, size
    if path.suffix.lower() != ".safetensors":
        return LoraNames()
    try:
        with opened(path, MAX_HEADER) as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError):
        return LoraNames()
    return LoraNames(metadata.get("ss_output_name", "")[:1000], metadata.get("sshs_model_hash", "")[:64].lower())


@lru_cache(maxsize=16384)
def _hashes(path: Path, mtime: int, size: int) -> tuple[str, ...]:
    """SHA-256 of a file, and of what follows its safetensors header, cached until it changes."""
    del mtime
    whole, tensors = hashlib.sha256(), hashlib.sha256()
    try:
        with path.open("rb") as file:
            start = file.read(8)
            header = int.from_bytes(start, "little")
            is_safetensors = path.suffix.lower() == ".safetensors" and header <= min(size, MAX_HEADER)
            whole.update(start)
            if is_safetensors:
                whole.update(file.read(header))
            while block := file.read(1 << 20):
                whole.update(block)
                tensors.update(block)
    except OSError:
        return ()
    return (whole.hexdigest(), tensors.hexdigest()) if is_safetensors else (whole.hexdigest(),)
