"""Nodes of other packs in saved workflows, whose place nodes of ours take where those packs are not installed.

ComfyUI's page offers the replacement for what it lacks, by a table that packs add to; requests are mended here, as
ComfyUI's own replacement of a request fails without an entry ``_meta``, or without an input.

Source: behaviour of ComfyUI 0.29.0 (``/node_replacements``) and of ComfyUI_ADV_CLIP_emb 63984de.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from .clip.clip import EncodedText
from .contract import host, running_server
from .types import Conditioning


class OldNode(NamedTuple):
    """A node of another pack, and ours in its place, whose inputs have the same names."""

    node_id: str
    """Id of ours."""
    inputs: tuple[str, ...]
    """Inputs that ours takes over."""
    defaults: Mapping[str, Any]
    """Values of those that an older version of the other node has not."""
    widgets: tuple[str, ...]
    """Widgets of the other node, in the order in which workflows store their values."""


def add_replacements(old_nodes: Mapping[str, OldNode]) -> None:
    """Let the running server, if there is one, replace other packs' nodes, by their ids, that it lacks."""
    server = running_server()
    add_handler = getattr(server, "add_on_prompt_handler", None)
    if add_handler is None:
        return
    add_handler(lambda request: with_replaced(request, old_nodes))
    manager = getattr(server, "node_replace_manager", None)
    if manager is None:
        return
    for old_id, old in old_nodes.items():
        manager.register(
            host("comfy_api.latest").io.NodeReplace(
                new_node_id=old.node_id,
                old_node_id=old_id,
                old_widget_ids=list(old.widgets),
                input_mapping=[{"new_id": name, "old_id": name} for name in old.inputs],
                output_mapping=[{"new_idx": 0, "old_idx": 0}],
            )
        )


def with_replaced(request: Any, old_nodes: Mapping[str, OldNode]) -> Any:
    """Put ours in the place of other packs' nodes in a request, where the server has no such node."""
    prompt = request.get("prompt") if isinstance(request, dict) else None
    for node in prompt.values() if isinstance(prompt, dict) else ():
        kind = node.get("class_type") if isinstance(node, dict) else None
        old = old_nodes.get(kind) if isinstance(kind, str) else None
        inputs = node.get("inputs") if old else None
        if old and isinstance(inputs, dict) and kind not in host("nodes").NODE_CLASS_MAPPINGS:
            node["class_type"] = old.node_id
            node["inputs"] = {**old.defaults, **{name: inputs[name] for name in old.inputs if name in inputs}}
    return request


def balanced(encoded: EncodedText, balance: float) -> Conditioning:
    """Conditioning of SDXL whose towers count by a balance: 0 is CLIP-L alone, 1 CLIP-G alone, 0.5 both in full."""
    share = {"clip_l": 1 - max(0.0, balance - 0.5) * 2, "clip_g": 1 - max(0.0, 0.5 - balance) * 2}
    if balance == 0.5:
        return encoded.conditioning
    factors = torch.cat([torch.full(prompt.hidden.shape[-1:], share[name]) for name, prompt in encoded.prompts.items()])
    return [[rows * factors.to(rows), values] for rows, values in encoded.conditioning]
