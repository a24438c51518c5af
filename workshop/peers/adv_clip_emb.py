"""ComfyUI_ADV_CLIP_emb inside ComfyUI: its ``advanced_encode``.

Settings: ``style`` and ``normalization``, by its own names; or ``options`` as in comfyui.py.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .comfyui import commit_of, open_clip, or_ours


def open_peer(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """ComfyUI's CLIP, and the pack's single module."""
    clip, about = open_clip(job)
    return {**about, "ADV_CLIP_emb": commit_of(Path(job["folder"]))}, or_ours(clip, encode_with(clip, job["folder"]))


def encode_with(clip: Any, folder: str) -> Callable[[dict[str, Any], str], Any]:
    """The function that its node CLIP Text Encode (Advanced) calls, with a CLIP."""
    advanced_encode = runpy.run_path(str(Path(folder, "adv_encode.py")))["advanced_encode"]
    return lambda settings, prompt: advanced_encode(clip, prompt, settings["normalization"], settings["style"])[0]
