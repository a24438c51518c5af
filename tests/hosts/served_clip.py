"""CLIPs that Weighted CLIP makes, and what acts on the rows of their conditionings.

For scripts that test_comfyui_inprocess.py runs in ComfyUI's own Python; see inprocess.py.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import torch

MARKER = "weighted_clip"
"""Part of the name of what acts on rows, among a conditioning's inputs of the model."""


def served(clip: Any, **inputs: Any) -> Any:
    """The CLIP that the node makes."""
    import nodes

    node = nodes.NODE_CLASS_MAPPINGS["WeightedCLIP"]
    described = {**node.INPUT_TYPES()["required"], **node.INPUT_TYPES()["optional"]}
    defaults = {name: options["default"] for name, (_, options) in described.items() if "default" in options}
    return node().run(clip=clip, **{**defaults, **inputs})["result"][0]


def effects(conditioning: Any) -> torch.Tensor:
    """Effects on the rows of a conditioning."""
    return next(value.cond for name, value in conditioning[0][1]["model_conds"].items() if MARKER in name)
