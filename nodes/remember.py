"""Node that adds a cache of encodings to a host's CLIP."""

from __future__ import annotations

from typing import Any

from ..hosts.comfy.cache import with_memory
from ..hosts.comfy.clip import towers_of
from ..hosts.comfy.types import Clip
from . import common
from .common import Node, Out


class WeightedCLIPRemember(Node):
    """Lets Weighted CLIP's nodes remember what this CLIP has encoded: the empty prompt, which most weighted prompts
    need, and chunks that have not changed. Encodings may then differ in their last digits, because batches of another
    size round differently. Stock nodes are not affected.
    """

    title = "Remember Encodings"
    aliases = "cache, memory, speed, fast, remember"
    outputs = (
        Out("CLIP", "CLIP", "The CLIP, for the clip input of our nodes; LoRA loaders and clip skip may follow it."),
    )
    FUNCTION = "remember"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        """ComfyUI's description of the inputs."""
        return {
            "required": {
                "clip": common.make_input("CLIP", "The checkpoint's CLIP. Our native encoder remembers by itself."),
                **common.inputs("remember"),
            }
        }

    def remember(self, clip: Clip, remember: int) -> tuple[Clip]:
        """Attach the cache."""
        towers_of(clip)  # raises if there is nothing to cache
        return (with_memory(clip, remember),)
