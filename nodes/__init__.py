"""ComfyUI nodes. They read inputs, call ``hosts`` and ``weighting``, and wrap results, without arithmetic."""

from __future__ import annotations

# Each module adds its nodes to the menus when it is imported: this order is theirs.
# isort: off
from . import (  # noqa: F401
    weighted_clip,
    encode,
    tools,
    similarity,
    dalle,
    world,
    places,
    watched_words,
    a1111_sampling,
    sweep,
    old_workflows,
)
from .base.node import NODES
# isort: on

NODE_CLASS_MAPPINGS = dict(NODES)
NODE_DISPLAY_NAME_MAPPINGS = {name: node.title for name, node in NODES.items()}
