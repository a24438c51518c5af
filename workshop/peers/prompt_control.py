"""comfyui-prompt-control inside ComfyUI: its ``encode_prompt``, with style and normalisation given as by a user.

Settings: ``style`` and ``normalization``, by its own names; or ``options`` as in comfyui.py.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from .comfyui import open_clip, or_ours


def open_peer(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """ComfyUI's CLIP, and the pack's encoder without its nodes."""
    clip, about = open_clip(job)
    folder = Path(job["folder"])
    prompts = module_of_pack(folder, "prompt_control.prompts")
    found = re.search(r'^version = "(.+)"', (folder / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)

    def encode(settings: dict[str, Any], prompt: str) -> Any:
        text = f"STYLE({settings['style']}, {settings['normalization']}){prompt}"
        return prompts.encode_prompt(clip, text, 0.0, 1.0, {}, None)[0][0]

    return {**about, "prompt-control": found[1] if found else "unknown"}, or_ours(clip, encode)


def module_of_pack(folder: Path, name: str) -> Any:
    """A module of a node pack, imported without the pack's own ``__init__``."""
    parent = sys.modules["reference_pack"] = ModuleType("reference_pack")
    parent.__path__ = [str(folder)]
    return importlib.import_module(f"reference_pack.{name}")
