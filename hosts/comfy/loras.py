"""LoRAs named in a prompt, loaded by ComfyUI's own LoRA loader.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0; docs/reference/syntaxes.md, "LoRA tags".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

from ...weighting.prompt import Issue
from ...weighting.tags import LoraTag
from .contract import host
from .types import Clip, ModelPatcher


class LoadedLoras(NamedTuple):
    """A model and CLIP with LoRAs on them."""

    model: ModelPatcher
    clip: Clip
    lines: list[str]
    """Loaded LoRAs, one line each."""
    issues: list[Issue]
    """Issues about LoRAs that were not found, or whose name several files have."""


def load_loras(model: ModelPatcher, clip: Clip, loras: Sequence[LoraTag]) -> LoadedLoras:
    """Apply LoRAs one by one to ComfyUI's MODEL and CLIP.

    Returns:
        Clones with the LoRAs, or the original objects if none was found.
    """
    folder_paths = host("folder_paths")

    files = folder_paths.get_filename_list("loras")
    lines: list[str] = []
    issues: list[Issue] = []
    for lora in loras:
        found = _files_of(lora.name, files)
        if not found:
            message = f"There is no LoRA “{lora.name}” in ComfyUI's loras folder: it is left out."
            issues.append(Issue("unknown-lora", message, lora.span))
            continue
        if len(found) > 1:
            message = f"Several LoRAs are called “{lora.name}”: {', '.join(found)}. The first is taken."
            issues.append(Issue("ambiguous-lora", message, lora.span))
        model, clip = (
            host("nodes").LoraLoader().load_lora(model, clip, found[0], lora.model_strength, lora.clip_strength)
        )
        lines.append(f"{found[0]}: model {lora.model_strength:g}, CLIP {lora.clip_strength:g}")
    return LoadedLoras(model, clip, lines, issues)


def _files_of(name: str, files: Sequence[str]) -> list[str]:
    """Files of a name: by path, else bare; with or without suffix; else ignoring case."""
    wanted = name.replace("\\", "/").strip()
    paths = [PurePath(file.replace("\\", "/")) for file in files]
    for fold in (str, str.lower):
        for shown in (paths, [PurePath(path.name) for path in paths]):
            names = [(path.as_posix(), path.with_suffix("").as_posix()) for path in shown]
            found = [file for file, some in zip(files, names, strict=True) if fold(wanted) in map(fold, some)]
            if found:
                return found
    return []
