"""ComfyUI nodes. They read inputs, call ``hosts`` and ``weighting``, and wrap results, without arithmetic."""

from __future__ import annotations

# Each module adds its nodes to the menus when it is imported: this order is theirs.
# isort: off
from . import (
    weighted_clip,
    encode,
    tools,
    similarity as clip,
    dalle,
    world,
    places,
    watched_words as watching,
    a1111_sampling as a1111,
    sweep,
    old_workflows,
)  # noqa: F401
from .base.node import NODES
# isort: on

NODE_CLASS_MAPPINGS = dict(NODES)
NODE_DISPLAY_NAME_MAPPINGS = {name: node.title for name, node in NODES.items()}
