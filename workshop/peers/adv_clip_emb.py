"""ComfyUI_ADV_CLIP_emb inside ComfyUI: its ``advanced_encode``.

Settings: ``style`` and ``normalization``, by its own names; or ``way`` as in comfyui.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from .comfyui import commit_of, open_clip, ours


def open_reference(job: dict[str, Any]) -> tuple[dict[str, str], Any]:
    """Load ComfyUI's CLIP and the pack's single module."""
    clip, about = open_clip(job)
    advanced_encode = runpy.run_path(str(Path(job["folder"], "adv_encode.py")))["advanced_encode"]

    def encode(settings: dict[str, Any], prompt: str) -> Any:
        if settings.get("way") == "weighted_clip":
            return ours(clip, settings["options"], prompt)
        return advanced_encode(clip, prompt, settings["normalization"], settings["style"])[0]

    return {**about, "ADV_CLIP_emb": commit_of(Path(job["folder"]))}, encode
