"""Outputs of a node that the running graph uses, so that pictures nobody asks for are not drawn.

ComfyUI caches outputs by inputs alone. So a node that leaves an output out says which ones it makes, in ``IS_CHANGED``.

Source: behaviour of ComfyUI 0.3.64 and 0.29.0.
"""

from __future__ import annotations

from typing import Any

from .contract import running_server

HIDDEN = {"prompt": "PROMPT", "unique_id": "UNIQUE_ID"}
"""Hidden inputs of such a node."""


def is_used(slot: int, prompt: Any, node_id: str | None) -> bool:
    """Whether a graph uses an output; also if that cannot be told, as of a node that another one has added.

    Args:
        slot: Its number, from 0.
        prompt: The graph as ComfyUI runs it: nodes by id, each with its ``inputs``.
        node_id: Id of the node.
    """
    if not isinstance(prompt, dict) or node_id not in prompt:
        return True
    inputs = (node.get("inputs") for node in prompt.values() if isinstance(node, dict))
    return any(
        [node_id, slot] == value
        for node_inputs in inputs
        if isinstance(node_inputs, dict)
        for value in node_inputs.values()
    )


def used_in_running(slots: tuple[int, ...], node_id: str | None) -> list[int]:
    """Those of some outputs that the graph which the host runs now uses; for ``IS_CHANGED``, which is not given it."""
    server = running_server()
    running = getattr(getattr(server, "prompt_queue", None), "currently_running", {})
    prompt = next((item[2] for item in [*running.values()] if node_id in item[2]), None)
    return [slot for slot in slots if is_used(slot, prompt, node_id)]
